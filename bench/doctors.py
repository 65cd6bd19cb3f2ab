"""The doctor next to hand-written DuckDB queries, and next to the truth: `make bench-doctor`.

Logs of a known making, as Parquet: both compute the same figures from the same files, on two cores, one after the
other. The doctor runs in a new process each time, and is measured from the started session on; its second look is
given, too. Then a log that Semel's consumer writes while the broker's faults, and we, cause duplicates on purpose: each
is to be found with its cause.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the known truth of the doctor's tests

from broker_bench import machine
from broker_bench.progress import Progress
from broker_bench.results import Bar, at_least, at_most
from broker_bench.targets import DATA
from doctor_bench import generated_log, queries
from peer_bench.tables import Table, as_markdown, bars_table, laid_out

EXAMPLE = """\
example:
  python bench/doctors.py                        everything, some 15 minutes
  python bench/doctors.py --sizes 1,10           millions of events
"""
HOT = 100_000
WORKER = Path(__file__).parent / "doctor_bench" / "worker.py"
MEBI = 2**20


@dataclass(frozen=True)
class Measured:
    name: str
    events: int
    duckdb: float
    first: float
    second: float
    memory: float  # bytes at the peak, Java and Python together
    agree: bool

    @property
    def ratio(self) -> float:
        return self.first / self.duckdb


def measured(name: str, folder: Path, events: int, progress: Progress) -> Measured:
    progress.say(f"{name}: {events:,} events")
    start = time.perf_counter()
    by_hand = queries.run(folder)
    duckdb = time.perf_counter() - start
    found, memory = examined(folder)
    theirs: dict[str, dict[str, int]] = {}
    for queue, cause, duplicates, *_ in by_hand["causes"]:
        theirs.setdefault(queue, {})[cause] = duplicates
    messages = {row[0]: row[1] for row in by_hand["messages"]}
    agree = found["causes"] == theirs and found["messages"] == messages
    first, second = found["seconds"]
    return Measured(name, events, duckdb, first, second, memory, agree)


def examined(folder: Path) -> tuple[dict[str, Any], float]:
    process = subprocess.Popen([sys.executable, str(WORKER), str(folder), "2"], stdout=subprocess.PIPE, text=True)
    watched, peak = psutil.Process(process.pid), 0.0
    while process.poll() is None:
        total = 0
        for one in (watched, *_children(watched)):
            try:
                total += one.memory_info().rss
            except psutil.Error:
                continue
        peak = max(peak, total)
        time.sleep(0.2)
    assert process.stdout is not None
    if process.returncode:
        raise SystemExit(f"bench-doctor: the examination of {folder} failed")
    return json.loads(process.stdout.read().splitlines()[-1]), peak


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def accuracy(folder: Path, messages: int) -> tuple[float, dict[str, dict[str, int]]]:
    """The share of the duplicates caused on purpose that were found with their cause; and what was found."""
    from doctor.known_truth import write_attempt_log

    truth = write_attempt_log(folder, messages)
    found, _ = examined(folder)
    told = found["causes"]
    right = wrong = 0
    for queue in {*truth, *told}:
        expected, seen = truth.get(queue, {}), told.get(queue, {})
        for cause in {*expected, *seen}:
            right += min(expected.get(cause, 0), seen.get(cause, 0))
            wrong += abs(expected.get(cause, 0) - seen.get(cause, 0))
    return right / (right + wrong), told


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench/doctors.py",
        description="Measure the doctor.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", default="1,10,30", metavar="N,N", help="millions of events (1,10,30)")
    parser.add_argument(
        "--messages", type=int, default=2_000, metavar="N", help="of each queue with known causes (2,000)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.sizes.split(",")]
    folder = DATA / "doctor"
    shutil.rmtree(folder, ignore_errors=True)
    progress = Progress()
    progress.expect(2 * len(sizes) + 1)
    rows: list[Measured] = []
    try:
        for hot in (0, HOT):
            for size in sizes:
                place = folder / f"{size}-{hot}"
                events = generated_log.make(place, size * 1_000_000, hot=hot)
                rows.append(measured(f"{size} million{', one hot' if hot else ''}", place, events, progress))
                shutil.rmtree(place)
                progress.step(f"{rows[-1].name}: {rows[-1].ratio:.1f} × DuckDB")
        share, told = accuracy(folder / "known-truth", options.messages)
        progress.step(f"causes: {share:.2%} right")
    except KeyboardInterrupt:
        return 130
    finally:
        progress.finish()
        shutil.rmtree(folder, ignore_errors=True)
    head = [f"{name}: {value}" for name, value in machine.description().items()]
    parts = [("Figures", figures(rows)), ("Causes", causes(told)), ("Bars", bars_table(bars(rows, share)))]
    print("\n".join(head), *(f"{title}\n\n{laid_out(table)}" for title, table in parts), sep="\n\n")
    if options.markdown:
        text = ["# The doctor", "\n".join(f"- {line}" for line in head)]
        text += [f"## {title}\n\n{as_markdown(table)}" for title, table in parts]
        options.markdown.write_text("\n\n".join(text) + "\n")
    return 0


def figures(rows: list[Measured]) -> Table:
    lines: Table = [
        ("log", "events", "DuckDB, s", "doctor, s", "ratio", "second look, s", "ratio", "peak MiB", "agree")
    ]
    for row in rows:
        cells = (f"{row.events:,}", f"{row.duckdb:.1f}", f"{row.first:.1f}", f"{row.ratio:.1f}")
        more = (f"{row.second:.1f}", f"{row.second / row.duckdb:.1f}", f"{row.memory / MEBI:,.0f}")
        lines.append((row.name, *cells, *more, "yes" if row.agree else "NO"))
    return lines


def causes(told: dict[str, dict[str, int]]) -> Table:
    lines: Table = [("queue", "found")]
    for queue, some in sorted(told.items()):
        lines.append((queue, ", ".join(f"{cause} {count}" for cause, count in some.items()) or "none"))
    return lines


def bars(rows: list[Measured], share: float) -> list[tuple[str, Bar]]:
    found: list[tuple[str, Bar]] = []
    by_size = {(row.name.partition(" ")[0], "hot" in row.name): row for row in rows}
    for hot in (False, True):
        name = ", one message with 100,000 events" if hot else ""
        if ten := by_size.get(("10", hot)):
            found.append((f"10 million events{name}", at_most("≤ 4 × DuckDB", 4, ten.ratio, "×")))
            found.append((f"peak memory{name}", at_most("≤ 4096 MiB", 4096, ten.memory / MEBI, "MiB")))
        small, large = by_size.get(("10", hot)), by_size.get(("30", hot))
        if small and large:
            growth = (large.first / large.events) / (small.first / small.events)
            found.append((f"time an event, 30 ÷ 10 million{name}", at_most("≤ 1.2", 1.2, growth, "×")))
    found.append(("causes right", at_least("≥ 99 %", 99, share * 100, "%")))
    return found


if __name__ == "__main__":
    sys.exit(main())
