"""Rules on time: the visibility timeout against the work, the client and the heartbeat; clocks; age and retention."""

from __future__ import annotations

from semel.doctor import recommendations, remedies
from semel.doctor.model import Case, Cause, Severity
from semel.doctor.rules.duplicates import longer_timeout
from semel.doctor.rules.rule import Observation, rule
from semel.doctor.text_format import listed
from semel.durations import text as duration
from semel.sqs import limits

_SKEW = 1.0
_BAD_SKEW = 10.0


@rule(
    "visibility-short",
    Severity.WARNING,
    title="the visibility timeout against P99 from the receive to the delete, and a Lambda function's timeout",
    needs="logs, with queue attributes where the log does not tell the timeout; or `--lambda-timeout`",
    remedy="longer timeout, or a heartbeat",
)
def short(case: Case) -> Observation | None:
    """The timeout does not cover nearly all of the work, and no duplicate has shown it yet."""
    behaviour, now, wanted = case.behaviour, case.visibility, recommendations.visibility(case)
    if now is None or wanted is None or wanted <= now:
        return None
    shown = behaviour.caused_by(Cause.VISIBILITY) if behaviour is not None else None
    hold = recommendations.holding(behaviour) if behaviour is not None and not behaviour.has_heartbeat else None
    if shown is not None and shown.duplicates:
        return None
    observed, is_urgent = [], False
    if behaviour is not None and hold is not None and recommendations.for_work(hold) > now:
        wait = behaviour.wait
        waits = f", {duration(wait.p99)} of it before the handler starts" if wait is not None else ""
        observed.append(f"P99 from the receive to the delete is {duration(hold.p99)}{waits}")
        observed.append(f"the longest was {duration(hold.most)}")
        is_urgent = hold.p99 * 1.1 > now or hold.most > now
    if case.lambda_timeout is not None and recommendations.for_lambda(case.lambda_timeout) > now:
        observed.append(f"the Lambda function may run for {duration(case.lambda_timeout)}: AWS asks for 6 × that")
        is_urgent = is_urgent or case.lambda_timeout > now
    if not observed:
        return None
    return Observation(
        observed=f"The visibility timeout is {duration(now)}, and {'; '.join(observed)}.",
        why="A message that takes longer than the timeout is delivered to a second worker while the first has it.",
        remedy=longer_timeout(case),
        severity=None if is_urgent else Severity.INFO,
        figures={
            "visibility": now,
            "p99": hold.p99 if hold is not None else None,
            "most": hold.most if hold is not None else None,
            "recommended": wanted,
        },
    )


@rule(
    "visibility-under-read-timeout",
    Severity.INFO,
    title="the visibility timeout is shorter than the client's read timeout",
    needs="queue attributes or logs",
    remedy="longer timeout, or a shorter read timeout",
)
def under_read_timeout(case: Case) -> Observation | None:
    now, wanted, read_timeout = case.visibility, recommendations.visibility(case), case.read_timeout
    if now is None or wanted is None or now >= read_timeout or wanted <= now or case.lambda_timeout is not None:
        return None
    # A read timeout must be longer than a long poll, so this is possible only if the visibility timeout is longer, too.
    otherwise = f"Or set the client's read timeout to {duration(now)}: a long poll of {limits.MAX_WAIT} s fits in it."
    return Observation(
        observed=f"The visibility timeout is {duration(now)}, the read timeout of the client {duration(read_timeout)}.",
        why=(
            "If the answer to a receive is slow or lost, its messages are visible again before the client gives up on "
            "the call: they count as received, and nobody has them."
        ),
        remedy=remedies.joined(
            recommendations.visibility_remedy(case, wanted), otherwise if now > limits.MAX_WAIT + 1 else ""
        ),
        figures={"visibility": now, "read_timeout": read_timeout},
    )


@rule(
    "heartbeat-slow",
    Severity.WARNING,
    title="the heartbeat's interval is half of the visibility timeout or more",
    needs="logs",
    remedy="an interval of a third of the timeout",
)
def slow_heartbeat(case: Case) -> Observation | None:
    behaviour, now, wanted = case.behaviour, case.visibility, recommendations.visibility(case)
    every = behaviour.heartbeat_every if behaviour is not None and behaviour.has_heartbeat else None
    if every is None or now is None or wanted is None or every < now / 2:
        return None
    interval = recommendations.heartbeat(case)
    return Observation(
        observed=f"The heartbeat comes every {duration(every)}, with a visibility timeout of {duration(now)}.",
        why="If one heartbeat is late or lost, the message is delivered to a second worker.",
        remedy=remedies.joined(
            f"Set the heartbeat interval to {duration(interval)}." if interval != every else "",
            recommendations.visibility_remedy(case, wanted) if wanted != now else None,
        ),
        figures={"heartbeat_every": every, "visibility": now},
    )


@rule(
    "clock-skew",
    Severity.WARNING,
    title="clocks of workers against the SentTimestamp of SQS",
    needs="logs with the time of sending",
    remedy="a time service on the machine",
)
def clock_skew(case: Case) -> Observation | None:
    skew = case.behaviour.skew if case.behaviour is not None else {}
    off = sorted((abs(by), worker) for worker, by in skew.items() if abs(by) >= _SKEW)[::-1]
    if not off:
        return None
    most = off[0][0]
    return Observation(
        observed=(
            f"Clocks differ from that of SQS by up to {duration(most)}: "
            f"{listed([f'{worker} ({duration(by)})' for by, worker in off])}."
        ),
        why=(
            "Leases and deadlines are wrong by as much, and so are the times in these logs. From 15 minutes on SQS "
            "refuses every call."
        ),
        remedy="Run chrony or another NTP client on these machines; on EC2 it can use 169.254.169.123.",
        severity=None if most >= min(_BAD_SKEW, (case.visibility or 60.0) / 3) else Severity.INFO,
        figures={"workers": len(off), "most_seconds": round(most, 3)},
    )


@rule(
    "age-near-retention",
    Severity.CRITICAL,
    title="the oldest message is almost as old as the queue keeps messages",
    needs="queue attributes and metrics",
    remedy="longer retention, more workers",
)
def near_retention(case: Case) -> Observation | None:
    state, age = case.state, recommendations.oldest_age(case)
    if state is None or age is None or not recommendations.is_near_retention(case):
        return None
    process = (
        "Redrive or delete its messages in time." if state.sources else "Add workers until the backlog is processed."
    )
    return Observation(
        observed=(
            f"The oldest message is {duration(age)} old, and the queue keeps messages for {duration(state.retention)}."
        ),
        why="SQS deletes older messages, although nobody has processed them.",
        remedy=remedies.joined(recommendations.retention_remedy(case, state), process),
        figures={"oldest": age, "retention": state.retention},
    )
