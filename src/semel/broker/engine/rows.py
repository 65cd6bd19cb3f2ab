"""The row of a message: how it is written, and how it is read again.

`wire` is a part of a JSON object: the three members of a message that every client gets, written once when the message
is sent and joined into each answer as they are. The first two have fixed lengths, so that SQL can find them, too.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final, NamedTuple

import orjson

from semel.sqs.checksums import md5_of_body

COLUMNS: Final = "id, enqueued, wire, grp, extra"
# Expressions of SQLite over a row.
MESSAGE_ID: Final = "substr(wire, 14, 36)"
BODY: Final = "json_extract(substr(wire, 106), '$')"
_ID_AT: Final = slice(13, 49)
_MD5_AT: Final = slice(64, 96)
_BODY_AT: Final = slice(105, None)
_NOTHING: Final[dict[str, Any]] = {}

# Names of system attributes by their keys in `extra`.
EXTRA_ATTRIBUTES: Final = (
    ("dedup", "MessageDeduplicationId"),
    ("trace", "AWSTraceHeader"),
    ("source", "DeadLetterQueueSourceArn"),
)


class DamagedRow(sqlite3.DatabaseError):
    """SQLite could read the row of a message, but no broker ever wrote its content."""

    sqlite_errorname = "SQLITE_CORRUPT"


class Row(NamedTuple):
    """The columns that receiving and moving need, in the order of COLUMNS."""

    id: int
    enqueued: int
    wire: str
    group: str | None
    extra: str | None

    @property
    def message_id(self) -> str:
        return self.wire[_ID_AT]

    @property
    def md5(self) -> str:
        return self.wire[_MD5_AT]

    @property
    def body(self) -> str:
        body: str = _json(self.wire[_BODY_AT])
        return body

    def extras(self) -> dict[str, Any]:
        """What most messages don't have:

        attributes, dedup, trace: as they were sent; sender: if it is not the queue's account; source: the ARN of the
        queue that it was dead-lettered from; prior, first, sent: receives, first receive and SentTimestamp that it
        brought from other queues."""
        return _json(self.extra) if self.extra else _NOTHING


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DamagedRow(f"the row of a message is damaged: {error}") from None


def wire_of(message_id: str, body: str) -> tuple[str, str]:
    """The `wire` of a new message, and the MD5 of its body."""
    md5 = md5_of_body(body)
    return f'"MessageId":"{message_id}","MD5OfBody":"{md5}","Body":{orjson.dumps(body).decode()}', md5


def with_id(wire: str, message_id: str) -> str:
    """The `wire` of the same message under another id."""
    return f'"MessageId":"{message_id}{wire[_ID_AT.stop :]}'


def packed(extra: dict[str, Any]) -> str | None:
    return orjson.dumps(extra).decode() if extra else None
