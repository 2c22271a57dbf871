"""A headless Chromium of the system, driven by Playwright. It reads files only: no page gets a network."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS: Final = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start the browser. Skips the test if there is none."""
    program = next((found for name in _PROGRAMS if (found := which(name))), None)
    if program is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, file: Path, **options: Any) -> Iterator["WatchedPage"]:
    """Open a file in a context of its own, with options such as `viewport` and `color_scheme`."""
    context = browser.new_context(**options)
    watched = WatchedPage(context.new_page())
    try:
        watched.page.goto(file.as_uri())
        yield watched
    finally:
        context.close()


class WatchedPage:
    """A page, and everything that it did: messages, dialogs, errors, requests besides the file itself."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.deeds: list[str] = []
        page.on("console", lambda message: self.deeds.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.deeds.append(f"error: {error}"))
        page.on("popup", lambda popup: self.deeds.append(f"popup: {popup.url}"))
        page.on("request", lambda request: self._note_request(request.url))
        page.on("dialog", self._dismiss)

    def _note_request(self, url: str) -> None:
        if not url.startswith("file:"):
            self.deeds.append(f"request: {url[:200]}")

    def _dismiss(self, dialog: Any) -> None:
        self.deeds.append(f"dialog: {dialog.message}")
        dialog.dismiss()
