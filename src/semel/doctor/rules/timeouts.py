"""Rules on time: the visibility timeout against the work, the client and the heartbeat; clocks; age and retention."""

from __future__ import annotations

from typing import Final

from semel.doctor import recommendations, remedies
from semel.doctor.model import Case, Cause, Remedy, Severity
from semel.doctor.rules.duplicates import lengthen
from semel.doctor.rules.rule import Observation, Rule
from semel.doctor.wording import listed, seconds

LONGEST_POLL: Final = 20  # seconds

_SKEW_SEEN = 1.0
_SKEW_BAD = 10.0
_NEAR_ITS_END = 0.8


def _short(case: Case) -> Observation | None:
    """The timeout does not cover what 99 of 100 messages need, and no duplicate has shown it yet."""
    behaviour, hold, now = case.behaviour, recommendations.holding(case.behaviour), case.visibility
    if behaviour is None or hold is None or now is None or behaviour.has_heartbeat:
        return None
    shown = behaviour.caused_by(Cause.VISIBILITY)
    if (shown is not None and shown.duplicates) or (hold.p99 * 1.5 <= now and hold.most <= now):
        return None
    wanted = recommendations.visibility_for(hold, heartbeat=False)
    if wanted <= now:
        return None
    waits = f", {seconds(behaviour.wait.p99)} of it before the handler starts" if behaviour.wait is not None else ""
    return Observation(
        observed=(
            f"The visibility timeout is {seconds(now)}, and P99 from the receive to the delete is {seconds(hold.p99)}"
            f"{waits}; the longest was {seconds(hold.most)}."
        ),
        why="A message that takes longer than the timeout is given to a second worker while the first is at it.",
        remedy=lengthen(case, wanted),
        severity=Severity.WARNING if hold.p99 * 1.1 > now or hold.most > now else Severity.INFO,
        figures={"visibility": now, "p99": hold.p99, "most": hold.most, "recommended": wanted},
    )


def _under_read_timeout(case: Case) -> Observation | None:
    now = case.visibility
    if now is None or now >= case.read_timeout or (case.state is not None and case.state.sources):
        return None
    wanted = max(recommendations.visibility(case) or 0.0, recommendations.round_up(case.read_timeout + 1))
    attributes = {"VisibilityTimeout": round(wanted)}
    # A client's read timeout must outlast a long poll, so that a shorter visibility timeout leaves it no room.
    otherwise = f", or the client's read timeout below {seconds(now)}" if now > LONGEST_POLL + 1 else ""
    otherwise += f" (it must stay above the {LONGEST_POLL} s of a long poll)" if otherwise else ""
    return Observation(
        observed=(
            f"The visibility timeout is {seconds(now)}, the read timeout of the client {seconds(case.read_timeout)}."
        ),
        why=(
            "If the answer to a receive is slow or lost, its messages are visible again before the client has given "
            "that call up: they count as received, and nobody had them."
        ),
        remedy=Remedy(
            text=f"Set the visibility timeout to {seconds(wanted)}{otherwise}.",
            cli=remedies.set_attributes(case, attributes),
            terraform=remedies.terraform(case.queue, attributes),
        ),
        figures={"visibility": now, "read_timeout": case.read_timeout},
    )


def _slow_heartbeat(case: Case) -> Observation | None:
    behaviour, now = case.behaviour, case.visibility
    if behaviour is None or behaviour.heartbeat_every is None or now is None or behaviour.heartbeat_every < now / 2:
        return None
    every = behaviour.heartbeat_every
    attributes = {"VisibilityTimeout": round(min(43_200.0, recommendations.round_up(every * 3)))}
    return Observation(
        observed=f"The heartbeat comes every {seconds(every)}, with a visibility timeout of {seconds(now)}.",
        why="One beat that is late or lost, and the message is given to a second worker.",
        remedy=Remedy(
            text=(
                f"Let it come every {seconds(recommendations.heartbeat_for(now))}, a third of the timeout; or make the "
                f"timeout three times the interval, {seconds(attributes['VisibilityTimeout'])}."
            ),
            cli=remedies.set_attributes(case, attributes),
            terraform=remedies.terraform(case.queue, attributes),
        ),
        figures={"heartbeat_every": every, "visibility": now},
    )


def _skew(case: Case) -> Observation | None:
    behaviour = case.behaviour
    off = {worker: by for worker, by in behaviour.skew.items() if abs(by) >= _SKEW_SEEN} if behaviour else {}
    if not off:
        return None
    worst = max(off, key=lambda worker: abs(off[worker]))
    by = abs(off[worst])
    names = listed(
        [f"{worker} ({seconds(abs(off[worker]))})" for worker in sorted(off, key=lambda one: -abs(off[one]))]
    )
    bad = by >= min(_SKEW_BAD, (case.visibility or 60.0) / 3)
    return Observation(
        observed=f"Clocks differ from SQS' by {seconds(by)} at most: {names}.",
        why=(
            "Leases and deadlines are reckoned wrongly, the times in these logs are off by as much, and from 15 "
            "minutes on SQS refuses every call."
        ),
        remedy=Remedy(text="Run chrony or another NTP client on these machines; on EC2 it can use 169.254.169.123."),
        severity=Severity.WARNING if bad else Severity.INFO,
        figures={"workers": len(off), "most_seconds": round(by, 3)},
    )


def _near_retention(case: Case) -> Observation | None:
    state, series = case.state, case.series
    if state is None or series is None:
        return None
    ages = [point.oldest for point in series.points[-10:] if point.oldest is not None]
    if not ages or ages[-1] < _NEAR_ITS_END * state.retention:
        return None
    attributes = {"MessageRetentionPeriod": 1_209_600}
    return Observation(
        observed=(
            f"The oldest message is {seconds(ages[-1])} old, and the queue keeps messages for "
            f"{seconds(state.retention)}."
        ),
        why="What is older is deleted by SQS, unseen and unprocessed.",
        remedy=Remedy(
            text="Keep messages for 14 days until the backlog is worked off, and add workers.",
            cli=remedies.set_attributes(case, attributes),
            terraform=remedies.terraform(case.queue, attributes),
        ),
        figures={"oldest": ages[-1], "retention": state.retention},
    )


RULES = (
    Rule(
        "visibility-short",
        Severity.WARNING,
        "the visibility timeout against P99 from the receive to the delete, the wait included",
        "logs, with queue attributes where the log does not tell the timeout",
        "longer timeout, or a heartbeat",
        _short,
    ),
    Rule(
        "visibility-under-read-timeout",
        Severity.INFO,
        "the visibility timeout is shorter than the client's read timeout",
        "queue attributes or logs",
        "longer timeout, or a shorter read timeout",
        _under_read_timeout,
    ),
    Rule(
        "heartbeat-slow",
        Severity.WARNING,
        "the heartbeat's interval is half of the visibility timeout or more",
        "logs",
        "an interval of a third of the timeout",
        _slow_heartbeat,
    ),
    Rule(
        "clock-skew",
        Severity.WARNING,
        "clocks of workers against SQS' SentTimestamp",
        "logs with the time of sending",
        "a time service on the machine",
        _skew,
    ),
    Rule(
        "age-near-retention",
        Severity.CRITICAL,
        "the oldest message is almost as old as the queue keeps messages",
        "queue attributes and metrics",
        "longer retention, more workers",
        _near_retention,
    ),
)
