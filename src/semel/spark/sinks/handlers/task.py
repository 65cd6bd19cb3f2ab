"""One task of a micro-batch: its rows go through the consumer's own stages, in this process, until each is done.

The rules:
1. The ledger makes the effects of handlers happen once, as in the consumer: a replayed batch, a retried task and a
   speculative attempt find the keys done, or claimed by another worker.
2. No row is dropped. It is done (according to the ledger, or dead-lettered), or it waits: for a short time here, for a
   longer time in its queue. It was not deleted from there; the task says until when it stays hidden (`returned`).
3. FIFO: the messages behind a returned message in its group are returned with it.
4. If the ledger does not answer, nothing is returned: the task fails, and the batch is run again.
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
from semel.spark.sinks.handlers.executor_app import LoadedApp
from semel.spark.sinks.handlers.row_queue import RowQueue
from semel.sqs import Received
from semel.telemetry.metrics import COUNTERS

BACKLOG: Final = 2_000  # messages in memory that are not done
CHUNK: Final = 200
LOST_AFTER: Final = 1.0
PROBE: Final = "semel/probe"
TICK: Final = 0.25


@dataclass(frozen=True, slots=True)
class Patience:
    """`seconds`: how long a task waits, in all, for messages that are to be tried again. `ledger`: how many seconds it
    waits for a ledger that does not answer."""

    seconds: float = 2.0
    ledger: float = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """`counts`: by queue. `returned`: by message id, when the message is due, in seconds since 1970."""

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    returned: dict[str, float] = field(default_factory=dict)


class HandlerTask:
    def __init__(self, app: LoadedApp, patience: Patience | None = None) -> None:
        self._app = app
        self._patience = Patience() if patience is None else patience
        self._left = self._patience.seconds
        self._changed = threading.Condition()
        self._queues: dict[str, _QueueWork] = {}
        self._ledger_is_away = False
        self._ledger_answered_at = time.monotonic()

    def run(self, rows: Iterable[tuple[str, Received]]) -> Outcome:
        """Process rows of (queue, message)."""
        rows = iter(rows)
        with ExitStack() as stack:
            tools = self._app.app.tools(stack)
            try:
                while chunk := list(islice(rows, CHUNK)):
                    self._feed(chunk, tools)
                    self._work_until(BACKLOG)
                self._work_until(0)
            finally:
                errors = [work.close() for work in self._queues.values()]
                if tools.log is not None:
                    tools.log.flush()
            for error in filter(None, errors):
                raise error
        self._app.purge()
        returned = {id_: due for work in self._queues.values() for id_, due in work.returned.items()}
        return Outcome({name: work.counts() for name, work in self._queues.items()}, returned)

    def _feed(self, rows: Sequence[tuple[str, Received]], tools: Tools) -> None:
        by_queue: dict[str, list[Received]] = {}
        for name, message in rows:
            by_queue.setdefault(name, []).append(message)
        for name, messages in by_queue.items():
            if name not in self._queues:
                self._queues[name] = _QueueWork(self._app, name, tools, self._changed)
            self._queues[name].put(messages)

    def _work_until(self, most: int) -> None:
        """Work until at most `most` rows are left."""
        for work in self._queues.values():
            work.queue.wake_at = most
        while sum(work.queue.left for work in self._queues.values()) > most:
            self._check()
            soonest = min(work.soonest() for work in self._queues.values())
            if soonest <= 0:
                with self._changed:
                    self._changed.wait(TICK)
                for work in self._queues.values():
                    work.queue.find_lost(work.in_flight, LOST_AFTER)
            elif soonest <= self._left:
                wait = min(soonest, TICK)
                self._left -= wait
                time.sleep(wait)
            else:
                self._return_waiting()

    def _check(self) -> None:
        """Raises an error if the task cannot continue."""
        for work in self._queues.values():
            if work.runtime.stopping.is_set():
                raise work.close() or SemelError(f"the handler of {work.queue.name} was stopped")
        if self._ledger_is_away or any(work.runtime.breaker.is_open for work in self._queues.values()):
            self._ledger_is_away = not self._ledger_answers()
        now = time.monotonic()
        if not self._ledger_is_away:
            self._ledger_answered_at = now
        elif now - self._ledger_answered_at > self._patience.ledger:
            raise LedgerUnavailable(
                f"the ledger has not answered for {self._patience.ledger:g} s; the batch is run again when it does"
            )

    def _ledger_answers(self) -> bool:
        try:
            self._app.ledger.get([PROBE])
        except LedgerError:
            return False
        return True

    def _return_waiting(self) -> None:
        """Return all rows that are left: they have to wait for longer than this task does."""
        if not self._ledger_answers():  # that may be why they wait
            self._ledger_is_away = True
            time.sleep(TICK)
            return
        for work in self._queues.values():
            work.return_waiting()


class _QueueWork:
    """One queue of the task, and the consumer that works on its rows."""

    def __init__(self, app: LoadedApp, name: str, tools: Tools, changed: threading.Condition) -> None:
        parts = app.parts(name)
        self.queue = RowQueue(parts.queue, parts.attributes, changed)
        self.setup = app.setup(parts, self.queue, tools)
        self.returned: dict[str, float] = {}
        self._groups: dict[str | None, float] = {}  # FIFO groups with a returned message: when the first is due
        self._closed = False
        self.runtime = Runtime([self.setup], app.ledger, app.client, tools, drain=app.app.drain_limit)
        self.runtime.start()

    @property
    def in_flight(self) -> Mapping[str, object]:
        return self.runtime.consumers[0].in_flight.by_message

    def put(self, messages: Iterable[Received]) -> None:
        rows = []
        for message in messages:
            if message.group in self._groups:
                self._return(message, 0.0)
            else:
                rows.append(message)
        self.queue.put(rows)

    def soonest(self) -> float:
        """Seconds until something can be done; 0: something is being done, infinity: there is nothing left to do."""
        if self.queue.out or self.runtime.breaker.is_open:
            return 0.0
        due = self.queue.next_due()
        return math.inf if due is None else max(0.0, due - time.monotonic())

    def return_waiting(self) -> None:
        now = time.time()
        for message, seconds in self.queue.drain():
            self._return(message, now + seconds)

    def _return(self, message: Received, due: float) -> None:
        if self.queue.fifo:  # it cannot be received before those in front of it in its group
            due = self._groups[message.group] = max(due, self._groups.get(message.group, 0.0))
        self.returned[message.message_id] = due

    def counts(self) -> dict[str, int]:
        counts = {name: getattr(self.setup.metrics, name).count for name in COUNTERS}
        counts |= {"returned": len(self.returned), "duplicate_rows": self.queue.duplicates}
        return {name: count for name, count in counts.items() if count}

    def close(self) -> BaseException | None:
        """Let running handlers finish, and return what was not started. Returns the error that stopped it, if any."""
        if self._closed:
            return None
        self._closed = True
        self.queue.close()
        self.runtime.stop()
        return self.runtime.finish().error
