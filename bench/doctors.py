"""`semel doctor` compared with hand-written DuckDB queries, and with known causes: `make bench-doctor`.

The command is measured as a whole, in a new process each time, with its peak memory. The queries compute the same
figures from the same files, in a process that is already running. Then the doctor reads two logs whose duplicates and
causes were counted on a broker; it should find each of them with its cause.
"""

from __future__ import annotations

import argparse
import logging
import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the logs with known causes of the doctor's tests

from broker_bench import machine
from broker_bench.progress import Progress
from broker_bench.results import Bar, at_least, at_most
from broker_bench.targets import DATA
from doctor_bench import generated_log, queries
from doctor_bench.commands import CommandFailed, Counts, Watch, run
from peer_bench.tables import Table, as_markdown, bars_table, laid_out

EXAMPLE: Final = """\
example:
  python bench/doctors.py                            everything, about 30 minutes
  python bench/doctors.py --sizes 1 --only parquet   a million events, on DuckDB
"""
PARTS: Final = {
    "json": "1,200 events as JSON lines",
    "parquet": "each size as Parquet",
    "hot": "the largest size, with one message that has 100,000 events",
    "spark": "the largest size on Spark",
    "watch": "a million lines appended under --watch",
    "truth": "logs with known causes",
}
SMALL: Final = 1_200
HOT: Final = 100_000
MILLION: Final = 1_000_000
MEGA: Final = 1_000_000  # bytes
DUCKDB: Final = ("--engine", "duckdb")
SPARK: Final = ("--engine", "spark")
LAST: Final = "last-lines"  # the queue of the last lines that are appended under --watch


@dataclass(frozen=True)
class Measured:
    """The results for one log. Infinite `seconds`: the command failed."""

    part: str
    name: str
    wanted: int  # events, more or less
    events: int
    by_hand: float
    seconds: float
    peak: float  # bytes
    same_counts: bool

    @property
    def ratio(self) -> float:
        return self.seconds / self.by_hand


@dataclass(frozen=True)
class Caused:
    """One cause in one queue: the duplicates counted on the broker, and those reported by the doctor."""

    queue: str
    cause: str
    counted: int
    reported: int

    @property
    def share(self) -> float:
        return min(self.counted, self.reported) / max(self.counted, self.reported)


