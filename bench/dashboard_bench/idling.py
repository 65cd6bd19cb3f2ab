"""The CPU that the dashboard adds to an idle broker: with no page open, and open in a tab."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page

from broker_bench import machine
from browsing import Browser
from dashboard_bench.places import Process, client_of, semel


@dataclass(frozen=True)
class Idle:
    """Percent of one core, broker and dashboard together."""

    alone: float
    unseen: float  # the dashboard runs, no page is open
    open_in_tab: float  # the list of queues is open in a tab
    memory: float  # MB of the dashboard


def measured(browser: Browser, queues: int, seconds: float, step: Callable[[str], None]) -> Idle:
    with tempfile.TemporaryDirectory() as folder:
        with semel(Path(folder), "serve", "--data", f"{folder}/data", "--port", "0") as broker:
            with client_of(broker.url) as client:
                for number in range(queues):
                    client.create_queue(f"queue-{number:02d}").send("x")
            time.sleep(min(10.0, seconds))  # the start is over then, and there is history to show
            alone = _share(seconds, broker)
            step(f"idle broker with {queues} queues: {alone:.2f} %")
            with semel(Path(folder), "dashboard", "--open", "--endpoint-url", broker.url, "--port", "0") as dashboard:
                time.sleep(min(5.0, seconds))
                unseen = _share(seconds, broker, dashboard)
                step(f"with the dashboard, unseen: {unseen:.2f} %")

                def look(page: Page, dashboard: Process = dashboard) -> float:
                    page.wait_for_timeout(3_000)
                    return _share(seconds, broker, dashboard)

                open_in_tab: float = browser.look(dashboard.url, look).result
                step(f"with the dashboard open in a tab: {open_in_tab:.2f} %")
                memory = machine.memory_mb(dashboard.pid)[0]
    return Idle(alone, unseen, open_in_tab, memory)


def _share(seconds: float, *processes: Process) -> float:
    def spent() -> float:
        return sum(machine.cpu_seconds(process.pid) for process in processes)

    before, began = spent(), time.monotonic()
    time.sleep(seconds)
    return 100 * (spent() - before) / (time.monotonic() - began)
