"""Claiming: what was received is read, and the ledger asked for its keys, many with one call; each answer an event."""

from __future__ import annotations

from collections.abc import Sequence

from semel.consumer.delivery import Delivery
from semel.consumer.lane import Lane
from semel.consumer.ledger_calls import one_by_one
from semel.consumer.life import Action, Event, State
from semel.failures import described, is_failure
from semel.ledger.contract import ClaimRequest, ClaimResult, Conflict, Done, Held, LedgerError, LedgerUnavailable, Won
from semel.messages import dead_letter_attributes as letters
from semel.messages.decoding import Undecodable
from semel.messages.keys import NONE, Key, NoKey, own_id, scoped
from semel.telemetry.attempt_log.log import Step


def claim(lane: Lane, deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        _read(lane, delivery)
    answers = _ask(lane, deliveries, [d.ledger_key for d in deliveries])
    if answers is None:
        lane.log(Step.LEDGER_DOWN, deliveries)
        lane.carry_out((d, lane.advance(d, Event.LEDGER_DOWN)) for d in deliveries)
        return
    verdicts = _by_key_alone(lane, deliveries, answers)
    lane.tools.crash("after_claim")
    steps: list[tuple[Delivery, tuple[Action, ...]]] = []
    won: list[Delivery] = []
    disputed: list[Delivery] = []
    for delivery, verdict in zip(deliveries, verdicts, strict=True):
        event = Event.LEDGER_DOWN if verdict is None else _heard(delivery, verdict)
        actions = lane.advance(delivery, event)
        if delivery.state is State.CLAIMED:
            won.append(delivery)
        elif delivery.state is State.DISPUTED:
            disputed.append(delivery)
        else:
            steps.append((delivery, actions))
    _told(lane, deliveries, verdicts)
    if disputed:
        _claim_apart(lane, disputed)
    blocked = _blocked(deliveries) if lane.fifo else ()
    lane.carry_out(steps)
    _dispatch(lane, won, blocked)


def _read(lane: Lane, delivery: Delivery) -> None:
    """Whatever is in a message, and whatever the user's own functions make of it: this message alone pays for it."""
    try:
        _read_message(lane, delivery)
    except BaseException as error:
        if not is_failure(error):
            raise
        delivery.problem = f"unreadable: {described(error)}"
        delivery.key, delivery.key_origin = NONE.text, NONE.origin
        delivery.ledger_key, delivery.payload = scoped(lane.scope, delivery.received.message_id), ""


def _read_message(lane: Lane, delivery: Delivery) -> None:
    """Decode the body and find the key. What has none is claimed under its id, as the ledger needs one to reject it
    under; it is not given that id as its key."""
    received, handler = letters.restored(delivery.received), lane.handler
    delivery.received = received
    try:
        delivery.value = received if handler.takes_message else handler.decode(received.body)
    except Undecodable as error:
        delivery.problem = f"undecodable: {error.reason}"
    try:
        key = handler.key.resolve(received, delivery.value)
    except NoKey as error:
        key = NONE
        if lane.settings.missing_key == "message-id":
            key = Key(own_id(received), "message-id")
        else:
            delivery.problem = delivery.problem or f"no key: {error}"
    except BaseException as error:  # of the user's own function
        if not is_failure(error):
            raise
        key = NONE
        delivery.problem = delivery.problem or f"no key: {described(error)}"
    if key is not NONE and key.origin != "message-id":  # under its own id a message can only be itself
        try:
            delivery.payload = handler.payload(received, delivery.value)
        except BaseException as error:  # as above
            if not is_failure(error):
                raise
            # It cannot be what the key stands for already: that was read.
            delivery.payload = f"unreadable/{received.message_id}"
            delivery.problem = delivery.problem or f"no payload: {described(error)}"
    delivery.key, delivery.key_origin = key.text, key.origin
    delivery.ledger_key = scoped(lane.scope, key.text or own_id(received))


def _ask(lane: Lane, deliveries: Sequence[Delivery], keys: Sequence[str]) -> list[ClaimResult | LedgerError] | None:
    """What the ledger says of each, or why it refuses this one; None: it does not answer."""
    asks = [
        ClaimRequest(key, delivery.payload, f"{lane.name}/{delivery.received.message_id}")
        for delivery, key in zip(deliveries, keys, strict=True)
    ]
    before = lane.tools.monotonic()
    claimant, asked = lane.tools.claimant(), set[str]()

    def claim(some: Sequence[ClaimRequest]) -> list[ClaimResult]:
        """A repeated call wins what it may have won already; but a key that comes twice is still won once only."""
        name = claimant if len(some) > 1 or some[0].key not in asked else lane.tools.claimant()
        if len(some) == 1:
            asked.add(some[0].key)
        return lane.ledger.claim(some, claimant=name, lease=lane.settings.lease)

    try:
        verdicts = one_by_one(claim, asks)
    except LedgerUnavailable as error:
        lane.ledger_failed("claim", error)
        return None
    if not any(isinstance(verdict, LedgerError) for verdict in verdicts):
        lane.ledger_answers(True)
    for delivery in deliveries:
        delivery.lease_ends = before + lane.settings.lease
    lane.metrics.claim.observe(lane.tools.monotonic() - before)
    return verdicts


def _by_key_alone(
    lane: Lane, deliveries: Sequence[Delivery], verdicts: Sequence[ClaimResult | LedgerError]
) -> list[ClaimResult | LedgerError | None]:
    """Unless the handler rejects conflicts, the key decides: a message under a known key is what the key stands for,
    also if its body differs. That it differs is counted and logged. What cannot be read is no second sending of
    anything: its conflict stays one. None: the ledger was asked again and did not answer."""
    answers: list[ClaimResult | LedgerError | None] = list(verdicts)
    if lane.handler.rejects_conflicts:
        return answers
    places = [
        place for place, verdict in enumerate(verdicts) if type(verdict) is Conflict and not deliveries[place].problem
    ]
    if not places:
        return answers
    differing = [deliveries[place] for place in places]
    for delivery in differing:
        delivery.payload = ""
    again = _ask(lane, differing, [delivery.ledger_key for delivery in differing])
    decided = []
    for number, (place, delivery) in enumerate(zip(places, differing, strict=True)):
        verdict = answers[place] = None if again is None else again[number]
        if isinstance(verdict, Done | Won):  # one that is held comes again, and is counted then
            delivery.error = "its payload is not the one that its key was first seen with"
            decided.append(delivery)
    if again is None:
        lane.log(Step.LEDGER_DOWN, differing)
    if decided:
        lane.metrics.different_payloads.add(len(decided))
        lane.warn_of_different_payloads(decided)
    return answers


def _heard(delivery: Delivery, verdict: ClaimResult | LedgerError) -> Event:
    match verdict:
        case LedgerError():
            # If it is the key that the ledger cannot take, the message is rejected under one that it can.
            delivery.problem = f"unclaimable: {verdict}"
            return Event.CONFLICT
        case Won(claim, _, attempt, _, notes):
            delivery.claim, delivery.fence, delivery.attempt, delivery.notes = claim, claim.fence, attempt, notes
            return Event.WON
        case Done():
            return Event.FOUND_DONE
        case Held(_, remaining):
            delivery.held_for = remaining
            return Event.HELD
        case Conflict(_, recorded):
            state = "done" if recorded else "at work"
            delivery.problem = f"conflict: the key {delivery.key!r} is {state} with another payload"
            return Event.CONFLICT


def _told(lane: Lane, deliveries: Sequence[Delivery], verdicts: Sequence[ClaimResult | LedgerError | None]) -> None:
    """Count and log what the ledger said."""
    metrics = lane.metrics
    won = [d for d, verdict in zip(deliveries, verdicts, strict=True) if type(verdict) is Won]
    if len(won) == len(deliveries) and not any(verdict.taken_over for verdict in verdicts):  # type: ignore[union-attr]
        metrics.claimed.add(len(won))
        lane.log(Step.CLAIMED, won)
        return
    for delivery, verdict in zip(deliveries, verdicts, strict=True):
        match verdict:
            case Won(taken_over=taken_over):
                metrics.claimed.add(1)
                if taken_over:
                    metrics.taken_over.add(1)
                lane.log(Step.TAKEN_OVER if taken_over else Step.CLAIMED, (delivery,), error=delivery.error)
            case Done():
                metrics.duplicates_deleted.add(1)
                lane.log(Step.DUPLICATE, (delivery,), error=delivery.error)
            case Held(remaining=remaining):
                metrics.claimed_elsewhere.add(1)
                lane.log(Step.BOUNCED, (delivery,), remaining)
            case Conflict():
                metrics.conflicts.add(1)
                lane.log(Step.CONFLICT, (delivery,), error=delivery.problem)
            case LedgerError():
                lane.ledger_refused("claim", verdict)


def _claim_apart(lane: Lane, disputed: Sequence[Delivery]) -> None:
    """Messages whose key belongs to another payload are rejected under a key that is theirs alone."""
    for delivery in disputed:
        delivery.payload = ""
    verdicts = _ask(lane, disputed, [scoped(lane.scope, f"conflict/{d.received.message_id}") for d in disputed])
    steps = []
    for place, delivery in enumerate(disputed):
        verdict = None if verdicts is None else verdicts[place]
        if isinstance(verdict, LedgerError):
            lane.ledger_failed("claim", verdict)
            verdict = None
        event = Event.LEDGER_DOWN if verdict is None else _heard(delivery, verdict)
        delivery.error = delivery.problem
        steps.append((delivery, lane.advance(delivery, event)))
    lane.carry_out(steps)


def _blocked(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """What comes after a message of its group that neither is done nor can be worked on here. What comes before that
    message goes on: it may be the very one that it waits for."""
    ends = (State.BOUNCED, State.BACKING_OFF, State.LOST, State.RELEASED)
    stuck: set[str] = set()
    blocked = []
    for delivery in deliveries:
        if delivery.group in stuck:
            blocked.append(delivery)
        elif delivery.group is not None and delivery.state in ends:
            stuck.add(delivery.group)
    return blocked


def _dispatch(lane: Lane, won: Sequence[Delivery], blocked: Sequence[Delivery]) -> None:
    if not lane.fifo:
        lane.runnable.put(won)
        return
    ready, refused = [], []
    with lane.lock:
        for delivery in won:
            if delivery in blocked:
                refused.append(delivery)
            elif lane.handler.is_batch or lane.groups.add(delivery):
                ready.append(delivery)
    lane.give_up(refused)
    lane.runnable.put(ready)
