"""The inspector's page in a real Chromium: what is seen, what a person does, what a client's name does not."""

import re
import time
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread
from apps import Server, sessions
from browser import Browser, browsing
from clients import Client, call, credentials, http
from programs import free_port

from mcp_sessions import Session

HOSTILE = "<img src=x onerror=document.title=1>"
ALL = "[...document.querySelectorAll(arguments[0])]"
FOUND = f"return {ALL}.find(row => row.innerText.includes(arguments[1]))?.innerText"
TEXT = "return document.querySelector(arguments[0]).innerText"
ESCAPE, ENTER = "\ue00c", "\ue007"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the page sees no difference
async def test_what_a_person_sees_and_does() -> None:
    """Sessions, calls that run, refusals; clients' words as text; one session picked, and ended from the keyboard."""
    release, address = anyio.Event(), f"127.0.0.1:{free_port()}"

    async def wait(session: Session | None, arguments: dict[str, Any]) -> str:
        await release.wait()
        return "done"

    async def fail(session: Session | None, arguments: dict[str, Any]) -> str:
        raise LookupError

    app = sessions(Server(wait=wait, fail=fail), inspector=address, clock=time.time)
    client = Client(app)

    async def create(name: str) -> tuple[dict[str, str], str]:
        named = {"_meta": {"io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}}}
        held = credentials((await client.send("sessions/create", named)).result["session"])
        return held, (await client.tool(session=held)).result["content"]

    with browsing() as browser:
        app.services.started()
        (held, ref), (other, kept) = await create(HOSTILE), await create("shop")
        with pytest.raises(LookupError):
            await client.tool("fail", session=other)
        await call(app, http(), b"[")
        async with anyio.create_task_group() as group:
            group.start_soon(partial(client.tool, "wait", session=held))
            await to_thread.run_sync(look, browser, address, ref, kept)
            release.set()
        await to_thread.run_sync(end, browser, ref, kept)
        assert (await client.tool(session=held)).error["code"] == -32043
        assert (await client.tool(session=other)).result["content"] == kept
        await app.services.stopping()
        await to_thread.run_sync(browser.until, "return !document.querySelector('#state.open')")


def look(browser: Browser, address: str, ref: str, kept: str) -> None:
    """See what there is, at two widths and in two schemes, while a call runs."""
    browser.resize(1280, 860)
    browser.get(f"http://{address}/")
    assert "1 running" in browser.until(FOUND, ".session", ref)
    assert f"{HOSTILE} 1" in browser.until(FOUND, ".session", ref)
    failed = browser.until(FOUND, ".session", "last error: LookupError")
    assert failed.startswith(kept)
    assert re.search(r"shop 1\s+age \d+ s", failed)
    browser.until(FOUND, ".call.running", "tools/call wait")
    browser.until(FOUND, ".call.failed", "not_json")
    figures = "return ['live', 'running', 'refused'].map(id => document.getElementById(id).innerText).join()"
    assert browser.execute_script(figures) == "2,1,1"
    assert browser.execute_script("return [document.title, document.images.length]") == ["Sessions", 0]
    assert browser.execute_script("return document.querySelector('#state').className") == "open"
    light = browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    browser.prefers("dark")
    assert browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor") != light
    browser.resize(390, 844)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
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
    assert browser.execute_script(FOUND, ".call", "shop 1") is None
    browser.click("#pause")
    browser.click("#pause")
    browser.click(f"[aria-label$='{kept}']")
    browser.click(".session:has([aria-label$='" + kept + "']) .keep")
    browser.click(f"[aria-label$='{ref}']")
    assert browser.execute_script("return document.activeElement.className") == "sure"
    browser.press(ENTER)
    browser.until(FOUND, "#notice", f"{ref} has ended.")
    browser.until("return document.querySelectorAll('.session').length === 1")
    assert browser.execute_script(TEXT, ".session .pick") == kept
    browser.until(FOUND, ".call", "session ended inspector")
    assert browser.errors() == []
