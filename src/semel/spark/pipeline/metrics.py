"""A pipeline's figures in Prometheus' text format, and its health, served where the consumer serves its own.

Names that mean the same as the consumer's are the same: `received`, `completed` (rows committed), `healed` (duplicates
that had no effect), `rejected`. Counters count this run. docs/metrics.md has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from semel.errors import SemelError
from semel.spark.pipeline.snapshot import Snapshot, State, Totals
from semel.telemetry.health_server import Health, HealthServer
from semel.telemetry.metrics import Histogram

SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
QUIET: Final = 120.0  # seconds without a sign of life after which a running query is not taken for alive
_PLAIN: Final[tuple[tuple[str, str, Callable[[Totals], int]], ...]] = (
    ("received", "Messages received.", lambda run: run.received),
    ("completed", "Rows committed to the sink: effects.", lambda run: run.rows),
    ("delete_failed", "Deletes that SQS refused or that got no answer.", lambda run: run.unconfirmed),
    ("batches", "Micro-batches committed.", lambda run: run.batches),
    ("bytes_written", "Bytes that the sink's tasks have written.", lambda run: run.bytes),
)


class Metrics:
    """One pipeline's; `snapshot` is asked each time that somebody looks."""

    def __init__(self, snapshot: Callable[[], Snapshot], queues: tuple[str, ...]) -> None:
        self._snapshot = snapshot
        self._queue = ",".join(queues)
        self.batch_seconds = Histogram(SECONDS)
        self.attempts_dropped: Callable[[], int] = lambda: 0

    def text(self) -> str:
        now = self._snapshot()
        return "\n".join(self._lines(now)) + "\n"

    def _lines(self, now: Snapshot) -> Iterator[str]:
        labels = _labels(queue=self._queue, pipeline=now.pipeline)
        run = now.run
        for name, text, read in _PLAIN:
            yield from _family(f"semel_{name}_total", "counter", text, [(labels, read(run))])
        kinds = {"redelivered": run.redelivered, "key": run.same_key, "ledger": run.in_ledger}
        yield from _family(
            "semel_healed_total",
            "counter",
            "Duplicates that had no effect, by what knew them.",
            [(_labels(queue=self._queue, pipeline=now.pipeline, by=kind), count) for kind, count in kinds.items()],
        )
        yield from _family(
            "semel_rejected_total",
            "counter",
            "Messages put aside, by reason.",
            [
                (_labels(queue=self._queue, pipeline=now.pipeline, reason=reason), count)
                for reason, count in run.rejects.items()
            ]
            or [(labels, 0)],
        )
        yield from _family(
            "semel_backlog_messages",
            "gauge",
            "Messages that wait in a queue, by SQS' count.",
            [(_labels(queue=queue, pipeline=now.pipeline), count) for queue, count in now.backlog.items()],
        )
        running = int(now.state in (State.RUNNING, State.STOPPING))
        yield from _family("semel_pipeline_running", "gauge", "1 while the query runs.", [(labels, running)])
        yield from _family(
            "semel_attempts_dropped_total",
            "counter",
            "Events that the attempt log could not keep.",
            [("", self.attempts_dropped())],
        )
        yield from self._histogram(now)

    def _histogram(self, now: Snapshot) -> Iterator[str]:
        name = "semel_batch_seconds"
        up_to, total = self.batch_seconds.read()
        bounds = [*(f"{bound:g}" for bound in self.batch_seconds.bounds), "+Inf"]
        yield f"# HELP {name} From the planning of a micro-batch to its commit."
        yield f"# TYPE {name} histogram"
        for bound, count in zip(bounds, up_to, strict=True):
            yield f"{name}_bucket{_labels(queue=self._queue, pipeline=now.pipeline, le=bound)} {count}"
        labels = _labels(queue=self._queue, pipeline=now.pipeline)
        yield f"{name}_sum{labels} {total:.6g}"
        yield f"{name}_count{labels} {up_to[-1]}"


def health(now: Snapshot, alive: float) -> Health:
    """`alive`: seconds since the query was last seen alive."""
    running = now.state in (State.RUNNING, State.STOPPING)
    live = not now.state.ended and alive < QUIET
    details = {
        "pipeline": now.pipeline,
        "state": now.state,
        "batch": None if now.batch is None else now.batch.number,
        "lag": now.lag,
        "rows": now.totals.rows,
        "rate": now.rate,
    }
    return Health(live, live and running and now.state is not State.STOPPING, {**details, "error": now.error or None})


def serve(address: str, health: Callable[[], Health], metrics: Metrics) -> HealthServer:
    """`address` is [host:]port."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise SemelError(f"[metrics] health = {address!r}: give a port, or host:port, such as 127.0.0.1:8080")
    return HealthServer(host.strip("[]") or "127.0.0.1", int(port), health=health, metrics=metrics.text)


def _family(name: str, kind: str, text: str, samples: list[tuple[str, float]]) -> Iterator[str]:
    if samples:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        yield from (
            f"{name}{labels} {value:g}" if value != int(value) else f"{name}{labels} {int(value)}"
            for labels, value in samples
        )


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_safe(value)}"' for name, value in labels.items()) + "}"


def _safe(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
