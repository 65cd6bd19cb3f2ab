"""The content of a pipeline's file as pydantic models: checked, with durations in seconds and paths made absolute.

Nothing here reads a file, asks SQS or starts Spark. `config_file.load` creates these models and reports mistakes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as fields_of
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    StrictInt,
    StringConstraints,
    ValidationInfo,
)
from pydantic.dataclasses import dataclass

from semel.durations import seconds
from semel.errors import SemelError
from semel.spark.pipeline import body_schema
from semel.spark.source.column_types import METADATA as METADATA
from semel.spark.source.options import ReadOptions, camel, limits_of

DEDUP_PARTITIONS: Final = 4
DAY: Final = 86_400
STRICT: Final = ConfigDict(extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)


class PipelineFileError(SemelError):
    """A pipeline's file has mistakes; the text lists all of them. Correct each mistake as the text says."""

    def __init__(self, path: Path, mistakes: Sequence[str]) -> None:
        text = f" {mistakes[0]}" if len(mistakes) == 1 else "".join(f"\n  - {mistake}" for mistake in mistakes)
        super().__init__(f"{path}:{text}")
        self.mistakes = tuple(mistakes)


class Dedup(StrEnum):
    SEGMENTS = "segments"  # redeliveries of messages that this pipeline has sealed and whose delete is not confirmed
    KEY = "key"  # also every other message with the same key, in Spark's state store
    LEDGER = "ledger"  # also every key that is done in a ledger, which handlers may share


class Ack(StrEnum):
    SEALED = "sealed"
    COMMITTED = "committed"


class Extra(StrEnum):
    """What happens to fields of a body that the schema does not name."""

    IGNORE = "ignore"
    REJECT = "reject"


class Mode(StrEnum):
    APPEND = "append"
    UPSERT = "upsert"


class RejectTo(StrEnum):
    DEAD_LETTER_QUEUE = "dead-letter-queue"  # the one that each source queue's RedrivePolicy names
    QUEUE = "queue"
    TABLE = "table"


# The types of options. The ValueErrors say what is needed; PROBLEMS has the texts for pydantic's own errors.

_TEXT: Final = 'a text is needed, in quotes: "…"'
_LIST: Final = 'a list of texts is needed, such as ["one", "two"]'
PROBLEMS: Final = {
    "string_type": _TEXT,
    "string_pattern_mismatch": _TEXT,
    "tuple_type": _LIST,
    "bool_type": "true or false is needed, without quotes",
    "int_type": "a whole number is needed, without quotes, such as 50_000",
}


def _rule(check: Callable[[Any], Any]) -> AfterValidator:
    """`check` raises a SemelError or ValueError for a value that is wrong."""

    def checked(value: Any) -> Any:
        try:
            check(value)
        except SemelError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(checked)


def matching(pattern: str, problem: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value, re.DOTALL):
            raise ValueError(problem)
        return value

    return AfterValidator(check)


def _between(low: float, high: float, unit: str = "") -> AfterValidator:
    def check(value: float) -> float:
        if not low <= value <= high:
            limits = f"{low:g} to {high:g}" if unit else f"{low:_} to {high:_}"
            raise ValueError(f"it must be from {limits}{unit}")
        return value

    return AfterValidator(check)


def _limits(option: str, unit: str = "") -> AfterValidator:
    """The limits of the source's own option."""
    return _between(*limits_of(ReadOptions, option), unit)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError('a duration is needed, such as "30s", "5m" or "1h30m"')
    try:
        return seconds(value)
    except SemelError as error:
        raise ValueError(str(error)) from None


def _path(value: str, info: ValidationInfo) -> str:
    """Paths are relative to the file's own folder, so that a run from any folder finds the same."""
    if "://" in value or info.context is None:
        return value
    return str((info.context / os.path.expanduser(value)).resolve())


def _check_unique(values: tuple[str, ...]) -> None:
    if len(set(values)) < len(values):
        raise ValueError("it names something twice")


def _check_queue(value: str) -> None:
    from semel.sqs.client.queue import Reference

    Reference.parse(value, "", "")


def _check_queues(values: tuple[str, ...]) -> None:
    if not values:
        raise ValueError('it is empty: the queues, such as ["orders"]')
    for number, value in enumerate(values, 1):
        if "," in value:
            raise ValueError(f"entry {number} has a comma in it; give each queue by itself")
        _check_queue(value)


def _check_key(value: str) -> None:
    from semel.messages.keys import key_rule

    try:
        key_rule(value)
    except SemelError:
        rules = "'$.order.id' (a field of the body), 'attribute:NAME', 'message-id' or 'dedup-id'"
        raise ValueError(f"it is {rules}") from None


def setting(value: Any) -> str:
    if not isinstance(value, str | bool | int | float):
        raise ValueError("a text, a number or true or false is needed")
    return str(value).lower() if isinstance(value, bool) else str(value)


Text = Annotated[str, StringConstraints(pattern=r"\S")]
Texts = Annotated[tuple[Text, ...], _rule(_check_unique)]
Location = Annotated[Text, AfterValidator(_path)]  # a path or an address
Queue = Annotated[Text, _rule(_check_queue)]
Seconds = Annotated[float, BeforeValidator(_seconds)]


# The sections of the file.


