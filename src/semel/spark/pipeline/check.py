"""`semel pipeline check`: what a run would do, and what would stop it: queues, permissions, tables, the checkpoint.

It changes nothing: permissions are tested with requests that cannot succeed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from semel.errors import SemelError
from semel.extras import MissingExtra
from semel.messages.dead_letter_queue import RECOMMENDED_RECEIVES
from semel.messages.json_path import JsonPath
from semel.spark.pipeline import body_schema, compatibility, requirements
from semel.spark.pipeline.checkpoint import Checkpoint, CheckpointError, Record
from semel.spark.pipeline.config import (
    Dedup,
    DeltaSpec,
    HandlerSpec,
    ParquetSpec,
    Pipeline,
    PipelineFileError,
    PostgresSpec,
    RejectTo,
    SqsSpec,
)
from semel.spark.source.options import ReadOptions, read_options
from semel.spark.suggestions import did_you_mean
from semel.sqs import Client, limits
from semel.sqs.client.queue import Queue
from semel.sqs.errors import AccessDenied, BadRequest, QueueNotFound, SqsError

DAY: Final = 86_400
# Requests that cannot succeed, and so change nothing: SQS refuses them for their parameters if they are allowed, and
# with AccessDenied if they are not.
_NO_RECEIPT: Final = "semel-pipeline-check"
_PROBES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ReceiveMessage": {"MaxNumberOfMessages": limits.MAX_RECEIVE + 1, "VisibilityTimeout": 0},
    "DeleteMessage": {"ReceiptHandle": _NO_RECEIPT},
    "ChangeMessageVisibility": {"ReceiptHandle": _NO_RECEIPT, "VisibilityTimeout": 0},
    "SendMessage": {"MessageBody": "\0", "DelaySeconds": limits.MAX_DELAY + 1},
}
_TO_READ: Final = ("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility")


class Level(StrEnum):
    FINE = "fine"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Check:
    """What `check` found; `plan` says what a run would do."""

    pipeline: str
    plan: tuple[str, ...]
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def passed(self) -> bool:
        return all(finding.level is not Level.PROBLEM for finding in self.findings)

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


def check(pipeline: Pipeline, *, with_spark: bool = False, create_dlq: bool = False, adopt: bool = False) -> Check:
    """`with_spark`: check the SQL of constraints too, which starts Spark. `create_dlq`: the run will create the
    dead-letter queues that are missing. `adopt`: it will write to another pipeline's table."""
    missing = list(requirements.missing(pipeline))
    findings = [Finding(Level.PROBLEM, str(error)) for error in missing]
    try:
        findings += _queues(pipeline, create_dlq)
    except SemelError as error:
        findings.append(Finding(Level.PROBLEM, f"SQS: {error}"))
    findings += [*_handlers(pipeline), *_key(pipeline), *_history(pipeline)]
    if not any(isinstance(error, MissingExtra) for error in missing):
        findings += _tables(pipeline, adopt)
    if with_spark and not missing:
        findings += _conditions(pipeline)
    return Check(pipeline.name, tuple(_plan(pipeline)), tuple(findings))


def as_text(result: Check) -> list[str]:
    labels = {Level.FINE: "  ok      ", Level.WARNING: "  warning ", Level.PROBLEM: "  PROBLEM "}
    lines = [result.pipeline, *(f"  {line}" for line in result.plan), ""]
    lines += [labels[finding.level] + finding.text for finding in result.findings]
    match sum(finding.level is Level.PROBLEM for finding in result.findings):
        case 0:
            end = "it can run"
        case 1:
            end = "1 problem must be fixed before it can run"
        case problems:
            end = f"{problems} problems must be fixed before it can run"
    return [*lines, "", end]


# What would happen.


