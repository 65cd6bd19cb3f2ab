"""The soak: measures the peak of broker and workers together, then runs at a share of it for a long time, with faults.

`_Run.all` has the parts of a run in order; `Soak.judge` lists everything that is checked afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from soak import figures, history
from soak.app import QUEUE, AppSettings
from soak.effects import RECORD, Effects, FileEffects, PostgresEffects, Records, SqliteEffects
from soak.figures import LatencyTrend, Sample
from soak.processes import (
    DEAD,
    BrokerProcess,
    Fleet,
    Process,
    counts,
    create_queues,
    ended,
    folder_size,
    produce,
    until,
)
from soak.processes import samples as samples_of

# Kind, rate, milliseconds. Duplicates, lost deletes and lost answers cause redeliveries; the others make calls fail or
# slow.
FAULTS: Final = (
    ("duplicate", 0.01, None),
    ("lost-delete", 0.005, None),
    ("lost-answer", 0.001, None),
    ("throttle", 0.002, None),
    ("server-error", 0.002, None),
    ("latency", 0.01, 20.0),
)
STORES: Final = ("sqlite", "postgres", "redis")
DRAIN_SECONDS: Final = 180.0  # after a lost delete, a message comes back when its visibility timeout ends, after 30 s
SHORTEST_RETENTION: Final = 120.0  # longer than SQS takes to redeliver, short enough to see the ledger purge keys
# On disk: what the broker may keep in addition to the waiting messages, and the ledger in addition to its keys.
FLAT_DISK: Final = 32 * figures.MIB
# SQLite's page caches, 32 MiB for each connection: the broker has one, a worker with a SQLite ledger three. They grow
# with what each message adds to the pages, up to their limit. The bound is still below one small object per message.
CACHE: Final = 32 * figures.MIB
CACHED_BYTES: Final = 100
EFFECT_BYTES: Final = 40  # for one effect; effects are never deleted
KEY_BYTES: Final = 700  # for one key in the ledger, with its indexes; PostgreSQL's pages are half empty


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. If `rate` is 0, the soak runs at `share` of the peak, which is measured first."""

    seconds: float
    folder: Path
    store: str = "sqlite"
    workers: int = 2
    share: float = 0.7
    rate: float = 0.0
    peak_seconds: float = 10.0
    flaw: str = ""
    faults: bool = True
    seed: int = 7

    @property
    def retention(self) -> float:
        return max(SHORTEST_RETENTION, self.seconds / 5)


@dataclass(frozen=True, slots=True)
class Disk:
    at: float
    broker: int
    ledger: int


@dataclass(slots=True)
class Result:
    """What was measured. `findings` and `slow` are failures, a sentence each; a busy machine can cause the latter."""

    plan: Plan
    peak: float = 0.0
    rate: float = 0.0
    sends: Records = field(default_factory=lambda: np.empty(0, RECORD))
    effects: Records = field(default_factory=lambda: np.empty(0, RECORD))
    began: float = 0.0  # when the soak began, by the monotonic clock
    samples: list[Sample] = field(default_factory=list)
    disk: list[Disk] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    def latencies(self) -> Records:
        """The latency of each message that was sent during the soak: `n` is its number, `at` the seconds from its
        acceptance to its effect. It is 0 if the effect came first, which can happen if the answer to a send is lost."""
        sent = np.full(int(max(self.sends["n"].max(initial=-1), self.effects["n"].max(initial=-1))) + 1, np.nan)
        sent[self.sends["n"]] = self.sends["at"]
        own: Records = self.effects[sent[self.effects["n"]] >= self.began].copy()
        own["at"] = np.maximum(0.0, own["at"] - sent[own["n"]])
        return own

    def window(self, start: float, end: float, latencies: Records | None = None) -> list[float]:
        """Latencies of the messages that were accepted in these seconds of the soak."""
        at = np.full(int(self.sends["n"].max(initial=-1)) + 1, np.nan)
        at[self.sends["n"]] = self.sends["at"] - self.began
        chosen = self.latencies() if latencies is None else latencies
        accepted = at[chosen["n"]]
        return list(chosen["at"][(accepted >= start) & (accepted < end)])

    def trend(self) -> LatencyTrend:
        part, seconds = figures.compared_seconds(self.plan.seconds), self.plan.seconds
        first, last = self.window(0, part), self.window(seconds - part, seconds)
        return LatencyTrend(figures.percentile(first, 0.99), figures.percentile(last, 0.99))


