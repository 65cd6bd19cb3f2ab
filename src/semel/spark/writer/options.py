"""The options of writing to `format("sqs")` and the columns that messages are made of, checked on the driver."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import DataType, IntegralType, MapType, StringType, StructType

from semel.spark.segments.storage import open_store
from semel.spark.source.options import OptionError
from semel.spark.writer.encoder import Columns

THREADS: Final = 4
_COLUMN_OPTIONS: Final = {
    "bodyColumn": "body",
    "groupColumn": "group_id",
    "dedupColumn": "dedup_id",
    "keyColumn": "key",
    "delayColumn": "delay_seconds",
    "attributesColumn": "attributes",
}
_OPTIONS: Final = (
    *("queue", "threads", "sendId", "oversized", "rejects", "endpointUrl", "region", "profile"),
    *_COLUMN_OPTIONS,
)
_NOT_OURS: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
# Columns of the source that say how a message came, not what it is: read from one queue, written to another.
_OF_THE_SOURCE: Final = frozenset(
    (
        *("message_id", "sequence_number", "sent_at", "first_received_at", "received_at", "receive_count", "queue"),
        "planned_at",
    )
)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    queue: str
    columns: Columns
    threads: int = THREADS
    send_id: str | None = None
    rejects: str | None = None  # None: a row that cannot be sent fails the job
    address: tuple[str | None, str | None, str | None] = (None, None, None)


def write_options(given: Mapping[str, str], schema: StructType) -> WriteOptions:
    """Raises OptionError that names the option or the column, and says what is possible."""
    spelled = {name.lower(): name for name in _OPTIONS}
    found: dict[str, str] = {}
    for name, value in given.items():
        known = spelled.get(name.lower())
        if known is not None and value.strip():
            found[known] = value.strip()
        elif known is None and name.lower() not in _NOT_OURS:
            raise OptionError(f"writing to format 'sqs' has no option {name!r}{_nearest(name, _OPTIONS)}")
    if "queue" not in found:
        raise OptionError("option 'queue' is missing: the name, URL or ARN of the queue to write to")
    return WriteOptions(
        queue=found["queue"],
        columns=_columns(found, schema),
        threads=_threads(found.get("threads", str(THREADS))),
        send_id=found.get("sendId"),
        rejects=_rejects(found),
        address=(found.get("endpointUrl"), found.get("region"), found.get("profile")),
    )


def _threads(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 256:
        raise OptionError(f"option 'threads' is {text!r}: it must be a number from 1 to 256")
    return int(text)


def _rejects(found: Mapping[str, str]) -> str | None:
    what, folder = found.get("oversized", "fail"), found.get("rejects")
    if what not in ("fail", "reject"):
        raise OptionError(f"option 'oversized' is {what!r}: possible are fail, reject")
    if what == "reject" and folder is None:
        raise OptionError("oversized 'reject' needs the option 'rejects': a folder for the rows that cannot be sent")
    if what == "fail" and folder is not None:
        raise OptionError(
            "option 'rejects' is given, but oversized is 'fail': set oversized to 'reject' or leave it out"
        )
    return None if folder is None else open_store(folder).url  # the same for whoever is in another folder


def _columns(found: Mapping[str, str], schema: StructType) -> Columns:
    names = set(schema.fieldNames())
    for option in _COLUMN_OPTIONS:
        if option in found and found[option] not in names:
            raise OptionError(
                f"option '{option}': there is no column {found[option]!r}{_nearest(found[option], names)}"
            )
    as_body = found.get("bodyColumn", "body" if "body" in names else None)
    chosen: dict[str, str | None] = {}
    for option, usual in _COLUMN_OPTIONS.items():
        # Without a body, a column is part of the message, and serves for more only if an option says so.
        default = usual if usual in names and as_body is not None else None
        chosen[option] = found.get(option, default)
    columns = Columns(
        body=chosen["bodyColumn"],
        group=chosen["groupColumn"],
        dedup=chosen["dedupColumn"],
        key=chosen["keyColumn"],
        delay=chosen["delayColumn"],
        attributes=chosen["attributesColumn"],
    )
    if columns.body is not None:
        _check_unused(columns, names)
    _check_types(chosen, schema)
    return columns


def _check_unused(columns: Columns, names: set[str]) -> None:
    used = {columns.body, columns.group, columns.dedup, columns.key, columns.delay, columns.attributes}
    unused = sorted(names - used - _OF_THE_SOURCE)
    if unused:
        raise OptionError(
            f"there is a column {columns.body!r}, so {', '.join(unused)} would not be sent: drop them, put them into "
            "the body or the map 'attributes', or name the column that each is for with "
            f"{', '.join(option for option in _COLUMN_OPTIONS if option != 'bodyColumn')}"
        )


def _check_types(chosen: Mapping[str, str | None], schema: StructType) -> None:
    for option, column in chosen.items():
        if column is None:
            continue
        kind = schema[column].dataType
        match option:
            case "delayColumn":
                fits, wanted = isinstance(kind, IntegralType), "INT"
            case "attributesColumn":
                fits, wanted = _of_texts(kind), "MAP<STRING, STRING>"
            case _:
                fits, wanted = isinstance(kind, StringType), "STRING"
        if not fits:
            raise OptionError(f"column {column!r} is {kind.simpleString().upper()}; as {option} it must be {wanted}")


def _of_texts(kind: DataType) -> bool:
    return isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def check_fifo(name: str, columns: Columns, fifo: bool) -> None:
    if fifo and columns.group is None:
        raise OptionError(f"{name} is a FIFO queue: give a column 'group_id', or name the one that is with groupColumn")
    if fifo and columns.delay is not None:
        raise OptionError(
            f"{name} is a FIFO queue, which delays all its messages or none: drop the column {columns.delay!r}"
        )


def _nearest(name: str, possible: Collection[str]) -> str:
    close = difflib.get_close_matches(name, possible, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(sorted(possible))}"
