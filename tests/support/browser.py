"""A real Chromium for tests of pages, driven by Selenium, from Debian's packages.

Where it is missing, the test is skipped, or fails where `CI` is set.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from environments import program
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.wait import WebDriverWait

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
