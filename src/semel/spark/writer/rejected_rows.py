"""Rows that cannot be sent, each with its reason, as Parquet files that Spark can read.

The rule: a retry of a task writes files with the same names, so no row is in them twice.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

from semel.spark.segments.storage import Store
from semel.spark.writer.encoder import Outgoing

MAX_FILE_BYTES: Final = 64 << 20  # of bodies
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


class RejectedRows:
    """The rejected rows of one task."""

    def __init__(self, store: Store, queue: str, scope: str, task: int) -> None:
        self._store, self._queue = store, queue
        self._name = f"rejects-{blake2b(scope.encode(), digest_size=8).hexdigest()}-{task:05d}"
        self._rows: list[dict[str, Any]] = []
        self._size = 0
        self._files = 0
        self.count = 0

    def add(self, message: Outgoing, reason: str) -> None:
        entry = message.entry
        attributes = list((entry.attributes or {}).items())
        row = (self._queue, reason, message.number, message.size, message.key, entry.group, entry.body, attributes)
        self._rows.append(dict(zip(SCHEMA.names, row, strict=True)))
        self.count += 1
        self._size += len(entry.body or "")
        if self._size > MAX_FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        import pyarrow.parquet as pq

        if self._rows:
            out = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pylist(self._rows, SCHEMA), out)
            self._store.put(f"{self._name}-{self._files:03d}.parquet", out.getvalue().to_pybytes())
            self._rows, self._size, self._files = [], 0, self._files + 1
