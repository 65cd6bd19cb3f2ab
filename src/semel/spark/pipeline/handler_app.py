"""`semel run APP --on spark`: runs the handlers of an app on Spark, with one pipeline and handler sink per queue."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from semel.consumer import preflight
from semel.consumer.app_loader import RunOptions, load_app
from semel.consumer.queue_setup import QueueSetup, Tools
from semel.durations import Duration, seconds
from semel.errors import SemelError
from semel.ledger.contract import Ledger
from semel.spark.interpreter import running_spark
from semel.spark.pipeline import spark_start
from semel.spark.pipeline.checkpoint import Checkpoint
from semel.spark.pipeline.config import Ack, Dedup, HandlerSpec, Pipeline, SchemaSpec, SourceSpec
from semel.spark.pipeline.micro_batch_task import Outcome
from semel.spark.pipeline.progress.snapshot import State
from semel.spark.pipeline.runner import Runner, record_end
from semel.spark.pipeline.stop_request import Stop, interruptible, on_signals
from semel.spark.pipeline.stream import End, Trigger
from semel.spark.pipeline.streaming_query import Options, PipelineQuery
from semel.spark.sinks.handlers.executor_app import AppReference
from semel.spark.sinks.handlers.sink import HandlerSink
from semel.spark.sinks.handlers.task import Patience
from semel.spark.spark_session import end_java, usable_cores
from semel.telemetry.health_server import Health, HealthServer
from semel.telemetry.metrics import COUNTERS, Metrics

log: Final = logging.getLogger("semel.spark")

DEFAULT_CHECKPOINT: Final = "semel-checkpoint"
MAX_MESSAGES: Final = 2_000  # of a batch: a stop has to wait for them, and after a crash they are gone through again
MAX_RECEIVERS: Final = 4


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run. `unfinished`: the queues whose last batch was not finished. `waiting`: by queue, how many
    messages wait for another attempt."""

    completed: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()
    waiting: dict[str, int] = field(default_factory=dict)
    error: SemelError | None = None


def run(
    app: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    profile: str | None = None,
    ledger: str | None = None,
    queues: Sequence[str] | None = None,
    checkpoint: str | None = None,
    exit_when_empty: bool = False,
    master: str | None = None,
    receivers: int | None = None,
    max_messages: int = MAX_MESSAGES,
    drain: Duration | None = None,
    create_dlq: bool = False,
    health: str | None = None,
    attempt_log: str | None = None,
    log_format: Literal["auto", "json", "text"] = "auto",
    log_level: str = "info",
    patience: Patience | None = None,
    stop: Stop | None = None,
    **options: Any,
) -> Report:
    """Runs the app `module:name` until a signal or `stop.ask()`; with `exit_when_empty`, until the messages that are
    in the queues at the start are done. Errors before the start are raised; later ones are in the report.

    `receivers`: how many tasks a batch of a Standard queue has. `max_messages`: of a batch. `options`: a handler's.
    """
    run_options = RunOptions(
        app,
        endpoint_url=endpoint_url,
        region=region,
        profile=profile,
        ledger=ledger,
        queues=None if queues is None else tuple(queues),
        attempt_log=attempt_log,
    )
    reference = AppReference.here(
        app,
        endpoint_url=endpoint_url,
        region=region,
        profile=profile,
        ledger=ledger,
        attempt_log=_absolute(attempt_log),
        options=tuple(sorted(options.items())),
        log_format="text" if log_format == "auto" and sys.stderr.isatty() else log_format,
        log_level=log_level,
    )
    stop = Stop() if stop is None else stop
    owns_spark = running_spark() is None
    with ExitStack() as stack, interruptible():
        try:
            loaded = load_app(run_options)
            opened, client = loaded.ledger(stack), loaded.client()
            setups = loaded.queue_setups(
                client, opened, Tools(), create_dlq=create_dlq, only=run_options.queues, **options
            )
            loaded.announce(setups, opened, client, f"{app} on Spark")
            folder = _folder(checkpoint, app)
            _check_ledger(opened, folder, master)
            source = partial(
                SourceSpec,
                dedup=Dedup.SEGMENTS,
                ack=Ack.COMMITTED,
                max_messages_per_batch=max_messages,
                endpoint_url=client.endpoint,
                region=client.region,
                profile=loaded.profile,
            )
            receivers = receivers or min(MAX_RECEIVERS, usable_cores())
            handlers = _Handlers(reference, folder, source, receivers, patience, exit_when_empty)
            for setup in setups:
                handlers.add(setup, stack)
            # Handlers wait more than they compute: a slow one must not keep the tasks of other queues waiting.
            tasks = max(usable_cores(), handlers.receivers) if master is None else None
            spark = spark_start.started_for_app(app, master, tasks)
            if owns_spark:
                stack.callback(spark_start.stop_quietly, spark)
            if master is None:  # the master is that of spark-submit
                _check_ledger(opened, folder, spark.sparkContext.master)
            runner = Runner(
                handlers.queries,
                stop,
                drain=seconds(loaded.drain_limit if drain is None else drain),
                end_spark=end_java if owns_spark else None,
                tick=handlers.tick,
                exit_when_empty=exit_when_empty,
            )
            handlers.serve(health, stack)
            with on_signals(stop):
                ends = runner.run(spark)
            for query, end in zip(handlers.queries, ends, strict=True):
                record_end(query, end, exit_when_empty)
            return handlers.report(ends)
        except KeyboardInterrupt:  # before the first query: nothing was begun
            if owns_spark:
                end_java()
            return Report()


