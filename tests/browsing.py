"""A real browser for the tests of pages: the system's Chromium, headless, in its own thread.

Playwright's synchronous interface keeps an event loop running in the thread that uses it, and asyncio.run() in other
tests would fail because of it. So pages live in that thread, and a test passes in a function that looks at the page.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Dialog, Page, sync_playwright

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Visit:
    """The outcome of a look at a page: its result, every address that was requested, and the errors of the page."""

    result: Any = None
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def refuse(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


class Browser:
    def __init__(self, thread: ThreadPoolExecutor, chromium: Chromium) -> None:
        self._thread = thread
        self._chromium = chromium

    def look(
        self,
        file: Path | str,
        see: Callable[[Page], Any] = lambda page: None,
        *,
        width: int = 1280,
        scheme: Literal["light", "dark"] = "light",
    ) -> Visit:
        """Open a file or an address and call `see` with its page, in the browser's thread."""
        address = file if isinstance(file, str) else file.as_uri()
        return self._thread.submit(self._look, address, see, width, scheme).result()

    def _look(self, address: str, see: Callable[[Page], Any], width: int, scheme: Literal["light", "dark"]) -> Visit:
        visit = Visit()
        context = self._chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        try:
            page = context.new_page()
            context.on("request", lambda request: visit.requests.append(request.url))
            page.on("console", lambda message: visit.complaints.append(message.text))
            page.on("pageerror", lambda error: visit.complaints.append(str(error)))
            page.on("dialog", visit.refuse)
            page.goto(address, wait_until="load")
            visit.result = see(page)
        finally:
            context.close()
        return visit


def installed() -> str | None:
    """The path of the browser that the tests use."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def running() -> Iterator[Browser]:
    path = installed()
    if path is None:
        raise RuntimeError(f"no browser for the tests: install one of {', '.join(NAMES)}, or run `make browser`")
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="browser") as thread:
        playwright = thread.submit(sync_playwright().start).result()
        try:
            chromium = thread.submit(playwright.chromium.launch, executable_path=path, args=FLAGS).result()
            yield Browser(thread, chromium)
            thread.submit(chromium.close).result()
        finally:
            thread.submit(playwright.stop).result()
