"""The inspector's page in a real Chromium: what is seen, what a person does, what a client's name does not.

Selenium drives it. Where Chromium is missing, the test is skipped, or fails where `CI` is set.
"""

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread
from apps import Server, sessions
from clients import Client, call, credentials, http
from environments import program
from programs import free_port
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.wait import WebDriverWait

from mcp_sessions import Session

HOSTILE = "<img src=x onerror=document.title=1>"
ALL = "[...document.querySelectorAll(arguments[0])]"
FOUND = f"return {ALL}.find(row => row.innerText.includes(arguments[1]))?.innerText"
TEXT = "return document.querySelector(arguments[0]).innerText"
ESCAPE, ENTER = "\ue00c", "\ue007"
PATIENCE = 60  # seconds for what a page must show, on a loaded machine
FLAGS = (
    "headless=new no-sandbox disable-gpu no-first-run disable-background-networking disable-component-update "
    "disable-sync disable-dev-shm-usage hide-scrollbars force-color-profile=srgb"
)


class Browser(webdriver.Chrome):
    """One window of a browser without history."""

    def resize(self, width: int, height: int) -> None:
        """Set the size of what a page sees, which a window may not go below."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefers(self, scheme: str) -> None:
        """Let the page think that its reader prefers a colour scheme."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a person at the keyboard does."""
        ActionChains(self).send_keys(*keys).perform()

    def click(self, selector: str) -> None:
        """Click the first element that a CSS selector finds."""
        self.find_element("css selector", selector).click()

    def until(self, script: str, *arguments: object) -> Any:
        """Return what a script returns, as soon as that is true."""
        return WebDriverWait(self, PATIENCE, 0.02).until(lambda _: self.execute_script(script, *arguments))

    def errors(self) -> list[str]:
        """Return what the page has written to the console since the last call, violations of its policy included."""
        return [one["message"] for one in self.execute("getLog", {"type": "browser"})["value"]]


@contextmanager
def browsing() -> Iterator[Browser]:
    """Run a browser for as long as the block lasts."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(program("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for flag in (*FLAGS.split(), f"user-data-dir={folder}"):
            options.add_argument(f"--{flag}")
        with Browser(options, webdriver.ChromeService(str(program("chromedriver")))) as browser:
            yield browser


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
