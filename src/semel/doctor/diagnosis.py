"""From a request to a diagnosis: gathers all that is known of each queue, then applies the rules to it.

The rule: it is an error if an input that was asked for cannot be examined at all; everything less is a note.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from semel.doctor import recommendations, rules
from semel.doctor.alarms import alarms
from semel.doctor.analysis import Analysis, analyse
from semel.doctor.engine import choice
from semel.doctor.engine.choice import Choice, EngineName
from semel.doctor.engine.contract import Engine
from semel.doctor.errors import DoctorError
from semel.doctor.inputs import ledger, metrics, queues
from semel.doctor.logs import format_detection, unusable_logs
from semel.doctor.logs.discovery import Days, LogFile, LogFiles, find, is_local, local_path
from semel.doctor.logs.format_detection import Detection
from semel.doctor.logs.mapping import LogMapping, own, parse
from semel.doctor.model import Behaviour, Case, Diagnosis, LedgerState, QueueState, Series
from semel.errors import SemelError
from semel.extras import require
from semel.sqs import Client

OnProgress = Callable[[str], None]
LOOK_EVERY: Final = 0.2  # seconds
STEP: Final = 5  # percent of the logs, between two lines of progress
DLQ_METRIC: Final = "ApproximateNumberOfMessagesVisible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to examine. `visibility`: the timeout by queue ("" for all others), for lines of the logs that do not have
    it. `engine`: "duckdb" or "spark"; chosen by the size of the logs if it is None."""

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
    lambda_timeout: float | None = None
    probe: bool = False
    rules: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    engine: str | None = None
    master: str | None = None
    cores: int | None = None


@dataclass(frozen=True, slots=True)
class _Context:
    """What is known besides the logs."""

    states: Mapping[str, QueueState]
    series: Mapping[str, Series]
    ledger: LedgerState | None
    alarmed: Mapping[str, frozenset[str]] | None
    notes: tuple[str, ...]


def diagnose(request: Request, *, on_progress: OnProgress = lambda _: None, now: float | None = None) -> Diagnosis:
    """Examine everything once."""
    chosen = rules.choose(request.rules, request.ignore)
    context = _context(request, on_progress)
    if not request.logs:
        return _diagnosis(request, chosen, context, None, now)
    analysis, engine, log_fields = _analysed(request, context, on_progress)
    diagnosis = _diagnosis(request, chosen, context, analysis, now)
    return replace(diagnosis, log_fields=log_fields, engine=str(engine))