class Bench:
    def __init__(self, folder: Path, progress: Progress, repeat: int) -> None:
        self._folder, self._progress, self._repeat = folder, progress, repeat
        self.rows: list[Measured] = []
        self.watched: list[tuple[str, float]] = []  # what was appended, seconds until a finding
        self.caused: list[Caused] = []

    def examine(
        self,
        part: str,
        name: str,
        events: int,
        *engine: str,
        format: generated_log.Format = "parquet",
        hot: int = 0,
    ) -> None:
        """Run queries and command in turn on a log, which is deleted afterwards."""
        log = self._folder / "log"
        written = generated_log.write(log, events, format, hot=hot)
        by_hand, commands, same_counts = [], [], True
        for number in range(self._repeat):
            self._progress.doing(f"{name}: {number + 1} of {self._repeat}")
            start = time.perf_counter()
            figures = queries.run(log)
            by_hand.append(time.perf_counter() - start)
            try:
                commands.append(run(log, self._folder / "report.json", *engine))
            except CommandFailed as error:
                self._progress.report(f"{name}: {error}")
                break
            messages = {row[0]: row[1] for row in figures["messages"]}
            same_counts &= (commands[-1].messages, commands[-1].causes) == (messages, _causes(messages, figures))
        shutil.rmtree(log)
        failed = len(commands) < self._repeat
        row = Measured(
            part,
            name,
            events,
            written,
            statistics.median(by_hand),
            math.inf if failed else statistics.median(command.seconds for command in commands),
            math.inf if failed else max(command.peak for command in commands),
            same_counts and not failed,
        )
        self.rows.append(row)
        self._progress.step(f"{name}: {row.seconds:.1f} s, {row.ratio:.1f} × by hand, {row.peak / MEGA:.0f} MB")

    def watch(self, events: int) -> None:
        """Measure how long it takes until a finding about the last of many lines appears."""
        now = time.time()
        prepared = self._folder / "prepared"
        for what, bring in (("new file", _rename), ("appended", _append)):
            folder = self._folder / "watched"
            generated_log.write(folder, SMALL, "jsonl", start=now - 3_600)
            generated_log.write(prepared, events, "jsonl", start=now - 1_800, first=10 * MILLION)
            generated_log.write(prepared / LAST, SMALL, "jsonl", start=now - 600, first=20 * MILLION, queue=LAST)
            lines = folder / ".lines"
            with lines.open("wb") as target:
                for file in (*sorted(prepared.glob("*.jsonl")), *sorted((prepared / LAST).glob("*.jsonl"))):
                    with file.open("rb") as source:
                        shutil.copyfileobj(source, target)
            self._progress.doing(f"watch: {what}")
            try:
                with Watch(folder, *DUCKDB) as watch:
                    watch.finding()
                    time.sleep(3)  # by then it waits for more lines
                    bring(lines)
                    start = time.perf_counter()  # the last line has been written
                    seconds = watch.finding(LAST, limit=120) - start
            except CommandFailed as error:
                self._progress.report(f"watch, {what}: {error}")
                seconds = math.inf
            self.watched.append((f"{events:,} lines, {what}", seconds))
            shutil.rmtree(prepared)
            shutil.rmtree(folder)
            self._progress.step(f"watch, {what}: {seconds:.1f} s")

    def compare_with_truth(self, messages: int) -> None:
        from doctor import known_truth, known_truth_application

        log = self._folder / "attempts"
        truth = known_truth.write_attempt_log(log, messages)
        self._compare("", truth.causes, self._reported(log))
        log = self._folder / "application.jsonl"
        truth = known_truth_application.write_application_log(log, messages // 4)
        mappings = {
            "application, by order": known_truth_application.MAPPING,
            "application, by receive count": known_truth_application.MAPPING_WITH_RECEIVES,
        }
        visibility = ("--visibility", f"{known_truth.SHORT}s")
        for name, mapping in mappings.items():
            self._compare(f"{name}: ", truth.causes, self._reported(log, "--map", mapping, *visibility))
        worst = min(self.caused, key=lambda row: row.share)
        self._progress.step(f"causes: {worst.share:.1%} right in the worst case, {worst.queue}")

    def _reported(self, log: Path, *options: str) -> Counts:
        try:
            return run(log, self._folder / "report.json", *DUCKDB, *options).causes
        except CommandFailed as error:
            self._progress.report(f"causes of {log.name}: {error}")
            return {}

    def _compare(self, prefix: str, truth: Counts, report: Counts) -> None:
        for queue in sorted({*truth, *report}):
            counted, reported = truth.get(queue, {}), report.get(queue, {})
            for cause in sorted({*counted, *reported}):
                self.caused.append(Caused(f"{prefix}{queue}", cause, counted.get(cause, 0), reported.get(cause, 0)))


def _causes(queues: dict[str, int], figures: dict[str, list[tuple[object, ...]]]) -> Counts:
    counts: Counts = {queue: {} for queue in queues}
    for queue, cause, duplicates, *_ in figures["causes"]:
        counts[str(queue)][str(cause)] = int(str(duplicates))
    return counts


def _rename(lines: Path) -> None:
    lines.rename(lines.with_name("part-99999.jsonl"))


def _append(lines: Path) -> None:
    with lines.open("rb") as source, lines.with_name("part-00000.jsonl").open("ab") as target:
        shutil.copyfileobj(source, target, 2**24)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench/doctors.py",
        description="Measure `semel doctor`.",
        epilog=f"{EXAMPLE}\nparts:\n" + "\n".join(f"  {name:<9}{meaning}" for name, meaning in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", default="1,10,30", metavar="N,N", help="millions of events (1,10,30)")
    parser.add_argument("--only", metavar="NAMES", help="comma-separated parts to run (all)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each; the median counts (3)")
    parser.add_argument(
        "--messages", type=int, default=1_000, metavar="N", help="messages in each queue with known causes (1,000)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    options = parser.parse_args(arguments)
    sizes = sorted(float(size) for size in options.sizes.split(","))
    parts = options.only.split(",") if options.only else list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only {', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)}")
    folder = DATA / "doctor"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    logging.disable(logging.WARNING)  # the consumer logs every message whose visibility timeout ended too early
    progress = Progress()
    bench = Bench(folder, progress, options.repeat)
    largest = int(sizes[-1] * MILLION)
    steps: dict[str, list[Callable[[], None]]] = {
        "json": [partial(bench.examine, "json", "1,200 events, JSON lines", SMALL, *DUCKDB, format="jsonl")],
        "parquet": [partial(bench.examine, "parquet", _millions(size), int(size * MILLION), *DUCKDB) for size in sizes],
        "hot": [partial(bench.examine, "hot", f"{_millions(sizes[-1])}, one hot message", largest, *DUCKDB, hot=HOT)],
        "spark": [partial(bench.examine, "spark", f"{_millions(sizes[-1])}, on Spark", largest, *SPARK)],
        "watch": [partial(bench.watch, min(largest, MILLION))],
        "truth": [partial(bench.compare_with_truth, options.messages)],
    }
    chosen = [step for name in PARTS if name in parts for step in steps[name]]
    progress.expect(len(chosen) + ("watch" in parts))
    try:
        for step in chosen:
            step()
    except KeyboardInterrupt:
        return 130
    finally:
        progress.finish()
        shutil.rmtree(folder, ignore_errors=True)
    report(bench, options.markdown)
    return 0


def _millions(size: float) -> str:
    return f"{size:g} million events"


def report(bench: Bench, markdown: Path | None) -> None:
    head = [f"{name}: {value}" for name, value in machine.description().items()]
    tables = [("Time and memory", times(bench.rows)), ("Watching", watching(bench.watched))]
    tables += [("Causes", causes(bench.caused)), ("Bars", bars_table(bars(bench)))]
    tables = [(title, table) for title, table in tables if len(table) > 1]
    print("\n".join(head), *(f"{title}\n\n{laid_out(table)}" for title, table in tables), sep="\n\n")
    if markdown:
        text = ["# The doctor", "\n".join(f"- {line}" for line in head)]
        text += [f"## {title}\n\n{as_markdown(table)}" for title, table in tables]
        markdown.write_text("\n\n".join(text) + "\n")


def times(rows: list[Measured]) -> Table:
    lines: Table = [("log", "events", "by hand, s", "semel doctor, s", "ratio", "peak MB", "same counts")]
    for row in rows:
        cells = (f"{row.events:,}", f"{row.by_hand:.2f}", f"{row.seconds:.2f}", f"{row.ratio:.1f}")
        lines.append((row.name, *cells, f"{row.peak / MEGA:,.0f}", "yes" if row.same_counts else "NO"))
    return lines


def watching(rows: list[tuple[str, float]]) -> Table:
    return [("appended", "until a finding, s"), *((name, f"{seconds:.2f}") for name, seconds in rows)]


def causes(rows: list[Caused]) -> Table:
    lines: Table = [("queue", "cause", "counted", "reported", "right")]
    return lines + [(row.queue, row.cause, str(row.counted), str(row.reported), f"{row.share:.1%}") for row in rows]


def bars(bench: Bench) -> list[tuple[str, Bar]]:
    """The bars. A size without a target has none."""
    lines: list[tuple[str, Bar]] = []
    for row in bench.rows:
        peak, size = row.peak / MEGA, row.wanted / MILLION
        if row.part == "json":
            lines += [
                (row.name, at_most("≤ 2 s", 2, row.seconds, "s")),
                (row.name, at_most("≤ 250 MB", 250, peak, "MB")),
            ]
        elif row.part == "spark":
            if size == 30:
                lines.append((row.name, at_most("≤ 114 s", 114, row.seconds, "s")))
        elif row.part == "parquet" and size == 1:
            lines.append((row.name, at_most("≤ 4 s", 4, row.seconds, "s")))
        elif size >= 10:
            lines.append((row.name, at_most("≤ 2.5 × by hand", 2.5, row.ratio, "×")))
            if size >= 30:
                lines.append((row.name, at_most("≤ 2,000 MB", 2_000, peak, "MB")))
    lines += [(f"watch, {name}", at_most("≤ 3 s", 3, seconds, "s")) for name, seconds in bench.watched]
    if bench.caused:
        worst = min(bench.caused, key=lambda row: row.share)
        name = f"causes right, at worst ({worst.queue}, {worst.cause})"
        lines.append((name, at_least("≥ 99 %", 99, worst.share * 100, "%")))
    return lines


if __name__ == "__main__":
    sys.exit(main())