def _plan(pipeline: Pipeline) -> Iterator[str]:
    source = pipeline.source
    yield f"reads     {', '.join(source.queues)}" + (f" at {source.endpoint_url}" if source.endpoint_url else "")
    yield f"key       {source.key or 'the idempotency-key attribute, else the message id'}"
    yield f"once      {_DEDUP[source.dedup]}"
    if not pipeline.schema.raw:
        yield f"rows      {body_schema.ddl(pipeline.schema.fields)}"
    for constraint in pipeline.schema.constraints:
        yield f"          rejected unless {constraint.name}"
    yield f"rejects   {rejects_go(pipeline)}"
    yield f"writes    {_target(pipeline)}"
    yield f"remembers {pipeline.checkpoint}"


_DEDUP: Final = {
    Dedup.SEGMENTS: (
        "over crashes, retries and failed deletes; not what SQS delivers again after a confirmed delete, a producer "
        "sends twice or a redrive brings back (dedup = segments)"
    ),
    Dedup.KEY: "each key once for the queue's retention, whoever sent or delivered it again (dedup = key)",
    Dedup.LEDGER: "each key once among all that share the ledger (dedup = ledger)",
}


def rejects_go(pipeline: Pipeline) -> str:
    match pipeline.rejects.to:
        case RejectTo.DEAD_LETTER_QUEUE:
            return "to the queue's own dead-letter queue"
        case RejectTo.QUEUE:
            return f"to the queue {pipeline.rejects.target}"
        case RejectTo.TABLE:
            return f"to the Parquet table {pipeline.rejects.target}"


def _target(pipeline: Pipeline) -> str:
    match pipeline.sink:
        case ParquetSpec(path=path):
            return f"Parquet files in {path}: each row once for every reader"
        case DeltaSpec(path=path):
            return f"the Delta table {path}: a batch appears whole, or not at all"
        case PostgresSpec(table=table, mode=mode):
            return f"the PostgreSQL table {table} ({mode.value}): a batch is one transaction"
        case SqsSpec(queue=queue) if queue.endswith(".fifo"):
            return f"the FIFO queue {queue}: each row once, if a failed batch is run again within SQS's 5 minutes"
        case SqsSpec(queue=queue):
            return (
                f"the Standard queue {queue}: after a crash some rows may be sent again, with the same idempotency-key"
            )
        case HandlerSpec(app=app):
            return f"the handlers of {app}, under their ledger: what `semel run {app} --explain` says holds here too"


# What is there.


def _queues(pipeline: Pipeline, create_dlq: bool) -> Iterator[Finding]:
    """The queues that are read, and those that rejects and rows are sent to."""
    source, sink = pipeline.source, pipeline.sink
    options = read_options(source.options(pipeline.checkpoint))
    with Client(*options.address) as client:
        for name in source.queues:
            try:
                queue = client.queue(name)
                attributes = queue.attributes()
            except SemelError as error:
                yield Finding(Level.PROBLEM, f"queue {name}: {error}")
                continue
            yield from _queue(name, attributes, pipeline, options)
            yield from _permissions(queue, name, *_TO_READ)
            if pipeline.rejects.to is RejectTo.DEAD_LETTER_QUEUE:
                yield from _dead_letter_queue(client, name, attributes, create_dlq)
        if pipeline.rejects.to is RejectTo.QUEUE and pipeline.rejects.target:
            yield from _target_queue(client, pipeline.rejects.target)
    if isinstance(sink, SqsSpec):
        with Client(sink.endpoint_url, sink.region, sink.profile) as client:
            yield from _target_queue(client, sink.queue)


