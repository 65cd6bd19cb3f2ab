"""The pipeline's part of the attempt log: `recorded` and `rejected`, one event for each message of a batch.

The source's tasks write `received`, `duplicate` and `deleted` as these happen. `recorded` is true only after the
commit: tasks send along the identity of their rows, and the driver writes the events once the batch is committed.
`fence` is the batch's number plus one: two events with one key and fence are one effect, logged twice by a driver that
died between commit and status. Spark does not name the rows that its state store drops; the status counts them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from semel.spark.pipeline.micro_batch_task import Outcome
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step

CHUNK: Final = 20_000  # events; a fifth of what the log buffers before it drops some
FLUSH_TIMEOUT: Final = 30.0  # seconds that a slow log may delay a batch before events are dropped


class Events:
    def __init__(self, folder: str) -> None:
        self._log = AttemptLog.open(folder)
        # A local log is flushed at each batch, so it has everything that a killed driver has counted. In a remote
        # folder that would be a file per batch: there, a killed driver's last minute may be missing, as with a
        # consumer.
        self._flushes = "://" not in folder or folder.startswith("file:")

    def dropped(self) -> int:
        return self._log.dropped

    def committed(self, number: int, outcomes: Sequence[Outcome]) -> None:
        now = time.time()
        tasks = (outcome.events for outcome in outcomes if outcome.events)
        events = (event for data in tasks for event in _events(data, number + 1, now))
        while chunk := list(islice(events, CHUNK)):
            self._log.add_all(chunk)
            if self._flushes or len(chunk) == CHUNK:
                self._log.flush(FLUSH_TIMEOUT)

    def close(self) -> None:
        self._log.close()


def _events(data: bytes, fence: int, now: float) -> Iterator[Attempt]:
    with pa.ipc.open_stream(data) as stream:
        for batch in stream:
            rows = batch.drop_columns(["sent_at"]).to_pylist()
            for row, sent_at in zip(rows, _seconds(batch.column("sent_at")), strict=True):
                yield _event(row, sent_at, fence, now)


def _event(row: dict[str, Any], sent_at: float | None, fence: int, now: float) -> Attempt:
    reason = row["reason"]
    return Attempt(
        now,
        Step.RECORDED if reason is None else Step.REJECTED,
        row["queue"] or "",
        row["message_id"] or "",
        row["key"] or "",
        fence,
        receive_count=row["receive_count"] or 0,
        sent_at=sent_at or 0,
        group=row["group_id"] or "",
        error=reason or "",
    )


def _seconds(times: pa.Array) -> list[float | None]:
    micros = times.cast(pa.timestamp("us", tz=times.type.tz)).view(pa.int64()).to_pylist()
    return [None if value is None else value / 1_000_000 for value in micros]
