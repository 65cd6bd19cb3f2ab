"""The history that a broker keeps of its metrics, as series."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from semel.doctor.errors import DoctorError
from semel.doctor.model import Point, Series

_PATIENCE: Final = 30.0
# The broker's columns, and ours.
_COLUMNS: Final = {
    "sent": "sent",
    "received": "received",
    "deleted": "deleted",
    "empty_receives": "empty_receives",
    "visible": "visible",
    "in_flight": "in_flight",
    "delayed": "delayed",
    "oldest_age": "oldest",
}


def fetch(address: str, queues: Sequence[str]) -> Mapping[str, Any]:
    """The history of these queues, or of all. A user and password in the address are a key pair of the broker."""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise DoctorError(f"--metrics {address}: {error}; write http://host:port") from None
    host = parts.netloc.rpartition("@")[2]
    query = urlencode([("queue", queue) for queue in queues])
    url = f"{parts.scheme}://{host}/_semel/history{'?' if query else ''}{query}"
    headers = {}
    if parts.username:
        pair = f"{parts.username}:{parts.password or ''}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    where = f"--metrics {parts.scheme}://{host}"
    try:
        with urlopen(Request(url, headers=headers), timeout=_PATIENCE) as answer:
            content = json.loads(answer.read())
    except HTTPError as error:
        with error:
            raise DoctorError(f"{where}: {_refusal(error.code)}") from None
    except (OSError, URLError) as error:
        reason = getattr(error, "reason", error)
        raise DoctorError(f"{where}: no answer ({reason}); give the address that `semel serve` printed") from None
    except (ValueError, RecursionError):
        raise DoctorError(f"{where}: {_refusal(0)}") from None
    if not isinstance(content, dict) or not isinstance(content.get("queues"), dict):
        raise DoctorError(f"{where}: {_refusal(0)}")
    return content


def _refusal(status: int) -> str:
    if status in (401, 403):
        return "it asks for credentials; write them into the address, as in http://KEY:SECRET@host:9324"
    return (
        "what answers there is no broker of Semel with a history; of AWS, give a file with what "
        "`aws cloudwatch get-metric-data` prints"
    )


def from_history(content: Mapping[str, Any], source: str) -> tuple[Series, ...]:
    """A series for each queue that has samples."""
    try:
        period = float(content.get("period") or 10)
        all_series = [_series(name, columns, period, source) for name, columns in content["queues"].items()]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DoctorError(f"--metrics {source}: the history is not as expected: {error!r}") from None
    return tuple(series for series in all_series if series.points)


def _series(queue: str, columns: Mapping[str, Sequence[float]], period: float, source: str) -> Series:
    points = []
    for place, (at, seconds) in enumerate(zip(columns["at"], columns["seconds"], strict=True)):
        if seconds > 0:  # the very first sample ends no period
            values = {ours: float(columns[theirs][place]) for theirs, ours in _COLUMNS.items() if theirs in columns}
            points.append(Point(at=at - seconds, **values))
    host = urlsplit(source).netloc.rpartition("@")[2]
    return Series(queue=queue, period=period, points=tuple(points), source=f"the broker at {host}" if host else source)
