"""The pipeline's part of the attempt log: `recorded` and `rejected`, one event for each message of a batch.

The source's tasks write `received`, `duplicate` and `deleted` as these happen. `recorded` must not be claimed before it
is true, so tasks only send along who their rows were, and the driver writes the events once the batch is committed.
`fence` is the batch's number plus one: two events of one key with one fence are one effect, told twice by a driver that
died between the commit and its status. What the state store drops Spark does not name; the status counts it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from semel.spark.pipeline.batch_task import Outcome
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step

AT_ONCE: Final = 20_000  # a fifth of what the log takes in before it drops events
PATIENCE: Final = 30.0  # seconds that a slow log may hold up a batch before events are dropped


class Events:
    def __init__(self, folder: str) -> None:
        self._log = AttemptLog.open(folder)
        # So that a driver that is killed has not counted what the log does not know. To a remote folder this would be a
        # file for each batch: there, a killed driver's last minute may be missing, as it may be for a consumer.
        self._flushes = "://" not in folder or folder.startswith("file:")

    def dropped(self) -> int:
        return self._log.dropped

    def committed(self, number: int, outcomes: Sequence[Outcome]) -> None:
        now = time.time()
        events = (event for one in outcomes if one.events for event in _events(one.events, number + 1, now))
        while some := list(islice(events, AT_ONCE)):
            self._log.add_all(some)
            if self._flushes or len(some) == AT_ONCE:
                self._log.flush(PATIENCE)

    def close(self) -> None:
        self._log.close()


def _events(data: bytes, fence: int, now: float) -> Iterator[Attempt]:
    with pa.ipc.open_stream(data) as stream:
        for batch in stream:
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name != "sent_at"}
            columns["sent_at"] = _seconds(batch.column("sent_at"))
            names = list(columns)
            for values in zip(*columns.values(), strict=True):
                yield _event(dict(zip(names, values, strict=True)), fence, now)


def _event(row: dict[str, Any], fence: int, now: float) -> Attempt:
    reason = row["reason"]
    return Attempt(
        now,
        Step.RECORDED if reason is None else Step.REJECTED,
        row["queue"] or "",
        row["message_id"] or "",
        row["key"] or "",
        fence,
        receive_count=row["receive_count"] or 0,
        sent_at=row["sent_at"] or 0,
        group=row["group_id"] or "",
        error=reason or "",
    )


def _seconds(times: pa.Array) -> list[float | None]:
    micros = times.cast(pa.timestamp("us", tz=times.type.tz)).view(pa.int64()).to_pylist()
    return [None if one is None else one / 1_000_000 for one in micros]
