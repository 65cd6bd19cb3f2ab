"""The alarms that a queue needs, as values; `alarm_formats` writes them down for one tool or another.

Four, and no more, so that each is worth getting up for: dead letters, age, in flight near the cap, and messages that
are received and not deleted.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from semel.doctor import recommendations, remedies
from semel.doctor.errors import DoctorError
from semel.doctor.model import Case, QueueState
from semel.doctor.wording import MINUTE, seconds
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
    """One alarm: raised when the measure of `queue` is above (`strictly`) or at `threshold` in so many periods running.

    `metric` is CloudWatch's name; without one it is the percentage of received messages that were not deleted."""

    kind: Kind
    queue: str
    metric: str | None
    threshold: int
    reason: str  # one sentence: why there, and why this threshold
    strictly: bool = True
    period: int = 60
    periods: int = 1
    region: str | None = None

    @property
    def name(self) -> str:
        return f"{self.queue} {self.kind.value}"


def alarms_for(case: Case, *, dead_letter_queue: str | None = None, region: str | None = None) -> tuple[Alarm, ...]:
    """What this queue needs; where SQS was not asked, by its defaults and the usual name of the dead-letter queue.

    `region` is for queues whose address does not tell it."""
    state = case.state
    region = _region(state) or region
    if state is not None and state.sources:
        return (_dead_letters(case.queue, f"it holds the dead letters of {', '.join(state.sources)}", region),)
    found = []
    name, why = _dead_letter_queue(case, dead_letter_queue)
    if name is not None:
        found.append(_dead_letters(name, why, region))
    return (*found, _age(case, region), _in_flight(case, region), _not_deleted(case, region))


def _region(state: QueueState | None) -> str | None:
    """Only of queues on AWS: for others CloudWatch is wherever the user says."""
    if state is None or not remedies.on_aws(state.url):
        return None
    return remedies.region_of(state.url, state.arn)


def _dead_letter_queue(case: Case, given: str | None) -> tuple[str | None, str]:
    if given is not None:
        return given, f"it takes the dead letters of {case.queue}"
    if case.state is None:
        return remedies.dead_letter_name(case.queue), f"taken to be the dead-letter queue of {case.queue}"
    letters = case.state.dead_letters
    return (None, "") if letters is None else (remedies.name_of(letters.arn), f"the dead letters of {case.queue}")


def _dead_letters(queue: str, why: str, region: str | None) -> Alarm:
    return Alarm(
        kind=Kind.DEAD_LETTERS,
        queue=queue,
        metric=VISIBLE,
        threshold=0,
        reason=(
            f"One dead letter is one too many ({why}); it is work that was not done. The number sent is no measure: "
            "what SQS moves does not count in it."
        ),
        region=region,
    )


def _age(case: Case, region: str | None) -> Alarm:
    visibility = case.state.visibility if case.state is not None else case.visibility or recommendations.SHORT
    retention = case.state.retention if case.state is not None else recommendations.SOURCE_RETENTION
    wanted = max(10 * visibility, 5 * MINUTE)
    threshold = max(MINUTE, min(wanted, retention / 4))
    reason = (
        f"a message has waited for ten visibility timeouts of {seconds(visibility)}, at least for 5 min"
        if threshold == wanted
        else f"a message has waited for a quarter of the retention of {seconds(retention)}"
    )
    return Alarm(
        kind=Kind.AGE,
        queue=case.queue,
        metric=AGE,
        threshold=round(threshold),
        reason=(
            f"The consumers do not keep up: {reason}; SQS deletes it after {seconds(retention)}. Messages "
            "received three times or more do not count: for those there is the dead-letter queue."
        ),
        period=300,
        periods=3,
        region=region,
    )


def _in_flight(case: Case, region: str | None) -> Alarm:
    return Alarm(
        kind=Kind.IN_FLIGHT,
        queue=case.queue,
        metric=IN_FLIGHT,
        threshold=NEAR_CAP,
        reason=f"80 % of the {limits.MAX_IN_FLIGHT:,} that SQS allows in flight; at the cap it hands out nothing more.",
        strictly=False,
        periods=5,
        region=region,
    )


def _not_deleted(case: Case, region: str | None) -> Alarm:
    return Alarm(
        kind=Kind.NOT_DELETED,
        queue=case.queue,
        metric=None,
        threshold=NOT_DELETED_PERCENT,
        reason=(
            f"More than {NOT_DELETED_PERCENT} % of what was received is not deleted (periods with fewer than "
            f"{FEWEST_RECEIVED} do not count): it is delivered again, or fails. `semel doctor` tells why."
        ),
        period=900,
        periods=3,
        region=region,
    )


# What is there already.


def read_existing(path: str | Path) -> Mapping[str, frozenset[str]]:
    """From what `aws cloudwatch describe-alarms` prints: for each queue the metrics that have an alarm which is on."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DoctorError(f"--alarms {path}: it cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise DoctorError(f"--alarms {path}: it is no JSON ({error}); {_HOW}") from None
    alarms = content.get("MetricAlarms") if isinstance(content, dict) else None
    if not isinstance(alarms, list):
        raise DoctorError(f"--alarms {path}: it has no MetricAlarms; {_HOW}")
    found: dict[str, set[str]] = {}
    for alarm in alarms:
        if isinstance(alarm, dict) and alarm.get("ActionsEnabled", True):
            for metric in _metrics(alarm):
                for dimension in metric.get("Dimensions") or ():
                    if dimension.get("Name") == "QueueName":
                        found.setdefault(str(dimension.get("Value")), set()).add(str(metric.get("MetricName")))
    return {queue: frozenset(metrics) for queue, metrics in found.items()}


_HOW: Final = "write it with: aws cloudwatch describe-alarms --output json > alarms.json"


def _metrics(alarm: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The metrics of SQS that an alarm looks at: its own, or those that it does sums with."""
    of_it = [alarm, *((part.get("MetricStat") or {}).get("Metric") or {} for part in alarm.get("Metrics") or ())]
    yield from (metric for metric in of_it if metric.get("Namespace") == "AWS/SQS")
