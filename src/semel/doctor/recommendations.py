"""Each setting of a queue as it should be: one value, and the reasons for it.

The rule: a setting is decided here, once for each case, and every finding, command and recommendation shows that value.
The visibility timeout is the largest that any reason asks for; the heartbeat interval follows from it.
"""

from __future__ import annotations

import math
from typing import Final

from semel.doctor import remedies
from semel.doctor.model import Behaviour, Case, Cause, QueueState, Recommendation, Remedy, Times
from semel.durations import text as duration
from semel.messages.dead_letter_queue import MAX_REDELIVERY, RECOMMENDED_RECEIVES, redelivery_period
from semel.sqs import limits

DEFAULT_VISIBILITY: Final = 30.0
MAX_VISIBILITY: Final = float(limits.MAX_VISIBILITY)
_FAR_TOO_LONG: Final = 10  # times what is needed
_SLOW_RECOVERY: Final = 900.0
RECEIVES: Final = RECOMMENDED_RECEIVES
_MAX_SANE_RECEIVES: Final = 100
_MANY_ACCIDENTS: Final = 0.01  # of the messages
_DAY: Final = 86_400.0
SOURCE_RETENTION: Final = 4 * _DAY
_LONGEST_SOURCE_RETENTION: Final = 7 * _DAY
MAX_RETENTION: Final = float(limits.MAX_RETENTION)
_NEAR_ITS_END: Final = 0.8


def recommend(case: Case) -> tuple[Recommendation, ...]:
    """The value that each setting should have, if enough is known."""
    recommended = [_visibility_timeout(case), _heartbeat_interval(case)]
    if case.state is not None and not case.state.sources:  # a dead-letter queue is judged with its source
        recommended += [_max_receive_count(case, case.state), _retention(case, case.state)]
        recommended += [_dead_letter_retention(case, case.state)]
    recommended += [_ledger_retention(case)]
    return tuple(recommendation for recommendation in recommended if recommendation is not None)


def _setting(
    case: Case, setting: str, wanted: float, now: float | None, reasons: tuple[str, ...], remedy: Remedy | None = None
) -> Recommendation:
    """A setting in seconds. If its present value is not known, it does not count as a change, but may have a remedy."""
    shown = duration(now) if now is not None else None
    changes = now is not None and now != wanted
    return Recommendation(case.queue, setting, duration(wanted), shown, reasons, changes, remedy)


# The visibility timeout.


def visibility(case: Case) -> float | None:
    """The recommended timeout: the present one if that is good enough. None if nothing known asks for another one."""
    now, wanted = case.visibility, _needed(case)
    if not _is_measured(case) and (now is None or now >= wanted or _is_dead_letter_queue(case)):
        return None
    return now if now is not None and wanted <= now <= wanted * _FAR_TOO_LONG else wanted


def worth_trying(
    behaviour: Behaviour, read_timeout: float = 60.0, lambda_timeout: float | None = None
) -> tuple[float, ...]:
    """The timeouts with which to replay the observed work, so that a remedy can say what it would have changed."""
    if holding(behaviour) is None or behaviour.has_heartbeat:
        return ()
    return (_needed(Case(behaviour.queue, behaviour, read_timeout=read_timeout, lambda_timeout=lambda_timeout)),)


def for_work(hold: Times) -> float:
    """The timeout that the work asks for: 1.5 × P99 or 1.1 × the longest, whichever is more."""
    return max(hold.p99 * 1.5, hold.most * 1.1)


def for_lambda(function_timeout: float) -> float:
    """The timeout that AWS asks for if Lambda receives the messages."""
    return 6 * function_timeout


def round_up(value: float) -> float:
    """Rounds up to whole seconds; above two minutes to tens of seconds, above an hour to minutes."""
    step = 1 if value <= 120 else 10 if value <= 3_600 else 60
    # A product such as 20 × 1.1 may come out a hair above what it means.
    return float(math.ceil(value / step - 1e-9) * step)


def holding(behaviour: Behaviour | None) -> Times | None:
    """How long messages are held: as measured, else the sum of wait and work."""
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


