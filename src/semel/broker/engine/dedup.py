"""The five-minute window of FIFO deduplication.

Every send of the last minutes must be found by its dedup id, even after a restart. Ids are random, so inserting each
one into a search tree would dirty a separate page. Instead they are appended to a log in the order in which they come,
and memory holds a copy of that log. Expired ids are dropped from the front of both. When the log grows long, ids that
have not expired are merged into the tree in one sorted pass. Log and tree are authoritative; memory is only a copy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from hashlib import blake2b
from itertools import takewhile
from typing import Final

from semel.sqs import limits

_LOAD = "SELECT digest, id FROM dedup_log ORDER BY id"
_APPEND = "INSERT INTO dedup_log (id, digest, message_id, row, expires) VALUES (?, ?, ?, ?, ?)"
_IN_LOG = "SELECT message_id, row FROM dedup_log WHERE id = ? AND expires > ?"
_OLDEST_IN_LOG = "SELECT id, expires FROM dedup_log ORDER BY id LIMIT ?"
_IN_TREE = f"""
SELECT digest, message_id, row FROM dedup
WHERE digest IN ({", ".join("?" * limits.MAX_BATCH_ENTRIES)}) AND expires > ?
"""
_TREE_IS_USED = "SELECT EXISTS (SELECT 1 FROM dedup)"
_DROP_FROM_LOG = "DELETE FROM dedup_log WHERE id <= ?"
_DROP_EXPIRED_TREE = "DELETE FROM dedup WHERE digest IN (SELECT digest FROM dedup WHERE expires <= ? LIMIT ?)"
_MERGE = """
INSERT OR REPLACE INTO dedup (digest, message_id, row, expires)
SELECT digest, message_id, row, expires FROM dedup_log WHERE expires > ? ORDER BY digest, id
"""
_EMPTY_LOG = "DELETE FROM dedup_log"
_LONGEST_LOG: Final = 100_000

# The message id and the row of the first send.
First = tuple[str, int]


def digest_of(generation: int, scope: str, dedup_id: str) -> bytes:
    """The digest by which a dedup id is looked up. A purged queue has a new generation, and so an empty window."""
    return blake2b(f"{generation}\0{scope}\0{dedup_id}".encode(), digest_size=16).digest()


class DedupWindow:
    """The dedup ids that were used recently, in all queues."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._recent: dict[bytes, int] = {}  # digest to place in the log, oldest first
        self._unwritten: dict[bytes, tuple[int, bytes, str, int, int]] = {}  # rows for the log, of this transaction
        self._next = 1
        self._tree_is_used = False

    def load(self) -> None:
        """Reads the log again, after a start or a rollback."""
        self._unwritten = {}
        self._recent = {}
        self._next = 1
        for digest, place in self._db.execute(_LOAD):
            self._append(digest, place)
        (used,) = self._db.execute(_TREE_IS_USED).fetchone()
        self._tree_is_used = bool(used)

    def known(self, digests: Sequence[bytes], now: int) -> dict[bytes, First]:
        """The first sends of those of at most ten digests that were used within the window."""
        firsts: dict[bytes, First] = {}
        for digest in digests:
            place = self._recent.get(digest)
            if place is None:
                continue
            new = self._unwritten.get(digest)
            if new is not None:
                if new[4] > now:
                    firsts[digest] = new[2], new[3]
            else:
                row = self._db.execute(_IN_LOG, (place, now)).fetchone()
                if row is not None:
                    firsts[digest] = row
        if self._tree_is_used and len(firsts) < len(digests):
            padding = [b""] * (limits.MAX_BATCH_ENTRIES - len(digests))
            for digest, message_id, row in self._db.execute(_IN_TREE, (*digests, *padding, now)):
                firsts.setdefault(digest, (message_id, row))
        return firsts

    def remember(self, firsts: Sequence[tuple[bytes, str, int]], now: int) -> None:
        """(digest, message id, row) of sends that were the first with their dedup id."""
        expires = now + limits.DEDUP_WINDOW * 1000
        for digest, message_id, row in firsts:
            self._unwritten[digest] = self._next, digest, message_id, row, expires
            self._append(digest, self._next)

    def write_out(self) -> None:
        """Appends what is new to the log."""
        if self._unwritten:
            self._db.executemany(_APPEND, list(self._unwritten.values()))
            self._unwritten = {}

    def _append(self, digest: bytes, place: int) -> None:
        self._recent.pop(digest, None)  # an id that is used again after its window goes to the end
        self._recent[digest] = place
        self._next = place + 1

    def sweep(self, now: int, chunk: int) -> bool:
        """Drops expired ids and keeps the log short. True if there is more to do."""
        self.write_out()
        more = self._drop_expired(now, chunk)
        if len(self._recent) > _LONGEST_LOG:
            self._db.execute(_MERGE, (now,))
            self._db.execute(_EMPTY_LOG)
            self.load()
            more = False
        if not self._tree_is_used:
            return more
        dropped = self._db.execute(_DROP_EXPIRED_TREE, (now, chunk)).rowcount
        if dropped < chunk:
            (used,) = self._db.execute(_TREE_IS_USED).fetchone()
            self._tree_is_used = bool(used)
        return dropped == chunk or more

    def _drop_expired(self, now: int, chunk: int) -> bool:
        """Drops up to `chunk` ids from the front of the log, which is in the order of expiry. If the clock was set
        back, some stay for longer than they need to, but they no longer count. True if there may be more to drop."""
        with closing(self._db.execute(_OLDEST_IN_LOG, (chunk,))) as oldest:
            expired = list(takewhile(lambda entry: entry[1] <= now, oldest))
        if not expired:
            return False
        last = expired[-1][0]
        self._db.execute(_DROP_FROM_LOG, (last,))
        gone = list(takewhile(lambda entry: entry[1] <= last, self._recent.items()))
        for digest, _ in gone:
            del self._recent[digest]
        return len(expired) == chunk

    @property
    def is_long(self) -> bool:
        return len(self._recent) > _LONGEST_LOG
