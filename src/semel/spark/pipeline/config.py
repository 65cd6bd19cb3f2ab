"""What a pipeline's file says, as values: checked, with durations in seconds and paths made absolute.

Nothing here reads a file, asks SQS or starts Spark; `file.load` makes these and says what is wrong with a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from semel.spark.pipeline.schema import Constraint, Field

# What the rows of the source have, and which of it a table may keep as a metadata column, `_` in front.
METADATA: Final = (
    "message_id",
    "key",
    "group_id",
    "dedup_id",
    "sequence_number",
    "sent_at",
    "first_received_at",
    "received_at",
    "receive_count",
    "attributes",
    "queue",
)
DEDUP_PARTITIONS: Final = 4


class Dedup(StrEnum):
    SEGMENTS = "segments"  # redeliveries of what this pipeline has sealed
    KEY = "key"  # and every other message with the same key, in Spark's state store
    LEDGER = "ledger"  # and every key that a ledger, shared with handlers, has seen


class Ack(StrEnum):
    SEALED = "sealed"
    COMMITTED = "committed"


class Extra(StrEnum):
    """What becomes of a body's fields that the schema does not name."""

    IGNORE = "ignore"
    REJECT = "reject"


class Mode(StrEnum):
    APPEND = "append"
    UPSERT = "upsert"


class RejectTo(StrEnum):
    DEAD_LETTER_QUEUE = "dead-letter-queue"  # the one that each source queue's RedrivePolicy names
    QUEUE = "queue"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Where messages come from. None: what the source itself takes if the option is not given."""

    queues: tuple[str, ...]
    key: str | None = None
    dedup: Dedup = Dedup.SEGMENTS
    dedup_partitions: int = DEDUP_PARTITIONS  # of dedup = "key"; fixed once the pipeline has run
    remember: float | None = None  # seconds a key is remembered for; None: the longest retention of the queues
    ledger: str | None = field(default=None, repr=False)
    ack: Ack = Ack.SEALED
    receivers: int | None = None
    threads: int | None = None
    max_messages_per_batch: int | None = None
    max_bytes_per_batch: int | None = None
    max_seconds_per_batch: float | None = None
    visibility: int | None = None
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None

    def options(self, checkpoint: str) -> dict[str, str]:
        """The options for `format("sqs")`."""
        given: dict[str, object | None] = {
            "queue": ",".join(self.queues),
            "segments": segments_of(checkpoint),
            "receivers": self.receivers,
            "threads": self.threads,
            "maxMessagesPerBatch": self.max_messages_per_batch,
            "maxBytesPerBatch": self.max_bytes_per_batch,
            "maxSecondsPerBatch": self.max_seconds_per_batch,
            "visibility": self.visibility,
            "ack": self.ack.value,
            # The state store's part of dedup = "key" is an operator of the query, on top of the segments.
            "dedup": Dedup.LEDGER.value if self.dedup is Dedup.LEDGER else Dedup.SEGMENTS.value,
            "ledgerUrl": self.ledger,
            "key": self.key,
            "endpointUrl": self.endpoint_url,
            "region": self.region,
            "profile": self.profile,
        }
        return {name: _text(value) for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SchemaSpec:
    """`fields` of the body; none of them if `raw`: then the row's only field is `body`, the text as it came."""

    fields: tuple[Field, ...]
    constraints: tuple[Constraint, ...] = ()
    metadata: tuple[str, ...] = ()
    extra: Extra = Extra.IGNORE
    any_as_text: bool = False  # a STRING takes any JSON value, as its text
    raw: bool = False


@dataclass(frozen=True, slots=True)
class RejectSpec:
    """`target` is the queue or the table's folder; None for the source's own dead-letter queue."""

    to: RejectTo = RejectTo.DEAD_LETTER_QUEUE
    target: str | None = None


@dataclass(frozen=True, slots=True)
class ParquetSpec:
    path: str
    type: str = "parquet"


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    path: str
    type: str = "delta"


@dataclass(frozen=True, slots=True)
class PostgresSpec:
    dsn: str = field(repr=False)
    table: str
    mode: Mode = Mode.APPEND
    key: tuple[str, ...] = ()  # the columns that upsert goes by
    type: str = "postgres"


@dataclass(frozen=True, slots=True)
class SqsSpec:
    """`body`, `group` and `attributes` name fields of the row. No body: the row as JSON, or the raw text as it came."""

    queue: str
    body: str | None = None
    group: str | None = None
    attributes: tuple[str, ...] = ()
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    type: str = "sqs"


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """`app` is module:name, as in `semel run`."""

    app: str
    type: str = "handler"


SinkSpec = ParquetSpec | DeltaSpec | PostgresSpec | SqsSpec | HandlerSpec


@dataclass(frozen=True, slots=True)
class TriggerSpec:
    every: float | None = None  # seconds between the starts of two batches; None: as fast as it goes


@dataclass(frozen=True, slots=True)
class LogSpec:
    attempts: str | None = None  # folder of the attempt log


@dataclass(frozen=True, slots=True)
class MetricsSpec:
    health: str | None = None  # [host:]port of /health and /metrics


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    checkpoint: str
    source: SourceSpec
    schema: SchemaSpec
    sink: SinkSpec
    rejects: RejectSpec = RejectSpec()
    trigger: TriggerSpec = TriggerSpec()
    log: LogSpec = LogSpec()
    metrics: MetricsSpec = MetricsSpec()
    spark: Mapping[str, str] = field(default_factory=dict)  # settings of the session: spark.executor.memory …
    path: Path = Path("pipeline.toml")


def segments_of(checkpoint: str) -> str:
    return f"{checkpoint.rstrip('/')}/segments"


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