def visibility_remedy(case: Case, timeout: float) -> Remedy:
    """Has no command if the consumers ask SQS for a timeout of their own: that of the queue does not affect them."""
    own, now = case.state.visibility if case.state is not None else None, case.visibility
    if own is not None and own != now and own >= timeout:
        return Remedy(
            f"Set the visibility timeout to {duration(timeout)} where the consumers ask for {duration(now or 0)}: the "
            f"queue itself has {duration(own)}. Or the queue was changed after these logs were written."
        )
    text = f"Set the visibility timeout of {case.queue} to {duration(timeout)}."
    return remedies.change(case, text, {"VisibilityTimeout": round(timeout)})


def heartbeat_alternative(case: Case) -> str | None:
    """What a heartbeat would change; None if there is one, if it would change nothing, and with Lambda."""
    beating = case.behaviour is not None and case.behaviour.has_heartbeat
    if beating or case.lambda_timeout is not None or _needed(case) <= _needed_by_any_work(case):
        return None
    return (
        f"with a heartbeat every {duration(heartbeat(case))} a timeout of {duration(_needed_by_any_work(case))} is "
        "enough, whatever the longest work takes (up to 12 h)"
    )


def _needed(case: Case) -> float:
    return _bounded(_work_reasons(case) + _other_reasons(case))


def _needed_by_any_work(case: Case) -> float:
    """The timeout that is needed even where a heartbeat covers the work."""
    return _bounded(_other_reasons(case))


def _bounded(reasons: list[tuple[float, str]]) -> float:
    return min(MAX_VISIBILITY, round_up(max(seconds for seconds, _ in reasons)))


def _other_reasons(case: Case) -> list[tuple[float, str]]:
    """Reasons that have nothing to do with the work, each with the timeout that it asks for."""
    reasons = [(DEFAULT_VISIBILITY, "nothing is gained below the default of SQS, 30 s")]
    if case.lambda_timeout is not None:
        asked = for_lambda(case.lambda_timeout)
        text = f"the Lambda function may run for {duration(case.lambda_timeout)}: AWS asks for at least 6 × that, "
        return [*reasons, (asked, text + duration(asked))]
    text = f"the client waits for the answer to a receive for up to {duration(case.read_timeout)} (its read timeout)"
    return [*reasons, (case.read_timeout, text)]


def _work_reasons(case: Case) -> list[tuple[float, str]]:
    behaviour, hold, now = case.behaviour, holding(case.behaviour), case.visibility
    if behaviour is None or behaviour.has_heartbeat:
        return []
    if hold is None and now is not None and behaviour.caused_by(Cause.VISIBILITY):
        return [(2 * now, f"work outlasted the timeout of {duration(now)}: twice that")]
    if hold is None:
        return []
    p99, most = hold.p99 * 1.5, hold.most * 1.1
    return [
        (p99, f"99 % of the messages are held for at most {duration(hold.p99)}: × 1.5 is {duration(p99)}"),
        (most, f"the longest was held for {duration(hold.most)}: × 1.1 is {duration(most)}"),
    ]


def _is_measured(case: Case) -> bool:
    behaviour = case.behaviour
    if behaviour is None:
        return False
    return behaviour.has_heartbeat or holding(behaviour) is not None or bool(behaviour.caused_by(Cause.VISIBILITY))


def _is_dead_letter_queue(case: Case) -> bool:
    return case.state is not None and bool(case.state.sources)


def _visibility_timeout(case: Case) -> Recommendation | None:
    wanted, now = visibility(case), case.visibility
    if wanted is None:
        return None
    behaviour = case.behaviour
    by_size = sorted(_work_reasons(case) + _other_reasons(case), key=lambda reason: -reason[0])
    # The default is mentioned only if nothing else asks for more.
    reasons = [text for place, (seconds, text) in enumerate(by_size) if seconds != DEFAULT_VISIBILITY or not place]
    if behaviour is not None and behaviour.has_heartbeat:
        reasons.insert(0, "the heartbeat covers the work, so the timeout is only the wait after a crash")
    if by_size[0][0] > MAX_VISIBILITY:
        reasons.insert(0, "SQS allows no more than 12 h: shorten the work, or split it")
    if now is not None and now > wanted:
        reasons.insert(0, f"after a crash a message stays hidden for the timeout, {duration(now)} now")
    alternative = heartbeat_alternative(case)
    reasons += [alternative] if alternative else []
    remedy = visibility_remedy(case, wanted) if now != wanted else None
    return _setting(case, "visibility timeout", wanted, now, tuple(reasons), remedy)