def watch(
    request: Request,
    *,
    interval: float,
    window: float,
    on_diagnosis: Callable[[Diagnosis], None],
    stop: threading.Event,
    on_progress: OnProgress = lambda _: None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Examine the last `window` seconds of the logs whenever they have grown, until `stop` is set. Files are checked
    often, because that costs little; a diagnosis is made at most once per `interval`.

    Queues, metrics and ledger are read again each time. If that fails, the last result is used, and a note says so."""
    if request.engine == EngineName.SPARK or request.master is not None:
        raise DoctorError("--watch runs in this process, on DuckDB; leave out --engine spark and --master")
    require("reading logs", "duckdb", extra="doctor")
    from semel.doctor.engine.duckdb import DuckDBEngine
    from semel.doctor.logs.database import interruptible
    from semel.doctor.logs.follower import LogFollower
    from semel.doctor.logs.reader import CREATE

    chosen = rules.choose(request.rules, request.ignore)
    context = _context(request, on_progress)
    follower: LogFollower | None = None
    with interruptible(), closing(DuckDBEngine(threads=request.cores, in_memory=True)) as engine:
        engine.connection.execute(CREATE)
        on_progress("watching")
        while True:
            start, pause = time.monotonic(), min(interval, LOOK_EVERY)
            if follower is None and (mapping := _followed(request, engine.connection, context)) is not None:
                follower = LogFollower(
                    engine.connection, request.logs, mapping, window=window, any_name=request.mapping is not None
                )
            if follower is not None and follower.look(clock()):
                follower.look(clock())  # what was written in the meantime
                try:
                    context = current = _context(request, lambda _: None)
                except SemelError as error:  # a broker that restarts, for instance
                    note = f"queues, metrics and ledger are as of an earlier look: {error}"
                    current = replace(context, notes=(*context.notes, note))
                analysis = _analyse(engine, follower.mapping, follower.names, request, current, lambda _: None)
                quality = replace(analysis.quality, files=len(follower.logs.files), unreadable=follower.problems())
                on_diagnosis(_diagnosis(request, chosen, current, replace(analysis, quality=quality), clock()))
                pause = max(0.0, start + interval - time.monotonic())
            else:
                pause = max(pause, 10 * (time.monotonic() - start))  # a folder of many files takes a while
            if stop.wait(pause):
                return


def _followed(request: Request, connection: Any, context: _Context) -> LogMapping | None:
    """The mapping of the logs; None if there is no line yet that shows it."""
    from semel.doctor.logs.reader import first_records

    for path in request.logs:
        if is_local(path) and not Path(local_path(path)).exists():
            raise DoctorError(f"--log {path}: no such folder; --watch follows one that is there, empty or not")
    try:
        logs = find(request.logs, any_name=request.mapping is not None, open_files=True)
    except DoctorError:
        logs = LogFiles()
    if request.mapping is None and not first_records(connection, logs.files):
        return None
    mapping, _ = _mapping(request, connection, logs.files, context)
    return mapping


# Logs.


def _analysed(request: Request, context: _Context, on_progress: OnProgress) -> tuple[Analysis, Choice, tuple[str, ...]]:
    require("reading logs", "duckdb", extra="doctor")
    from semel.doctor.logs.database import connect, interruptible

    on_progress("finding the logs")
    logs = find(request.logs, any_name=request.mapping is not None, days=Days.of(request.since, request.until))
    chosen = choice.choose(request.engine, request.master, logs.files)
    on_progress(f"starting {chosen}")
    progress = _Progress(sum(file.size for file in logs.files), on_progress)
    with interruptible(), _engine(request, chosen, progress) as engine:
        with closing(connect()) as connection:
            mapping, log_fields = _mapping(request, connection, logs.files, context)
        on_progress("reading the logs")
        problems = engine.read(logs.files, mapping, request.since, request.until)
        names = [file.address for file in logs.files]
        analysis = _analyse(engine, mapping, names, request, context, on_progress)
    unreadable = tuple(sorted((*logs.unreadable, *problems)))
    quality = replace(analysis.quality, files=len(logs.files), unreadable=unreadable)
    if not quality.events:
        unusable_logs.refuse(request.logs, quality, mapping)
    return replace(analysis, quality=quality), chosen, log_fields


def _mapping(
    request: Request, connection: Any, files: Sequence[LogFile], context: _Context
) -> tuple[LogMapping, tuple[str, ...]]:
    """The mapping that `--map` describes or the first lines show, and sentences about it for the report."""
    from semel.doctor.logs.reader import first_records

    log_fields: tuple[str, ...] = ()
    if request.mapping is not None:
        mapping = parse(request.mapping, request.words)
    elif records := first_records(connection, files):
        detection = format_detection.detect(records)
        mapping, log_fields = detection.mapping, _described(detection)
    else:
        mapping = own()
    names_no_queue = "queue" not in mapping.names
    if names_no_queue and len(request.queues) == 1 and len(context.states) == 1:
        queue = next(iter(context.states))  # then the log is that of the only queue
        mapping = replace(mapping, constants={**mapping.constants, "queue": queue})
    return mapping, log_fields


def _described(detection: Detection) -> tuple[str, ...]:
    """The mapping as an option that repeats it, and what the log lacks."""
    mapping = detection.mapping
    if mapping.is_own:
        return ()
    options = [f"--map {shlex.quote(mapping.as_option())}"]
    if words := mapping.as_events_option():
        options.append(f"--events {shlex.quote(words)}")
    return (
        f"log format: {detection.format}. These options say the same: {' '.join(options)}",
        *(f"uncertain: {doubt}" for doubt in detection.doubts),
        *(f"missing field {field.name}: {field.effect}" for field in detection.missing),
    )


def _analyse(
    engine: Engine,
    mapping: LogMapping,
    files: Sequence[str],
    request: Request,
    context: _Context,
    on_progress: OnProgress,
) -> Analysis:
    states = {name: state.visibility for name, state in context.states.items()}
    return analyse(
        engine,
        mapping,
        files=files,
        visibility=states | dict(request.visibility),
        timeouts=partial(
            recommendations.worth_trying, read_timeout=request.read_timeout, lambda_timeout=request.lambda_timeout
        ),
        on_progress=on_progress,
    )


@contextmanager
def _engine(request: Request, chosen: Choice, progress: _Progress) -> Iterator[Engine]:
    if chosen.engine is EngineName.DUCKDB:
        from semel.doctor.engine.duckdb import DuckDBEngine

        with closing(DuckDBEngine(threads=request.cores, on_bytes=progress.add)) as engine:
            yield engine
        return
    require("the engine spark", "pyspark", "pyarrow", "pandas", extra="spark")
    from semel.doctor.engine.spark import SparkEngine

    spark = SparkEngine(master=request.master, cores=request.cores)
    try:
        yield spark
    except KeyboardInterrupt:
        spark.abandon()
        raise
    except BaseException:
        spark.close()
        raise
    spark.close()


class _Progress:
    """How much of the logs is read, in steps of a few percent. Thread-safe enough for a display."""

    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self._total, self._on_progress, self._read, self._percent = max(1, total), on_progress, 0, -STEP

    def add(self, size: int) -> None:
        self._read += size
        percent = min(100, 100 * self._read // self._total)
        if percent >= self._percent + STEP:
            self._percent = percent
            self._on_progress(f"reading the logs: {percent} % of {choice.size_text(self._total)}")


# Everything else.


def _context(request: Request, on_progress: OnProgress) -> _Context:
    notes: list[str] = []
    states: tuple[QueueState, ...] = ()
    if request.queues:
        on_progress("asking SQS")
        with Client(request.endpoint_url, request.region, request.profile) as client:
            states, problems = queues.look(client, request.queues, probe=request.probe)
        notes += problems
        if not (states or request.logs or request.metrics):
            raise DoctorError("; ".join(notes))
    if request.metrics:
        on_progress("reading metrics")
    series = metrics.load_all(request.metrics, queues=request.queues, notes=notes)
    ledger_state = None if request.ledger is None else ledger.look(request.ledger, request.ledger_retention)
    alarmed = None if request.alarms is None else alarms.read_existing(request.alarms)
    return _Context(
        states={state.queue: state for state in states},
        series={entry.queue: entry for entry in series},
        ledger=ledger_state,
        alarmed=alarmed,
        notes=tuple(notes),
    )


def _diagnosis(
    request: Request,
    chosen: tuple[rules.Rule, ...],
    context: _Context,
    analysis: Analysis | None,
    now: float | None,
) -> Diagnosis:
    made_at = time.time() if now is None else now
    by_queue = {behaviour.queue: behaviour for behaviour in (analysis.behaviours if analysis else ())}
    cases = tuple(
        _case(queue, by_queue.get(queue), context, request, made_at)
        for queue in sorted({*by_queue, *context.states, *context.series})
    )
    findings = [finding for case in cases for rule in chosen if (finding := rule.look(case)) is not None]
    return Diagnosis(
        made_at=made_at,
        cases=cases,
        findings=tuple(sorted(findings, key=lambda finding: -finding.severity)),  # within one, in the rules' order
        recommendations=tuple(advised for case in cases for advised in recommendations.recommend(case)),
        quality=analysis.quality if analysis else None,
        since=request.since,
        until=request.until,
        notes=context.notes,
    )


def _case(queue: str, behaviour: Behaviour | None, context: _Context, request: Request, now: float) -> Case:
    state = context.states.get(queue)
    dead = state.dead_letters if state is not None else None
    alarmed = dlq_alarmed = None
    if context.alarmed is not None:
        alarmed = context.alarmed.get(queue, frozenset())
        if dead is not None:
            dlq_alarmed = DLQ_METRIC in context.alarmed.get(dead.arn.rpartition(":")[2], frozenset())
    return Case(
        queue=queue,
        behaviour=behaviour,
        state=state,
        series=context.series.get(queue),
        ledger=context.ledger,
        alarmed=alarmed,
        dlq_alarmed=dlq_alarmed,
        read_timeout=request.read_timeout,
        lambda_timeout=request.lambda_timeout,
        now=now,
    )
