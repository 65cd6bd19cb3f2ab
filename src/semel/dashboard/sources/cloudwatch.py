"""Rates and ages from CloudWatch, for queues on AWS: read for requests, at most once a minute.

Reading 1,000 metrics costs about 0.01 USD. Metrics lag by some minutes. An error of CloudWatch becomes a note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from semel.dashboard.sources.cache import TtlCache
from semel.dashboard.views.model import Series

PERIOD: Final = 60
MAX_AGE: Final = 24 * 3600.0
MAX_QUERIES: Final = 500  # in one call
_COUNTED: Final = {
    "NumberOfMessagesSent": "sent",
    "NumberOfMessagesReceived": "received",
    "NumberOfMessagesDeleted": "deleted",
    "NumberOfEmptyReceives": "empty_receives",
}
_MEASURED: Final = {
    "ApproximateNumberOfMessagesVisible": "visible",
    "ApproximateNumberOfMessagesNotVisible": "in_flight",
    "ApproximateNumberOfMessagesDelayed": "delayed",
    "ApproximateAgeOfOldestMessage": "oldest_age",
}
_METRICS: Final = _COUNTED | _MEASURED


class CloudWatch:
    """`client`: a botocore client, for tests; by default one is created when it is first needed. Thread-safe."""

    def __init__(
        self,
        region: str | None,
        profile: str | None = None,
        *,
        client: Any = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._region, self._profile, self._client, self._clock = region, profile, client, clock
        self._cache: TtlCache[Mapping[str, Series]] = TtlCache(PERIOD)
        self._note = ""

    def series(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        """Empty if CloudWatch cannot be asked; `notes` then says why."""
        # The list of queues needs 15 minutes, a chart more, so two answers are cached for each set of queues.
        start = max(since, self._clock() - MAX_AGE) // 900 * 900
        return self._cache.get((tuple(names), start), lambda: self._asked(names, start))

    def notes(self) -> Sequence[str]:
        return [self._note] if self._note else []

    def _asked(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            series = self._fetch(names, since)
        except (BotoCoreError, ClientError) as error:
            self._note = f"CloudWatch cannot be asked: {error}; it needs the permission cloudwatch:GetMetricData"
            return {}
        self._note = ""
        return series

    def _fetch(self, names: Sequence[str], since: float) -> Mapping[str, Series]:
        known: dict[str, dict[str, dict[float, float]]] = {name: {} for name in names}
        for queries in _parts(names):
            wanted: dict[str, Any] = {
                "MetricDataQueries": [query for _, _, query in queries],
                "StartTime": datetime.fromtimestamp(since, UTC),
                "EndTime": datetime.fromtimestamp(self._clock(), UTC),
                "ScanBy": "TimestampAscending",
            }
            meant = {query["Id"]: (name, metric) for name, metric, query in queries}
            while True:
                page = self._cloudwatch().get_metric_data(**wanted)
                for result in page["MetricDataResults"]:
                    name, metric = meant[result["Id"]]
                    values = known[name].setdefault(metric, {})
                    values |= {
                        at.timestamp(): value for at, value in zip(result["Timestamps"], result["Values"], strict=True)
                    }
                if not page.get("NextToken"):
                    break
                wanted["NextToken"] = page["NextToken"]
        return {name: _series(metrics) for name, metrics in known.items() if metrics}

    def _cloudwatch(self) -> Any:
        if self._client is None:
            from semel.sqs.client.config import new_session

            self._client = new_session(self._profile).create_client("cloudwatch", region_name=self._region)
        return self._client


def _parts(names: Sequence[str]) -> Iterator[list[tuple[str, str, dict[str, Any]]]]:
    """(queue, our name of the metric, the query), in lists that fit into one call each."""
    queries = [
        (name, column, _query(f"m{number}_{column}", name, metric, "Sum" if metric in _COUNTED else "Maximum"))
        for number, name in enumerate(names)
        for metric, column in _METRICS.items()
    ]
    for start in range(0, len(queries), MAX_QUERIES):
        yield queries[start : start + MAX_QUERIES]


def _query(identity: str, queue: str, metric: str, statistic: str) -> dict[str, Any]:
    dimensions = [{"Name": "QueueName", "Value": queue}]
    source = {"Namespace": "AWS/SQS", "MetricName": metric, "Dimensions": dimensions}
    return {"Id": identity, "MetricStat": {"Metric": source, "Period": PERIOD, "Stat": statistic}, "ReturnData": True}


def _series(metrics: Mapping[str, Mapping[float, float]]) -> Series:
    """CloudWatch reports the beginning of each period; the time of a sample is the end."""
    times = sorted({at for values in metrics.values() for at in values})

    def column(name: str, divided_by: float) -> tuple[float | None, ...]:
        values = metrics.get(name, {})
        return tuple(values[at] / divided_by if at in values else None for at in times)

    return Series(
        at=tuple(at + PERIOD for at in times),
        **{name: column(name, PERIOD) for name in _COUNTED.values()},
        **{name: column(name, 1.0) for name in _MEASURED.values()},
        dead_lettered=(None,) * len(times),
        source="cloudwatch",
        period=float(PERIOD),
    )
