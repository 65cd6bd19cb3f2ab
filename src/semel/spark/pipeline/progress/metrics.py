"""A pipeline's figures for Prometheus, and its health, served as the consumer serves its own.

Metrics that mean the same as in the consumer have the same name. Counters start at 0 with each run.
docs/reference/metrics.md lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from semel.errors import SemelError
from semel.spark.pipeline.progress.snapshot import Snapshot, State, Totals
from semel.telemetry.health_server import Health, HealthServer
from semel.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric

SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
QUIET: Final = 120.0  # after this many seconds without a sign of life, a running query does not count as alive
_COUNTERS: Final[tuple[tuple[str, str, Callable[[Totals], int]], ...]] = (
    ("received", "Messages received.", lambda run: run.received),
    ("completed", "Rows committed to the sink: effects.", lambda run: run.rows),
    ("delete_failed", "Deletes that SQS refused or that got no answer.", lambda run: run.unconfirmed),
    ("batches", "Micro-batches committed.", lambda run: run.batches),
    ("bytes_written", "Bytes that the sink's tasks have written.", lambda run: run.bytes),
)


class Metrics:
    """The metrics of one pipeline; `snapshot` is called for each page."""

    def __init__(self, snapshot: Callable[[], Snapshot], queues: tuple[str, ...]) -> None:
        self._snapshot = snapshot
        self._queue = ",".join(queues)
        self.batch_seconds = Histogram(SECONDS)
        self.attempts_dropped: Callable[[], int] = lambda: 0

    def text(self) -> str:
        from semel.telemetry import exposition

        return exposition.text(self._families(self._snapshot()))

    def _families(self, now: Snapshot) -> Iterator[Metric]:
        from semel.telemetry.exposition import counter, gauge, histogram

        labels, run = {"queue": self._queue, "pipeline": now.pipeline}, now.run
        for name, about, read in _COUNTERS:
            yield counter(f"semel_{name}", about, [(labels, read(run))])
        duplicates = {"redelivered": run.redelivered, "key": run.same_key, "ledger": run.in_ledger}
        yield counter(
            "semel_duplicates_deleted",
            "Duplicates that had no effect, by how they were recognised.",
            [({**labels, "by": kind}, count) for kind, count in duplicates.items()],
        )
        rejects = [({**labels, "reason": reason}, count) for reason, count in run.rejects.items()]
        yield counter("semel_rejected", "Rejected messages, by reason.", rejects or [(labels, 0)])
        yield gauge(
            "semel_backlog_messages",
            "Messages that wait in a queue, by SQS' count.",
            [({"queue": queue, "pipeline": now.pipeline}, count) for queue, count in now.backlog.items()],
        )
        running, waiting = now.state in (State.RUNNING, State.STOPPING), now.state is State.WAITING
        yield gauge("semel_pipeline_running", "1 while the query runs.", [(labels, int(running))])
        about = "1 while the pipeline waits for something that does not answer."
        yield gauge("semel_pipeline_waiting", about, [(labels, int(waiting))])
        about = "Events that the attempt log could not keep."
        yield counter("semel_attempts_dropped", about, [({}, self.attempts_dropped())])
        about = "From the planning of a micro-batch to its commit."
        yield histogram("semel_batch_seconds", about, [(labels, self.batch_seconds)])


def health(now: Snapshot, silence: float) -> Health:
    """`silence`: seconds since the query's last sign of life. A pipeline that waits has no query, and is alive."""
    live = now.state is State.WAITING or (not now.state.ended and silence < QUIET)
    details = {
        "pipeline": now.pipeline,
        "state": now.state,
        "batch": None if now.batch is None else now.batch.number,
        "lag": now.lag,
        "rows": now.totals.rows,
        "rate": now.rate,
        "error": now.error or None,
        "waiting_for": now.waiting_for or None,
        "retry_at": now.retry_at or None,
    }
    return Health(live, live and now.state is State.RUNNING, details)


def serve(address: str, health: Callable[[], Health], metrics: Metrics) -> HealthServer:
    """`address` is [host:]port."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise SemelError(f"[metrics] health = {address!r}: give a port, or host:port, such as 127.0.0.1:8080")
    return HealthServer(host.strip("[]") or "127.0.0.1", int(port), health=health, metrics=metrics.text)
