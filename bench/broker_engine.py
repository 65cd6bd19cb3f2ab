"""The broker's engine alone, without HTTP: `make bench-engine`.

Measures the CPU time of this process, user and system, from the beginning of a transaction to its end, with 16 calls in
each transaction, as 16 connections would send them; on disk and in memory. A message is deleted one transaction after
the one that received it, because no client knows a receipt handle before that transaction is committed. Preparing the
calls, filling the queues and checking the answers is not measured. Every round has its own database. A figure is the
best of its rounds, because a disturbance can only make a round slower.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import gc
import json
import pstats
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

from broker_bench import machine
from broker_bench.progress import Progress
from broker_bench.targets import DATA
from broker_bench.wire import batch_entries, message_body
from peer_bench.arguments import names
from peer_bench.tables import Table, laid_out
from semel.broker.engine import Caller, Engine
from semel.broker.engine.schema import open_database

GROUPS = 1_000
START = 1_700_000_000_000
PLACES = ("disk", "memory")
TOP = 25  # functions that a profile shows
EXAMPLE = """\
example:
  python bench/broker_engine.py                                   about 30 seconds
  python bench/broker_engine.py --works send,batch --places disk
  python bench/broker_engine.py --profile fifo-receive            where the time of one work goes
"""

Call = tuple[str, dict[str, Any]]


class WrongAnswer(Exception):
    """The engine did not do what it was asked to do, so its figures are meaningless."""


@dataclass(frozen=True, slots=True)
class Figure:
    """CPU in microseconds per call, or per pair of calls for works with pairs; `flush_and_commit` is a part of it."""

    work: str
    place: str
    cpu: float
    per_message: float
    flush_and_commit: float
    rounds: tuple[float, ...]


@dataclass(slots=True)
class Clock:
    """CPU seconds so far: `total` for whole transactions, `ending` for their flushes and commits."""

    profile: cProfile.Profile | None = None
    total: float = 0.0
    ending: float = 0.0

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Inside the block, transactions are neither counted nor profiled: they only prepare."""
        before, profile = (self.total, self.ending), self.profile
        self.profile = None
        yield
        (self.total, self.ending), self.profile = before, profile


