"""CloudWatch's metrics of SQS as the AWS CLI prints them: `get-metric-data` and `get-metric-statistics`, as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

from semel.doctor.errors import DoctorError
from semel.doctor.model import Point, Series
from semel.sqs import limits

# CloudWatch's names, and ours.
METRICS: Final = {
    "NumberOfMessagesSent": "sent",
    "NumberOfMessagesReceived": "received",
    "NumberOfMessagesDeleted": "deleted",
    "NumberOfEmptyReceives": "empty_receives",
    "ApproximateNumberOfMessagesVisible": "visible",
    "ApproximateNumberOfMessagesNotVisible": "in_flight",
    "ApproximateNumberOfMessagesDelayed": "delayed",
    "ApproximateAgeOfOldestMessage": "oldest",
}
_BY_LOWER: Final = {name.lower(): ours for name, ours in METRICS.items()}
# What people call them in the ids of their queries.
_IDS: Final = {
    **{ours.replace("_", ""): ours for ours in METRICS.values()},
    "empty": "empty_receives",
    "notvisible": "in_flight",
    "age": "oldest",
}
_STATISTICS: Final = {"counted": ("Sum", "Maximum", "Average"), "measured": ("Maximum", "Average", "Minimum", "Sum")}
_COUNTED: Final = frozenset({"sent", "received", "deleted", "empty_receives"})
_EXPECTED: Final = f"a label has one of {', '.join(METRICS)}, and the queue's name if there are several"
# Words of labels that name no queue.
_NO_QUEUE: Final = frozenset({*_BY_LOWER, "sum", "average", "maximum", "minimum", "queuename", "aws", "sqs"})
_USUAL_PERIOD: Final = 60.0


class _Line(NamedTuple):
    """One metric of one queue."""

    queue: str
    metric: str
    values: dict[float, float]


def is_ours(content: Any) -> bool:
    return isinstance(content, dict) and (
        isinstance(content.get("MetricDataResults"), list) or isinstance(content.get("Datapoints"), list)
    )


def read(
    content: dict[str, Any],
    *,
    source: str,
    path: str,
    queue: str | None,
    queues: Sequence[str],
    notes: list[str] | None = None,
) -> tuple[Series, ...]:
    """The series in a file. `queue`: whose series they are, if the user said so. `queues`: all that are examined."""
    lines: list[_Line] = []
    unknown: list[str] = []
    for label, identity, values in _results(content):
        metric = _metric(label, identity)
        if metric is None:
            unknown.append(label or identity)
            continue
        of = queue or _queue(label, identity, queues)
        if of is None:
            raise DoctorError(
                f"--metrics {source}: {label or identity!r} does not say of which queue it is; write --metrics "
                f"QUEUE={path}, or a label with the queue's name in the query"
            )
        if not queues or of in queues or of == queue:
            lines.append(_Line(of, metric, values))
    if unknown and not lines:
        raise DoctorError(f"--metrics {source}: {', '.join(map(repr, unknown[:5]))} is no metric of SQS; {_EXPECTED}")
    if unknown and notes is not None:
        notes.append(f"metrics in {path}: {', '.join(map(repr, unknown[:5]))} left out; {_EXPECTED}")
    return tuple(_series(name, [line for line in lines if line.queue == name], path) for name in _names(lines))


def _names(lines: list[_Line]) -> list[str]:
    return list(dict.fromkeys(line.queue for line in lines))


def _results(content: dict[str, Any]) -> Iterator[tuple[str, str, dict[float, float]]]:
    """Label, id, and the values by their time."""
    for result in _list(content.get("MetricDataResults")):
        if isinstance(result, dict):
            times, values = _list(result.get("Timestamps")), _list(result.get("Values"))
            pairs = ((_time(at), _number(value)) for at, value in zip(times, values, strict=False))
            by_time = {at: value for at, value in pairs if at is not None and value is not None}
            yield str(result.get("Label") or ""), str(result.get("Id") or ""), by_time
    if isinstance(content.get("Datapoints"), list):
        label = str(content.get("Label") or "")
        kind = "counted" if _metric(label, "") in _COUNTED else "measured"
        yield label, "", dict(_datapoints(content["Datapoints"], _STATISTICS[kind]))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _datapoints(points: list[Any], statistics: tuple[str, ...]) -> Iterator[tuple[float, float]]:
    for point in points:
        at = _time(point.get("Timestamp")) if isinstance(point, dict) else None
        value = next((point[name] for name in statistics if name in point), None) if at is not None else None
        if at is not None and isinstance(value, int | float):
            yield at, float(value)


def _metric(label: str, identity: str) -> str | None:
    for word in re.findall(r"[A-Za-z]+", label):
        if word.lower() in _BY_LOWER:
            return _BY_LOWER[word.lower()]
    plain = re.sub(r"[^a-z]", "", identity.lower())
    return _BY_LOWER.get(plain) or _IDS.get(plain)


def _queue(label: str, identity: str, queues: Sequence[str]) -> str | None:
    """The queue that a label names: one that is examined, else the word beside the metric's name; or the only one."""
    words = [word for word in re.split(r"[\s,;:/|=()]+", label) if word and word.lower() not in _NO_QUEUE]
    for word in words:
        if word in queues:
            return word
    single = words[0] if len(words) == 1 and limits.QUEUE_NAME.match(words[0]) else None
    if single is not None and (_metric(label, "") is not None or (len(queues) != 1 and single.lower() != identity)):
        return single
    return queues[0] if len(queues) == 1 else None


def _series(queue: str, lines: list[_Line], path: str) -> Series:
    known: dict[float, dict[str, float]] = {}
    for line in lines:
        for at, value in line.values.items():
            known.setdefault(at, {})[line.metric] = value
    points = tuple(Point(at=at, **values) for at, values in sorted(known.items()))
    return Series(queue=queue, period=_period(sorted(known)), points=points, source=path)


def _period(times: list[float]) -> float:
    """The shortest step: gaps make steps longer, but nothing makes them shorter."""
    steps = [later - earlier for earlier, later in pairwise(times)]
    return min(steps, default=_USUAL_PERIOD)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _time(value: Any) -> float | None:
    """Seconds since 1970, from a number or from ISO 8601; a time without a zone is UTC."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