class _Handlers:
    """The pipelines of an app, their counts and their health."""

    def __init__(
        self,
        reference: AppReference,
        folder: str,
        source: Callable[..., SourceSpec],
        receivers: int,
        patience: Patience | None,
        exit_when_empty: bool,
    ) -> None:
        self._reference, self._folder, self._patience = reference, folder, patience
        self._source, self._receivers = source, receivers
        self._options = Options(Trigger(available_now=exit_when_empty))
        self._metrics = Metrics()
        self._returned: dict[str, float] = {}  # by queue and message: when it is due
        self.queries: list[PipelineQuery] = []

    @property
    def receivers(self) -> int:
        return sum(query.pipeline.source.receivers or 1 for query in self.queries)

    def add(self, setup: QueueSetup, stack: ExitStack) -> None:
        # One receiver for FIFO, so that a batch has each group in the order in which SQS delivered it.
        receivers = 1 if setup.fifo else self._receivers
        pipeline = Pipeline(
            name=setup.name,
            checkpoint=f"{self._folder}/{setup.name}",
            source=self._source(queues=(setup.handler.queue,), receivers=receivers),
            schema=SchemaSpec(fields=(), raw=True),
            sink=HandlerSpec(self._reference.app),
        )
        checkpoint = Checkpoint(pipeline.checkpoint)
        stack.enter_context(checkpoint.held())
        record = checkpoint.record() or checkpoint.fresh({})
        sink = HandlerSink(self._reference, f"{pipeline.checkpoint}/handler", patience=self._patience)
        query = PipelineQuery(pipeline, sink, None, record, self._options, partial(self._count, setup.name, sink))
        stack.callback(query.close)
        query.open()
        self.queries.append(query)

    def tick(self) -> None:
        for query in self.queries:
            query.tick()

    def serve(self, address: str | None, stack: ExitStack) -> None:
        if address is None:
            return
        host, _, port = address.rpartition(":")
        if not port.isdigit() or int(port) > 65_535:
            raise SemelError(f"health={address!r} is not an address: write it as 8080 or 0.0.0.0:8080")
        server = HealthServer(host or "127.0.0.1", int(port), health=self._health, metrics=self._metrics.text)
        stack.callback(server.close)
        log.info("health and metrics on %s", server.url)

    def report(self, ends: Sequence[End]) -> Report:
        counts: dict[str, dict[str, int]] = {}
        unfinished = tuple(query.name for query, end in zip(self.queries, ends, strict=True) if end.unfinished)
        for query in self.queries:
            assert isinstance(query.sink, HandlerSink)
            counts |= {name: dict(counted) for name, counted in query.sink.counts.items()}
        waiting = {query.name: count for query in self.queries if (count := self._waiting(query.name))}
        for name in unfinished:
            log.error("a batch of %s was left unfinished; the next start runs it again", name)
        for name, count in waiting.items():
            log.warning("messages of %s that wait in their queue for another attempt: %d", name, count)
        completed = sum(counted.get("completed", 0) for counted in counts.values())
        error = next((end.error for end in ends if end.error is not None), None)
        return Report(completed, counts, unfinished, waiting, error)

    def _count(self, queue: str, sink: HandlerSink, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.written is not None:
                for name, counts in outcome.written.payload["counts"].items():
                    metrics = self._metrics.queue(name)
                    for counter, count in counts.items():
                        if counter in COUNTERS:
                            getattr(metrics, counter).add(count)
        now = time.time()
        self._returned = {id_: due for id_, due in self._returned.items() if due > now}
        self._returned |= {f"{queue}/{id_}": due for id_, due in sink.returned.items()}

    def _waiting(self, queue: str) -> int:
        """Messages that are hidden in their queue until another attempt."""
        now = time.time()
        return sum(due > now and key.startswith(f"{queue}/") for key, due in list(self._returned.items()))

    def _health(self) -> Health:
        snapshots = [query.snapshot for query in self.queries]
        details = {
            snapshot.pipeline: {"state": snapshot.state, "waiting": self._waiting(snapshot.pipeline)}
            for snapshot in snapshots
        }
        live = not any(snapshot.state is State.FAILED for snapshot in snapshots)
        ready = live and all(snapshot.state is State.RUNNING for snapshot in snapshots)
        return Health(live=live, ready=ready, details={"queries": details})


# Before the start.


def _folder(checkpoint: str | None, app: str) -> str:
    """By default beside the ledger's default: in the current folder, under the app's name."""
    return _absolute(checkpoint) or str(Path(DEFAULT_CHECKPOINT, app.replace(":", "-")).resolve())


def _absolute(address: str | None) -> str | None:
    return address if address is None or "://" in address else str(Path(os.path.expanduser(address)).resolve())


def _check_ledger(ledger: Ledger, checkpoint: str, master: str | None) -> None:
    """Refuses a ledger that each worker would have for itself: several workers would handle the same message."""
    from semel.ledger.sqlite.ledger import SqliteLedger

    cluster = master is not None and not master.startswith("local")
    preflight.check_ledger_is_shared(ledger)
    if cluster and isinstance(ledger, SqliteLedger):
        raise SemelError(
            f"the ledger {ledger.path} is a file of this machine, and the executors of {master} are on others: use "
            "a PostgreSQL, Redis or DynamoDB ledger"
        )
    if cluster and "://" not in checkpoint:
        log.warning("the checkpoint %s must be on a file system that all executors of %s share", checkpoint, master)
