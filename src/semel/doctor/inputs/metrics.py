"""Metrics of queues over time: from what the AWS CLI prints of CloudWatch, or from a broker's history.

The rule: missing values stay missing, and input that is not understood is reported, with what was expected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from semel.doctor.errors import DoctorError
from semel.doctor.inputs import cloudwatch as metrics_cloudwatch
from semel.doctor.inputs.broker_history import fetch, from_history
from semel.doctor.model import Point, Series
from semel.doctor.remedies import name_of
from semel.sqs import limits

_HOW: Final = (
    "give what `aws cloudwatch get-metric-data --output json` or `get-metric-statistics` prints, or the address of a "
    "broker"
)
_FIELDS: Final = tuple(field.name for field in fields(Point) if field.name != "at")


def load(source: str, *, queues: Sequence[str] = (), notes: list[str] | None = None) -> tuple[Series, ...]:
    """The series of one `--metrics`: FILE, QUEUE=FILE, or http://… of a broker. `notes` gets what was left out."""
    names = [name_of(queue) for queue in queues]
    if source.startswith(("http://", "https://")):
        return from_history(fetch(source, names), source)
    path, queue = _file_and_queue(source)
    content = _read(path, source)
    if isinstance(content, dict) and isinstance(content.get("queues"), dict):
        history = from_history(content, str(path))
        return tuple(series for series in history if not names or series.queue in names)
    if not metrics_cloudwatch.is_ours(content):
        raise DoctorError(f"--metrics {source}: there are no metrics in it; {_HOW}")
    return metrics_cloudwatch.read(content, source=source, path=str(path), queue=queue, queues=names, notes=notes)


def load_all(
    sources: Iterable[str], *, queues: Sequence[str] = (), notes: list[str] | None = None
) -> tuple[Series, ...]:
    """The series of all sources, one for each queue."""
    return merge([series for source in sources for series in load(source, queues=queues, notes=notes)])


def merge(parts: Iterable[Series]) -> tuple[Series, ...]:
    """One series for each queue: a value that one part lacks may be in another."""
    by_queue: dict[str, list[Series]] = {}
    for part in parts:
        by_queue.setdefault(part.queue, []).append(part)
    return tuple(_merged(queue, several) for queue, several in by_queue.items())


def _merged(queue: str, parts: list[Series]) -> Series:
    if len(parts) == 1:
        return parts[0]
    known: dict[float, dict[str, float]] = {}
    for part in parts:
        for point in part.points:
            values = {name: getattr(point, name) for name in _FIELDS}
            known.setdefault(point.at, {}).update({name: value for name, value in values.items() if value is not None})
    points = tuple(Point(at=at, **values) for at, values in sorted(known.items()))
    source = ", ".join(dict.fromkeys(part.source for part in parts))
    return Series(queue=queue, period=min(part.period for part in parts), points=points, source=source)


def _file_and_queue(source: str) -> tuple[Path, str | None]:
    """Splits QUEUE=FILE. A file may have = in its name, so a file of the whole name comes first, and QUEUE must be a
    valid name."""
    queue, separator, path = source.partition("=")
    if not separator or Path(source).exists() or not limits.QUEUE_NAME.match(name_of(queue)):
        return Path(source), None
    return Path(path), name_of(queue)


def _read(path: Path, source: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DoctorError(f"--metrics {source}: {path} cannot be read: {error.strerror or error}; {_HOW}") from None
    except (ValueError, RecursionError) as error:
        raise DoctorError(f"--metrics {source}: {path} is no JSON ({error}); {_HOW}") from None
