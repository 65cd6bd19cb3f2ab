"""Rules on duplicates that happened: one for each cause, with what it cost and what prevents it."""

from __future__ import annotations

from semel.doctor import recommendations, remedies
from semel.doctor.model import Behaviour, Case, Cause, CauseSummary, Remedy, Severity
from semel.doctor.rules.rule import Figures, Observation, rule
from semel.doctor.text_format import share
from semel.durations import text as duration
from semel.text import count

LEDGER = (
    "Until then, and for the few that remain: a ledger in front of the handler (`semel run`) lets only one delivery "
    "take effect."
)
_RARE = 0.001  # of the messages


@rule(
    "doubled-effects",
    Severity.CRITICAL,
    title="keys whose effect happened more than once",
    needs="logs",
    remedy="a ledger with a key; record before delete",
)
def doubled_effects(case: Case) -> Observation | None:
    behaviour = case.behaviour
    if behaviour is None or not behaviour.doubled:
        return None
    causes = ", ".join(f"{caused.cause.value} ({count(caused.duplicates)})" for caused in behaviour.causes[:3])
    return Observation(
        observed=(
            f"{count(behaviour.doubled, 'key')} took effect more than once: {count(behaviour.effects, 'effect')} for "
            f"{count(behaviour.messages, 'message')}" + (f"; duplicates by cause: {causes}." if causes else ".")
        ),
        why="Somebody is charged, mailed or booked twice.",
        remedy=(
            "Claim each key in a ledger before the work, and record the outcome there, best in the same transaction as "
            "the effect: `semel run` with a PostgreSQL ledger and a handler that takes `tx`. For effects elsewhere, "
            "pass the key on as the idempotency key. Then remove the causes below."
        ),
        examples=behaviour.causes[0].examples if behaviour.causes else (),
        figures={"doubled": behaviour.doubled, "effects": behaviour.effects, "messages": behaviour.messages},
    )


@rule(
    "duplicates-visibility",
    Severity.WARNING,
    title="the visibility timeout ended before the message was deleted",
    needs="logs",
    remedy="longer timeout, or a heartbeat",
)
def visibility(case: Case) -> Observation | None:
    behaviour, caused = _caused(case, Cause.VISIBILITY)
    if behaviour is None or caused is None:
        return None
    hold, now = recommendations.holding(behaviour), case.visibility
    observed = f"The visibility timeout is {duration(now) if now is not None else 'too short'}"
    if hold is not None and now is not None and hold.p99 > now:
        observed += f" but P99 is {duration(hold.p99)}"
    elif hold is not None:
        observed += f", P99 is {duration(hold.p99)}, the longest {duration(hold.most)}"
    observed += f": {_cost(behaviour, caused)}"
    overrun = caused.overrun
    if overrun is not None:
        observed += f"; they ended {duration(overrun.p50)} after the timeout (P50), at most {duration(overrun.most)}"
    return Observation(
        observed=f"{observed}.",
        why=(
            "When the timeout ends before the delete, SQS delivers the message to a second worker, even if the work is "
            "done and only the delete is late."
        ),
        remedy=longer_timeout(case, LEDGER if case.ledger is None else ""),
        severity=None if caused.ran else Severity.INFO,
        examples=caused.examples,
        figures={**_figures(behaviour, caused), "visibility": now, "recommended": recommendations.visibility(case)},
    )


def longer_timeout(case: Case, more: str = "") -> Remedy:
    """The remedy for a timeout that is too short."""
    behaviour, now, wanted = case.behaviour, case.visibility, recommendations.visibility(case)
    has_heartbeat = behaviour is not None and behaviour.has_heartbeat
    every = duration(recommendations.heartbeat(case))
    if wanted is None or (now is not None and wanted <= now):
        enough = f"The timeout of {duration(now or 0)}, the last in force, is long enough"
        late = (
            f"{enough}; the heartbeat came too late. Start it at the receive, also for messages that wait for a free "
            f"worker, and send it every {every} from a thread that the work cannot block."
        )
        old = f"{enough}: look only at the time since then (--since)."
        return remedies.joined(late if has_heartbeat else old, more)
    alternative = recommendations.heartbeat_alternative(case)
    return remedies.joined(
        recommendations.visibility_remedy(case, wanted),
        _replayed(behaviour, now, wanted) if behaviour is not None else "",
        f"Or enable a heartbeat: {alternative}." if alternative else "",
        f"Send the heartbeat every {every}." if has_heartbeat else "",
        more,
    )


def _replayed(behaviour: Behaviour, now: float | None, wanted: float) -> str:
    """What the recommended timeout would have changed, by replay of the observed work; empty if it was not replayed."""
    replay = next((replay for replay in behaviour.replays if replay.visibility == wanted), None)
    if replay is None or behaviour.caused_by(Cause.VISIBILITY) is None:
        return ""
    if replay.duplicates >= behaviour.duplicates:
        return "A longer timeout alone would not have prevented duplicates here."
    before, after = (share(number, behaviour.messages) for number in (behaviour.duplicates, replay.duplicates))
    if before == after:  # too few of many messages to show in a share
        before, after = count(behaviour.duplicates), count(replay.duplicates)
    instead = f" instead of {duration(now)}" if now is not None else ""
    return f"With {duration(wanted)}{instead}: {before} -> {after} duplicates."


