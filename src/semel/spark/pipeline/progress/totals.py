"""The figures of a running pipeline: its threads keep them up to date; display, status file and metrics read them.

The rule: a batch is counted once, by its number, also when it is run again after a crash. What the source counts comes
from the segment log as a total, and is set rather than added.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from semel.errors import SemelError
from semel.spark.pipeline.errors import MAX_LINE, PipelineFailed
from semel.spark.pipeline.progress.snapshot import LastBatch, Snapshot, State, Totals, added
from semel.spark.segments.log import SegmentLog
from semel.spark.segments.model import Totals as SourceTotals
from semel.telemetry.logs import safe_text
from semel.version import __version__

SECONDS_KEPT: Final = 120
MINUTE: Final = 60.0


class Rates:
    """Rows a second: those of a batch are spread evenly over the time it took."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._seconds: deque[tuple[int, float]] = deque(maxlen=SECONDS_KEPT)  # (second, rows in it)

    def add(self, rows: int, began: float, ended: float) -> None:
        began = max(began, self._started, ended - SECONDS_KEPT)
        per_second = rows / max(ended - began, 0.001)
        for second in range(int(began), int(ended) + 1):
            share = min(ended, second + 1) - max(began, second)
            self._put(second, per_second * max(share, 0.001 if began == ended else 0.0))

    def _put(self, second: int, rows: float) -> None:
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + rows)
        else:
            self._seconds.append((second, rows))

    def last(self, now: float, count: int) -> tuple[float, ...]:
        """The last `count` whole seconds; none before the start."""
        found = dict(self._seconds)
        first = max(int(now) - count, int(self._started))
        return tuple(round(found.get(second, 0.0), 1) for second in range(first, int(now)))

    def of_minute(self, now: float) -> float:
        since = max(now - MINUTE, self._started)
        rows = sum(rows for second, rows in self._seconds if second >= int(since))
        return rows / max(now - since, 1.0)


class Progress:
    """Thread-safe. `former` is the snapshot that an earlier run of the same checkpoint has left."""

    def __init__(
        self, pipeline: str, id_: str, sink: str, former: Snapshot | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        now = clock()
        goes_on = former is not None and former.id == id_
        totals = former.totals if former is not None and goes_on else Totals()
        self._before = totals
        self._rates = Rates(now)
        self._now = Snapshot(
            pipeline=pipeline,
            id=id_,
            sink=sink,
            state=State.STARTING,
            pid=os.getpid(),
            host=socket.gethostname(),
            version=__version__,
            started=now,
            updated=now,
            totals=totals,
            counted=former.counted if former is not None and goes_on else -1,
            batch=former.batch if former is not None and goes_on else None,
        )

    def snapshot(self) -> Snapshot:
        with self._lock:
            now = self._clock()
            return replace(
                self._now,
                updated=now,
                run=self._now.totals.since(self._before),
                rate=round(self._rates.of_minute(now), 1),
                rates=self._rates.last(now, SECONDS_KEPT),
            )

    def moved(self, state: State, error: SemelError | None = None) -> None:
        trace = error.trace if isinstance(error, PipelineFailed) else ""
        with self._lock:
            if state is State.RUNNING:
                self._rates = Rates(self._clock())  # the time that Spark takes to start is not the rows' fault
            self._now = replace(self._now, state=state, error=safe_text(str(error or ""), MAX_LINE), trace=trace)

    def wait_for(self, reason: str, retry_at: float) -> None:  # noqa: ARG002
        with self._lock:
            self._now = replace(self._now, error=safe_text(reason, MAX_LINE))

    def told(self, *, query: str | None = None, health: str | None = None) -> None:
        with self._lock:
            self._now = replace(
                self._now,
                query=self._now.query if query is None else query,
                health=self._now.health if health is None else health,
            )

    def waiting(self, backlog: Mapping[str, int]) -> None:
        with self._lock:
            self._now = replace(self._now, backlog=dict(backlog))

    def took(self, number: int, seconds: float) -> None:
        """What Spark says of a batch: its planning and its own bookkeeping are in it."""
        with self._lock:
            if self._now.batch is not None and self._now.batch.number == number:
                self._now = replace(self._now, batch=replace(self._now.batch, seconds=seconds))

    def committed(self, number: int, began: float, *, rows: int, size: int, rejects: Mapping[str, int]) -> None:
        """A batch is in. One that was counted before, by this run or by one that died, is not counted again."""
        with self._lock:
            now = self._clock()
            last = LastBatch(number, now, round(max(0.0, now - began), 3), rows)
            self._now = replace(self._now, batch=last)
            if number <= self._now.counted:
                return
            totals = self._now.totals
            self._rates.add(rows, began, now)
            self._now = replace(
                self._now,
                counted=number,
                totals=replace(
                    totals,
                    batches=totals.batches + 1,
                    rows=totals.rows + rows,
                    bytes=totals.bytes + size,
                    rejects=added(totals.rejects, rejects),
                ),
            )

    def received(self, source: SourceTotals, *, by_key: bool) -> None:
        """What the source has come to. Only right after a commit, when no row is on its way."""
        with self._lock:
            totals = self._now.totals
            through = totals.rows + totals.rejected
            self._now = replace(
                self._now,
                totals=replace(
                    totals,
                    received=source.received,
                    redelivered=source.redelivered + source.duplicates,
                    in_ledger=source.in_ledger,
                    unconfirmed=source.unconfirmed,
                    same_key=max(0, source.rows - through) if by_key else totals.same_key,
                ),
            )


def source_totals(log: SegmentLog) -> SourceTotals:
    """What all batches of a segment log came to, with the one that is not committed yet: its acks are read one by one,
    for the end of a run. `committed.json` is read last: it counts a batch that is dropped meanwhile."""
    before = log.committed().through
    files = log.files(before + 1)
    acks = [log.read_ack(segment_id, attempt) for segment_id, attempt in files.acked.items()]
    committed = log.committed()
    if committed.through == before:
        for ack in acks:
            if ack is not None:
                committed.totals.add(ack)
    return committed.totals
