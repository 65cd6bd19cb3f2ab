"""From what was asked for to a diagnosis: gather all that is known of each queue, then let the rules look at it.

The rule: only what was asked for and cannot be looked at at all is an error; everything less is a note. Spark is
started only if there are logs to read.
"""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from semel.doctor import recommendations, rules
from semel.doctor.alarms import alarms
from semel.doctor.errors import DoctorError
from semel.doctor.inputs import ledger as ledgers
from semel.doctor.inputs import metrics, queues
from semel.doctor.logs import unusable
from semel.doctor.logs.mapping import LogMapping, parse
from semel.doctor.model import Behaviour, Case, Diagnosis, LedgerState, Quality, QueueState, Series
from semel.sqs import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semel.doctor.behaviour import Seen

Say = Callable[[str], None]
DLQ_METRIC: Final = "ApproximateNumberOfMessagesVisible"
# Batches of any size, where the pipelines' settings are for small ones: Spark may choose its joins and the number of
# partitions as it goes, and Java collects its garbage in the way that costs least in all.
SETTINGS: Final[Mapping[str, str | int | bool]] = {
    "spark.sql.adaptive.enabled": True,
    "spark.sql.shuffle.partitions": 8,
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": False,
    "spark.sql.files.maxPartitionBytes": "64m",
}
AT_START: Final[Mapping[str, str]] = {
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to look at. `visibility`: the timeout by queue ("" for all), where neither logs nor SQS tell."""

    logs: tuple[str, ...] = ()
    mapping: str | None = None
    words: str | None = None
    queues: tuple[str, ...] = ()
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    metrics: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    ledger: str | None = None
    ledger_retention: float | None = None
    alarms: str | None = None
    visibility: Mapping[str, float] = field(default_factory=dict)
    read_timeout: float = 60.0
    probe: bool = False
    rules: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    master: str | None = None
    cores: int | None = None


@dataclass(frozen=True, slots=True)
class _Beside:
    """What is known beside the logs."""

    states: Mapping[str, QueueState]
    series: Mapping[str, Series]
    ledger: LedgerState | None
    alarmed: Mapping[str, frozenset[str]] | None
    notes: tuple[str, ...]


def examine(request: Request, *, say: Say = lambda _: None, now: float | None = None) -> Diagnosis:
    """Look at everything once."""
    chosen = rules.choose(request.rules, request.ignore)
    mapping = _mapping(request)
    beside = _beside(request, say)
    if not request.logs:
        return _diagnosis(request, chosen, beside, (), None, now)
    say("starting Spark")
    with _spark(request) as spark:
        from semel.doctor.logs import spark_reader as logs

        say("finding the logs")
        reading = logs.read(spark, request.logs, mapping=mapping, since=request.since, until=request.until)
        seen = _observed(reading.events, reading.exact, mapping, request, beside, say)
        quality = replace(reading.quality(), out_of_order=seen.disordered)
        if not quality.events:
            unusable.refuse(request.logs, reading.quality_of_all_time(), mapping)
    return _diagnosis(request, chosen, beside, seen.behaviours, quality, now)


def watch(
    request: Request,
    *,
    interval: float,
    window: float,
    on_diagnosis: Callable[[Diagnosis], None],
    stop: threading.Event,
    say: Say = lambda _: None,
) -> None:
    """Look at the last `window` seconds of the logs whenever they have grown, until `stop` is set."""
    chosen = rules.choose(request.rules, request.ignore)
    mapping = _mapping(request)
    say("starting Spark")
    with tempfile.TemporaryDirectory(prefix="semel-doctor-") as folder, _spark(request) as spark:
        from semel.doctor.logs import watching

        def on_events(events: DataFrame, quality: Quality) -> None:
            beside = _beside(request, lambda _: None)
            exact = mapping is None or mapping.has_receives
            seen = _observed(events, exact, mapping, request, beside, lambda _: None)
            whole = replace(quality, out_of_order=seen.disordered)
            on_diagnosis(_diagnosis(request, chosen, beside, seen.behaviours, whole, None))

        say("watching")
        watching.watch(
            spark,
            request.logs,
            mapping=mapping,
            interval=interval,
            window=window,
            work_folder=folder,
            on_events=on_events,
            stop=stop,
        )


def _mapping(request: Request) -> LogMapping | None:
    return None if request.mapping is None else parse(request.mapping, request.words)


def _observed(
    events: DataFrame, exact: bool, mapping: LogMapping | None, request: Request, beside: _Beside, say: Say
) -> Seen:
    from pyspark.sql import functions as F

    from semel.doctor.behaviour import observe

    names_none = mapping is not None and "queue" not in {*mapping.paths, *mapping.constants}
    if names_none and len(request.queues) == 1 and len(beside.states) == 1:
        events = events.withColumn("queue", F.lit(next(iter(beside.states))))  # then it is this one's log
    visibility = {name: state.visibility for name, state in beside.states.items()} | dict(request.visibility)
    return observe(
        events,
        exact=exact,
        batches=mapping is None,
        visibility=visibility,
        timeouts=recommendations.worth_trying,
        say=say,
    )


def _beside(request: Request, say: Say) -> _Beside:
    notes: list[str] = []
    states: tuple[QueueState, ...] = ()
    if request.queues:
        say("asking SQS")
        with Client(request.endpoint_url, request.region, request.profile) as client:
            states, some = queues.look(client, request.queues, probe=request.probe)
        notes += some
        if not (states or request.logs or request.metrics):
            raise DoctorError("; ".join(notes))
    if request.metrics:
        say("reading metrics")
    series = metrics.load_all(request.metrics, queues=request.queues, notes=notes)
    ledger = None if request.ledger is None else ledgers.look(request.ledger, request.ledger_retention)
    alarmed = None if request.alarms is None else alarms.read_existing(request.alarms)
    return _Beside(
        {state.queue: state for state in states}, {one.queue: one for one in series}, ledger, alarmed, tuple(notes)
    )


def _diagnosis(
    request: Request,
    chosen: tuple[rules.Rule, ...],
    beside: _Beside,
    behaviours: tuple[Behaviour, ...],
    quality: Quality | None,
    now: float | None,
) -> Diagnosis:
    made_at = time.time() if now is None else now
    by_queue = {one.queue: one for one in behaviours}
    cases = tuple(
        _case(queue, by_queue.get(queue), beside, request, made_at)
        for queue in sorted({*by_queue, *beside.states, *beside.series})
    )
    findings = [finding for case in cases for rule in chosen if (finding := rule.look(case)) is not None]
    return Diagnosis(
        made_at=made_at,
        cases=cases,
        findings=tuple(sorted(findings, key=lambda finding: -finding.severity)),  # the rules' own order within
        recommendations=tuple(one for case in cases for one in recommendations.recommend(case)),
        quality=quality,
        since=request.since,
        until=request.until,
        notes=beside.notes,
    )


def _case(queue: str, behaviour: Behaviour | None, beside: _Beside, request: Request, now: float) -> Case:
    state = beside.states.get(queue)
    dead = state.dead_letters if state is not None else None
    alarmed = dlq_alarmed = None
    if beside.alarmed is not None:
        alarmed = beside.alarmed.get(queue, frozenset())
        if dead is not None:
            dlq_alarmed = DLQ_METRIC in beside.alarmed.get(dead.arn.rpartition(":")[2], frozenset())
    return Case(
        queue=queue,
        behaviour=behaviour,
        state=state,
        series=beside.series.get(queue),
        ledger=beside.ledger,
        alarmed=alarmed,
        dlq_alarmed=dlq_alarmed,
        read_timeout=request.read_timeout,
        now=now,
    )


@contextmanager
def _spark(request: Request) -> Iterator[SparkSession]:
    """A Spark of our own, ended with the examination; or one beside that of this process, which is left as it is."""
    from semel.spark.spark_session import end_java, session

    running = _running()
    if running is not None:
        beside = running.newSession()
        for name, value in SETTINGS.items():
            beside.conf.set(name, str(value).lower() if isinstance(value, bool) else value)
        yield beside
        return
    settings: dict[str, Any] = {**SETTINGS, **AT_START}
    try:
        with _own_interrupt_handler():
            started = session("semel doctor", master=request.master, cores=request.cores, **settings)
        try:
            yield started
        except Exception:
            started.stop()
            raise
        started.stop()
    except KeyboardInterrupt:  # nobody waits for what Spark is doing
        end_java()
        raise


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Spark replaces the handler of SIGINT when it starts; afterwards it is the one of before again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _running() -> SparkSession | None:
    from semel.spark.spark_session import check_pyspark

    check_pyspark()
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
