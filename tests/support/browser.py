"""A real Chromium for tests of pages, driven over WebDriver (W3C), from Debian's packages where it is missing.

Where it cannot be installed, the test is skipped, or fails where `CI` is set.
"""

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from environments import go_without

import debian

PATIENCE = 60  # seconds for what a page must show, on a loaded machine
_FLAGS = (
    "headless=new no-sandbox disable-gpu no-first-run disable-background-networking disable-component-update "
    "disable-sync disable-dev-shm-usage hide-scrollbars force-color-profile=srgb"
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # W3C WebDriver, 11. Elements


class Browser:
    """One window of a browser without history."""

    def __init__(self, port: int, folder: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._session = ""
        flags = [*_FLAGS.split(), f"user-data-dir={folder}"]
        options = {"binary": str(debian.install("chromium")), "args": [f"--{flag}" for flag in flags]}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{made['sessionId']}"

    def _call(self, method: str, path: str, body: object = None) -> Any:
        self._connection.request(method, path, None if method == "GET" else json.dumps(body or {}))
        answer = json.load(self._connection.getresponse())["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def open(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def resize(self, width: int, height: int) -> None:
        """Set the size of what a page sees, which a window may not go below."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", metrics)

    def _command(self, command: str, params: dict[str, Any]) -> None:
        self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": params})

    def prefers(self, scheme: str) -> None:
        """Let the page think that its reader prefers a colour scheme."""
        self._command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page, and return what it returns."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": arguments})

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a person at the keyboard does."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call(
            "POST", f"{self._session}/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        )

    def click(self, selector: str) -> None:
        """Click the first element that a CSS selector finds."""
        found = self._call("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        self._call("POST", f"{self._session}/element/{found[_ELEMENT]}/click")

    def until(self, script: str, *arguments: object) -> Any:
        """Return what a script returns, as soon as that is true."""
        return until(lambda: self.run(script, *arguments))

    def errors(self) -> list[str]:
        """Return what the page has written to the console since the last call, violations of its policy included."""
        return [one["message"] for one in self._call("POST", f"{self._session}/se/log", {"type": "browser"})]

    def close(self) -> None:
        self._call("DELETE", self._session)
        self._connection.close()


def until(condition: Callable[[], Any]) -> Any:
    """Return what a function returns, as soon as that is true."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@contextmanager
def browsing() -> Iterator[Browser]:
    """Run a browser for as long as the block lasts."""
    try:
        program = debian.install("chromedriver")
        debian.install("chromium")
    except debian.NotInstalled as missing:  # pragma: no cover  # on machines without it
        go_without("Chromium", str(missing))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        driver = subprocess.Popen([str(program), "--port=0"], stdout=subprocess.PIPE, text=True)
        with driver:
            try:
                assert driver.stdout is not None
                started = next(found for line in driver.stdout if (found := re.search(r"on port (\d+)\.", line)))
                browser = Browser(int(started[1]), folder)
                try:
                    yield browser
                finally:
                    browser.close()
            finally:
                driver.terminate()
