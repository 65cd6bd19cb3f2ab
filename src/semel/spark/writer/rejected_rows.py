"""Rows that could not be sent, each with its reason, as Parquet files that Spark reads again.

The rule: the files of a task have names of their own that a retry of it uses again, so no row is in there twice.
"""

from __future__ import annotations

import threading
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

from semel.spark.segments.storage import Store
from semel.spark.writer.encoder import Outgoing

FULL: Final = 64 << 20  # bytes of bodies in one file
SCHEMA: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("reason", pa.string()),
        ("row", pa.int64()),
        ("bytes", pa.int64()),
        ("key", pa.string()),
        ("group_id", pa.string()),
        ("body", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
    ]
)


class Rejects:
    """Of one task. Thread-safe: the task looks at rows beforehand, and its senders hear what SQS refuses."""

    def __init__(self, store: Store, queue: str, scope: str, task: int) -> None:
        self._lock = threading.Lock()
        self._store = store
        self._queue = queue
        self._name = f"rejects-{blake2b(scope.encode(), digest_size=8).hexdigest()}-{task:05d}"
        self._rows: list[dict[str, Any]] = []
        self._size = 0
        self._files = 0
        self.count = 0

    def add(self, message: Outgoing, reason: str) -> None:
        with self._lock:
            self._add(message, reason)

    def _add(self, message: Outgoing, reason: str) -> None:
        entry = message.entry
        row = (self._queue, reason, message.number, size_of(message), message.key, entry.group, entry.body)
        self._rows.append(dict(zip(SCHEMA.names, (*row, list((entry.attributes or {}).items())), strict=True)))
        self.count += 1
        self._size += len(entry.body or "")
        if self._size > FULL:
            self._write()

    def close(self) -> None:
        if self._rows:
            self._write()

    def _write(self) -> None:
        import pyarrow.parquet as pq

        out = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(self._rows, SCHEMA), out)
        self._store.put(f"{self._name}-{self._files:03d}.parquet", out.getvalue().to_pybytes())
        self._rows, self._size, self._files = [], 0, self._files + 1


def size_of(message: Outgoing) -> int:
    return message.entry.size if message.entry.body is not None else 0
