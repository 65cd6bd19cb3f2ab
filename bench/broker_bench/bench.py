"""What every row needs: settings, servers that take turns, queues, filling them, and checks of what servers report."""

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
LEAST_CALLS = 32  # the minimum in a window for a meaningful rate
TIME_PER_CELL = 25.0  # seconds after which a slow peer skips the remaining rounds of a row
PATIENT = {"VisibilityTimeout": "3600"}  # long enough that no received message becomes visible again during a run


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes and durations. `QUICK` is for trying things out; its figures are not for quoting."""

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
    """One run: its settings, the targets that can be measured here, and its progress display."""

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
        """Pin the generator to one core inside the block; yields the cores for the servers."""
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
        """Measure one window of full load."""
        generator = Generator(server.address, work, self.settings.connections, server.cpu)
        return generator.run(warm_up, self.settings.window, least_calls=LEAST_CALLS)

    def through(self, server: Server, work: Work, most: float) -> None:
        """Do the work without measuring it, or as much of it as is possible within `most` seconds."""
        Generator(server.address, work, self.settings.connections, server.cpu).run(0.0, most)

    def fill(self, server: Server, session: Session, queue_url: str, amount: int, body_bytes: int, most: float) -> int:
        """Send `amount` messages to the queue, or as many as possible within `most` seconds; returns the number."""
        work: Sends | FifoSends
        if queue_url.endswith(".fifo"):
            work = FifoSends(session.requests, queue_url, body_bytes, limit=amount)
        else:
            work = Sends(session.requests, queue_url, body_bytes, per_call=10, limit=amount)
        self.through(server, work, most)
        check_count(session, queue_url, work.messages)
        return work.messages


def counts(session: Session, queue_url: str) -> tuple[int, int]:
    """The message counts that the server reports: visible or delayed, and in flight."""
    answer = session.call("GetQueueAttributes", QueueUrl=queue_url, AttributeNames=list(COUNTS))["Attributes"]
    visible, in_flight, delayed = (int(answer.get(name, 0)) for name in COUNTS)
    return visible + delayed, in_flight


def check_count(session: Session, queue_url: str, expected: int, tolerate_more: bool = False) -> int:
    """Raise if messages are missing, or if there are too many. Returns the surplus, where that is tolerated."""
    return check_total(sum(counts(session, queue_url)), expected, tolerate_more)


def check_total(there: int, expected: int, tolerate_more: bool = False) -> int:
    if there < expected or (there > expected and not tolerate_more):
        raise WrongAnswer(f"{expected:,} messages should be there, the server says {there:,}")
    return there - expected


def check_honest(bench: Bench, server: Server) -> None:
    """Send, receive and delete one message: its body is unchanged, its MD5 correct, and it is gone after the delete."""
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
    """Failures and notes of the cells in one row, by target."""

    def __init__(self, bench: Bench, key: str) -> None:
        self.bench = bench
        self.key = key
        self.failures: dict[str, Figure] = {}
        self.notes: dict[str, str] = {}

    @contextlib.contextmanager
    def guard(self, target: Target) -> Iterator[None]:
        """If a target fails, its cell is empty and the notes give the reason. The other targets continue."""
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
    """Start all targets, then measure them in turn, round after round, so that noise affects all of them equally.

    The order rotates by one each round. A server that waits for its turn is paused. Returns windows and memory.
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