# The heartbeat.


def heartbeat(case: Case) -> float:
    """The present interval if it is short enough; else a third of the timeout, so that two lost ones do no harm."""
    behaviour = case.behaviour
    beating = behaviour is not None and behaviour.has_heartbeat
    timeout = (visibility(case) if beating else None) or _needed_by_any_work(case)
    every = behaviour.heartbeat_every if behaviour is not None else None
    return every if every is not None and every < timeout / 2 else max(1.0, math.floor(timeout / 3))


def _heartbeat_interval(case: Case) -> Recommendation | None:
    behaviour, timeout = case.behaviour, visibility(case)
    if behaviour is None or timeout is None or not _is_measured(case):
        return None
    wanted, alternative = heartbeat(case), heartbeat_alternative(case)
    if behaviour.has_heartbeat:
        reason = f"at most half, better a third of the timeout of {duration(timeout)}: two lost heartbeats do no harm"
        return _setting(case, "heartbeat interval", wanted, behaviour.heartbeat_every, (reason,))
    if alternative is None or timeout <= _SLOW_RECOVERY:
        reason = "the visibility timeout alone covers the work"
        return Recommendation(case.queue, "heartbeat interval", "none", "none", (reason,), changes=False)
    slow = f"after a crash a timeout of {duration(timeout)} hides a message for as long"
    return Recommendation(case.queue, "heartbeat interval", duration(wanted), "none", (slow, alternative), changes=True)


def shutdown_grace(case: Case) -> float | None:
    """How long a worker needs to finish what it has after SIGTERM."""
    hold = holding(case.behaviour)
    return None if hold is None else round_up(hold.p99 * 1.5)


# The redrive policy.


def max_receives(case: Case) -> tuple[int, str]:
    """How often a message should be received before SQS dead-letters it, and why."""
    state, behaviour = case.state, case.behaviour
    wanted, why = RECEIVES, "a crash, a deploy or a minute of throttling then dead-letters no good message"
    if case.is_fifo:
        why = "not fewer: a dead-lettered message leaves its group, and those behind it go on without it"
    if behaviour is not None and behaviour.messages:
        accidents = (Cause.CRASH, Cause.VISIBILITY, Cause.CONCURRENT, Cause.LOST_DELETE)
        again = sum(caused.duplicates for caused in behaviour.causes if caused.cause in accidents)
        if again / behaviour.messages > _MANY_ACCIDENTS:
            wanted += 2
            why = "crashes, timeouts and lost deletes use up receives as well, and there are many here"
    now = state.max_receives if state is not None else None
    if state is None or now is None or now < wanted:
        return wanted, why
    if behaviour is not None and behaviour.loops and now > 2 * RECEIVES:
        return wanted, f"messages that always fail are now tried {now} times"
    fits = now <= _MAX_SANE_RECEIVES and now * state.visibility <= state.retention
    return (now, why) if fits else (wanted, f"{now} receives may outlast the retention, and then the message is lost")


def _max_receive_count(case: Case, state: QueueState) -> Recommendation:
    wanted, why = max_receives(case)
    changes = state.max_receives != wanted
    return Recommendation(
        queue=case.queue,
        setting="maxReceiveCount",
        value=str(wanted),
        now=str(state.max_receives) if state.max_receives else "none",
        reasons=(why,),
        changes=changes,
        remedy=remedies.change_max_receives(case, wanted) if changes and state.dead_letters else None,
    )


# Retention.


def oldest_age(case: Case) -> float | None:
    """The age of the oldest message, by the newest of the last ten metrics that have it."""
    ages = [point.oldest for point in case.series.points[-10:] if point.oldest is not None] if case.series else []
    return ages[-1] if ages else None


