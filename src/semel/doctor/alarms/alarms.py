"""The alarms that a queue needs, as values; `formats` writes them for one tool or another.

There are only four, so that each is worth getting up for: dead-letter messages, age, in flight near the limit, and
messages that are received and not deleted.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from semel.doctor import recommendations, remedies
from semel.doctor.errors import DoctorError
from semel.doctor.model import Case, QueueState
from semel.durations import text as duration
from semel.sqs import limits

VISIBLE: Final = "ApproximateNumberOfMessagesVisible"
IN_FLIGHT: Final = "ApproximateNumberOfMessagesNotVisible"
AGE: Final = "ApproximateAgeOfOldestMessage"
RECEIVED: Final = "NumberOfMessagesReceived"
DELETED: Final = "NumberOfMessagesDeleted"
NEAR_CAP: Final = 96_000  # 80 % of what SQS allows
NOT_DELETED_PERCENT: Final = 10
FEWEST_RECEIVED: Final = 20


class Kind(enum.StrEnum):
    DEAD_LETTERS = "dead-letters"
    AGE = "age"
    IN_FLIGHT = "in-flight"
    NOT_DELETED = "not-deleted"


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm: raised when a metric of `queue` is above (`strictly`) or at `threshold` in `periods` in a row.

    `metric` is CloudWatch's name; without one it is the percentage of received messages that were not deleted."""

    kind: Kind
    queue: str
    metric: str | None
    threshold: int
    reason: str  # why, and why this threshold
    strictly: bool = True
    period: int = 60
    periods: int = 1
    region: str | None = None

    @property
    def name(self) -> str:
        return f"{self.queue} {self.kind.value}"


def alarms_for(case: Case, *, dead_letter_queue: str | None = None, region: str | None = None) -> tuple[Alarm, ...]:
    """The alarms that a queue needs; without queue attributes, for SQS's defaults and a dead-letter queue's usual name.

    `region` is for queues whose address does not name it."""
    state, name = case.state, dead_letter_queue or _dead_letter_queue(case)
    if state is not None and state.sources:
        alarms = [_dead_letters(case.queue, ", ".join(state.sources))]
    else:
        alarms = [_dead_letters(name, case.queue)] if name is not None else []
        alarms += [_age(case), _in_flight(case), _not_deleted(case)]
    return tuple(replace(alarm, region=_region(state) or region) for alarm in alarms)


def _region(state: QueueState | None) -> str | None:
    """Known only for queues on AWS: for others, CloudWatch is wherever the user says."""
    if state is None or not remedies.on_aws(state.url):
        return None
    return remedies.region_of(state.url, state.arn)


def _dead_letter_queue(case: Case) -> str | None:
    if case.state is None:
        return remedies.dead_letter_name(case.queue)
    return remedies.name_of(case.state.dead_letters.arn) if case.state.dead_letters is not None else None


def _dead_letters(queue: str, source: str) -> Alarm:
    return Alarm(
        kind=Kind.DEAD_LETTERS,
        queue=queue,
        metric=VISIBLE,
        threshold=0,
        reason=(
            f"There are messages in {queue}, the dead-letter queue of {source}: work that was not done. "
            "NumberOfMessagesSent does not count messages that SQS moves."
        ),
    )


def _age(case: Case) -> Alarm:
    visibility = case.state.visibility if case.state is not None else recommendations.DEFAULT_VISIBILITY
    retention = case.state.retention if case.state is not None else recommendations.SOURCE_RETENTION
    wanted = max(10 * visibility, 300.0)
    threshold = max(60.0, min(wanted, retention / 4))
    reason = (
        f"a message has waited for ten visibility timeouts of {duration(visibility)}, at least for 5 min"
        if threshold == wanted
        else f"a message has waited for a quarter of the retention of {duration(retention)}"
    )
    return Alarm(
        kind=Kind.AGE,
        queue=case.queue,
        metric=AGE,
        threshold=round(threshold),
        reason=(
            f"The consumers do not keep up: {reason}; SQS deletes it after {duration(retention)}. Messages received "
            "three times or more do not count: they show in the dead-letter queue."
        ),
        period=300,
        periods=3,
    )


def _in_flight(case: Case) -> Alarm:
    return Alarm(
        kind=Kind.IN_FLIGHT,
        queue=case.queue,
        metric=IN_FLIGHT,
        threshold=NEAR_CAP,
        reason=f"80 % of the {limits.MAX_IN_FLIGHT:,} that SQS allows in flight; at the limit SQS delivers no more.",
        strictly=False,
        periods=5,
    )


def _not_deleted(case: Case) -> Alarm:
    return Alarm(
        kind=Kind.NOT_DELETED,
        queue=case.queue,
        metric=None,
        threshold=NOT_DELETED_PERCENT,
        reason=(
            f"More than {NOT_DELETED_PERCENT} % of the received messages are not deleted (periods with fewer than "
            f"{FEWEST_RECEIVED} do not count): they are delivered again, or fail. `semel doctor` shows why."
        ),
        period=900,
        periods=3,
    )


# Alarms that exist already.


def read_existing(path: str | Path) -> Mapping[str, frozenset[str]]:
    """From the output of `aws cloudwatch describe-alarms`: for each queue the metrics with an enabled alarm."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DoctorError(f"--alarms {path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise DoctorError(f"--alarms {path}: not JSON ({error}); {_HOW}") from None
    alarms = content.get("MetricAlarms") if isinstance(content, dict) else None
    if not isinstance(alarms, list):
        raise DoctorError(f"--alarms {path}: no MetricAlarms in it; {_HOW}")
    existing: dict[str, set[str]] = {}
    for alarm in alarms:
        if isinstance(alarm, dict) and alarm.get("ActionsEnabled", True):
            for metric in _metrics(alarm):
                for dimension in metric.get("Dimensions") or ():
                    if dimension.get("Name") == "QueueName":
                        existing.setdefault(str(dimension.get("Value")), set()).add(str(metric.get("MetricName")))
    return {queue: frozenset(metrics) for queue, metrics in existing.items()}


_HOW: Final = "write it with: aws cloudwatch describe-alarms --output json > alarms.json"


def _metrics(alarm: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The metrics of SQS that an alarm uses: its own, or those of its metric math."""
    used = [alarm, *((part.get("MetricStat") or {}).get("Metric") or {} for part in alarm.get("Metrics") or ())]
    yield from (metric for metric in used if metric.get("Namespace") == "AWS/SQS")
