"""Settings as they should be, each with its reason: from what was measured, within what SQS allows.

The rule: without a heartbeat the visibility timeout covers nearly all work that was seen (P99 × 1.5, the worst × 1.1);
with one it is short, as it then is only the wait after a crash.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from semel.doctor import remedies
from semel.doctor.model import Behaviour, Case, Cause, QueueState, Recommendation, Remedy, Times
from semel.doctor.wording import DAY, MINUTE, seconds
from semel.messages.dead_letter_queue import MAX_REDELIVERY, RECOMMENDED_RECEIVES, redelivery_period
from semel.sqs import limits

SHORT: Final = 30.0  # SQS' own default; nothing is won below it
SHORT_WITH_HEARTBEAT: Final = (30.0, 60.0)
LONG_TO_RECOVER: Final = 15 * MINUTE
_FAR_TOO_LONG: Final = 10
RECEIVES: Final = RECOMMENDED_RECEIVES
_SANE_RECEIVES: Final = range(3, 101)
SOURCE_RETENTION: Final = 4 * DAY
LONGEST_SOURCE_RETENTION: Final = 7 * DAY
DEAD_LETTER_RETENTION: Final = float(limits.MAX_RETENTION)
HIGH_WATER: Final = 0.01


def visibility_for(hold: Times, *, heartbeat: bool) -> float:
    """The timeout for messages that are held for so long."""
    if heartbeat:
        short, longer = SHORT_WITH_HEARTBEAT
        return short if hold.p99 * 3 <= short else longer
    return min(float(limits.MAX_VISIBILITY), round_up(max(SHORT, hold.p99 * 1.5, hold.most * 1.1)))


def worth_trying(behaviour: Behaviour) -> tuple[float, ...]:
    """The timeouts to replay the observed work with, so that a cure can say what it would have done."""
    hold = holding(behaviour)
    return () if hold is None else (visibility_for(hold, heartbeat=False),)


def round_up(value: float) -> float:
    """To whole seconds, above two minutes to tens of them, above an hour to minutes."""
    step = 1 if value <= 120 else 10 if value <= 3_600 else 60
    # A product such as 20 × 1.1 may come out a hair above what it means.
    return float(math.ceil(value / step - 1e-9) * step)


def heartbeat_for(visibility: float) -> float:
    """Two lost beats are survived."""
    return max(1.0, math.floor(visibility / 3))


def holding(behaviour: Behaviour | None) -> Times | None:
    """How long messages are held: measured, else the wait and the work put together."""
    if behaviour is None:
        return None
    if behaviour.hold is not None or behaviour.work is None or behaviour.wait is None:
        return behaviour.hold or behaviour.work
    work, wait = behaviour.work, behaviour.wait
    return Times(
        count=work.count,
        p50=work.p50 + wait.p50,
        p90=work.p90 + wait.p90,
        p99=work.p99 + wait.p99,
        p999=work.p999 + wait.p999,
        most=work.most + wait.most,
    )


def recommend(case: Case) -> tuple[Recommendation, ...]:
    """What each setting should be, as far as anything is known of it."""
    found = (_visibility(case), _heartbeat(case), *_of_the_queue(case), _ledger_memory(case))
    return tuple(advice for advice in found if advice is not None)


def visibility(case: Case) -> float | None:
    """The recommended timeout; the present one where it will do."""
    hold = holding(case.behaviour)
    if hold is None or case.behaviour is None:
        return None
    wanted = visibility_for(hold, heartbeat=case.behaviour.has_heartbeat)
    now = case.visibility
    return now if now is not None and wanted <= now <= wanted * _FAR_TOO_LONG else wanted


def _visibility(case: Case) -> Recommendation | None:
    wanted, hold, now = visibility(case), holding(case.behaviour), case.visibility
    if wanted is None or hold is None or case.behaviour is None:
        return None
    return _setting(
        case, "visibility timeout", wanted, now, _why_visibility(case.behaviour, hold, wanted), "VisibilityTimeout"
    )


def _why_visibility(behaviour: Behaviour, hold: Times, wanted: float) -> str:
    if behaviour.has_heartbeat:
        return (
            "the heartbeat keeps a message hidden while it is worked on, so the timeout is only the wait after a crash"
        )
    measured = (
        f"99 % of the messages are held for at most {seconds(hold.p99)} (× 1.5), the longest for "
        f"{seconds(hold.most)} (× 1.1)"
    )
    if max(hold.p99 * 1.5, hold.most * 1.1) > limits.MAX_VISIBILITY:
        return f"{measured}, and SQS allows no more than 12 h: make the work shorter, or split it"
    if wanted > LONG_TO_RECOVER:
        return f"{measured}; with a heartbeat 60 s would do, and a crash would not hide a message for so long"
    return measured


def _heartbeat(case: Case) -> Recommendation | None:
    behaviour, hold = case.behaviour, holding(case.behaviour)
    if behaviour is None or hold is None:
        return None
    wanted, now = visibility(case) or SHORT, case.visibility
    beats = behaviour.heartbeat_every
    if behaviour.has_heartbeat:
        in_force = now or wanted
        every = beats if beats is not None and beats <= in_force / 2 else heartbeat_for(in_force)
        return Recommendation(
            queue=case.queue,
            setting="heartbeat interval",
            value=seconds(every),
            now=seconds(beats) if beats is not None else None,
            reasons=(f"a third of the timeout of {seconds(in_force)}, so that two lost beats are survived",),
            changes=beats is not None and every != beats,
        )
    needed = hold.p99 * 1.5 > (now or wanted) or wanted > LONG_TO_RECOVER
    every = heartbeat_for(SHORT_WITH_HEARTBEAT[1])
    return Recommendation(
        queue=case.queue,
        setting="heartbeat interval",
        value=seconds(every) if needed else "none",
        now="none",
        reasons=(
            "a third of a timeout of 60 s: it covers work of any length, up to 12 h"
            if needed
            else "the timeout alone covers the work that was seen",
        ),
        changes=needed,
    )


def _of_the_queue(case: Case) -> tuple[Recommendation | None, ...]:
    state = case.state
    if state is None or state.sources:  # a dead-letter queue itself is judged with its source
        return ()
    return (_max_receives(case, state), _retention(case, state), _dead_letter_retention(case, state))


def max_receives(case: Case) -> tuple[int, str]:
    """How often a message should be tried, and why."""
    state, behaviour = case.state, case.behaviour
    now = state.max_receives if state else None
    wanted, why = RECEIVES, "enough that a crash, a deploy or a throttled minute puts no good message aside"
    if behaviour is not None and behaviour.messages:
        by_accident = (Cause.CRASH, Cause.VISIBILITY, Cause.CONCURRENT, Cause.LOST_DELETE)
        again = sum(caused.duplicates for caused in behaviour.causes if caused.cause in by_accident)
        if again / behaviour.messages > HIGH_WATER:
            wanted += 2
            why = "deliveries that are no fault of the message use receives up as well, and here there are many"
    if state and now and now in _SANE_RECEIVES and now >= wanted and now * state.visibility <= state.retention:
        wanted = now
    if (case.queue.endswith(".fifo") or (state and state.fifo)) and wanted == RECEIVES:
        why = "a message that is put aside leaves its group, and those after it go on: not too early"
    return wanted, why


def _max_receives(case: Case, state: QueueState) -> Recommendation:
    wanted, why = max_receives(case)
    changes = state.max_receives != wanted
    arn = state.dead_letters.arn if state.dead_letters else None
    remedy = None
    if changes and arn:
        policy = {"RedrivePolicy": remedies.redrive_policy(arn, wanted)}
        remedy = Remedy(
            text=f"Set maxReceiveCount to {wanted}.",
            cli=remedies.set_attributes(case, policy),
            terraform=remedies.terraform(case.queue, policy),
        )
    now = str(state.max_receives) if state.max_receives else "none"
    return Recommendation(case.queue, "maxReceiveCount", str(wanted), now, (why,), changes, remedy)


def source_retention(state: QueueState) -> tuple[float, str]:
    if state.retention < DAY:
        return SOURCE_RETENTION, "an outage of a night or a weekend must not outlast the messages"
    if state.retention > LONGEST_SOURCE_RETENTION and not state.fifo:
        return (
            LONGEST_SOURCE_RETENTION,
            "a dead letter keeps the time at which it was sent, so the source must keep less than the 14 days of the "
            "dead-letter queue",
        )
    if state.dead_letters is None:
        return state.retention, "long enough for an outage"
    return state.retention, "long enough for an outage, and shorter than that of the dead-letter queue"


def may_forget(case: Case, retention: float) -> bool:
    """Whether a shorter retention deletes nothing: SQS drops at once what is older."""
    state, series = case.state, case.series
    if state is not None and not (state.visible or state.in_flight or state.delayed):
        return True
    ages = [point.oldest for point in series.points if point.oldest is not None] if series is not None else []
    return bool(ages) and 0 < ages[-1] < retention / 2


def _retention(case: Case, state: QueueState) -> Recommendation:
    wanted, why = source_retention(state)
    found = _setting(case, "retention", wanted, state.retention, why, "MessageRetentionPeriod")
    if wanted >= state.retention or may_forget(case, wanted):
        return found
    warned = f"Set it to {seconds(wanted)} when no message is older: SQS deletes those at once."
    return replace(found, remedy=Remedy(text=warned))


def _dead_letter_retention(case: Case, state: QueueState) -> Recommendation | None:
    letters = state.dead_letters
    if letters is None:
        return None
    now = letters.retention
    why = (
        "the most that SQS allows: dead letters wait for a person"
        if state.fifo
        else "the most that SQS allows: on a Standard queue a dead letter keeps the time at which it was sent"
    )
    changes = now is not None and now != DEAD_LETTER_RETENTION
    remedy = None
    if changes:
        wanted = {"MessageRetentionPeriod": limits.MAX_RETENTION}
        name = remedies.name_of(letters.arn)
        remedy = Remedy(
            text=f"Set the retention of {name} to 14 days.",
            cli=remedies.set_attributes_of(name, remedies.dead_letters_url(letters, state), letters.arn, wanted),
            terraform=remedies.terraform(name, wanted),
        )
    return Recommendation(
        queue=case.queue,
        setting="dead-letter retention",
        value=seconds(DEAD_LETTER_RETENTION),
        now=seconds(now) if now is not None else None,
        reasons=(why,),
        changes=changes,
        remedy=remedy,
    )


def ledger_memory(case: Case) -> float:
    """For how long a message can come back: as long as both queues may hold it. 28 days where nothing is known."""
    state = case.state
    if state is None:
        return MAX_REDELIVERY
    letters = state.dead_letters
    if letters is None:
        return redelivery_period(state.retention)
    return redelivery_period(state.retention, letters.retention or DEAD_LETTER_RETENTION)


def _ledger_memory(case: Case) -> Recommendation | None:
    if case.ledger is None or (case.state is not None and case.state.sources):
        return None
    wanted, now = ledger_memory(case), case.ledger.retention
    return Recommendation(
        queue=case.queue,
        setting="ledger memory",
        value=seconds(wanted if now is None else max(wanted, now)),
        now=seconds(now) if now is not None else None,
        reasons=("the retention of the queue and of its dead-letter queue together: SQS cannot deliver again later",),
        changes=now is not None and now < wanted,
    )


def _setting(case: Case, setting: str, wanted: float, now: float | None, reason: str, attribute: str) -> Recommendation:
    """Recommendation on an attribute of the queue that is a number of seconds."""
    changes = now is not None and now != wanted
    attributes = {attribute: round(wanted)}
    remedy = Remedy(
        text=f"Set the {setting} of {case.queue} to {seconds(wanted)}.",
        cli=remedies.set_attributes(case, attributes),
        terraform=remedies.terraform(case.queue, attributes),
    )
    return Recommendation(
        queue=case.queue,
        setting=setting,
        value=seconds(wanted),
        now=seconds(now) if now is not None else None,
        reasons=(reason,),
        changes=changes,
        remedy=remedy if changes or now is None else None,
    )
