"""What every row needs: settings, servers that take turns, queues, fills, and the checks that keep servers honest."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from broker_bench.load import Generator, Window, Work
from broker_bench.progress import Progress
from broker_bench.results import Figure
from broker_bench.targets import Peer, Server, Target, Unavailable
from broker_bench.wire import Session, WrongAnswer, message_body
from broker_bench.work import FifoSends, Sends

COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")
LEAST_CALLS = 32  # in a window, for a rate that means something
TIME_PER_CELL = 25.0  # seconds after which a slow peer sits out the rest of a row's rounds
PATIENT = {"VisibilityTimeout": "3600"}  # nothing that was received comes back during a run


@dataclass(frozen=True, slots=True)
class Settings:
    """How much of everything; `QUICK` is for trying things out, not for figures to quote."""

    connections: int = 16
    body_bytes: int = 100
    warm_up: float = 0.4
    window: float = 2.0
    rounds: int = 5
    starts: int = 10
    peer_starts: int = 3
    polls: int = 200
    idle: float = 22.0
    few: int = 1_000
    many: int = 1_000_000
    many_bytes: int = 1_000
    in_flight: int = 100_000
    depth: float = 0.8
    peer_fill: float = 8.0
    fill: float = 240.0
    queues: int = 100
    restarts: int = 5
    pinned: bool = True


QUICK = Settings(
    warm_up=0.2, window=0.6, rounds=2, starts=3, peer_starts=2, idle=6.0, many=50_000, in_flight=5_000, depth=0.4,
    peer_fill=3.0, restarts=2,
)  # fmt: skip


class Bench:
    """One run: its settings, the targets that can be measured here, and how to tell what is going on."""

    def __init__(self, settings: Settings, targets: list[Target], progress: Progress) -> None:
        self.settings = settings
        self.targets = targets
        self.progress = progress
        self._names = itertools.count()
        cores = sorted(os.sched_getaffinity(0))
        self._all = set(cores)
        self._ours, self._theirs = ({cores[0]}, set(cores[1:])) if len(cores) > 1 else (self._all, self._all)

    @property
    def storing(self) -> list[Target]:
        return [target for target in self.targets if target.stores]

    @contextlib.contextmanager
    def pinned(self) -> Iterator[set[int] | None]:
        """Keep the generator on one core for as long as this lasts; yields the cores that the servers get."""
        if not self.settings.pinned:
            yield None
            return
        os.sched_setaffinity(0, self._ours)
        try:
            yield self._theirs
        finally:
            os.sched_setaffinity(0, self._all)

    def queue(self, session: Session, fifo: bool = False, **attributes: str) -> str:
        name = f"bench-{next(self._names)}" + (".fifo" if fifo else "")
        kind = {"FifoQueue": "true"} if fifo else {}
        url: str = session.call("CreateQueue", QueueName=name, Attributes={**PATIENT, **kind, **attributes})["QueueUrl"]
        return url

    def load(self, server: Server, work: Work, warm_up: float) -> Window:
        """A measurement: full load for one window."""
        generator = Generator(server.address, work, self.settings.connections, server.cpu)
        return generator.run(warm_up, self.settings.window, least_calls=LEAST_CALLS)

    def through(self, server: Server, work: Work, most: float) -> None:
        """Not a measurement: get the work done, or as much of it as goes within `most` seconds."""
        Generator(server.address, work, self.settings.connections, server.cpu).run(0.0, most)

    def fill(self, server: Server, session: Session, queue_url: str, amount: int, body_bytes: int, most: float) -> int:
        """Put `amount` messages into the queue, or as many as go in within `most` seconds; returns how many."""
        work: Sends | FifoSends
        if queue_url.endswith(".fifo"):
            work = FifoSends(session.requests, queue_url, body_bytes, limit=amount)
        else:
            work = Sends(session.requests, queue_url, body_bytes, per_call=10, limit=amount)
        self.through(server, work, most)
        check_count(session, queue_url, work.messages)
        return work.messages


def counts(session: Session, queue_url: str) -> tuple[int, int]:
    """What the server says is there: visible (or delayed), and in flight."""
    answer = session.call("GetQueueAttributes", QueueUrl=queue_url, AttributeNames=list(COUNTS))["Attributes"]
    visible, in_flight, delayed = (int(answer.get(name, 0)) for name in COUNTS)
    return visible + delayed, in_flight


def check_count(session: Session, queue_url: str, expected: int, tolerate_more: bool = False) -> int:
    """Raise if messages were lost, or came from nowhere. Returns how many more there are, where that is tolerated."""
    return check_total(sum(counts(session, queue_url)), expected, tolerate_more)


def check_total(there: int, expected: int, tolerate_more: bool = False) -> int:
    if there < expected or (there > expected and not tolerate_more):
        raise WrongAnswer(f"{expected:,} messages should be there, the server says {there:,}")
    return there - expected


def check_honest(bench: Bench, server: Server) -> None:
    """One message there and back: the body unchanged, its MD5 right, gone after the delete."""
    if not server.target.stores:
        return
    session = Session(server.address)
    queue_url = bench.queue(session)
    body = message_body(bench.settings.body_bytes)
    digest = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
    sent = session.call("SendMessage", QueueUrl=queue_url, MessageBody=body)
    (message,) = session.call("ReceiveMessage", QueueUrl=queue_url, MaxNumberOfMessages=10)["Messages"]
    if (message["MessageId"], message["Body"], message["MD5OfBody"]) != (sent["MessageId"], body, digest):
        raise WrongAnswer(f"sent {sent} with {body!r}, received {message}")
    session.call("DeleteMessage", QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
    check_count(session, queue_url, 0)
    session.close()


class Cells:
    """The cells of one row as they fill: samples by target, and the reason for those that failed."""

    def __init__(self, bench: Bench, key: str) -> None:
        self.bench = bench
        self.key = key
        self.failures: dict[str, Figure] = {}
        self.notes: dict[str, str] = {}

    @contextlib.contextmanager
    def guard(self, target: Target) -> Iterator[None]:
        """A target that fails loses its cell, with the reason in the table; the others go on."""
        try:
            yield
        except (WrongAnswer, Unavailable, OSError, KeyError, ValueError) as error:
            reason = " ".join(f"{error}".split()) or type(error).__name__
            if isinstance(error, KeyError):
                reason = f"an answer without {reason}"
            self.failures[target.name] = Figure(note=reason[:300])
            self.bench.progress.report(f"{self.key}: {target.label} failed: {reason[:300]}")

    def step_if_failed(self, target: Target, steps: int = 1) -> None:
        if target.name in self.failures:
            self.bench.progress.step(f"{self.key}: {target.label} left out", steps)


def take_turns(
    bench: Bench,
    cells: Cells,
    targets: list[Target],
    prepare: Callable[[Server], None],
    turn: Callable[[Server], Window],
) -> tuple[dict[str, list[Window]], dict[str, tuple[float, float]]]:
    """Start all targets, then measure them in turn, round after round, so that noise hits them alike.

    The order moves on by one each round; a server that waits for its turn is stopped. Returns windows and memory.
    """
    windows: dict[str, list[Window]] = {target.name: [] for target in targets}
    memory: dict[str, tuple[float, float]] = {}
    spent = dict.fromkeys(windows, 0.0)
    with bench.pinned() as cores, contextlib.ExitStack() as stack:
        servers: dict[str, Server] = {}
        for target in targets:
            bench.progress.doing(f"{cells.key}: starting {target.label}")
            with cells.guard(target):
                server = stack.enter_context(Server(target, cores))
                with server.watched():
                    check_honest(bench, server)
                    prepare(server)
                server.pause()
                servers[target.name] = server
        for round_ in range(bench.settings.rounds):
            shift = round_ % len(targets)
            for target in targets[shift:] + targets[:shift]:
                if target.name in cells.failures:
                    bench.progress.step(f"{cells.key}: {target.label} left out")
                    continue
                if spent[target.name] > TIME_PER_CELL and isinstance(target, Peer):
                    bench.progress.step(f"{cells.key} {round_ + 1}/{bench.settings.rounds}: {target.label} sits out")
                    continue
                began = time.monotonic()
                server = servers[target.name]
                with cells.guard(target), server.watched():
                    server.resume()
                    window = turn(server)
                    windows[target.name].append(window)
                    memory[target.name] = server.memory()
                    bench.progress.step(
                        f"{cells.key} {round_ + 1}/{bench.settings.rounds}: {target.label} {window.rate:,.0f}/s, "
                        f"server {window.cpu_us:.0f} µs per call, generator {window.generator_share:.0%} of a core"
                    )
                server.pause()
                spent[target.name] += time.monotonic() - began
    return windows, memory
