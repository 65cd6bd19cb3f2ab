"""The dashboard with large queues: `make bench-dashboard`.

A broker in its own process has a queue of a million messages and a dead-letter queue of a hundred thousand. Each page
is opened several times in a real Chromium, and the first time counts too; the longest task of each page is measured
while it is open. Then 10,000 dead-letter messages that match a filter are redriven over the API, and again without it.
Last, the CPU of an idle broker with 50 queues: alone, with the dashboard, and with the dashboard open in a tab.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the browser of the tests

import browsing
from broker_bench import machine
from broker_bench.progress import Progress
from broker_bench.results import Bar, at_least, at_most
from broker_bench.targets import DATA
from dashboard_bench import idling, pages, places, redrive, redriving
from dashboard_bench.idling import Idle
from dashboard_bench.pages import Shown
from dashboard_bench.redriving import Redriven
from peer_bench.tables import Table, as_markdown, bars_table, laid_out

EXAMPLE = """\
example:
  python bench/dashboards.py                     everything, about ten minutes
  python bench/dashboards.py --quick             small amounts, to check that it works
"""
MESSAGES, DEAD_LETTERS, REDRIVEN = 1_000_000, 100_000, 10_000
QUEUES = 50
WHERE = 'error ~ "TimeoutError"'


@dataclass(frozen=True)
class Figures:
    shown: list[Shown]
    over_api: Redriven
    engine: redrive.Redriven
    idle: Idle


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench/dashboards.py",
        description="Measure the dashboard.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=MESSAGES, metavar="N", help="messages in the queue (1,000,000)")
    parser.add_argument("--dead-letters", type=int, default=DEAD_LETTERS, metavar="N", help="and in its DLQ (100,000)")
    parser.add_argument("--visits", type=int, default=5, metavar="N", help="visits to each page (5)")
    parser.add_argument("--idle", type=float, default=30.0, metavar="S", help="seconds of each idle measurement (30)")
    parser.add_argument("--quick", action="store_true", help="20,000 messages, 2,000 dead-letter messages, 5 s")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    options = parser.parse_args(arguments)
    if options.quick:
        options.messages, options.dead_letters, options.visits, options.idle = 20_000, 2_000, 2, 5.0
    folder = DATA / "dashboard"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    progress = Progress()
    try:
        figures = _run(options, folder, progress)
    except KeyboardInterrupt:
        return 130
    finally:
        progress.finish()
        shutil.rmtree(folder, ignore_errors=True)
    head = [f"{name}: {value}" for name, value in machine.description().items()]
    head.append(f"{options.messages:,} messages, {options.dead_letters:,} dead-letter messages")
    parts = [
        ("Pages", page_table(figures.shown)),
        ("Idle", idle_table(figures.idle)),
        ("Bars", bars_table(bars(figures))),
    ]
    print("\n".join(head), *(f"{title}\n\n{laid_out(table)}" for title, table in parts), sep="\n\n")
    if options.markdown:
        text = ["# The dashboard", "\n".join(f"- {line}" for line in head)]
        text += [f"## {title}\n\n{as_markdown(table)}" for title, table in parts]
        options.markdown.write_text("\n\n".join(text) + "\n")
    return 0


def _run(options: argparse.Namespace, folder: Path, progress: Progress) -> Figures:
    with browsing.running() as browser:
        with places.semel(folder, "serve", "--data", str(folder / "data"), "--port", "0") as broker:
            places.fill(broker.url, options.messages, options.dead_letters, progress.report)
            with places.semel(folder, "dashboard", "--open", "--endpoint-url", broker.url, "--port", "0") as dashboard:
                wanted = pages.addresses(broker.url)
                progress.expect(len(wanted) + 5)
                shown = pages.measured(browser, dashboard.url, wanted, options.visits, progress.step)
                limit = min(REDRIVEN, options.dead_letters // 10)
                redriven = redriving.measured(dashboard.url, WHERE, limit)
                progress.step(f"redrive of {redriven.count:,} over the API: {redriven.rate:,.0f} messages/s")
            with places.client_of(broker.url) as client:
                engine = redrive.measure(client, options.dead_letters, limit)
            progress.step(
                f"redrive of {engine.matched:,} out of {engine.messages:,}: {engine.per_second:,.0f} messages/s"
            )
        idle = idling.measured(browser, QUEUES, options.idle, progress.step)
    return Figures(shown, redriven, engine, idle)


def page_table(shown: list[Shown]) -> Table:
    lines: Table = [("page", "first, s", "median, s", "worst, s", "longest task, ms")]
    for page in shown:
        times = (f"{page.first:.2f}", f"{page.median:.2f}", f"{page.worst:.2f}", f"{page.longest_task:.0f}")
        lines.append((page.name, *times))
    return lines


def idle_table(idle: Idle) -> Table:
    return [
        ("idle broker with 50 queues", "% of a core"),
        ("alone", f"{idle.alone:.2f}"),
        ("with the dashboard, nobody looks", f"{idle.unseen:.2f}"),
        ("with the dashboard, open in a tab", f"{idle.open_in_tab:.2f}"),
        ("memory of the dashboard, MB", f"{idle.memory:,.0f}"),
    ]


def bars(figures: Figures) -> list[tuple[str, Bar]]:
    slowest = max(figures.shown, key=lambda page: page.worst)
    stuck = max(figures.shown, key=lambda page: page.longest_task)
    over_api, engine, idle = figures.over_api, figures.engine, figures.idle
    fast = "≥ 3,000 messages/s"
    return [
        (f"slowest page, its slowest visit ({slowest.name})", at_most("< 1 s", 1, slowest.worst, "s")),
        (f"longest task of any page ({stuck.name})", at_most("< 200 ms", 200, stuck.longest_task, "ms")),
        (f"redrive of {engine.matched:,} filtered", at_least(fast, 3_000, engine.per_second, "messages/s")),
        (f"the same over the API, {over_api.count:,}", at_least(fast, 3_000, over_api.rate, "messages/s")),
        ("CPU that it adds, nobody looks", at_most("< 3 %", 3, idle.unseen - idle.alone, "%")),
        ("CPU that it adds, open in a tab", at_most("< 3 %", 3, idle.open_in_tab - idle.alone, "%")),
    ]


if __name__ == "__main__":
    sys.exit(main())
