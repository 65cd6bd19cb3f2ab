"""Looking at messages without receiving them: no count goes up, no handle is made, nothing is hidden."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from semel.broker.engine.receive import system_attributes
from semel.broker.engine.rows import BODY, COLUMNS, MESSAGE_ID, Row
from semel.broker.engine.schema import DELAYED, IN_FLIGHT, NUMBER_MASK, READY
from semel.broker.engine.store import Queue, Store

CUT: Final = 200  # characters of a body that are shown where bodies are not wanted
_PAGE_ROWS: Final = 500
_SHORT_COLUMNS: Final = COLUMNS.replace("wire", f"substr(wire, 1, 105) || json_quote(substr({BODY}, 1, {CUT}))")
_SIZE: Final = f"length(CAST({BODY} AS BLOB))"
_ALL = f"SELECT {{size}}, {{columns}} FROM messages WHERE id > ? AND id < ? ORDER BY id LIMIT {_PAGE_ROWS}"
# The ids are compared before anything else of a row is read: it may be one of a million.
_BY_IDS = f"""
SELECT {{size}}, {{columns}} FROM messages
WHERE id > ? AND id < ? AND {MESSAGE_ID} IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT {_PAGE_ROWS}
"""
# Of many rows, those whose attributes may contain a word. SQLite searches for it, so that Python need not read the
# others. It can only search plain ASCII: rows with other characters, or with base64, are read as well.
_LAST = "SELECT max(id), count(*) FROM (SELECT id FROM messages WHERE id > ? AND id < ? ORDER BY id LIMIT ?)"
_WORDED = """
SELECT {size}, {columns} FROM messages WHERE id > ? AND id <= ? AND (extra IS NOT NULL OR grp IS NOT NULL) AND (
    instr(lower(coalesce(extra, '') || coalesce(grp, '')), ?) OR length(CAST(extra AS BLOB)) <> length(extra)
    OR instr(extra, 'BinaryValue')
) ORDER BY id
"""
_WORDED_ROWS: Final = 2_000
_HOW_MANY = "SELECT count(*) FROM messages WHERE id > ? AND id <= ?"
_QUERIES: Final = {
    (by_ids, bodies): query.format(size="0" if bodies else _SIZE, columns=COLUMNS if bodies else _SHORT_COLUMNS)
    for by_ids, query in ((False, _ALL), (True, _BY_IDS))
    for bodies in (True, False)
}
_WORDED_QUERIES: Final = {
    True: _WORDED.format(size="0", columns=COLUMNS),
    False: _WORDED.format(size=_SIZE, columns=_SHORT_COLUMNS),
}
_NUMBERS = f"""
SELECT {MESSAGE_ID}, id FROM messages WHERE id >= ? AND id < ? AND {MESSAGE_ID} IN (SELECT value FROM json_each(?))
"""
# A filter that matches little must not read a million rows in one go; the answer then says where to go on.
_MAX_SCANNED: Final = 20_000
_MAX_SEARCHED: Final = 200_000  # by id only
# Nor should one answer hold a thousand messages of a mebibyte each.
_MAX_BYTES: Final = 4 * 1024 * 1024
STATES: Final = {"visible": READY, "in_flight": IN_FLIGHT, "delayed": DELAYED}
_NAMES: Final = {number: name for name, number in STATES.items()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages to show; all conditions must hold. Without `bodies`, only their beginnings and lengths are shown.

    `word`, in lower case, selects messages whose attributes may contain it, in upper or lower case. This excludes most
    messages that do not contain it; the caller still has to check the rest."""

    state: str | None = None
    message_id: str | None = None
    group: str | None = None
    body: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    min_receives: int = 0
    ids: frozenset[str] | None = None
    bodies: bool = True
    word: str | None = None

    @property
    def only_ids(self) -> frozenset[str] | None:
        if self.message_id is None:
            return self.ids
        return frozenset({self.message_id}) & (self.ids if self.ids is not None else frozenset({self.message_id}))

    @property
    def everything(self) -> bool:
        """Whether there is nothing to compare except ids."""
        return not (self.state or self.group or self.body or self.attributes or self.min_receives)

    def matches(self, shown: Mapping[str, Any]) -> bool:
        attributes = shown.get("MessageAttributes", {})
        return (
            self.state in (None, shown["State"])
            and self.group in (None, shown["Attributes"].get("MessageGroupId"))
            and (self.body is None or self.body in shown["Body"])
            and int(shown["Attributes"]["ApproximateReceiveCount"]) >= self.min_receives
            and all(attributes.get(name, {}).get("StringValue") == text for name, text in self.attributes.items())
        )


