"""Carries out the faults of a plan on a fleet. Then all faults end, and the fleet empties its queues."""

from __future__ import annotations

import heapq
import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import psutil

from process_crashes.disks import Disk
from process_crashes.fleet import Fleet
from process_crashes.plan import Fault, Kind
from process_crashes.processes import Process, left_behind
from process_crashes.producer import NO_NEW_ORDERS

LOOK: Final = 0.05
NOTIFY_EVERY: Final = 10.0
STUCK_AFTER: Final = 90.0  # seconds without any progress after the last fault had ended
ORPHANS_END_WITHIN: Final = 30.0
Notify = Callable[[str], None]


@dataclass
class Outcome:
    """What happened, and the complaints that do not need the history."""

    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    drain_seconds: float = 0.0


class Storm:
    def __init__(self, fleet: Fleet, faults: list[Fault], seconds: float, notify: Notify) -> None:
        self._fleet, self._faults, self._seconds, self._notify = fleet, faults, seconds, notify
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._store_is_down = False
        self._full: set[Kind] = set()
        self._outcome = Outcome()

    def run(self) -> Outcome:
        began = time.monotonic()
        for fault in self._faults:
            self._at(began + fault.at, lambda fault=fault: self._begin(fault))  # type: ignore[misc]
        notified_at = began
        while (now := time.monotonic()) < began + self._seconds:
            self._act(now)
            self._supervise()
            if now >= notified_at + NOTIFY_EVERY:
                notified_at = now
                self._notify(f"{now - began:4.0f} s: {self.survived()}")
            time.sleep(LOOK)
        self._end_faults()
        self._drain()
        return self._outcome

    def survived(self) -> str:
        """How often each kind of fault has happened so far."""
        self._count_cuts()
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self._outcome.counts.items()))

    # The faults.

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (moment, next(self._order), act))

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._at(time.monotonic() + seconds, act)

    def _act(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    def _begin(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.KILL_WORKER:
                self._kill(self._fleet.workers[fault.victim], fault)
            case Kind.KILL_BROKER:
                self._kill(self._fleet.broker, fault)
            case Kind.KILL_PRODUCER:
                self._kill(self._fleet.producers[fault.victim], fault)
            case Kind.PAUSE_WORKER:
                self._pause(self._fleet.workers[fault.victim], fault)
            case Kind.PAUSE_BROKER:
                self._pause(self._fleet.broker, fault)
            case Kind.RESTART_STORE:
                self._crash_store(fault)
            case Kind.CUT | Kind.CUT_IN_ANSWER | Kind.STALL:
                self._disturb(fault)
            case Kind.FILL_BROKER_DISK:
                self._fill(self._fleet.broker_disk, fault)
            case Kind.FILL_LEDGER_DISK:
                assert self._fleet.ledger_disk is not None
                self._fill(self._fleet.ledger_disk, fault)

    def _kill(self, process: Process, fault: Fault) -> None:
        if self._fleet.is_at_work(process):
            process.kill(fault.seconds)
            self._outcome.counts[fault.kind] += 1

    def _pause(self, process: Process, fault: Fault) -> None:
        if not process.paused and self._fleet.is_at_work(process):
            process.pause()
            self._after(fault.seconds, process.resume)
            self._outcome.counts[fault.kind] += 1

    def _crash_store(self, fault: Fault) -> None:
        if not self._store_is_down:
            self._store_is_down = True
            self._fleet.store.crash()
            self._after(fault.seconds, self._start_store)
            self._outcome.counts[fault.kind] += 1

    def _start_store(self) -> None:
        if self._store_is_down:
            self._fleet.store.start()
            self._store_is_down = False

    def _disturb(self, fault: Fault) -> None:
        assert fault.line is not None
        proxy = self._fleet.lines[fault.line][fault.victim]
        if fault.kind is Kind.CUT:
            proxy.cut()
        elif fault.kind is Kind.CUT_IN_ANSWER:
            proxy.cut_in_answer(fault.part)
        else:
            proxy.stall()
            self._after(fault.seconds, proxy.flow)
            self._outcome.counts[fault.kind] += 1

    def _fill(self, disk: Disk, fault: Fault) -> None:
        if fault.kind not in self._full:
            self._full.add(fault.kind)
            disk.fill(fault.leave)
            self._after(fault.seconds, lambda: self._free(disk, fault.kind))
            self._outcome.counts[fault.kind] += 1

    def _free(self, disk: Disk, kind: Kind) -> None:
        disk.free()
        self._full.discard(kind)

    def _count_cuts(self) -> None:
        proxies = [proxy for line in self._fleet.lines.values() for proxy in line]
        self._outcome.counts[Kind.CUT] = sum(proxy.cut_links for proxy in proxies)
        self._outcome.counts[Kind.CUT_IN_ANSWER] = sum(proxy.cut_answers for proxy in proxies)

    def _supervise(self) -> None:
        for process in self._fleet.processes:
            process.supervise()

    # Afterwards.

    def _end_faults(self) -> None:
        fleet = self._fleet
        self._due.clear()
        for disk in filter(None, (fleet.broker_disk, fleet.ledger_disk)):
            disk.free()
        for line in fleet.lines.values():
            for proxy in line:
                proxy.end_faults()
        self._start_store()
        for process in fleet.processes:
            process.resume()
            process.starts_at = 0.0
        self._supervise()
        self._count_cuts()
        self._notify("no more faults; the fleet drains the queues")

    def _drain(self) -> None:
        """Producers end when all orders that they began are accepted; workers are stopped when all queues are empty."""
        fleet, began = self._fleet, time.monotonic()
        (fleet.folder / NO_NEW_ORDERS).touch()
        for producer in fleet.producers:
            if (code := producer.ends()) != 0:
                self._complain(f"{producer.name} could not send all that it had begun (exit code {code})")
        last, since, left = -1, time.monotonic(), 0
        while not fleet.is_empty():
            for process in (fleet.broker, *fleet.workers):
                process.supervise()
            left = sum(fleet.left().values())
            if left != last:
                last, since = left, time.monotonic()
            elif time.monotonic() > since + STUCK_AFTER:
                self._complain(
                    f"stuck: {fleet.left()} messages were left {STUCK_AFTER:g} s after the last fault had ended"
                )
                break
            time.sleep(0.2)
        self._outcome.drain_seconds = time.monotonic() - began
        for process in (*fleet.workers, fleet.broker):
            begun = fleet.is_at_work(process)
            code = process.stop()
            if code != 0 and (begun or code != -signal.SIGTERM):  # a starting process may die of the signal
                self._complain(f"{process.name} was asked to stop, and its exit code was {code}")
        orphans = left_behind(fleet.folder)
        _, alive = psutil.wait_procs(orphans, timeout=ORPHANS_END_WITHIN)
        if alive:
            self._complain(f"workers outlive the supervisors that were killed: {alive}")

    def _complain(self, text: str) -> None:
        self._outcome.complaints.append(text)
