"""Logs in a few words, for tests: what happened to a message, step by step, as events in the normal form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.doctor.events import COLUMNS, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Event = dict[str, Any]
START = 1_700_000_000.0


def told(
    message: str, *steps: tuple[float, str] | tuple[float, str, dict[str, Any]], count: int = 1, **common: Any
) -> list[Event]:
    """One delivery: (seconds after START, step[, more fields]); `common` goes into every event of it."""
    fields = {"queue": "orders", "visibility": 30.0, "worker": "w1", "key": message} | common
    return [
        {"message_id": message, "receive_count": count, "at": START + at, "step": step}
        | fields
        | (more[0] if more else {})
        for at, step, *more in steps
    ]


def done(message: str, at: float = 0.0, work: float = 1.0, count: int = 1, **common: Any) -> list[Event]:
    """A delivery that went well."""
    return told(
        message,
        (at, "received"),
        (at + 0.01, "claimed"),
        (at + 0.02, "started", {"seconds": 0.02}),
        (at + 0.02 + work, "recorded", {"seconds": work}),
        (at + 0.05 + work, "deleted"),
        count=count,
        **common,
    )


def frame(spark: SparkSession, events: list[Event]) -> DataFrame:
    kinds = {"DOUBLE": pa.float64(), "STRING": pa.string(), "BIGINT": pa.int64()}
    words = (column.replace("`", "").split() for column in SCHEMA.split(", "))
    schema = pa.schema([(name, kinds[kind]) for name, kind in words])
    return spark.createDataFrame(pa.Table.from_pylist(events, schema)).select(*COLUMNS)
