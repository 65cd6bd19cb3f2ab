"""The options of writing to `format("sqs")` and the columns that messages are made of, checked on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.types import DataType, IntegralType, MapType, StringType, StructType

from semel.spark.segments.storage import open_store
from semel.spark.source.options import OptionError, option, parse_options
from semel.spark.suggestions import did_you_mean
from semel.spark.writer.encoder import Columns

# The options that name a column, and the default of each.
_COLUMN_OPTIONS: Final = {
    "bodyColumn": "body",
    "groupColumn": "group_id",
    "dedupColumn": "dedup_id",
    "keyColumn": "key",
    "delayColumn": "delay_seconds",
    "attributesColumn": "attributes",
}
# Columns of the source that describe the delivery, not the message: they are ignored when rows of one queue are
# written to another.
_OF_THE_SOURCE: Final = frozenset(
    (
        *("message_id", "sequence_number", "sent_at", "first_received_at", "received_at", "receive_count", "queue"),
        "planned_at",
    )
)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of `df.write.format("sqs")`. `columns` follow from the column options and the rows' schema."""

    queue: str = option()
    threads: int = option(4, limits=(1, 256))
    send_id: str | None = option(None)
    oversized: str = option("fail", choices=("fail", "reject"))
    rejects: str | None = option(None)  # None: a row that cannot be sent fails the job
    endpoint_url: str | None = option(None)
    region: str | None = option(None)
    profile: str | None = option(None)
    body_column: str | None = option(None)
    group_column: str | None = option(None)
    dedup_column: str | None = option(None)
    key_column: str | None = option(None)
    delay_column: str | None = option(None)
    attributes_column: str | None = option(None)
    columns: Columns = field(default_factory=Columns)

    @property
    def address(self) -> tuple[str | None, str | None, str | None]:
        return self.endpoint_url, self.region, self.profile


def write_options(raw: Mapping[str, str], schema: StructType) -> WriteOptions:
    """Reads the options. Raises OptionError, which names the wrong option or column and what is possible."""
    values = parse_options(WriteOptions, raw, "writing to format 'sqs'")
    if "queue" not in values:
        raise OptionError("option 'queue' is missing: the name, URL or ARN of the queue to write to")
    oversized = values.get("oversized", "fail")
    if oversized == "reject" and "rejects" not in values:
        raise OptionError("oversized 'reject' needs the option 'rejects': a folder for the rows that cannot be sent")
    if oversized == "fail" and "rejects" in values:
        raise OptionError(
            "option 'rejects' is given, but oversized is 'fail': set oversized to 'reject' or leave it out"
        )
    if "rejects" in values:
        values["rejects"] = open_store(values["rejects"]).url  # absolute, for processes in other folders
    chosen = {name: values.get(name.replace("Column", "_column")) for name in _COLUMN_OPTIONS}
    return WriteOptions(columns=_columns(chosen, schema), **values)


def _columns(named: Mapping[str, str | None], schema: StructType) -> Columns:
    names = schema.fieldNames()
    for name, column in named.items():
        if column is not None and column not in names:
            raise OptionError(f"option '{name}': there is no column {column!r}{did_you_mean(column, names)}")
    # Without a body column, every column is part of the body; it has another use only if an option names it.
    usual = _COLUMN_OPTIONS if named["bodyColumn"] or "body" in names else {}
    chosen = {name: column or (usual[name] if usual.get(name) in names else None) for name, column in named.items()}
    columns = Columns(
        body=chosen["bodyColumn"],
        group=chosen["groupColumn"],
        dedup=chosen["dedupColumn"],
        key=chosen["keyColumn"],
        delay=chosen["delayColumn"],
        attributes=chosen["attributesColumn"],
    )
    if columns.body is not None:
        _check_unused(columns, set(names))
    _check_types(chosen, schema)
    return columns


def _check_unused(columns: Columns, names: set[str]) -> None:
    used = {columns.body, columns.group, columns.dedup, columns.key, columns.delay, columns.attributes}
    unused = sorted(names - used - _OF_THE_SOURCE)
    if unused:
        raise OptionError(
            f"there is a column {columns.body!r}, so {', '.join(unused)} would not be sent: drop them, put them into "
            "the body or the map 'attributes', or name the column that each is for with "
            f"{', '.join(name for name in _COLUMN_OPTIONS if name != 'bodyColumn')}"
        )


def _check_types(chosen: Mapping[str, str | None], schema: StructType) -> None:
    for name, column in chosen.items():
        if column is None:
            continue
        kind = schema[column].dataType
        match name:
            case "delayColumn":
                fits, wanted = isinstance(kind, IntegralType), "INT"
            case "attributesColumn":
                fits, wanted = _of_texts(kind), "MAP<STRING, STRING>"
            case _:
                fits, wanted = isinstance(kind, StringType), "STRING"
        if not fits:
            raise OptionError(f"column {column!r} is {kind.simpleString().upper()}; as {name} it must be {wanted}")


def _of_texts(kind: DataType) -> bool:
    return isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def check_fifo(name: str, columns: Columns, fifo: bool) -> None:
    if fifo and columns.group is None:
        raise OptionError(f"{name} is a FIFO queue: give a column 'group_id', or name the one that is with groupColumn")
    if fifo and columns.delay is not None:
        raise OptionError(
            f"{name} is a FIFO queue, which delays all its messages or none: drop the column {columns.delay!r}"
        )