class Soak:
    """One run in a folder of its own. `notify` gets a line of progress for each window."""

    def __init__(self, plan: Plan, notify: Callable[[str], None] = lambda _: None) -> None:
        self.plan, self._notify = plan, notify
        self.result = Result(plan)
        self._sends = [plan.folder / "sends-peak", plan.folder / "sends-soak"]

    def run(self) -> Result:
        with ExitStack() as stack:
            broker = BrokerProcess(self.plan.folder, "--fault-seed", str(self.plan.seed))
            stack.enter_context(ended(broker))
            create_queues(broker.client())
            settings, effects = stack.enter_context(_store(self.plan, broker))
            effects.prepare()
            fleet = Fleet(self.plan.folder, settings, self.plan.workers)
            stack.enter_context(ended(fleet))
            _Run(self, broker, fleet, effects).all()
        self.judge()
        return self.result

    def judge(self) -> None:
        """All checks that are made after the processes have ended."""
        result, seconds = self.result, self.plan.seconds
        result.findings += history.findings(result.sends, result.effects)
        result.findings += figures.memory_findings(result.samples, seconds, caches(result))
        result.findings += figures.leak_findings(result.samples, seconds)
        result.findings += disk_findings(result)
        trend = result.trend()
        if trend.fails_clearly:
            result.slow.append(f"p99 rose from {trend.first * 1000:.0f} ms to {trend.last * 1000:.0f} ms")


class _Run:
    """The parts of a run, in order, while the processes are running."""

    def __init__(self, soak: Soak, broker: BrokerProcess, fleet: Fleet, effects: Effects) -> None:
        self._plan, self._result, self._notify = soak.plan, soak.result, soak._notify
        self._sends = soak._sends
        self._broker, self._fleet, self._effects = broker, fleet, effects
        self._client = broker.client()

    def all(self) -> None:
        result = self._result
        first = self._measure_peak()
        result.rate = self._plan.rate or result.peak * self._plan.share
        self._notify(
            f"peak {result.peak:,.0f} messages/s; soak at {result.rate:,.0f}/s for {self._plan.seconds:,.0f} s"
        )
        for kind, rate, milliseconds in FAULTS if self._plan.faults else ():
            self._broker.set_fault(kind, rate, milliseconds)
        workers = [worker.pid for worker in self._fleet.workers()]
        self._soak(first)
        result.faults = self._broker.clear_faults()
        self._drain()
        if workers != [worker.pid for worker in self._fleet.workers()]:
            result.findings.append(f"a worker died: {self._fleet.last_words()}")
        for process in (self._fleet, self._broker):
            code = process.end()
            if code:
                result.findings.append(f"the {process.name} ended with exit code {code}: {process.last_words()}")
        result.sends, result.effects = history.read_sends(self._sends), self._effects.all()

    def _measure_peak(self) -> int:
        """Send as fast as the workers keep up, and count effects. Returns the first free number for messages."""
        producer = produce(self._broker, self._plan.folder, self._sends[0], "--seconds", "86400")
        with ended(producer):
            until(lambda: self._effects.count() or not self._fleet.is_running, "the first effect")
            self._check(self._fleet.is_running, self._fleet)
            time.sleep(self._plan.peak_seconds / 4)
            before, began = self._effects.count(), time.monotonic()
            time.sleep(self._plan.peak_seconds)
            self._result.peak = (self._effects.count() - before) / (time.monotonic() - began)
            self._check(producer.end() == 0, producer)
        until(lambda: not counts(self._client, QUEUE)[0], "the end of the backlog", DRAIN_SECONDS)
        return int(history.read_sends(self._sends[:1])["n"].max()) + 1

    def _soak(self, first: int) -> None:
        plan = self._plan
        window = figures.window_seconds(plan.seconds)
        options = ("--first", str(first), "--rate", str(self._result.rate), "--seconds", str(plan.seconds))
        producer = produce(self._broker, plan.folder, self._sends[1], *options)
        with ended(producer):
            until(lambda: self._sends[1].exists() and self._sends[1].stat().st_size, "the first send")
            began = self._result.began = time.monotonic()
            stop = threading.Event()
            sampler = threading.Thread(target=self._sample, args=(began, stop), daemon=True)
            sampler.start()
            done = self._effects.count()
            for number in range(1, round(plan.seconds / window) + 1):
                time.sleep(max(0.0, began + number * window - time.monotonic()))
                for process in (self._broker, self._fleet):
                    self._check(process.is_running, process)
                before, done = done, self._effects.count()
                self._report(number * window, (done - before) / window)
            stop.set()
            sampler.join()
            self._check(producer.wait(figures.compared_seconds(plan.seconds) + 60) == 0, producer)

    def _check(self, well: bool, process: Process) -> None:
        if not well:
            raise RuntimeError(f"the {process.name} has ended too early or badly: {process.last_words()}")

    def _sample(self, began: float, stop: threading.Event) -> None:
        pause = max(0.25, self._plan.seconds / 1_000)
        while not stop.wait(pause):
            at = time.monotonic() - began
            self._result.samples += samples_of(at, self._broker, self._fleet)
            self._result.disk.append(Disk(at, folder_size(self._broker.data), self._effects.size()))

    def _report(self, at: float, rate: float) -> None:
        newest = {sample.process: sample for sample in self._result.samples[-8:]}
        uses = ", ".join(
            f"{name} {sample.rss / figures.MIB:.0f} MiB {sample.files} files {sample.threads} threads"
            for name, sample in sorted(newest.items())
        )
        visible, in_flight, _ = counts(self._client, QUEUE)
        self._notify(f"{at:6.0f} s: {rate:,.0f} effects/s, {visible:,} wait, {in_flight:,} in flight; {uses}")

    def _drain(self) -> None:
        """Wait until the queue is empty. After that, a message without an effect is lost."""
        try:
            until(lambda: counts(self._client, QUEUE) == (0, 0, 0), "an empty queue", DRAIN_SECONDS)
        except TimeoutError as error:
            self._result.findings.append(f"{error}: {counts(self._client, QUEUE)} visible, in flight, delayed")
        if dead := sum(counts(self._client, DEAD)):
            self._result.findings.append(f"{dead} messages are in the dead-letter queue")