@dataclass(frozen=True, config=STRICT)
class SourceSpec:
    """Where messages come from. None: the source's own default."""

    queues: Annotated[Texts, _rule(_check_queues)] = Field(description='the queues, such as ["orders"]')
    key: Annotated[Text, _rule(_check_key)] | None = None
    dedup: Dedup = Dedup.KEY  # a file with a handler: SEGMENTS, as the app's ledger knows the keys
    dedup_partitions: Annotated[StrictInt, _between(1, 10_000)] = DEDUP_PARTITIONS  # fixed once the pipeline has run
    retention: Annotated[Seconds, _between(60, 3_650 * DAY, " seconds")] | None = None  # None: the queues' retention
    ledger: Text | None = Field(default=None, repr=False)
    ack: Ack = Ack.SEALED
    receivers: Annotated[StrictInt, _limits("receivers")] | None = None
    threads: Annotated[StrictInt, _limits("threads")] | None = None
    max_messages_per_batch: Annotated[StrictInt, _limits("max_messages")] | None = None
    max_bytes_per_batch: Annotated[StrictInt, _limits("max_bytes")] | None = None
    max_seconds_per_batch: Annotated[Seconds, _limits("max_seconds", " seconds")] | None = None
    visibility: Annotated[Seconds, _limits("visibility", " seconds"), AfterValidator(int)] | None = None
    endpoint_url: Text | None = None
    region: Text | None = None
    profile: Text | None = None

    def options(self, checkpoint: str) -> dict[str, str]:
        """The options for `format("sqs")`. The query itself, not the source, uses those of dedup = "key"."""
        own = {"queues", "dedup", "dedup_partitions", "retention", "ledger"}
        values = {
            camel(field.name): getattr(self, field.name) for field in fields_of(self) if field.name not in own
        } | {
            "queue": ",".join(self.queues),
            "segments": segments_of(checkpoint),
            "dedup": "ledger" if self.dedup is Dedup.LEDGER else "segments",
            "ledgerUrl": self.ledger,
        }
        whole = {name: int(value) for name, value in values.items() if isinstance(value, float) and value.is_integer()}
        return {name: str(value) for name, value in (values | whole).items() if value is not None}


@dataclass(frozen=True, config=STRICT)
class SchemaSpec:
    """`fields`: those of the body. With `raw` there are none: the row's only field is `body`, the text unchanged."""

    fields: SkipValidation[body_schema.Fields]
    constraints: SkipValidation[tuple[body_schema.Constraint, ...]] = ()
    metadata: tuple[str, ...] = ()
    extra: Extra = Extra.IGNORE
    any_as_text: bool = False  # a STRING accepts any JSON value, as text
    raw: bool = False


@dataclass(frozen=True, config=STRICT)
class RejectSpec:
    """`target` is the queue or the table's folder; None for the source's own dead-letter queue."""

    to: RejectTo = RejectTo.DEAD_LETTER_QUEUE
    target: str | None = None


_TABLE_PATH: Final = "the table's folder, or its address such as s3://bucket/orders"


@dataclass(frozen=True, config=STRICT)
class ParquetSpec:
    path: Location = Field(description=_TABLE_PATH)
    type: Literal["parquet"] = "parquet"


@dataclass(frozen=True, config=STRICT)
class DeltaSpec:
    path: Location = Field(description=_TABLE_PATH)
    type: Literal["delta"] = "delta"


@dataclass(frozen=True, config=STRICT)
class PostgresSpec:
    dsn: Text = Field(description='where the database is, such as "postgresql://${DB_USER}@host/shop"', repr=False)
    table: Text = Field(description='the table, such as "orders" or "sales.orders"')
    mode: Mode = Mode.APPEND
    key: Texts = ()  # the columns by which rows are upserted
    type: Literal["postgres"] = "postgres"


@dataclass(frozen=True, config=STRICT)
class SqsSpec:
    """`body`, `group` and `attributes` name fields of the row. Without `body`: the row as JSON, or the raw text."""

    queue: Queue = Field(description="the name, URL or ARN of the queue to send to")
    body: Text | None = None
    group: Text | None = None
    attributes: Texts = ()
    endpoint_url: Text | None = None
    region: Text | None = None
    profile: Text | None = None
    type: Literal["sqs"] = "sqs"


@dataclass(frozen=True, config=STRICT)
class HandlerSpec:
    """`app` is module:name, as in `semel run`."""

    app: Annotated[Text, matching("[^:]+:.+", 'write it as "module:app"')] = Field(
        description='where the app is, such as "shop:app"'
    )
    type: Literal["handler"] = "handler"


SinkSpec = ParquetSpec | DeltaSpec | PostgresSpec | SqsSpec | HandlerSpec
SINKS: Final[Mapping[str, Any]] = {
    "parquet": ParquetSpec,
    "delta": DeltaSpec,
    "postgres": PostgresSpec,
    "sqs": SqsSpec,
    "handler": HandlerSpec,
}


@dataclass(frozen=True, config=STRICT)
class TriggerSpec:
    every: Annotated[Seconds, _between(0, DAY, " seconds")] | None = None  # None: as fast as possible


@dataclass(frozen=True, config=STRICT)
class LogSpec:
    attempt_log: Location | None = None  # a folder


@dataclass(frozen=True, config=STRICT)
class MetricsSpec:
    health: Text | None = None  # [host:]port of /health and /metrics


@dataclass(frozen=True, config=STRICT)
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
    spark: Mapping[str, str] = Field(default_factory=dict)  # settings of the session: spark.executor.memory …
    path: Path = Path("pipeline.toml")


def segments_of(checkpoint: str) -> str:
    return f"{checkpoint.rstrip('/')}/segments"
