"""Load far above the peak: the broker refuses calls and continues at its rate, and a worker takes no more messages than
it can hold.

Rule: what is asserted is that nothing accepted is lost, that memory is bounded, and that both continue. The rate
compared to the peak is a figure for the report, because it depends on who else uses the machine; the rate per CPU
second depends on that less.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import numpy as np
import psutil

from semel.sqs import Entry
from semel.sqs.client.admin import Admin
from soak import figures, history
from soak.app import QUEUE, AppSettings
from soak.effects import RECORD, FileEffects
from soak.figures import MIB
from soak.open_loop import Generator, Outcome
from soak.processes import BrokerProcess, Fleet, counts, create_queues, ended, until

FACTOR: Final = 3.0
PEAK_CONNECTIONS: Final = 64
CONNECTIONS: Final = 3_000  # of clients that do not slow down
BAR: Final = 0.8  # the rate accepted under overload, as a share of the peak
CLEAR: Final = 0.4  # a share per CPU second below this is a collapse on any machine
# For waiting calls (64 MiB), connections (about 20 KiB each), messages that wait on disk (nothing), and what the
# allocator keeps of all this.
MEMORY: Final = 192 * MIB
RECOVERY: Final = 2.0  # seconds until a client is served as before


@dataclass(slots=True)
class BrokerResult:
    seconds: float
    peak: Outcome = field(default_factory=Outcome)
    peak_cpu: float = 0.0
    overload: Outcome = field(default_factory=Outcome)
    overload_cpu: float = 0.0
    after: Outcome = field(default_factory=Outcome)
    recovery: float = 0.0  # seconds until the first call after the overload is answered
    memory: tuple[int, int] = (0, 0)  # before, and maximum
    findings: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)  # findings that a busy machine can cause

    @property
    def share(self) -> float:
        return self.overload.rate / self.peak.rate if self.peak.accepted else 0.0

    @property
    def share_per_cpu(self) -> float:
        """The same for each second of the broker's CPU time, which other programs on the machine do not change."""
        if not (self.peak_cpu and self.overload_cpu and self.peak.accepted):
            return 0.0
        return (len(self.overload.accepted) / self.overload_cpu) / (len(self.peak.accepted) / self.peak_cpu)

    def lines(self) -> list[str]:
        load = self.overload
        refused = ", ".join(f"{count:,} × {what}" for what, count in sorted(load.refused.items())) or "none"
        return [
            f"Overload of the broker: {load.offered_rate:,.0f} messages/s offered for {self.seconds:.0f} s, "
            f"{load.offered_rate / self.peak.rate:.1f} × its peak of {self.peak.rate:,.0f}; batches of 10, clients "
            "that do not slow down.",
            "",
            f"- accepted: {load.rate:,.0f}/s, {self.share:.0%} of the peak (bar {BAR:.0%}); per CPU second of the "
            f"broker {self.share_per_cpu:.0%}",
            f"- p50 and p99 of what was accepted: {figures.percentile(load.delays, 0.5) * 1000:.0f} and "
            f"{figures.percentile(load.delays, 0.99) * 1000:.0f} ms",
            f"- refused calls: {refused}; without an answer: {load.unanswered:,}; found no connection: {load.unsent:,}",
            f"- memory: {self.memory[0] / MIB:.0f} MiB before, at most {self.memory[1] / MIB:.0f} MiB",
            f"- after it: the first call was answered in {self.recovery * 1000:.0f} ms, and the rate is "
            f"{self.after.rate / self.peak.rate:.0%} of the peak",
            *(f"- FAILED: {finding}" for finding in (*self.findings, *self.slow)),
            *([] if self.findings else ["- No accepted message was lost."]),
        ]


def overload_broker(
    folder: Path, seconds: float, peak_seconds: float = 5.0, notify: Callable[[str], None] = lambda _: None
) -> BrokerResult:
    broker = BrokerProcess(folder)
    with ended(broker):
        create_queues(broker.client())
        result = BrokerResult(seconds)
        _load(result, broker, peak_seconds, notify)
        present = [json.loads(message["Body"])["n"] for message in Admin(broker.client()).messages(QUEUE)]
        if code := broker.end():
            result.findings.append(f"the broker ended with exit code {code}: {broker.last_words()}")
    accepted = [*result.peak.accepted, *result.overload.accepted, *result.after.accepted]
    sends = np.array([(number, 0.0) for number in accepted], RECORD)
    result.findings += history.findings(sends, np.empty(0, RECORD), present)
    before, most = result.memory
    if most > before + MEMORY:
        result.findings.append(f"the broker's memory rose from {before / MIB:.0f} to {most / MIB:.0f} MiB")
    if result.recovery > RECOVERY:
        result.slow.append(f"after the overload the first call took {result.recovery:.1f} s")
    if result.share < BAR and result.share_per_cpu < CLEAR:
        result.slow.append(f"under overload the broker collapses to {result.share:.0%} of its peak")
    return result