def caches(result: Result) -> dict[str, float]:
    """By how much the page caches of each process may grow in the second half of the run."""
    messages = result.rate * result.plan.seconds / 2
    filling = {"broker": min(CACHE, CACHED_BYTES * messages)}
    if result.plan.store == "sqlite":
        own = messages / result.plan.workers
        filling |= {name: min(3 * CACHE, CACHED_BYTES * own) for name in figures.processes(result.samples)[1:]}
    return filling


def disk_findings(result: Result) -> list[str]:
    """The broker's folder must not grow. The ledger may grow by its keys and by the rows of the effects."""
    seconds = result.plan.seconds
    messages = result.rate * seconds / 2
    keys = 0.0 if seconds > 3 * result.plan.retention else messages * KEY_BYTES
    findings = []
    for what, points, allowed in (
        ("data folder of the broker", [(disk.at, float(disk.broker)) for disk in result.disk], FLAT_DISK),
        (
            "ledger",
            [(disk.at, float(disk.ledger)) for disk in result.disk],
            FLAT_DISK + keys + messages * EFFECT_BYTES,
        ),
    ):
        grown = figures.growth(points, seconds)
        if grown > allowed:
            findings.append(
                f"the {what} grew by {grown / figures.MIB:.1f} MiB in the second half of the run; "
                f"{allowed / figures.MIB:.1f} MiB would be right"
            )
    return findings


@contextmanager
def _store(plan: Plan, broker: BrokerProcess) -> Iterator[tuple[AppSettings, Effects]]:
    """The ledger of the plan, and the place of the effects."""
    common = {"endpoint": broker.url, "retention": plan.retention, "flaw": plan.flaw}
    if plan.store == "postgres":
        from servers import postgres

        with postgres.running() as server:
            yield AppSettings(ledger=server.url, **common), PostgresEffects(server.url)  # type: ignore[arg-type]
    elif plan.store == "redis":
        from servers import redis

        with redis.running() as store:
            folder = plan.folder / "effects"
            effects = FileEffects(folder, lambda: folder_size(store._folder))
            yield AppSettings(ledger=store.url, effects=str(folder), **common), effects  # type: ignore[arg-type]
    else:
        file = plan.folder / "ledger.db"
        yield AppSettings(ledger=f"sqlite:///{file}", **common), SqliteEffects(file)  # type: ignore[arg-type]


def lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; the first row is its head."""
    head, *rest = rows
    return [f"| {' | '.join(row)} |" for row in (head, ["--:"] * len(head), *rest)]