def is_near_retention(case: Case) -> bool:
    """Whether SQS is about to delete messages that nobody has processed."""
    age = oldest_age(case)
    return case.state is not None and age is not None and age >= _NEAR_ITS_END * case.state.retention


def retention(case: Case, state: QueueState) -> tuple[float, str]:
    """How long the queue should keep messages, and why."""
    if state.sources:
        return MAX_RETENTION, "dead-letter messages wait for a person"
    if is_near_retention(case):
        age = duration(oldest_age(case) or 0)
        return MAX_RETENTION, f"the oldest message is {age} old: keep all until the backlog is processed"
    if state.retention < _DAY:
        return SOURCE_RETENTION, "messages must outlast an outage of a night or a weekend"
    if state.retention > _LONGEST_SOURCE_RETENTION and not state.fifo:
        return _LONGEST_SOURCE_RETENTION, "a dead-letter message keeps its age, and its queue keeps it for 14 d in all"
    if state.dead_letters is None:
        return state.retention, "long enough for an outage"
    return state.retention, "long enough for an outage, and shorter than that of the dead-letter queue"


def retention_remedy(case: Case, state: QueueState) -> Remedy | None:
    """None if the retention is as it should be. Has no command while a shorter retention would delete messages."""
    wanted, _ = retention(case, state)
    if wanted == state.retention:
        return None
    text = f"Set the retention of {case.queue} to {duration(wanted)}"
    age, is_empty = oldest_age(case), not (state.visible or state.in_flight or state.delayed)
    if wanted < state.retention and not is_empty and not (age is not None and 0 < age < wanted / 2):
        return Remedy(f"{text} once no message is older: SQS deletes those at once.")
    return remedies.change(case, f"{text}.", {"MessageRetentionPeriod": round(wanted)})


def dead_letter_retention_remedy(state: QueueState) -> Remedy | None:
    """None if the retention is as it should be, or not known."""
    dlq = state.dead_letters
    if dlq is None or dlq.retention in (None, MAX_RETENTION):
        return None
    text = f"Set the retention of {remedies.name_of(dlq.arn)} to {duration(MAX_RETENTION)}."
    address = remedies.dead_letter_queue_of(dlq, state)
    return remedies.change(address, text, {"MessageRetentionPeriod": limits.MAX_RETENTION})


def _retention(case: Case, state: QueueState) -> Recommendation:
    wanted, why = retention(case, state)
    return _setting(case, "retention", wanted, state.retention, (why,), retention_remedy(case, state))


def _dead_letter_retention(case: Case, state: QueueState) -> Recommendation | None:
    dlq = state.dead_letters
    if dlq is None:
        return None
    why = "the most that SQS allows: dead-letter messages wait for a person"
    if not state.fifo:
        why += ", and on a Standard queue they keep their age"
    remedy = dead_letter_retention_remedy(state)
    return _setting(case, "dead-letter retention", MAX_RETENTION, dlq.retention, (why,), remedy)


# The ledger.


def ledger_retention(case: Case) -> float:
    """How long a message can come back once both queues have the recommended retention; never less than now.

    28 days if nothing is known of the queue."""
    state, now = case.state, case.ledger.retention if case.ledger is not None else None
    wanted = MAX_REDELIVERY
    if state is not None:
        source = max(state.retention, retention(case, state)[0])
        wanted = redelivery_period(source, MAX_RETENTION if state.dead_letters is not None else 0.0)
    return max(wanted, now or 0.0)


def _ledger_retention(case: Case) -> Recommendation | None:
    if case.ledger is None or _is_dead_letter_queue(case):
        return None
    wanted, now = ledger_retention(case), case.ledger.retention
    why = "the retention of the queue and of its dead-letter queue together: SQS delivers nothing after that"
    return _setting(case, "ledger retention", wanted, now, (why,), ledger_remedy(case) if now != wanted else None)


def ledger_remedy(case: Case) -> Remedy:
    wanted = ledger_retention(case)
    return Remedy(f"Set the ledger retention to {duration(wanted)} (`retention={wanted:.0f}`, in seconds).")
