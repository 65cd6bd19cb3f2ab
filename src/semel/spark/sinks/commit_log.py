"""Records the last committed batch, for sinks without transactions: a small file for each batch; the newest one counts.

The rule: a late driver cannot undo anything. It writes the file of an older batch, which nobody reads.
"""

from __future__ import annotations

import orjson

from semel.spark.segments.storage import Store
from semel.spark.sinks.contract import Commit, MicroBatch


class CommitLog:
    """`former`: the single file that earlier versions have written instead."""

    def __init__(self, store: Store, folder: str, *, former: str = "") -> None:
        self._store = store
        self._folder = folder
        self._former = former

    def last(self) -> Commit | None:
        while names := self._store.names(self._folder):
            content = self._store.read(names[-1])
            if content is not None:  # else it was dropped, and there is a newer one
                return Commit(int(names[-1].rpartition("/")[2]), content.decode())
        return self._last_of_former()

    def record(self, batch: MicroBatch) -> None:
        """Idempotent."""
        self._store.put(f"{self._folder}/{batch.number:010d}", batch.content.encode())
        self._store.delete(self._store.names(self._folder)[:-1])

    def _last_of_former(self) -> Commit | None:
        data = self._store.read(self._former) if self._former else None
        if data is None:
            return None
        fields = orjson.loads(data)
        return Commit(int(fields["number"]), fields.get("content", ""))