def _load(result: BrokerResult, broker: BrokerProcess, peak_seconds: float, notify: Callable[[str], None]) -> None:
    process = psutil.Process(broker.pid)
    address = urlsplit(broker.url)
    place = (str(address.hostname), int(address.port or 0))

    def cpu() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    started, first = cpu(), Generator(place, QUEUE, connections=PEAK_CONNECTIONS)
    result.peak = first.closed_loop(peak_seconds)
    result.peak_cpu = cpu() - started
    notify(f"peak {result.peak.rate:,.0f} messages/s; {FACTOR:g} times that for {result.seconds:.0f} s")
    before = process.memory_info().rss
    with _Highest(process) as highest:
        started, second = cpu(), Generator(place, QUEUE, connections=CONNECTIONS, first=first.next_number)
        result.overload = second.open_loop(result.peak.rate * FACTOR, result.seconds)
        result.overload_cpu = cpu() - started
    result.memory = before, highest.rss
    began = time.monotonic()
    counts(broker.client(), QUEUE)
    result.recovery = time.monotonic() - began
    result.after = Generator(place, QUEUE, connections=PEAK_CONNECTIONS, first=second.next_number).closed_loop(
        peak_seconds
    )


class _Highest:
    """The maximum of a process's memory during the block."""

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._stop = process, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.rss = 0

    def __enter__(self) -> _Highest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.rss = max(self.rss, self._process.memory_info().rss)


# The overload of a worker: a queue that fills faster than its handlers work.

HANDLER_SECONDS: Final = 0.02
CONCURRENCY: Final = 4
BODY: Final = 20_000
MAX_BYTES: Final = MIB
MOST_AHEAD: Final = 480  # see docs/reference/consumer.md, Messages ahead
WORKER_MEMORY: Final = 32 * MIB


@dataclass(slots=True)
class WorkerResult:
    seconds: float
    capacity: float = CONCURRENCY / HANDLER_SECONDS  # messages a second that the handlers could do at best
    sent: int = 0
    first_half: float = 0.0  # effects a second
    second_half: float = 0.0
    most_in_flight: int = 0
    memory: tuple[int, int] = (0, 0)
    findings: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    @property
    def allowed_in_flight(self) -> int:
        """Running handlers and messages ahead, or as many messages as fit into `max_bytes`; and one receive of ten."""
        return min(CONCURRENCY + MOST_AHEAD, MAX_BYTES // BODY + CONCURRENCY) + 10

    def lines(self) -> list[str]:
        return [
            f"Overload of a worker: {self.sent / self.seconds:,.0f} messages/s arrive for {self.seconds:.0f} s, "
            f"handlers do {self.capacity:,.0f}/s at best.",
            "",
            f"- handled: {self.first_half:,.0f}/s in the first half, {self.second_half:,.0f}/s in the second",
            f"- in flight: at most {self.most_in_flight} (allowed: {self.allowed_in_flight})",
            f"- memory: {self.memory[0] / MIB:.0f} MiB when it began, at most {self.memory[1] / MIB:.0f} MiB; "
            f"{self.sent * BODY / MIB:,.0f} MiB were sent",
            *(f"- FAILED: {finding}" for finding in (*self.findings, *self.slow)),
        ]


def overload_worker(folder: Path, seconds: float) -> WorkerResult:
    broker = BrokerProcess(folder)
    result = WorkerResult(seconds)
    with ended(broker):
        client = broker.client()
        create_queues(client)
        effects = FileEffects(folder / "effects", lambda: 0)
        effects.prepare()
        options = {"concurrency": CONCURRENCY, "max_bytes": MAX_BYTES}
        settings = AppSettings(
            f"sqlite:///{folder / 'ledger.db'}",
            broker.url,
            3_600.0,
            effects=str(folder / "effects"),
            handler_seconds=HANDLER_SECONDS,
            options=options,
        )
        fleet = Fleet(folder, settings, 1)
        with ended(fleet):
            _fill(result, broker, fleet, effects)
            if code := fleet.end():
                result.findings.append(f"the worker ended with exit code {code}: {fleet.last_words()}")
        if code := broker.end():
            result.findings.append(f"the broker ended with exit code {code}: {broker.last_words()}")
    if result.most_in_flight > result.allowed_in_flight:
        result.findings.append(f"{result.most_in_flight} messages were in flight at once")
    if result.memory[1] > result.memory[0] + WORKER_MEMORY:
        result.findings.append(f"the worker's memory rose from {result.memory[0]:,} to {result.memory[1]:,} bytes")
    if result.second_half < result.first_half / 2:
        result.slow.append(f"it slowed down from {result.first_half:.0f} to {result.second_half:.0f} messages/s")
    return result


def _fill(result: WorkerResult, broker: BrokerProcess, fleet: Fleet, effects: FileEffects) -> None:
    client = broker.client()
    queue = client.queue(QUEUE)
    pad = "x" * BODY

    def send(count: int) -> None:
        queue.send_many([Entry(json.dumps({"n": result.sent + place, "pad": pad})) for place in range(count)])
        result.sent += count

    send(10)
    until(lambda: effects.count() >= 10, "the first effects")
    process = psutil.Process(fleet.pid)
    result.memory = (process.memory_info().rss,) * 2
    began, start, half = time.monotonic(), effects.count(), 0
    while (passed := time.monotonic() - began) < result.seconds:
        if not half and passed > result.seconds / 2:
            half = effects.count()
            result.first_half = (half - start) / passed
        result.most_in_flight = max(result.most_in_flight, counts(client, QUEUE)[1])
        result.memory = (result.memory[0], max(result.memory[1], process.memory_info().rss))
        behind = int(passed * result.capacity * FACTOR) - result.sent
        if behind > 0:
            send(min(behind, 50))
        else:
            time.sleep(0.01)
    result.second_half = (effects.count() - half) / (result.seconds / 2)
    in_queue = sum(counts(client, QUEUE))
    if effects.count() + in_queue < result.sent:
        result.findings.append(f"{result.sent} were sent, {effects.count()} handled, and {in_queue} are in the queue")
