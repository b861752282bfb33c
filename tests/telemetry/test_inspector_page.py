"""The inspector's page in a real Chromium: what is seen, what a person does, what a client's name does not."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread
from apps import Server, sessions
from browser import Browser, browsing
from clients import Client, call, http

from mcp_sessions import MCPSessionMiddleware, Session

HOSTILE = "<img src=x onerror=document.title=1>"
ALL = "[...document.querySelectorAll(arguments[0])]"
FOUND = f"return {ALL}.find(row => row.innerText.includes(arguments[1]))?.innerText"
TEXT = "return document.querySelector(arguments[0]).innerText"
ESCAPE, ENTER = "\ue00c", "\ue007"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def anyio_backend() -> str:
    """One is enough, since the page sees no difference; `test_inspector` runs on both."""
    return "asyncio"


@pytest.fixture
def address() -> str:
    """A free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


class People:
    """Clients of one application, whose tool `wait` runs until it is released."""

    def __init__(self, address: str) -> None:
        self.release = anyio.Event()
        self.app: MCPSessionMiddleware = sessions(
            Server(wait=self._wait, fail=self._fail), inspector=address, clock=time.time
        )
        self.client = Client(self.app)

    async def _wait(self, session: Session | None, arguments: dict[str, Any]) -> str:
        await self.release.wait()
        return "done"

    async def _fail(self, session: Session | None, arguments: dict[str, Any]) -> str:
        raise LookupError

    async def create(self, name: str) -> dict[str, str]:
        named = {"_meta": {"io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}}}
        return {"sessionId": (await self.client.send("sessions/create", named)).result["session"]["sessionId"]}


async def test_what_a_person_sees_and_does(browser: Browser, address: str) -> None:
    """Sessions, calls that run, refusals; clients' words as text; one session picked, and ended from the keyboard."""
    people = People(address)
    people.app.services.started()
    held, other = await people.create(HOSTILE), await people.create("shop")
    ref = (await people.client.tool(session=held)).result["content"]
    kept = (await people.client.tool(session=other)).result["content"]
    with pytest.raises(LookupError):
        await people.client.tool("fail", session=other)
    await call(people.app, http(), b"[")
    async with anyio.create_task_group() as group:
        group.start_soon(partial(people.client.tool, "wait", session=held))
        await to_thread.run_sync(look, browser, address, ref, kept)
        people.release.set()
    await to_thread.run_sync(end, browser, ref, kept)
    assert (await people.client.tool(session=held)).error["code"] == -32043
    assert (await people.client.tool(session=other)).result["content"] == kept
    await people.app.services.stopping()
    await to_thread.run_sync(browser.until, "return !document.querySelector('#state.open')")


def look(browser: Browser, address: str, ref: str, kept: str) -> None:
    """See what there is, at two widths and in two schemes, while a call runs."""
    browser.resize(1280, 860)
    browser.open(f"http://{address}/")
    assert "1 running" in browser.until(FOUND, ".session", ref)
    assert f"{HOSTILE} 1" in browser.until(FOUND, ".session", ref)
    failed = browser.until(FOUND, ".session", "last error: LookupError")
    assert failed.startswith(kept)
    assert re.search(r"shop 1\s+age \d+ s", failed)
    browser.until(FOUND, ".call.running", "tools/call wait")
    browser.until(FOUND, ".call.failed", "not_json")
    figures = "return ['live', 'running', 'refused'].map(id => document.getElementById(id).innerText).join()"
    assert browser.run(figures) == "2,1,1"
    assert browser.run("return [document.title, document.images.length]") == ["Sessions", 0]
    assert browser.run("return document.querySelector('#state').className") == "open"
    light = browser.run("return getComputedStyle(document.documentElement).backgroundColor")
    browser.prefers("dark")
    assert browser.run("return getComputedStyle(document.documentElement).backgroundColor") != light
    browser.resize(390, 844)
    assert browser.run("return document.documentElement.scrollWidth") == 390
    assert browser.errors() == []


def end(browser: Browser, ref: str, kept: str) -> None:
    """Search, pick, end one session and keep another, by keys alone where there are keys."""
    browser.until("return !document.querySelector('.call.running')")
    browser.press("/", *"shop")
    browser.until("return document.querySelectorAll('.session').length === 1")
    browser.press(ESCAPE)
    browser.until("return document.querySelectorAll('.session').length === 2")
    browser.click(f".pick[title$='{ref}']")
    browser.until(FOUND, ".session.chosen", ref)
    assert browser.run(FOUND, ".call", "shop 1") is None
    browser.click("#pause")
    browser.click("#pause")
    browser.click(f"[aria-label$='{kept}']")
    browser.click(".session:has([aria-label$='" + kept + "']) .keep")
    browser.click(f"[aria-label$='{ref}']")
    assert browser.run("return document.activeElement.className") == "sure"
    browser.press(ENTER)
    browser.until(FOUND, "#notice", f"{ref} has ended.")
    browser.until("return document.querySelectorAll('.session').length === 1")
    assert browser.run(TEXT, ".session .pick") == kept
    browser.until(FOUND, ".call", "session ended inspector")
    assert browser.errors() == []
