"""Upgrades data folders of earlier versions: converts their tables to those of today, with all their content."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

import orjson

from semel.broker.engine.receive_log import Fields, encode_fields
from semel.broker.engine.rows import DamagedRow, packed
from semel.broker.engine.schema import DELAYED, IN_FLIGHT, NUMBER_MASK

_OLD: Final = ("queues", "deleted_queues", "lanes", "messages", "groups", "attempts")
_KEPT: Final = ("meta", "dedup_log", "dedup", "move_tasks")
_COPY_QUEUES = """
INSERT INTO queues (id, region, account, name, generation, attributes, tags, group_dedup, created, modified, purged)
SELECT id, '', '', name, lane, attributes, tags, group_dedup, created, modified, purged FROM old_queues
"""
_COPY_DELETED = "INSERT INTO deleted_queues (region, account, name, at) SELECT '', '', name, at FROM old_deleted_queues"
_COPY_GENERATIONS = "INSERT INTO generations (id, live, numbers_end) SELECT id, live, next_n FROM old_lanes"
_MESSAGES = """
SELECT m.id, state, due, pos, g.name, receives, prior, first, received, enqueued, m.sent, late,
    message_id, body, md5, sender, extra, m.lane
FROM old_messages AS m LEFT JOIN old_groups AS g ON g.id = m.grp ORDER BY m.id
"""
_INSERT = "INSERT INTO messages (id, enqueued, wire, grp, extra, due, arrived) VALUES (?, ?, ?, ?, ?, ?, ?)"
_LOG = "INSERT INTO receive_log (generation, states) VALUES (?, ?)"
_CHUNK: Final = 1_000


def from_version_1(db: sqlite3.Connection, create_tables: Callable[[sqlite3.Connection], None]) -> None:
    """Version 1 kept the state of each message in its row, and had one region and account, which it did not store:
    today's store fills in its own."""
    for (index,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL").fetchall():
        db.execute(f"DROP INDEX {index}")
    for table in (*_OLD, *_KEPT):
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    create_tables(db)
    for table in _KEPT:
        db.execute(f"INSERT INTO {table} SELECT * FROM old_{table}")
    for copy in (_COPY_QUEUES, _COPY_DELETED, _COPY_GENERATIONS):
        db.execute(copy)
    _copy_messages(db)
    for table in (*_OLD, *_KEPT):
        db.execute(f"DROP TABLE old_{table}")


def _copy_messages(db: sqlite3.Connection) -> None:
    rows = db.execute(_MESSAGES)
    while chunk := rows.fetchmany(_CHUNK):
        try:
            messages = [_message(*row[:-1]) for row in chunk]
            states = [(row[-1], encode_fields(state)) for row in chunk if (state := _state(*row[:9])) is not None]
        except (TypeError, ValueError) as error:
            raise DamagedRow(f"the table messages has a damaged row: {error}") from None
        db.executemany(_INSERT, messages)
        db.executemany(_LOG, states)


def _message(
    id: int,
    state: int,
    due: int,
    _place: int,
    group: str | None,
    _receives: int,
    prior: int,
    first: int,
    _received: int,
    enqueued: int,
    sent: int,
    late: int,
    message_id: str,
    body: str,
    md5: str,
    sender: str,
    old_extra: bytes | None,
) -> tuple[Any, ...]:
    extra: dict[str, Any] = orjson.loads(old_extra) if old_extra else {}
    extra.pop("group", None)
    if sender:
        extra["sender"] = sender
    if prior:
        extra |= {"prior": prior, "first": first}
    if sent != enqueued:
        extra["sent"] = sent
    wire = f'"MessageId":"{message_id}","MD5OfBody":"{md5}","Body":{orjson.dumps(body).decode()}'
    return id, enqueued, wire, group, packed(extra), due if state == DELAYED else None, late or None


def _state(
    id: int, state: int, due: int, place: int, _group: str | None, receives: int, _prior: int, first: int, received: int
) -> Fields | None:
    """What goes into the receive log, if anything."""
    if not receives:
        return None
    return id & NUMBER_MASK, place & NUMBER_MASK, receives, first, received, due if state == IN_FLIGHT else 0
