"""One task of a micro-batch: its rows go through the consumer's own lanes, in this process, until each is settled.

The rules:
1. What the handlers do is once by the ledger, as on threads: a replayed batch, a retried task and a speculative twin
   find the keys done, or held.
2. No row is dropped. It is done (the ledger says so, or its dead letter is written), or it waits: for a moment here,
   for longer outside of the batch, and then it is written down there before the task ends.
3. A Standard queue's message waits in its own queue, as a copy with the same key. A FIFO queue's would lose its place
   in its group there: it is `parked`, and what follows it in its group with it. The sink decides where: in its queue,
   if it has not been deleted there yet, else under the checkpoint.
4. If the ledger does not answer, nothing is sent back: the task fails, and the batch is run again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from semel.consumer.queue_setup import Tools
from semel.consumer.runtime import Runtime
from semel.errors import SemelError
from semel.ledger.contract import LedgerError, LedgerUnavailable
from semel.spark.sinks.handlers.app_loader import LoadedApp
from semel.spark.sinks.handlers.messages import returned
from semel.spark.sinks.handlers.row_queue import RowQueue
from semel.sqs import Entry, Received, Sent
from semel.telemetry.metrics import COUNTERS

BACKLOG: Final = 2_000  # messages in memory that are not settled
AT_ONCE: Final = 200
LOST_AFTER: Final = 1.0
PROBE: Final = "semel/probe"
TICK: Final = 0.25

Waiting = tuple[Received, float]  # a message, and the time until which it waits, in seconds since 1970


@dataclass(frozen=True, slots=True)
class Patience:
    """`seconds` that a task waits, in all, for what is to be tried again; `parked`: how many of a task may wait under
    the checkpoint; `ledger`: seconds that it waits for a ledger that does not answer."""

    seconds: float = 2.0
    parked: int = 10_000
    ledger: float = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """By queue: what was counted, and what of a FIFO queue is left to wait, in order."""

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    parked: dict[str, list[Waiting]] = field(default_factory=dict)


class HandlerTask:
    def __init__(self, loaded: LoadedApp, patience: Patience | None = None) -> None:
        self._loaded = loaded
        self._patience = Patience() if patience is None else patience
        self._left = self._patience.seconds
        self._changed = threading.Condition()
        self._work: dict[str, _QueueWork] = {}
        self._troubled = False  # the ledger does not answer
        self._troubled_since = time.monotonic()

    def run(self, rows: Iterable[tuple[str, Received, float]]) -> Outcome:
        """Work off rows of (queue, message, time before which it is not to be tried)."""
        rows = iter(rows)
        with ExitStack() as stack:
            tools = self._loaded.app.tools(stack)
            try:
                while taken := list(islice(rows, AT_ONCE)):
                    self._feed(taken, tools)
                    self._work_until(BACKLOG)
                self._work_until(0)
            finally:
                errors = [work.close() for work in self._work.values()]
                if tools.log is not None:
                    tools.log.flush()
            for error in filter(None, errors):
                raise error
        self._loaded.purge()
        return Outcome(
            {name: work.counts() for name, work in self._work.items()},
            {name: work.parked for name, work in self._work.items() if work.parked},
        )

    def _feed(self, rows: Sequence[tuple[str, Received, float]], tools: Tools) -> None:
        by_queue: dict[str, list[Waiting]] = {}
        for name, message, due in rows:
            by_queue.setdefault(name, []).append((message, due))
        for name, messages in by_queue.items():
            if name not in self._work:
                self._work[name] = _QueueWork(self._loaded, name, tools, self._changed)
            self._work[name].put(messages)

    def _work_until(self, most: int) -> None:
        """Until no more than `most` rows are unsettled."""
        for work in self._work.values():
            work.queue.wake_at = most
        while sum(work.queue.unsettled for work in self._work.values()) > most:
            self._check()
            soonest = min(work.soonest() for work in self._work.values())
            if soonest <= 0:
                with self._changed:
                    self._changed.wait(TICK)
                for work in self._work.values():
                    work.queue.find_lost(work.in_flight, LOST_AFTER)
            elif soonest <= self._left:
                wait = min(soonest, TICK)
                self._left -= wait
                time.sleep(wait)
            else:
                self._hand_on()

    def _check(self) -> None:
        """Whether going on makes sense."""
        for work in self._work.values():
            if work.runtime.stopping.is_set():
                raise work.close() or SemelError(f"the handler of {work.queue.name} was stopped")
        if self._troubled or any(work.runtime.breaker.is_open for work in self._work.values()):
            self._troubled = not self._ledger_answers()
        now = time.monotonic()
        if not self._troubled:
            self._troubled_since = now
        elif now - self._troubled_since > self._patience.ledger:
            raise LedgerUnavailable(
                f"the ledger has not answered for {self._patience.ledger:g} s; the batch is run again when it does"
            )

    def _ledger_answers(self) -> bool:
        try:
            self._loaded.ledger.get([PROBE])
        except LedgerError:
            return False
        return True

    def _hand_on(self) -> None:
        """All that is left waits for longer than this task does."""
        if not self._ledger_answers():  # that may be why it waits
            self._troubled = True
            time.sleep(TICK)
            return
        for work in self._work.values():
            if not (work.park(self._patience.parked) if work.queue.fifo else work.send_back()):
                self._left = math.inf  # there is no other place for it: it waits here


class _QueueWork:
    """One queue of the task, and the lane that works on its rows."""

    def __init__(self, loaded: LoadedApp, name: str, tools: Tools, changed: threading.Condition) -> None:
        parts = loaded.parts(name)
        self.queue = RowQueue(parts.queue, parts.attributes, changed)
        self.setup = loaded.setup(parts, self.queue, tools)
        self.parked: list[Waiting] = []
        self._parked_groups: set[str | None] = set()
        self._sent_back = 0
        self._closed = False
        self.runtime = Runtime([self.setup], loaded.ledger, loaded.client, tools, drain=loaded.app.drain_limit)
        self.runtime.start()

    @property
    def in_flight(self) -> Mapping[str, object]:
        return self.runtime.consumers[0].in_flight.deliveries

    def put(self, messages: Iterable[Waiting]) -> None:
        now = time.time()
        fresh = []
        for message, due in messages:
            if self._parked_groups and message.group in self._parked_groups:
                self.parked.append((message, due))
            else:
                fresh.append((message, due - now))
        self.queue.put(fresh)

    def soonest(self) -> float:
        """Seconds until something can be done; 0: something is being done, infinity: there is nothing left to do."""
        if self.queue.out or self.runtime.breaker.is_open:
            return 0.0
        due = self.queue.next_due()
        return math.inf if due is None else max(0.0, due - time.monotonic())

    def send_back(self) -> bool:
        """To the queue that they came from, delayed. False: one is left that is too large for that."""
        waiting = list(self.queue.drain())
        entries = [returned(message, self.setup.handler, seconds) for message, seconds in waiting]
        sendable: list[Entry] = [entry for entry in entries if entry is not None]
        outcomes = self.queue.real.send_many(sendable) if sendable else []
        for outcome in outcomes:
            if not isinstance(outcome, Sent):
                raise SemelError(
                    f"a message of {self.queue.name} that is to be tried again later could not be sent back: "
                    f"{outcome.code}: {outcome.message}; the batch is run again"
                )
        self._sent_back += len(sendable)
        self.queue.restore(pair for pair, entry in zip(waiting, entries, strict=True) if entry is None)
        return len(sendable) == len(entries)

    def park(self, most: int) -> bool:
        """Leave them to the checkpoint. False: too many are there already."""
        if len(self.parked) + self.queue.unsettled > most:
            return False
        now = time.time()
        for message, seconds in self.queue.drain():
            self._parked_groups.add(message.group)
            self.parked.append((message, now + seconds))
        return True

    def counts(self) -> dict[str, int]:
        found = {name: getattr(self.setup.metrics, name).count for name in COUNTERS}
        found |= {"sent_back": self._sent_back, "parked": len(self.parked), "duplicate_rows": self.queue.duplicates}
        return {name: count for name, count in found.items() if count}

    def close(self) -> BaseException | None:
        """Let what is at work come to its end, and give back what was not begun. The error that stopped it, if any."""
        if self._closed:
            return None
        self._closed = True
        self.queue.close()
        self.runtime.stop()
        return self.runtime.finish().error
