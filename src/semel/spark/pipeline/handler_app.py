"""`semel run APP --on spark`: the handlers of an app, run by Spark: one streaming query for each queue.

The rule: the queries end in order. A batch in hand is finished, up to the drain limit; what is not is run again by the
next start, and the ledger knows how far each message was.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from semel.consumer import preflight
from semel.consumer.app_loader import RunOptions, load_app
from semel.consumer.queue_setup import QueueSetup, Tools
from semel.durations import Duration, seconds
from semel.errors import SemelError
from semel.ledger.contract import Ledger
from semel.spark.interpreter import running_spark
from semel.spark.pipeline.app_query import HandlerQuery, Source, cores
from semel.spark.pipeline.errors import explained
from semel.spark.pipeline.spark_start import started_for_app
from semel.spark.pipeline.stop import Stop, interruptible, on_signals
from semel.spark.sinks.contract import Written
from semel.spark.sinks.handlers.app_loader import AppReference
from semel.spark.sinks.handlers.sink import HandlerSink
from semel.spark.sinks.handlers.task import Patience
from semel.spark.spark_session import end_java
from semel.telemetry.health_server import Health, HealthServer
from semel.telemetry.metrics import COUNTERS, Metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log: Final = logging.getLogger("semel.spark")

DEFAULT_CHECKPOINT: Final = "semel-checkpoint"
MAX_MESSAGES: Final = 2_000  # of a batch: what a stop has to wait for, and what a crash has to go through again
TICK: Final = 0.25


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to. By queue: `unfinished`, whether a batch was left in the middle; `waiting`: messages that wait
    for another attempt."""

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
    available_now: bool = False,
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
    """Runs the app that `module:name` names until a signal or `stop.ask()`; with `available_now`, until what is in the
    queues at the start is done. What is wrong before the start is raised; from then on it is in the report.

    `receivers`: tasks of a Standard queue's batch; `max_messages`: of a batch. `options` are those of a handler.
    """
    wanted = RunOptions(
        app,
        endpoint_url=endpoint_url,
        region=region,
        profile=profile,
        ledger=ledger,
        queues=None if queues is None else tuple(queues),
        attempt_log=attempt_log,
    )
    place = AppReference.here(
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
            found = load_app(wanted)
            opened = found.ledger(stack)
            setups = found.queue_setups(
                found.client(), opened, Tools(), create_dlq=create_dlq, only=wanted.queues, **options
            )
            found.announce(setups, opened, found.client(), f"{app} on Spark")
            folder = _folder(checkpoint, app)
            _check_ledger(opened, folder, master)
            source = Source(found, folder, available_now, receivers, max_messages)
            spark = _started(app, master, [source.receivers(setup) for setup in setups])
            if owns_spark:
                stack.callback(partial(_quietly, spark.stop))
            if master is None:  # as spark-submit has it
                _check_ledger(opened, folder, spark.sparkContext.master)
            limit = seconds(found.drain_limit if drain is None else drain)
            engine = _Engine(setups, place, source, patience, limit, owns_spark)
            with on_signals(stop):
                return engine.run(spark, stop, health)
        except KeyboardInterrupt:  # before the first query: nothing is under way
            if owns_spark:
                end_java()
            return Report()


class _Engine:
    """All queries of a run. `owns_spark`: Spark was started for them alone."""

    def __init__(
        self,
        setups: Sequence[QueueSetup],
        place: AppReference,
        source: Source,
        patience: Patience | None,
        drain: float,
        owns_spark: bool,
    ) -> None:
        self._metrics = Metrics()
        self._drain = drain
        self._owns_spark = owns_spark
        self._started = False
        self._queries = [
            HandlerQuery(
                setup,
                source,
                HandlerSink(place, f"{source.folder_of(setup)}/handler", patience=patience, returns=True),
                self._count,
            )
            for setup in setups
        ]

    def run(self, spark: SparkSession, stop: Stop, health: str | None) -> Report:
        with ExitStack() as stack:
            if health is not None:
                self._serve(stack, health)
            error: SemelError | None = None
            try:
                for query in self._queries:
                    query.start(spark)
                self._started = True
                self._watch(stop)
            except Exception as failed:  # noqa: BLE001 - whatever PySpark and Py4J raise, the user gets one line
                error = explained(failed)
            unfinished = self._unfinished(stop)
            if not unfinished or not self._owns_spark:
                for query in self._queries:
                    query.stop()
            error = error or self._error()
            if unfinished and self._owns_spark:
                end_java()  # within a batch, Spark would take its time, and print the tracebacks of its workers
            return self._report(error, unfinished)

    def _serve(self, stack: ExitStack, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdigit() or int(port) > 65_535:
            raise SemelError(f"health={address!r} is no address: write it as 8080 or 0.0.0.0:8080")
        server = HealthServer(host or "127.0.0.1", int(port), health=self._health, metrics=self._metrics.text)
        stack.callback(server.close)
        log.info("health and metrics on %s", server.url)

    def _watch(self, stop: Stop) -> None:
        """Until all have ended, one has failed, or it is asked to stop."""
        while not stop.asked and self._error() is None:
            active = [query for query in self._queries if query.active]
            for query in self._queries:
                query.try_waiting()
            if not active:
                return
            stop.wait(TICK)

    def _error(self) -> SemelError | None:
        return next((error for query in self._queries if (error := query.error()) is not None), None)

    def _unfinished(self, stop: Stop) -> tuple[str, ...]:
        """Wait for the batches in hand; the queues whose batch took too long."""
        until = time.monotonic() + stop.drain(self._drain)
        for query in self._queries:
            query.begin_no_other()
        return tuple(query.name for query in self._queries if not query.finished(until, stop))

    def _report(self, error: SemelError | None, unfinished: tuple[str, ...]) -> Report:
        counts: dict[str, dict[str, int]] = {}
        for query in self._queries:
            counts |= {name: dict(found) for name, found in query.sink.counts.items()}
        waiting = {query.name: query.waiting for query in self._queries if query.waiting}
        for name in unfinished:
            log.error("a batch of %s was left unfinished; the next start runs it again", name)
        for name, count in waiting.items():
            log.warning("%d messages of %s wait for another attempt, which the next start makes", count, name)
        completed = sum(found.get("completed", 0) for found in counts.values())
        return Report(completed, counts, unfinished, waiting, error)

    def _count(self, written: Sequence[Written]) -> None:
        for one in written:
            for queue, counts in one.payload["counts"].items():
                metrics = self._metrics.queue(queue)
                for name, count in counts.items():
                    if name in COUNTERS:
                        getattr(metrics, name).add(count)

    def _health(self) -> Health:
        details = {query.name: {"active": query.active, "waiting": query.waiting} for query in self._queries}
        live = self._error() is None
        ready = live and self._started and all(query.active for query in self._queries)
        return Health(live=live, ready=ready, details={"queries": details})


# Before the start.


def _folder(checkpoint: str | None, app: str) -> str:
    """By default beside the ledger's default: in the current folder, under the app's name."""
    return _absolute(checkpoint) or str(Path(DEFAULT_CHECKPOINT, app.replace(":", "-")).resolve())


def _absolute(address: str | None) -> str | None:
    return address if address is None or "://" in address else str(Path(address).expanduser().resolve())


def _check_ledger(ledger: Ledger, checkpoint: str, master: str | None) -> None:
    """What would give each worker a ledger of its own, and so each message to several of them."""
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


def _started(app: str, master: str | None, receivers: Sequence[int]) -> SparkSession:
    # Handlers wait more than they compute: a slow one must not keep the tasks of other queues waiting for a core.
    tasks = max(cores(), sum(receivers)) if master is None else None
    return started_for_app(app, master, tasks)


def _quietly(act: Callable[[], Any]) -> None:
    with suppress(Exception):  # its Java has ended already
        act()
