"""Records outcomes in the ledger and releases claims, many messages per call; then takes the actions that follow.

Records that the ledger could not take are tried again after a pause, for as long as that takes: the work is done, and
while the ledger does not answer nobody else can claim the messages. They do not hold up what comes in meanwhile.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from semel.consumer.delivery import Delivery
from semel.consumer.in_flight import InFlight, LedgerWork
from semel.consumer.ledger_calls import one_by_one
from semel.consumer.lifecycle import Action, Event
from semel.consumer.stage import Stage, Threads
from semel.ledger.contract import Completion, LedgerError, LedgerUnavailable, Status
from semel.telemetry.attempt_log import Step

AT_ONCE: Final = 500
FEW: Final = 100  # with fewer messages than this, it waits for more
LINGER: Final = 0.005  # seconds: one record for many costs about as much as for one
LONGEST_PAUSE: Final = 1.0  # seconds until a record that failed is tried again

Item = tuple[Delivery, Action]


class Recorder(Stage[LedgerWork]):
    role = "record"

    def __init__(self, in_flight: InFlight, threads: Threads) -> None:
        super().__init__(threads, at_once=AT_ONCE)
        self._setup = in_flight.setup
        self._in_flight = in_flight
        self._reporter = in_flight.reporter
        self._again: list[Item] = []  # records that the ledger could not take
        self._deadline = math.inf

    def run_once(self) -> bool:
        """As for every stage. Records that the ledger could not take are tried again by the next call."""
        again, self._again = self._again, []
        work = self.inbox.take(AT_ONCE, 0)
        self._again = self._process(work, again)
        return bool(work)

    def _run(self) -> None:
        monotonic = self._setup.tools.monotonic
        waiting: list[Item] = []
        failures, again_at = 0, 0.0
        while True:
            pause = max(0.0, again_at - monotonic()) if waiting else None
            work = self.inbox.take(AT_ONCE, pause)
            if not work and self.inbox.closed:
                if not waiting or monotonic() > self._deadline:
                    return
                time.sleep(max(0.0, again_at - monotonic()))
            if work and sum(len(chunk) for _, chunk, _ in work) < FEW and not self._is_urgent():
                time.sleep(LINGER)
                work += self.inbox.take(AT_ONCE, 0)
            again: list[Item] = []
            if waiting and monotonic() >= again_at:
                again, waiting = waiting, []
            if failed := self._process(work, again):
                failures += 1
                again_at = monotonic() + min(LONGEST_PAUSE, 0.05 * 2 ** min(failures, 10))
                waiting += failed
            elif not waiting:
                failures = 0

    def _is_urgent(self) -> bool:
        return self._setup.fifo or self._in_flight.stopping

    def close(self, deadline: float) -> None:
        self._deadline = deadline
        super().close(deadline)

    # Calls to the ledger.

    def _process(self, work: Sequence[LedgerWork], again: Sequence[Item]) -> list[Item]:
        """Returns the records that the ledger could not take."""
        records = [
            (delivery, action)
            for action, chunk, _ in work
            if action is Action.RECORD or action is Action.RECORD_REJECTED
            for delivery in chunk
        ]
        self._measure(records)
        failed = self._record([*again, *records]) if records or again else []
        for tried, action in ((True, Action.GIVE_BACK), (False, Action.GIVE_BACK_UNTRIED)):
            releases = [item for item in work if item[0] is action]
            if releases:
                self._release(releases, tried=tried)
        return failed

    def _measure(self, records: Sequence[Item]) -> None:
        """Measure single messages whose handler returned. The worker measures all others."""
        handled = [delivery for delivery, action in records if delivery.finished_at and action is Action.RECORD]
        if handled and not self._setup.handler.is_batch:
            metrics = self._setup.metrics
            metrics.receive_to_start.observe_all([d.started_at - d.received_at for d in handled])
            metrics.handler.observe_all([d.finished_at - d.started_at for d in handled])

    def _record(self, items: Sequence[Item]) -> list[Item]:
        setup = self._setup
        retention = setup.settings.retention
        completions = [
            Completion(
                delivery.owned_claim,
                Status.DONE if action is Action.RECORD else Status.REJECTED,
                delivery.result,
                retention,
            )
            for delivery, action in items
        ]
        before = setup.tools.monotonic()
        try:
            answers = one_by_one(setup.ledger.record, completions)
        except LedgerUnavailable as error:
            self._reporter.ledger_failed("record", error)
            return list(items)
        refused = [
            (item, answer) for item, answer in zip(items, answers, strict=True) if isinstance(answer, LedgerError)
        ]
        if len(refused) < len(items):
            self._reporter.on_ledger_result(True)
        again = self._without_results(refused) if refused else []
        now = setup.tools.monotonic()
        setup.metrics.record.observe(now - before)
        setup.tools.crash("after_record")
        recorded = [item for item, answer in zip(items, answers, strict=True) if answer is True]
        fenced = [item[0] for item, answer in zip(items, answers, strict=True) if answer is False]
        self._report([delivery for delivery, action in recorded if action is Action.RECORD], fenced, now)
        self._in_flight.apply(Event.RECORDED, [delivery for delivery, _ in recorded])
        if fenced:
            self._in_flight.apply(Event.FENCED, fenced)
        return again

    def _report(self, done: Sequence[Delivery], fenced: Sequence[Delivery], now: float) -> None:
        self._setup.metrics.completed.add(len(done))
        if fenced:
            self._setup.metrics.fenced.add(len(fenced))
            self._reporter.log(Step.FENCED, fenced, error="a newer claim exists: its outcome does not count")
        if self._reporter.logs_attempts:
            for delivery in done:
                spent = now - delivery.started_at if delivery.started_at else 0.0
                self._reporter.log(Step.RECORDED, (delivery,), spent)
        self._in_flight.measure(done, now)

    def _without_results(self, refused: Sequence[tuple[Item, LedgerError]]) -> list[Item]:
        """The ledger answers, but refuses these records. The effects have happened, so they are recorded without their
        results; a record that has no result is tried again as in an outage."""
        without, again = [], []
        for item, error in refused:
            delivery = item[0]
            self._reporter.ledger_refused("record", error)
            if delivery.result:
                delivery.result = b""
                self._setup.metrics.results_dropped.add(1)
                delivery.context.log.warning("the result is not stored, the message is done without it: %s", error)
                without.append(item)
            else:
                again.append(item)
        return (self._record(without) if without else []) + again

    def _release(self, work: Sequence[LedgerWork], *, tried: bool) -> None:
        claims = [delivery.owned_claim for _, chunk, _ in work for delivery in chunk]
        release: Callable[..., list[bool]] = partial(self._setup.ledger.release, tried=tried)
        try:
            for answer in one_by_one(release, claims):
                if isinstance(answer, LedgerError):
                    self._reporter.ledger_refused("release", answer)
        except LedgerUnavailable as error:
            self._reporter.ledger_failed("release", error)  # the lease will end by itself
        self._setup.tools.crash("after_release")
        for _, chunk, rest in work:
            self._in_flight.follow(rest, chunk)
