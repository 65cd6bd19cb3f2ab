"""How long each page takes to load in a real Chromium, and whether it stays responsive while it updates itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playwright.sync_api import Page

from browsing import Browser
from dashboard_bench.places import DEAD, LARGE, client_of
from semel.sqs.client.admin import Admin

LONG_TASKS = """(milliseconds) => new Promise(resolve => {
  let longest = 0;
  new PerformanceObserver(list => { for (const one of list.getEntries()) longest = Math.max(longest, one.duration); })
    .observe({type: "longtask", buffered: true});
  setTimeout(() => resolve(longest), milliseconds);
})"""


@dataclass(frozen=True)
class Shown:
    """Seconds until a page was loaded, for the first visit and all visits; and its longest task in milliseconds."""

    name: str
    first: float
    visits: tuple[float, ...]
    longest_task: float

    @property
    def median(self) -> float:
        return statistics.median(self.visits)

    @property
    def worst(self) -> float:
        return max(self.visits)


def addresses(broker: str) -> list[tuple[str, str]]:
    with client_of(broker) as client:
        admin = Admin.of(client)
        assert admin is not None
        depth = next(row["visible"] for row in admin.queues() if row["name"] == LARGE)
        middle = admin.peek(LARGE, after=depth // 2, limit=1, bodies=False).messages[0]["MessageId"]
        message = admin.peek(DEAD, limit=1, bodies=False).messages[0]["MessageId"]
    return [
        ("Queues", "/"),
        ("Queue", f"/queues/{LARGE}"),
        ("Queue, filtered", f"/queues/{LARGE}?where=%24.customer+%3D+c-996"),
        ("Queue, nothing matches", f"/queues/{LARGE}?where=%24.nothing+exists"),
        ("Message in the middle", f"/queues/{LARGE}/messages/{middle}"),
        ("Dead-letter queues", "/dead-letters"),
        ("One dead-letter queue", f"/dead-letters/{DEAD}"),
        ("The same, filtered", f"/dead-letters/{DEAD}?where=error+~+KeyError+and+%24.total+%3E+400"),
        ("Dead-letter message", f"/dead-letters/{DEAD}/messages/{message}"),
        ("Redrive form", f"/dead-letters/{DEAD}/redrive?where=error+~+KeyError"),
        ("Deliveries", "/deliveries"),
        ("Workers", "/workers"),
        ("Doctor", "/doctor"),
        ("Audit", "/audit"),
        ("API", "/api"),
    ]


def measured(
    browser: Browser, dashboard: str, pages: Sequence[tuple[str, str]], visits: int, step: Callable[[str], None]
) -> list[Shown]:
    timings = []
    for name, address in pages:
        times = [_visit(browser, dashboard + address) for _ in range(visits)]
        longest = browser.look(dashboard + address, lambda page: page.evaluate(LONG_TASKS, 4_000)).result
        timings.append(Shown(name, times[0], tuple(times), float(longest)))
        step(f"{name}: {times[0]:.2f} s, then {statistics.median(times):.2f} s")
    return timings


def _visit(browser: Browser, address: str) -> float:
    began = [0.0]

    def see(page: Page) -> float:
        # A new page in a warm browser: about:blank only starts its process, the time is that of the second address.
        began[0] = time.perf_counter()
        page.goto(address, wait_until="load")
        page.locator("h1").first.wait_for(state="visible")
        seconds = time.perf_counter() - began[0]
        if "Not there" in page.title() or page.locator("[role=alert]").count():
            raise SystemExit(f"bench-dashboard: {address} shows a problem: {page.inner_text('main')[:300]}")
        return seconds

    seconds: float = browser.look("about:blank", see).result
    return seconds