def _dead_letter_queue(client: Client, name: str, attributes: Mapping[str, str], create_dlq: bool) -> Iterator[Finding]:
    if "RedrivePolicy" in attributes:
        yield from _target_queue(client, json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"])
    elif create_dlq:
        text = f"queue {name}: its dead-letter queue will be created, with a maxReceiveCount of {RECOMMENDED_RECEIVES}"
        yield Finding(Level.FINE, text)
    else:
        yield Finding(
            Level.PROBLEM,
            f"queue {name} has no dead-letter queue for what is rejected: run with --create-dlq, give it a "
            "RedrivePolicy, or set [rejects] queue or table",
        )


def _target_queue(client: Client, name: str) -> Iterator[Finding]:
    """A queue that messages are sent to. Permission to send need not include permission to read its attributes."""
    label = name.rpartition(":")[2] if name.startswith("arn:") else name
    try:
        queue = client.queue(name)
        with suppress(AccessDenied):
            queue.attributes("QueueArn")
        yield from _permissions(queue, label, "SendMessage")
    except SemelError as error:
        yield Finding(Level.PROBLEM, f"queue {label}: {error}")


def _permissions(queue: Queue, name: str, *operations: str) -> Iterator[Finding]:
    allowed = []
    for operation in operations:
        try:
            queue.call(operation, _PROBES[operation])
        except QueueNotFound:
            raise
        except BadRequest:
            pass
        except AccessDenied as error:
            yield Finding(Level.PROBLEM, f"queue {name}: {operation} is not allowed: {error}")
            continue
        except SqsError as error:
            yield Finding(Level.WARNING, f"queue {name}: whether {operation} is allowed is not known: {error}")
            continue
        allowed.append(operation)
    if allowed:
        yield Finding(Level.FINE, f"queue {name}: allowed to call {', '.join(allowed)}")


def _queue(name: str, attributes: Mapping[str, str], pipeline: Pipeline, options: ReadOptions) -> Iterator[Finding]:
    waiting = int(attributes.get("ApproximateNumberOfMessages", 0))
    retention = int(attributes.get("MessageRetentionPeriod", 0))
    fifo = attributes.get("FifoQueue") == "true"
    kind = "FIFO" if fifo else "Standard"
    yield Finding(Level.FINE, f"queue {name}: {kind}, {waiting:,} waiting, kept for {retention / DAY:g} days")
    if fifo and options.receivers_of(name) > 1:
        yield Finding(
            Level.WARNING,
            f"queue {name} is FIFO and has several receivers: a group may be in two partitions of a batch",
        )
    limit = pipeline.source.retention
    if pipeline.source.dedup is Dedup.KEY and limit is not None and limit < retention:
        yield Finding(
            Level.WARNING,
            f"[source] retention is shorter than the retention of queue {name}: SQS can deliver a message again after "
            "its key is forgotten",
        )


def _handlers(pipeline: Pipeline) -> Iterator[Finding]:
    """Whether the app can be imported here, and has a handler for each queue."""
    if not isinstance(pipeline.sink, HandlerSpec):
        return
    from semel.spark.sinks.handlers.executor_app import queues_of

    name, source = pipeline.sink.app, pipeline.source
    try:
        queues = queues_of(name)
    except SemelError as error:
        yield Finding(Level.PROBLEM, f"[sink] app: {error}")
        return
    with Client(*read_options(source.options(pipeline.checkpoint)).address) as client:
        handled = {client.queue(queue).name for queue in queues}
        missing = [queue for queue in source.queues if client.queue(queue).name not in handled]
    if missing:
        text = f"[sink] app: {name} has no handler for {', '.join(missing)}; it has {', '.join(sorted(handled))}"
        yield Finding(Level.PROBLEM, text)
    else:
        yield Finding(Level.FINE, f"handlers of {name}: one for each queue")


def _key(pipeline: Pipeline) -> Iterator[Finding]:
    """Reports a key that is in no message, with which duplicates would not be recognised. Also a key that all updates
    of a row share, with which updates would be dropped as duplicates."""
    key, fields, sink = pipeline.source.key, pipeline.schema.fields, pipeline.sink
    if (
        isinstance(sink, PostgresSpec)
        and pipeline.source.dedup is not Dedup.SEGMENTS
        and [key] == [f"$.{column}" for column in sink.key]
    ):
        yield Finding(
            Level.WARNING,
            f'[source] key = "{key}" is also what rows are upserted by: of all messages for a row only the first gets '
            "in, and later ones are dropped as duplicates. Name what tells one update from the next, or leave key out",
        )
    if key is None or not key.startswith("$") or pipeline.schema.raw:
        return
    if not _leads_to_a_field(JsonPath.parse(key).steps, pa.struct(fields), any_as_text=pipeline.schema.any_as_text):
        meant = did_you_mean(key.removeprefix("$."), [field.name for field in fields], ".")
        yield Finding(
            Level.PROBLEM,
            f'[source] key = "{key}": the schema has no such field{meant} '
            "A message without the field has no key, so that its duplicates are not recognised; add it to [schema]",
        )


def _leads_to_a_field(steps: Sequence[str | int], kind: pa.DataType, *, any_as_text: bool) -> bool:
    if not steps:
        return True
    if pa.types.is_string(kind):
        return any_as_text
    if pa.types.is_list(kind) != isinstance(steps[0], int):
        return False
    fields = [part for part in body_schema.parts(kind) if not pa.types.is_struct(kind) or part.name == steps[0]]
    return any(_leads_to_a_field(steps[1:], field.type, any_as_text=any_as_text) for field in fields)


def _tables(pipeline: Pipeline, adopt: bool) -> Iterator[Finding]:
    """Whether rows and rejects can be written to their tables, and whether the tables are this pipeline's. For queues,
    see `_target_queue`."""
    from semel.spark.pipeline.body_sql import row_schema
    from semel.spark.pipeline.sink_factory import rejects_of, sink_of
    from semel.spark.sinks.contract import Checkable
    from semel.spark.sinks.rejects import TABLE

    with suppress(SemelError):  # `_history` reports a record that cannot be read
        former = Checkpoint(pipeline.checkpoint).record()
        tables = [] if isinstance(pipeline.sink, SqsSpec) else [(sink_of, row_schema(pipeline))]
        if pipeline.rejects.to is RejectTo.TABLE:
            tables.append((rejects_of, TABLE))
        for make, schema in tables:
            try:
                sink = make(pipeline)
                if isinstance(sink, Checkable):
                    sink.check(schema, None if former is None else former.id, adopt=adopt)
                    yield Finding(Level.FINE, f"{sink.name}: can be written to")
            except SemelError as error:
                yield Finding(Level.PROBLEM, str(error))


def _conditions(pipeline: Pipeline) -> Iterator[Finding]:
    from semel.spark.pipeline.body_sql import check_constraints
    from semel.spark.spark_session import end_java, session

    try:
        check_constraints(session(f"semel check {pipeline.name}"), pipeline)
    except PipelineFileError as error:
        yield from (Finding(Level.PROBLEM, mistake) for mistake in error.mistakes)
    except KeyboardInterrupt:
        end_java()
        raise
    else:
        yield Finding(Level.FINE, f"constraints: Spark understands all {len(pipeline.schema.constraints)}")


def _agreement(pipeline: Pipeline, former: Record) -> Finding:
    """Whether checkpoint, segment log and sinks belong together."""
    from semel.spark.pipeline import agreement
    from semel.spark.pipeline.sink_factory import rejects_of, sink_of

    checkpoint = Checkpoint(pipeline.checkpoint)
    with ExitStack() as stack:
        try:
            sinks = [sink_of(pipeline), rejects_of(pipeline)]
            for sink in sinks:
                stack.callback(sink.close)
            agreement.check(checkpoint, former, agreement.log_of(checkpoint), sinks)
        except CheckpointError as error:
            return Finding(Level.PROBLEM, f"checkpoint: {error}")
        except SemelError:  # a sink that does not answer, which `_tables` reports
            return Finding(Level.WARNING, "checkpoint: whether it belongs to the table cannot be looked up")
    return Finding(Level.FINE, "checkpoint: the next run continues where the last one ended")


def _history(pipeline: Pipeline) -> Iterator[Finding]:
    checkpoint, spec = Checkpoint(pipeline.checkpoint), compatibility.recorded(pipeline)
    try:
        former = checkpoint.record()
        if former is None:
            checkpoint.fresh(spec)
            yield Finding(Level.FINE, "checkpoint: none yet; the first run begins one")
            return
        changes = compatibility.compare(former.spec, spec)
    except SemelError as error:
        yield Finding(Level.PROBLEM, f"checkpoint: {error}")
        return
    yield _agreement(pipeline, former)
    for change in changes:
        yield Finding(Level.PROBLEM if change.breaking else Level.FINE, change.text)
