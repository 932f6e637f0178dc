"""A real browser for tests, without a window: Chromium, driven by Selenium."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

WIDTHS = (360, 1024, 2560)
# Alone on this machine: no searching for updates, no window, no sandbox of its own as root.
FLAGS = """
    --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run
    --disable-background-networking --disable-component-update --disable-sync --disable-extensions
""".split()


@contextmanager
def chromium(folder: Path) -> Iterator[webdriver.Chrome]:
    """A browser with a new profile in `folder`; the test is skipped where there is none."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options, Service(driver))
    try:
        yield browser
    finally:
        browser.quit()


def complaints(browser: webdriver.Chrome) -> list[str]:
    """What the console has said since it was last asked."""
    return [entry["message"] for entry in browser.get_log("browser")]


def requested(browser: webdriver.Chrome) -> set[str]:
    """The addresses that pages, but the browser's own, have asked for since this was last asked."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    urls = {params["request"]["url"] for params in sent}
    return {url for url in urls if not url.startswith(("chrome", "data:"))}


def overflow(browser: webdriver.Chrome, width: int, height: int = 900) -> int:
    """By how many pixels the page is wider than a window of `width`."""
    size: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**size, "mobile": False})
    root = "document.documentElement"
    return browser.execute_script(f"return {root}.scrollWidth - {root}.clientWidth")


def dark(browser: webdriver.Chrome, on: bool) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
