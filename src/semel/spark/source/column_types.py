"""The columns of the source and their types, in the words of Spark: the one list that all others are derived from.

Nothing is imported here: a pipeline's file is read and checked also where pyarrow is not installed.
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
MESSAGE: Final = COLUMN_NAMES[:-1]  # `planned_at` is not the message's, but the batch's
METADATA: Final = tuple(name for name in MESSAGE if name != "body")
REJECTED: Final = tuple(name for name in MESSAGE if name not in ("dedup_id", "first_received_at", "received_at"))
HANDLED: Final = tuple(name for name in MESSAGE if name not in ("key", "received_at"))  # what handlers need
TRACED: Final = ("message_id", "key", "queue", "group_id", "sent_at", "receive_count")  # for the attempt log


def ddl(names: Iterable[str] = COLUMN_NAMES) -> str:
    """Columns as Spark writes a schema."""
    return ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in names)