def peek(store: Store, queue: Queue, wanted: Wanted, *, after: int, limit: int, now: int) -> dict[str, Any]:
    """Messages in the order in which they came. Pass `Next` as `after` to get more; it is absent at the end. Pass `End`
    to get only messages that come after this answer. With a `word`, `Scanned` says how many messages were examined."""
    page = _peeked(store, queue, wanted, after=after, limit=limit, now=now)
    if wanted.word is not None:
        low = queue.generation.low
        span = (low | after, low | page.get("Next", page["End"]))
        page["Scanned"] = store.db.execute(_HOW_MANY, span).fetchone()[0]
    return page


def _peeked(store: Store, queue: Queue, wanted: Wanted, *, after: int, limit: int, now: int) -> dict[str, Any]:
    generation, ids = queue.generation, wanted.only_ids
    end = generation.next_number - 1
    # Whole bodies are searched, even if only their beginnings are shown.
    whole = wanted.bodies or wanted.body is not None
    query = _QUERIES[ids is not None, whole]
    names = () if ids is None else (orjson.dumps(list(ids)).decode(),)
    worded = wanted.word is not None and ids is None
    messages: list[dict[str, Any]] = []
    place, scanned, size = generation.low | after, 0, 0
    last = generation.high if ids is None else min(generation.high, place + _MAX_SEARCHED)
    while scanned < _MAX_SCANNED:
        if worded:
            until, looked_at = store.db.execute(_LAST, (place, last, _WORDED_ROWS)).fetchone()
            most = _WORDED_ROWS
            parameters = (place, until or place, wanted.word)
            rows = store.db.execute(_WORDED_QUERIES[whole], parameters).fetchall()
        else:
            rows = store.db.execute(query, (place, last, *names)).fetchall()
            until, looked_at, most = None, len(rows), _PAGE_ROWS
        for row in rows:
            message = Row._make(row[1:])
            place = message.id
            if message.enqueued + queue.retention <= now:
                continue
            shown = _shown(queue, message, now)
            if wanted.everything or wanted.matches(shown):
                if not wanted.bodies:
                    _cut(shown, row[0])
                messages.append(shown)
                size += len(shown["Body"])
                if ids is not None and len(messages) == len(ids):
                    return {"Messages": messages, "End": end}
                if len(messages) == limit or size >= _MAX_BYTES:
                    return {"Messages": messages, "Next": place & NUMBER_MASK, "End": end}
        scanned += looked_at
        place = until or place
        if looked_at < most:
            if last > generation.low | end:
                return {"Messages": messages, "End": end}
            place = last - 1
            break
    return {"Messages": messages, "Next": place & NUMBER_MASK, "End": end}


def numbers_of(store: Store, queue: Queue, ids: Collection[str]) -> dict[str, int]:
    """The numbers of these messages, by message id."""
    bounds = (queue.generation.low, queue.generation.high)
    rows = store.db.execute(_NUMBERS, (*bounds, orjson.dumps(list(ids)).decode()))
    return {message_id: row & NUMBER_MASK for message_id, row in rows}


def _cut(shown: dict[str, Any], size: int) -> None:
    body = shown["Body"]
    shown["BodyBytes"] = size or len(body.encode())
    if len(body) > CUT:
        shown["Body"] = body[:CUT]


def _shown(queue: Queue, row: Row, now: int) -> dict[str, Any]:
    state = queue.generation.states.get(row.id & NUMBER_MASK)
    kind = READY if state is None or state.due <= now else state.state
    receives = 0 if state is None else state.receives
    extra = row.extras()
    shown: dict[str, Any] = {
        "MessageId": row.message_id,
        "State": _NAMES[kind],
        "Body": row.body,
        "MD5OfBody": row.md5,
        "Attributes": system_attributes(queue, row, receives, 0 if state is None else state.first),
        "ReceivesInThisQueue": receives,
        "Place": row.id & NUMBER_MASK,
        "ExpiresAt": (row.enqueued + queue.retention) / 1000,
    }
    if state is not None and kind != READY:
        shown["VisibleAt"] = state.due / 1000
    if "attributes" in extra:
        shown["MessageAttributes"] = extra["attributes"]
    return shown