@rule(
    "duplicates-crash",
    Severity.WARNING,
    title="a worker stopped without recording an outcome, and its messages came back",
    needs="logs",
    remedy="time to finish at shutdown; a ledger",
)
def crash(case: Case) -> Observation | None:
    grace = recommendations.shutdown_grace(case)
    at_least = f" (at least {duration(grace)} here)" if grace is not None else ""
    hidden = f" The messages come back only after {duration(case.visibility)}." if case.visibility else ""
    return _of_cause(
        case,
        Cause.CRASH,
        "Workers stopped without recording an outcome for their messages",
        f"Nobody knows how far they came, and all of the work is done again.{hidden}",
        "Look for workers that were killed: out of memory, or a deploy that does not wait long enough. Give them time "
        f"to finish after SIGTERM{at_least}, with terminationGracePeriodSeconds in Kubernetes or stopTimeout in ECS, "
        f"and return unfinished messages to the queue, as `semel run` does. {LEDGER}",
    )


@rule(
    "duplicates-lost-delete",
    Severity.WARNING,
    title="the outcome was recorded in time, and the message came again",
    needs="logs",
    remedy="check each delete; a ledger",
)
def lost_delete(case: Case) -> Observation | None:
    return _of_cause(
        case,
        Cause.LOST_DELETE,
        "Messages came back although their outcome was recorded in time: their delete was lost, refused or never sent",
        "Unless the handler knows what is done, it does it again.",
        "Check the response to each delete, for each entry of a batch, and repeat those that failed. Send buffered "
        "deletes before a worker stops. On a Standard queue SQS itself may lose a delete: a ledger recognises the "
        "message when it comes back, and deletes it without running the handler.",
    )


@rule(
    "duplicates-producer",
    Severity.WARNING,
    title="the same key was sent as another message",
    needs="logs",
    remedy="one id for each thing, as the consumer's key",
)
def producer(case: Case) -> Observation | None:
    deduplication = "as MessageDeduplicationId, which SQS honours for 5 minutes, and " if case.is_fifo else ""
    return _of_cause(
        case,
        Cause.PRODUCER,
        "The same key came in messages with different ids",
        "SQS cannot know that they are the same: no setting of the queue prevents this.",
        f"Let the producer give each thing one id, and send the same id when it sends again: {deduplication}as a "
        "message attribute or a field of the body. Use it as the consumer's key (`@app.handler(key=…)`): the ledger "
        "then recognises it whatever the message id is.",
    )


@rule(
    "duplicates-redrive",
    Severity.INFO,
    title="a key came again after an earlier message with it had failed",
    needs="logs",
    remedy="a key that survives the redrive; ledger retention",
)
def redrive(case: Case) -> Observation | None:
    return _of_cause(
        case,
        Cause.REDRIVE,
        "Keys that had failed came again with other message ids",
        "Whatever the failed attempt had already done is done again, unless the handler checks.",
        "Nothing is wrong if the earlier attempt really failed. A redrive gives a message a new id, so use a key that "
        "travels with the message (an attribute or a field of the body). " + recommendations.ledger_remedy(case).text,
    )


@rule(
    "duplicates-concurrent",
    Severity.WARNING,
    title="SQS delivered a message twice while it was hidden",
    needs="logs",
    remedy="a ledger, or a FIFO queue",
)
def concurrent(case: Case) -> Observation | None:
    return _of_cause(
        case,
        Cause.CONCURRENT,
        "SQS delivered messages a second time while they were hidden",
        "Two workers had the same message at the same moment.",
        "A Standard queue delivers at least once, and no setting changes that. Claim each key in a ledger before the "
        "work (`semel run` does), or use a FIFO queue.",
    )


@rule(
    "duplicates-unknown",
    Severity.INFO,
    title="SQS counts earlier deliveries that are not in the logs",
    needs="logs",
    remedy="logs of all workers, from earlier on",
)
def unknown(case: Case) -> Observation | None:
    return _of_cause(
        case,
        Cause.UNKNOWN,
        "SQS counts earlier deliveries that are not in these logs",
        "Their cause is not known, and the figures of the other causes are lower bounds.",
        "Give the doctor the logs of all workers, and from earlier on (--since), from at least one visibility timeout "
        "before the first of these.",
    )


def _caused(case: Case, cause: Cause) -> tuple[Behaviour | None, CauseSummary | None]:
    caused = case.behaviour.caused_by(cause) if case.behaviour is not None else None
    return case.behaviour, caused if caused is not None and caused.duplicates else None


def _of_cause(case: Case, cause: Cause, observed: str, why: str, remedy: str) -> Observation | None:
    behaviour, caused = _caused(case, cause)
    if behaviour is None or caused is None:
        return None
    # A duplicate that did not run cost only a receive; rare ones are normal for SQS.
    is_minor = not caused.ran or caused.duplicates < _RARE * behaviour.messages
    return Observation(
        observed=f"{observed}: {_cost(behaviour, caused)}.",
        why=why,
        remedy=remedy,
        severity=Severity.INFO if is_minor else None,
        examples=caused.examples,
        figures=_figures(behaviour, caused),
    )


def _cost(behaviour: Behaviour, caused: CauseSummary) -> str:
    """`3.2 % of 1,000 messages (32 duplicates); the handler ran again for 30, 96 s of work wasted`."""
    text = (
        f"{share(caused.duplicates, behaviour.messages)} of {count(behaviour.messages, 'message')} "
        f"({count(caused.duplicates, 'duplicate')})"
    )
    if not caused.ran:
        return f"{text}; the handler ran for none of them"
    wasted = f", {duration(caused.wasted)} of work wasted" if caused.wasted else ""
    return f"{text}; the handler ran again for {count(caused.ran)}{wasted}"


def _figures(behaviour: Behaviour, caused: CauseSummary) -> Figures:
    overrun = caused.overrun
    return {
        "duplicates": caused.duplicates,
        "share": round(caused.duplicates / behaviour.messages, 6) if behaviour.messages else 0.0,
        "ran_again": caused.ran,
        "wasted_seconds": round(caused.wasted, 3),
        **({"over_p50": round(overrun.p50, 3), "over_most": round(overrun.most, 3)} if overrun is not None else {}),
    }
