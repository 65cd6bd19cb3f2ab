"""The broker compared with its peers: `make bench-broker`.

Measures Semel (durable and ephemeral), moto's server, MiniStack and an echo server (the ceiling: it parses and answers
but stores nothing) with one load generator in one run, and prints figures, ratios, server CPU per call and the bars.

The generator is this process: one epoll loop over raw sockets. It uses about 14 to 20 µs of CPU per SendMessage; the
echo server uses 15 to 21. Under load the generator is pinned to the first core and the server to the others, so that
they never share a core. This is meant to make figures steadier, but that is not proven yet: in 2 to 4 quiet windows
each, the medians with and without it differed by less than 15 % (echo 50,200 and 56,900/s, MiniStack 1,360 and
1,310/s). `--no-pin` leaves placement to the scheduler, so a server with threads can use the first core as well.

Every figure is the median of several rounds in which the targets take turns. Other load on the machine is measured in
each window, and a note says which rows should be measured again because of it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from broker_bench import machine, states, throughput
from broker_bench.bench import QUICK, Bench, Settings
from broker_bench.progress import Progress
from broker_bench.report import as_markdown, as_text
from broker_bench.results import Report, Row
from broker_bench.targets import DATA, TARGETS, Target, Unavailable

EXAMPLE = """\
example:
  python bench/broker.py                                          everything, about 20 minutes
  python bench/broker.py --quick --rows send,receive              a first look, well under a minute
  python bench/broker.py --rows batch --targets semel,echo --json batch.json
"""

Measure = Callable[[Bench], list[Row]]
# depth and memory need the same million messages, so one measurement produces both rows
ROWS: dict[str, Measure] = {
    "send": throughput.send,
    "batch": throughput.batch,
    "receive": throughput.receive,
    "fifo": throughput.fifo,
    "fifo-receive": throughput.fifo_receive,
    "queues": throughput.queues,
    "depth": states.depth_and_memory,
    "memory": states.depth_and_memory,
    "idle": states.idle,
    "start": states.start,
    "restart": states.restart,
}


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    progress = Progress()
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, interrupt)
    try:
        report = run(options, progress)
    except KeyboardInterrupt:
        progress.report("interrupted; every server is stopped")
        return 130
    except Unavailable as error:
        progress.report(f"bench-broker: {error}")
        return 2
    finally:
        progress.finish()
        with contextlib.suppress(OSError):
            DATA.rmdir()  # every server has removed its own folder; a folder of another run may still be there
    print(as_text(report))
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(as_markdown(report))
    return 0


def interrupt(*_: object) -> None:
    """End the run once. A second Ctrl-C must not interrupt the shutdown of the servers."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/broker.py",
        description="Measure the broker against moto, MiniStack and an echo server.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=names(ROWS), default=list(ROWS), help=f"a subset of {','.join(ROWS)}")
    parser.add_argument(
        "--targets", type=names(TARGETS), default=list(TARGETS), help=f"a subset of {','.join(TARGETS)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="short windows and small amounts; do not quote its figures"
    )
    parser.add_argument("--connections", type=int, default=16, metavar="N", help="connections of the load (16)")
    parser.add_argument("--body-bytes", type=int, default=100, metavar="N", help="size of a message's body (100)")
    parser.add_argument("--rounds", type=int, metavar="N", help="measurements of each target (5; with --quick: 2)")
    parser.add_argument("--no-pin", action="store_true", help="let the scheduler place generator and servers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    return parser.parse_args(arguments)


def names(known: dict[str, Measure] | dict[str, Target]) -> Callable[[str], list[str]]:
    """An argument type: a comma-separated list of known names."""

    def read(text: str) -> list[str]:
        chosen = [name for name in text.split(",") if name]
        unknown = [name for name in chosen if name not in known]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown) or 'name'} here; there are: {', '.join(known)}")
        return [name for name in known if name in chosen]

    return read


def settings_from(options: argparse.Namespace) -> Settings:
    settings = dataclasses.replace(
        QUICK if options.quick else Settings(),
        connections=options.connections,
        body_bytes=options.body_bytes,
        pinned=not options.no_pin and len(os.sched_getaffinity(0)) > 1,
    )
    return dataclasses.replace(settings, rounds=options.rounds) if options.rounds else settings


def run(options: argparse.Namespace, progress: Progress) -> Report:
    settings = settings_from(options)
    DATA.mkdir(exist_ok=True)
    if machine.in_memory(DATA):
        progress.report(f"note: {DATA} is not on a disk, so durable figures say nothing about syncing")
    median, worst = machine.fdatasync_ms(DATA)
    targets, versions = prepare([TARGETS[name] for name in options.targets], progress)
    report = Report(
        machine=machine.description() | {"fdatasync of 4 KiB": f"{median:.2f} ms (99 %: {worst:.2f} ms)"},
        versions=versions,
        settings=dataclasses.asdict(settings),
        labels={target.name: target.label for target in targets},
        quick=options.quick,
    )
    bench = Bench(settings, targets, progress)
    measures = list(dict.fromkeys(ROWS[name] for name in options.rows))
    progress.expect(sum(steps(measure, bench) for measure in measures))
    for measure in measures:
        report.rows += [row for row in measure(bench) if row.key in options.rows]
    return report


def steps(measure: Measure, bench: Bench) -> int:
    """How many steps of the progress bar a measurement takes."""
    if measure is states.start:
        return len(bench.targets)
    if measure is states.idle:
        return len(bench.storing)
    if measure is states.restart:
        return 2 * sum(target.keeping() is not None for target in bench.targets)
    if measure is states.depth_and_memory:
        return len(bench.storing) * 3
    storing = measure in (throughput.receive, throughput.fifo_receive, throughput.queues)
    return bench.settings.rounds * len(bench.storing if storing else bench.targets)


def prepare(wanted: list[Target], progress: Progress) -> tuple[list[Target], dict[str, str]]:
    """Install what is missing. A target that is not available here is left out, and the reason is reported."""
    targets: list[Target] = []
    versions: dict[str, str] = {}
    for target in wanted:
        try:
            versions[target.name] = target.prepare(progress.report)
        except Unavailable as error:
            progress.report(f"{target.label} is left out: {error}")
            continue
        progress.report(f"{target.label}: {versions[target.name]}")
        targets.append(target)
    if not targets:
        raise Unavailable("nothing to measure")
    return targets, versions


if __name__ == "__main__":
    sys.exit(main())
