"""Claims received messages: reads them, asks the ledger for all keys in one call, and turns each answer into an
event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.consumer.delivery import Delivery
from semel.consumer.in_flight import InFlight
from semel.consumer.ledger_calls import one_by_one
from semel.consumer.lifecycle import Event, State
from semel.consumer.scheduler import Scheduler
from semel.consumer.stage import Stage, Threads
from semel.ledger.contract import ClaimRequest, ClaimResult, Conflict, Done, Held, LedgerError, LedgerUnavailable, Won
from semel.messages import dead_letter_attributes
from semel.messages.decoder import Undecodable
from semel.messages.keys import NONE, Body, Key, NoKey, own_id, scoped
from semel.telemetry.attempt_log import Step
from semel.user_exceptions import described, is_failure

AT_ONCE: Final = 300
MOST_THREADS: Final = 2
LINGER: Final = 0.003  # seconds: under load, fewer calls for more messages each
LINGER_FROM: Final = 20  # messages
STARTED: Final = "semel:started"  # the step under which the worker saves which attempts have called the handler

Answer = ClaimResult | LedgerError | None  # None: the ledger did not answer


class Claimer(Stage[Delivery]):
    role = "claim"

    def __init__(self, in_flight: InFlight, threads: Threads, scheduler: Scheduler) -> None:
        setup = in_flight.setup
        # On a FIFO queue one call after the other, to keep the order.
        super().__init__(
            threads,
            at_once=AT_ONCE,
            linger=0.0 if setup.fifo else LINGER,
            linger_from=LINGER_FROM,
            most_threads=1 if setup.fifo else MOST_THREADS,
        )
        self._setup = setup
        self._in_flight = in_flight
        self._reporter = in_flight.reporter
        self._scheduler = scheduler

    def process(self, items: Sequence[Delivery]) -> None:
        chunk = self._in_flight.begin_claim(items)
        if not chunk:
            return
        for delivery in chunk:
            self._read(delivery)
            delivery.holder = self._in_flight.holder_of(delivery.ledger_key)
        answers = self._decided_by_key(chunk, self._claim(chunk, [delivery.ledger_key for delivery in chunk]))
        self._setup.tools.crash("after_claim")
        self._apply(chunk, answers)
        self._report(chunk, answers)
        if disputed := [delivery for delivery in chunk if delivery.state is State.DISPUTED]:
            self._claim_apart(disputed)
        self._in_flight.end_claim(chunk)
        self._scheduler.put([delivery for delivery in chunk if delivery.state is State.CLAIMED])

    # Reading.

    def _read(self, delivery: Delivery) -> None:
        """Whatever is in a message, and whatever the user's functions do with it, only this message is rejected."""
        try:
            self._read_message(delivery)
        except BaseException as error:
            if not is_failure(error):
                raise
            delivery.problem = f"unreadable: {described(error)}"
            delivery.key, delivery.key_origin = NONE.text, NONE.origin
            delivery.ledger_key, delivery.payload = scoped(self._setup.scope, delivery.received.message_id), ""

    def _read_message(self, delivery: Delivery) -> None:
        """Decode the body and find the key. A message without a key is claimed under its id, because the ledger needs a
        key for the rejection; the id does not become the message's key."""
        received, handler = dead_letter_attributes.restored(delivery.received), self._setup.handler
        delivery.received = received
        try:
            delivery.value = received if handler.takes_message else handler.decode(received.body)
        except Undecodable as error:
            delivery.problem = f"undecodable: {error.reason}"
        body = handler.body_of(received.body, delivery.value)
        try:
            key = handler.key.resolve(received, delivery.value, body)
        except NoKey as error:
            key = NONE
            if self._setup.settings.missing_key == "message-id":
                key = Key(own_id(received), "message-id")
            else:
                delivery.problem = delivery.problem or f"no key: {error}"
        except BaseException as error:  # of the user's own function
            if not is_failure(error):
                raise
            key = NONE
            delivery.problem = delivery.problem or f"no key: {described(error)}"
        if key is not NONE and key.origin != "message-id":  # under its own id a message can only be itself
            self._read_payload(delivery, body)
        delivery.key, delivery.key_origin = key.text, key.origin
        delivery.ledger_key = scoped(self._setup.scope, key.text or own_id(received))

    def _read_payload(self, delivery: Delivery, body: Body) -> None:
        try:
            delivery.payload = self._setup.handler.payload(body, delivery.value)
        except BaseException as error:  # of the user's own function
            if not is_failure(error):
                raise
            # It cannot be the payload that the key is known with: that one could be read.
            delivery.payload = f"unreadable/{delivery.received.message_id}"
            delivery.problem = delivery.problem or f"no payload: {described(error)}"

    # Asking the ledger.

    def _claim(self, chunk: Sequence[Delivery], keys: Sequence[str]) -> list[Answer]:
        """The ledger's answer for each message, or why it refuses this one."""
        setup = self._setup
        tools, lease, name = setup.tools, setup.settings.lease, setup.name
        requests = [
            ClaimRequest(key, delivery.payload, f"{name}/{delivery.received.message_id}")
            for delivery, key in zip(chunk, keys, strict=True)
        ]
        before = tools.monotonic()
        claimant, asked = tools.claimant(), set[str]()

        def claim(part: Sequence[ClaimRequest]) -> list[ClaimResult]:
            """A repeated call wins again what it may have won; but a key that occurs twice must be won only once."""
            claims_as = claimant if len(part) > 1 or part[0].key not in asked else tools.claimant()
            if len(part) == 1:
                asked.add(part[0].key)
            return setup.ledger.claim(part, claimant=claims_as, lease=lease)

        try:
            answers = one_by_one(claim, requests)
        except LedgerUnavailable as error:
            self._reporter.ledger_failed("claim", error)
            self._reporter.log(Step.LEDGER_DOWN, chunk)
            return [None] * len(chunk)
        if not any(isinstance(answer, LedgerError) for answer in answers):
            self._reporter.on_ledger_result(True)
        now = tools.monotonic()
        for delivery in chunk:
            delivery.lease_ends = before + lease
            delivery.claimed_at = now
        setup.metrics.claim.observe(now - before)
        return list(answers)

    def _decided_by_key(self, chunk: Sequence[Delivery], answers: list[Answer]) -> list[Answer]:
        """Unless the handler rejects conflicts, the key decides: a message with a known key is taken for the same
        message, even if its body differs. That it differs is counted and logged. A message that cannot be read is not
        taken for a repeated send of another one: it remains a conflict."""
        if self._setup.handler.rejects_conflicts:
            return answers
        places = [
            place for place, answer in enumerate(answers) if type(answer) is Conflict and not chunk[place].problem
        ]
        if not places:
            return answers
        differing = [chunk[place] for place in places]
        for delivery in differing:
            delivery.payload = ""
        decided = []
        again = self._claim(differing, [delivery.ledger_key for delivery in differing])
        for place, delivery, answer in zip(places, differing, again, strict=True):
            answers[place] = answer
            if isinstance(answer, Done | Won):  # a message whose key is held comes again, and is counted then
                delivery.error = "its payload is not the one that its key was first seen with"
                decided.append(delivery)
        if decided:
            self._reporter.different_payloads(decided)
        return answers

    def _claim_apart(self, disputed: Sequence[Delivery]) -> None:
        """Claim messages whose key belongs to another payload under keys of their own, to reject them."""
        for delivery in disputed:
            delivery.payload = ""
        keys = [scoped(self._setup.scope, f"conflict/{delivery.received.message_id}") for delivery in disputed]
        answers = self._claim(disputed, keys)
        for place, answer in enumerate(answers):
            disputed[place].error = disputed[place].problem
            if isinstance(answer, LedgerError):
                self._reporter.ledger_failed("claim", answer)
                answers[place] = None
        self._apply(disputed, answers)

    # What follows.

    def _apply(self, chunk: Sequence[Delivery], answers: Sequence[Answer]) -> None:
        by_event: dict[Event, list[Delivery]] = {}
        for delivery, answer in zip(chunk, answers, strict=True):
            event = _event_of(delivery, answer)
            if event is Event.WON:
                self._in_flight.won(delivery)
            by_event.setdefault(event, []).append(delivery)
        for delivery in by_event.get(Event.HELD, ()):
            self._in_flight.held(delivery)
        for event, deliveries in by_event.items():
            self._in_flight.apply(event, deliveries)

    def _report(self, chunk: Sequence[Delivery], answers: Sequence[Answer]) -> None:
        metrics, reporter = self._setup.metrics, self._reporter
        won = [answer for answer in answers if type(answer) is Won]
        metrics.claimed.add(len(won))
        if len(won) == len(chunk) and not any(answer.taken_over for answer in won):
            reporter.log(Step.CLAIMED, chunk)
            return
        for delivery, answer in zip(chunk, answers, strict=True):
            match answer:
                case Won(taken_over=taken_over):
                    if taken_over:
                        metrics.taken_over.add(1)
                        self._in_flight.prefetch.suspend(self._setup.tools.monotonic())
                    reporter.log(Step.TAKEN_OVER if taken_over else Step.CLAIMED, (delivery,), error=delivery.error)
                case Done():
                    metrics.duplicates_deleted.add(1)
                    reporter.log(Step.DUPLICATE, (delivery,), error=delivery.error)
                case Held(remaining=remaining):
                    metrics.claimed_elsewhere.add(1)
                    reporter.log(Step.BOUNCED, (delivery,), remaining)
                case Conflict():
                    metrics.conflicts.add(1)
                    reporter.log(Step.CONFLICT, (delivery,), error=delivery.problem)
                case LedgerError():
                    reporter.ledger_refused("claim", answer)


