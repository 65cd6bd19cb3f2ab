"""The columns of the source and their types in Spark's SQL: the one list from which all others are derived.

This module imports nothing of pyarrow: a pipeline's file can be read and checked where pyarrow is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

COLUMN_TYPES: Final = {
    "message_id": "STRING",
    "body": "STRING",
    "key": "STRING",
    "group_id": "STRING",
    "dedup_id": "STRING",
    "sequence_number": "STRING",
    "sent_at": "TIMESTAMP",
    "first_received_at": "TIMESTAMP",
    "received_at": "TIMESTAMP",
    "receive_count": "INT",
    "attributes": "MAP<STRING, STRING>",
    "queue": "STRING",
    "planned_at": "TIMESTAMP",
}
COLUMN_NAMES: Final = tuple(COLUMN_TYPES)
MESSAGE: Final = COLUMN_NAMES[:-1]  # `planned_at` belongs to the batch, not to the message
METADATA: Final = tuple(name for name in MESSAGE if name != "body")
REJECTED: Final = tuple(name for name in MESSAGE if name not in ("dedup_id", "first_received_at", "received_at"))
HANDLED: Final = tuple(name for name in MESSAGE if name not in ("key", "received_at"))  # what handlers need
TRACED: Final = ("message_id", "key", "queue", "group_id", "sent_at", "receive_count")  # for the attempt log


def ddl(names: Iterable[str] = COLUMN_NAMES) -> str:
    """The columns as a schema in Spark's DDL."""
    return ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in names)