class Bench:
    """One engine with one queue, and its clock."""

    def __init__(self, folder: Path | None, clock: Clock, per_transaction: int, fifo: bool) -> None:
        self.engine = Engine(open_database(folder), Random(1), cooldowns=False)
        self.clock, self.per_transaction, self.now = clock, per_transaction, START
        attributes = {"VisibilityTimeout": "3600"} | ({"FifoQueue": "true"} if fifo else {})
        name = "bench.fifo" if fifo else "bench"
        with clock.off():
            (created,) = self.transaction([("CreateQueue", {"QueueName": name, "Attributes": attributes})])
        self.url: str = created["QueueUrl"]

    def transaction(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """Make calls in one measured transaction; returns their answers."""
        engine, caller, profile = self.engine, Caller(self.now), self.clock.profile
        self.now += 1
        if profile:
            profile.enable()
        began = process_time()
        engine.begin()
        answers = [engine.perform(operation, params, caller) for operation, params in calls]
        performed = process_time()
        engine.flush()
        engine.commit()
        engine.committed()
        ended = process_time()
        if profile:
            profile.disable()
        self.clock.total += ended - began
        self.clock.ending += ended - performed
        return answers

    def all(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """Make calls in as many transactions as they need; returns their answers."""
        size = self.per_transaction
        return [
            answer for first in range(0, len(calls), size) for answer in self.transaction(calls[first : first + size])
        ]

    def batches(self, amount: int) -> list[Call]:
        """`amount` calls of SendMessageBatch with ten messages each; in a FIFO queue over 1,000 groups."""
        calls: list[Call] = []
        for first in range(0, amount * 10, 10):
            numbers = range(first, first + 10)
            entries = batch_entries([message_body(100, number) for number in numbers])
            if self.url.endswith(".fifo"):
                for entry, number in zip(entries, numbers, strict=True):
                    entry["MessageGroupId"] = f"customer-{number % GROUPS:04d}"
                    entry["MessageDeduplicationId"] = f"{number:012d}"
            calls.append(("SendMessageBatch", {"QueueUrl": self.url, "Entries": entries}))
        return calls

    def delete(self, received: dict[str, Any]) -> Call:
        messages = received.get("Messages", ())
        if len(messages) != 10:
            raise WrongAnswer(f"a receive of 10 gave {len(messages)}")
        entries = [{"Id": str(i), "ReceiptHandle": message["ReceiptHandle"]} for i, message in enumerate(messages)]
        return "DeleteMessageBatch", {"QueueUrl": self.url, "Entries": entries}


def send(bench: Bench, amount: int) -> None:
    calls = [
        ("SendMessage", {"QueueUrl": bench.url, "MessageBody": message_body(100, number)}) for number in range(amount)
    ]
    gc.freeze()
    if len({answer["MessageId"] for answer in bench.all(calls)}) != amount:
        raise WrongAnswer("not every SendMessage gave a message id of its own")


def send_batch(bench: Bench, amount: int) -> None:
    calls = bench.batches(amount)
    gc.freeze()
    if any(len(answer.get("Successful", ())) != 10 for answer in bench.all(calls)):
        raise WrongAnswer("a SendMessageBatch did not take its ten messages")


def receive_and_delete(bench: Bench, amount: int) -> None:
    """Half of a transaction's calls receive; the other half delete what the previous transaction received."""
    with bench.clock.off():
        bench.all(bench.batches(amount))
    gc.freeze()
    pairs = max(1, bench.per_transaction // 2)
    deletes: list[Call] = []
    left = amount
    while left or deletes:
        now = min(pairs, left)
        receives: list[Call] = [
            ("ReceiveMessage", {"QueueUrl": bench.url, "MaxNumberOfMessages": 10}) for _ in range(now)
        ]
        answers = bench.transaction(receives + deletes)
        if any(len(answer.get("Successful", ())) != 10 for answer in answers[now:]):
            raise WrongAnswer("a DeleteMessageBatch did not delete its ten messages")
        deletes = [bench.delete(answer) for answer in answers[:now]]
        left -= now


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured. `share`: its number of calls relative to the cheapest work. `messages`: those in each call."""

    title: str
    run: Callable[[Bench, int], None]
    share: float
    messages: int = 10
    fifo: bool = False


WORKS = {
    "send": Work("SendMessage", send, 1.0, messages=1),
    "batch": Work("SendMessageBatch(10)", send_batch, 0.25),
    "receive": Work("receive(10) + DeleteMessageBatch(10)", receive_and_delete, 0.25),
    "fifo": Work("FIFO SendMessageBatch(10), 1,000 groups", send_batch, 0.25, fifo=True),
    "fifo-receive": Work("FIFO receive(10) + delete(10), 1,000 groups", receive_and_delete, 0.25, fifo=True),
}


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.profile:
        profile = cProfile.Profile()
        measure(options.profile, options.places[0], options, Clock(profile))
        pstats.Stats(profile).sort_stats("tottime").print_stats(TOP)
        return 0
    progress = Progress()
    try:
        figures = run(options, progress)
    finally:
        progress.finish()
    print(as_text(figures, options))
    if options.json:
        report = {
            "machine": machine.description(),
            "per transaction": options.per_transaction,
            "figures": [asdict(figure) for figure in figures],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", type=names(WORKS), default=list(WORKS), help=f"a subset of {','.join(WORKS)}")
    parser.add_argument("--places", type=names(PLACES), default=list(PLACES), help=f"a subset of {','.join(PLACES)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--rounds", type=int, help="rounds; the best one counts (7; with --quick: 2)")
    parser.add_argument(
        "--calls",
        type=int,
        help="SendMessage calls in a round (8,000; with --quick: 800); the other works have a quarter of that",
    )
    parser.add_argument("--per-transaction", type=int, default=16, metavar="N", help="calls in a transaction (16)")
    parser.add_argument("--profile", choices=WORKS, help=f"profile one work: its {TOP} most expensive functions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE as JSON")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 7)
    options.calls = options.calls or (800 if options.quick else 8_000)
    return options


def run(options: argparse.Namespace, progress: Progress) -> list[Figure]:
    progress.expect(len(options.works) * len(options.places))
    figures = []
    for name in options.works:
        for place in options.places:
            work = WORKS[name]
            calls = max(1, round(options.calls * work.share))
            clocks = [measure(name, place, options, Clock()) for _ in range(options.rounds)]
            best = min(clocks, key=lambda clock: clock.total)
            cpu = best.total / calls * 1e6
            rounds = tuple(clock.total / calls * 1e6 for clock in clocks)
            figures.append(Figure(name, place, cpu, cpu / work.messages, best.ending / calls * 1e6, rounds))
            progress.step(f"{work.title}, {place}: {cpu:.1f} µs of CPU")
    return figures


def measure(name: str, place: str, options: argparse.Namespace, clock: Clock) -> Clock:
    """One round of a work, in its own database."""
    work = WORKS[name]
    with database_folder(place) as folder:
        bench = Bench(folder, clock, options.per_transaction, work.fifo)
        try:
            work.run(bench, max(1, round(options.calls * work.share)))
        finally:
            gc.unfreeze()
            bench.engine.close()
    return clock


@contextlib.contextmanager
def database_folder(place: str) -> Iterator[Path | None]:
    if place == "memory":
        yield None
        return
    DATA.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="engine-", dir=DATA))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            DATA.rmdir()  # folders of another run may still be there


def as_text(figures: list[Figure], options: argparse.Namespace) -> str:
    lines = [f"{name}: {value}" for name, value in machine.description().items()]
    lines.append(f"{options.per_transaction} calls in a transaction, the best of {options.rounds} rounds")
    table: Table = [("µs of CPU", "place", "per call or pair", "flush and commit", "per message", "worst round")]
    for figure in figures:
        title, values = WORKS[figure.work].title, (figure.cpu, figure.flush_and_commit, figure.per_message)
        table.append((title, figure.place, *(f"{value:,.1f}" for value in values), f"+{worst_share(figure):.0%}"))
    return "\n".join([*lines, "", laid_out(table)])


def worst_share(figure: Figure) -> float:
    """How much longer the worst round took than the best one."""
    return max(figure.rounds) / figure.cpu - 1


if __name__ == "__main__":
    sys.exit(main())
