"""The figures of a running pipeline. Its threads update them; display, status file and metrics read them.

The rule: a batch is counted once, by its number, also if it is run again after a crash. The source's counts come from
the segment log as totals: they are set, not added.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from semel.errors import SemelError
from semel.spark.pipeline.progress.snapshot import LastBatch, Snapshot, State, added
from semel.spark.pipeline.query_failures import MAX_LINE, PipelineFailed
from semel.spark.segments.model import Totals as SourceTotals
from semel.spark.segments.segment_log import SegmentLog
from semel.telemetry.logs import safe_text
from semel.version import __version__

SECONDS_KEPT: Final = 120
MINUTE: Final = 60.0


class Rates:
    """Rows per second. The rows of a batch are spread evenly over the time that it took."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._seconds: deque[tuple[int, float]] = deque(maxlen=SECONDS_KEPT)  # (second, rows in it)

    def add(self, rows: int, began: float, ended: float) -> None:
        began = max(began, self._started, ended - SECONDS_KEPT)
        per_second = rows / max(ended - began, 0.001)
        for second in range(int(began), int(ended) + 1):
            share = 0.001 if began == ended else min(ended, second + 1) - max(began, second)
            if self._seconds and self._seconds[-1][0] == second:
                share_before = self._seconds.pop()[1]
                self._seconds.append((second, share_before + per_second * share))
            else:
                self._seconds.append((second, per_second * share))

    def by_second(self, now: float, count: int) -> tuple[float, ...]:
        """The last `count` whole seconds, the newest last; none before the start."""
        rows = dict(self._seconds)
        first = max(int(now) - count, int(self._started))
        return tuple(round(rows.get(second, 0.0), 1) for second in range(first, int(now)))

    def last_minute(self, now: float) -> float:
        since = max(now - MINUTE, self._started)
        return sum(rows for second, rows in self._seconds if second >= int(since)) / max(now - since, 1.0)


class Progress:
    """Thread-safe. `former` is the snapshot that an earlier run of the same checkpoint left."""

    def __init__(
        self, pipeline: str, id_: str, sink: str, former: Snapshot | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        if former is not None and former.id != id_:
            former = None
        now = clock()
        self._rates = Rates(now)
        self._snapshot = Snapshot(
            pipeline=pipeline,
            id=id_,
            sink=sink,
            state=State.STARTING,
            pid=os.getpid(),
            host=socket.gethostname(),
            version=__version__,
            started=now,
            updated=now,
        )
        if former is not None:
            self._snapshot = replace(self._snapshot, totals=former.totals, counted=former.counted, batch=former.batch)
        self._totals_at_start = self._snapshot.totals

    def snapshot(self) -> Snapshot:
        with self._lock:
            now = self._clock()
            return replace(
                self._snapshot,
                updated=now,
                run=self._snapshot.totals.since(self._totals_at_start),
                rate=round(self._rates.last_minute(now), 1),
                rates=self._rates.by_second(now, SECONDS_KEPT),
            )

    def set_state(self, state: State, error: SemelError | None = None) -> None:
        trace = error.trace if isinstance(error, PipelineFailed) else ""
        with self._lock:
            if state is State.RUNNING:
                self._rates = Rates(self._clock())  # the time that Spark took to start does not count
            text = safe_text(str(error or ""), MAX_LINE)
            self._update(state=state, error=text, trace=trace, waiting_for="", retry_at=0.0)

    def wait_for(self, reason: str, retry_at: float) -> None:
        """Something does not answer; the query is started again at `retry_at`. `set_state` ends the wait."""
        with self._lock:
            self._update(state=State.WAITING, waiting_for=safe_text(reason, MAX_LINE), retry_at=retry_at)

    def set_query_id(self, query: str) -> None:
        with self._lock:
            self._update(query=query)

    def set_health_url(self, url: str) -> None:
        with self._lock:
            self._update(health=url)

    def set_backlog(self, backlog: Mapping[str, int]) -> None:
        """Messages waiting, by queue."""
        with self._lock:
            self._update(backlog=dict(backlog))

    def set_batch_seconds(self, number: int, seconds: float) -> None:
        """The duration of a batch as Spark measured it, which includes planning and Spark's own records."""
        with self._lock:
            batch = self._snapshot.batch
            if batch is not None and batch.number == number:
                self._update(batch=replace(batch, seconds=seconds))

    def committed(self, number: int, began: float, *, rows: int, size: int, rejects: Mapping[str, int]) -> None:
        """A batch is committed. If this run or one that died has counted it already, it is not counted again."""
        with self._lock:
            now, totals = self._clock(), self._snapshot.totals
            self._update(batch=LastBatch(number, now, round(max(0.0, now - began), 3), rows))
            if number <= self._snapshot.counted:
                return
            self._rates.add(rows, began, now)
            totals = replace(
                totals,
                batches=totals.batches + 1,
                rows=totals.rows + rows,
                bytes=totals.bytes + size,
                rejects=added(totals.rejects, rejects),
            )
            self._update(counted=number, totals=totals)

    def set_source_totals(self, source: SourceTotals, *, by_key: bool) -> None:
        """The source's counts. Call it right after a commit, when no row is between source and sink."""
        with self._lock:
            totals = self._snapshot.totals
            passed = totals.rows + totals.rejected
            totals = replace(
                totals,
                received=source.received,
                redelivered=source.redelivered + source.duplicates,
                in_ledger=source.in_ledger,
                unconfirmed=source.unconfirmed,
                same_key=max(0, source.rows - passed) if by_key else totals.same_key,
            )
            self._update(totals=totals)

    def _update(self, **changes: Any) -> None:
        self._snapshot = replace(self._snapshot, **changes)


def source_totals(log: SegmentLog) -> SourceTotals:
    """The totals of all batches of a segment log, for the end of a run. Of the batch that is not committed yet, the
    acks are read one by one. The last commit is read last, as it counts a batch that was dropped meanwhile."""
    before = log.committed().through
    files = log.files(before + 1)
    acks = [log.read_ack(segment_id, attempt) for segment_id, attempt in files.acked.items()]
    committed = log.committed()
    if committed.through == before:
        for ack in acks:
            if ack is not None:
                committed.totals.add(ack)
    return committed.totals
