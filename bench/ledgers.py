"""The ledger compared with its peers: `make bench-ledger`.

Claims and records new keys from 16 threads of one process, in batches, on every store. Powertools' and idemkit's
idempotency do the same on the same servers. Stores are durable where they can be: see the head of the report. Every
figure is the median of several rounds in which the contestants take turns.

Powertools and idemkit have no call for several keys, so a batch of N keys is N calls. Powertools makes them one by one,
as its decorator requires; idemkit, which is asynchronous inside, makes all calls of a batch at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the servers that the tests use

from broker_bench import machine
from broker_bench.progress import Progress
from broker_bench.results import Bar, Figure
from broker_bench.targets import DATA, Unavailable
from ledger_bench.works import CONTESTANTS, DURABLE, SEMEL, STORES, WORKS, Addresses, Contestant, Work
from peer_bench.arguments import names
from peer_bench.libraries import prepare, run_worker
from peer_bench.tables import Table, as_markdown, bars_table, laid_out, quotient, rate

EXAMPLE = """\
example:
  python bench/ledgers.py                                     everything, about 4 minutes
  python bench/ledgers.py --quick --works redis,postgres      a first look
  python bench/ledgers.py --works sqlite --json ledger.json
"""
NOISY = 0.25  # of a core used by others: above this a figure should be measured again


@dataclasses.dataclass(frozen=True)
class Settings:
    threads: int = 16
    warm_up: float = 1.0
    window: float = 4.0
    rounds: int = 5
    patience: float = 120.0


QUICK = Settings(warm_up=0.5, window=1.5, rounds=1)
Figures = dict[tuple[str, str], Figure]  # by work and contestant


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    progress = Progress()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = QUICK if options.quick else Settings()
    if options.rounds:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    try:
        versions, figures = measure(options, settings, progress)
    except KeyboardInterrupt:
        progress.report("interrupted; every server is stopped")
        return 130
    finally:
        progress.finish()
    works = [WORKS[name] for name in options.works]
    head = header(settings, versions, works, options.quick)
    parts = report(works, figures)
    print("\n".join(head), *(f"{title}\n\n{laid_out(table)}" for title, table in parts), sep="\n\n")
    print("\nNotes\n\n" + "\n".join(notes(works, figures)))
    if options.json:
        options.json.write_text(json.dumps(as_json(head, works, figures), indent=2) + "\n")
    if options.markdown:
        text = ["# The ledger and its peers", "\n".join(f"- {line}" for line in head)]
        text += [f"## {title}\n\n{as_markdown(table)}" for title, table in parts]
        text += ["## Notes", "\n".join(f"- {note}" for note in notes(works, figures))]
        options.markdown.write_text("\n\n".join(text) + "\n")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/ledgers.py",
        description="Measure the ledger's stores against Powertools and idemkit.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--works", type=names(WORKS), default=list(WORKS), help=f"a subset of {','.join(WORKS)}")
    parser.add_argument(
        "--contestants", type=names(CONTESTANTS), default=list(CONTESTANTS), help=f"a subset of {','.join(CONTESTANTS)}"
    )
    parser.add_argument("--quick", action="store_true", help="one short round; do not quote its figures")
    parser.add_argument("--rounds", type=int, metavar="N", help="measurements of each (5; with --quick: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace, settings: Settings, progress: Progress) -> tuple[dict[str, str], Figures]:
    chosen = [CONTESTANTS[name] for name in options.contestants]
    versions = prepare([contestant.library for contestant in chosen if contestant.library], progress.report)
    ready = [contestant for contestant in chosen if contestant.library is None or contestant.library.name in versions]
    turns = {
        work: [contestant for contestant in ready if contestant.name in work.contestants]
        for work in map(WORKS.get, options.works)
        if work
    }
    progress.expect(sum(len(contestants) for contestants in turns.values()) * settings.rounds)
    figures: Figures = {}
    for work, contestants in turns.items():
        try:
            with STORES[work.store]() as addresses:
                figures |= rounds(work, contestants, addresses, settings, progress)
        except (ImportError, RuntimeError, OSError, Unavailable) as error:
            progress.report(f"{work.title} is left out: {error}")
            figures |= {
                (work.name, contestant.name): Figure(note=f"the server did not start: {error}")
                for contestant in contestants
            }
    return versions, figures


def rounds(
    work: Work, contestants: list[Contestant], addresses: Addresses, settings: Settings, progress: Progress
) -> Figures:
    samples: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    others: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    failed: dict[str, str] = {}
    for _ in range(settings.rounds):
        for contestant in contestants:
            if contestant.name in failed:
                progress.step(f"{work.title}, {contestant.label}: failed")
                continue
            busy, ours, began = machine.busy_seconds(), machine.cpu_seconds(os.getpid()), time.perf_counter()
            try:
                result = turn(work, contestant, addresses, settings)
            except Unavailable as error:
                failed[contestant.name] = str(error)
                progress.report(f"{work.title}, {contestant.label} failed: {error}")
                progress.step(f"{work.title}, {contestant.label}: failed")
                continue
            spent = machine.busy_seconds() - busy - (machine.cpu_seconds(os.getpid()) - ours)
            samples[contestant.name].append(result["keys"] / result["seconds"])
            others[contestant.name].append(max(0.0, spent / (time.perf_counter() - began)))
            progress.step(f"{work.title}, {contestant.label}: {samples[contestant.name][-1]:,.0f} keys/s")
    return {
        (work.name, name): Figure(note=failed[name])
        if name in failed
        else Figure(samples=tuple(rates), others_share=statistics.median(others[name]) if others[name] else None)
        for name, rates in samples.items()
    }


def turn(work: Work, contestant: Contestant, addresses: Addresses, settings: Settings) -> dict[str, Any]:
    options = {
        "url": addresses.ledger if contestant is SEMEL else addresses.plain,
        "store": work.store,
        "threads": settings.threads,
        "batch": work.batch,
        "warm_up": settings.warm_up,
        "window": settings.window,
    }
    return run_worker(contestant.library, contestant.module, options, settings.patience)


def header(settings: Settings, versions: dict[str, str], works: list[Work], quick: bool) -> list[str]:
    DATA.mkdir(exist_ok=True)
    median, worst = machine.fdatasync_ms(DATA)
    known = machine.description() | {"fdatasync of 4 KiB": f"{median:.2f} ms (99 %: {worst:.2f} ms)"}
    return [
        *(["QUICK RUN: one short round, not for figures to quote"] if quick else []),
        *(f"{name}: {value}" for name, value in known.items()),
        "peers: " + ("; ".join(f"{CONTESTANTS[name].label} {version}" for name, version in versions.items()) or "none"),
        f"load: {settings.threads} threads of one process claim and record new keys; {settings.rounds} rounds of "
        f"{settings.window:g} s after {settings.warm_up:g} s",
        *(DURABLE[store] for store in dict.fromkeys(work.store for work in works)),
    ]


def report(works: list[Work], figures: Figures) -> list[tuple[str, Table]]:
    peers = [contestant for contestant in CONTESTANTS.values() if contestant is not SEMEL]
    lines: Table = [
        [
            "claim + record",
            *(contestant.label for contestant in CONTESTANTS.values()),
            *(f"÷ {contestant.label}" for contestant in peers),
            "bar",
        ]
    ]
    bars: list[tuple[str, Bar]] = []
    for work in works:
        ours = figures.get((work.name, "semel"))
        row = [figures.get((work.name, name)) for name in CONTESTANTS]
        ratios = [quotient(ours, figures.get((work.name, contestant.name))) for contestant in peers]
        held = work.bars(dict(zip(CONTESTANTS, row, strict=True)))
        lines.append([work.title, *map(rate, row), *ratios, " ".join(bar.verdict for bar in held)])
        bars += [(work.title, bar) for bar in held]
    return [("Keys per second (median of all rounds, ± half the spread) and ratios", lines), ("Bars", bars_table(bars))]


def notes(works: list[Work], figures: Figures) -> list[str]:
    lines = []
    for work in works:
        for contestant in CONTESTANTS.values():
            figure = figures.get((work.name, contestant.name))
            if figure is not None and figure.note:
                lines.append(f"{work.title}, {contestant.label}: {figure.note}")
            if figure is not None and (figure.others_share or 0.0) > NOISY:
                share = f"{figure.others_share:.0%} of a core"
                lines.append(f"{work.title}, {contestant.label}: other work used {share} meanwhile; repeat it")
    lines.append("÷: Semel's keys per second divided by the other's. –: it has no such store")
    return lines


def as_json(head: list[str], works: list[Work], figures: Figures) -> dict[str, Any]:
    return {
        "head": head,
        "figures": [
            {"work": work, "contestant": contestant, "keys_per_second": figure.value} | dataclasses.asdict(figure)
            for (work, contestant), figure in figures.items()
        ],
        "bars": [
            dataclasses.asdict(bar) | {"work": work.name, "verdict": bar.verdict}
            for work in works
            for bar in work.bars({name: figures.get((work.name, name)) for name in CONTESTANTS})
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