def _event_of(delivery: Delivery, answer: Answer) -> Event:
    if type(answer) is Won:  # nearly always
        delivery.claim, delivery.fence, delivery.attempt = answer.claim, answer.claim.fence, answer.attempt
        if answer.steps:
            delivery.steps = answer.steps
        if answer.attempt > 2:
            delivery.unstarted = _unstarted(answer.attempt, answer.steps.get(STARTED, b""))
        return Event.WON
    match answer:
        case None:
            return Event.LEDGER_DOWN
        case LedgerError():
            # If the ledger cannot take the key, the message is rejected under a key that it can take.
            delivery.problem = f"unclaimable: {answer}"
            return Event.CONFLICT
        case Done():
            return Event.FOUND_DONE
        case Held(_, remaining):
            delivery.held_for = remaining
            return Event.HELD
        case Conflict(_, recorded):
            state = "done" if recorded else "being processed"
            delivery.problem = f"conflict: the key {delivery.key!r} is {state} with another payload"
            return Event.CONFLICT
        case _:
            raise AssertionError(f"the ledger answered with {answer!r}")


def _unstarted(attempt: int, started: bytes) -> int:
    """How many earlier attempts ended before the handler was called, because another message killed their worker. The
    first attempt always counts as started, each later one only if the worker saved that it started."""
    saved = {int(number) for number in started.split(b",") if number}
    return sum(1 for earlier in range(2, attempt) if earlier not in saved)
