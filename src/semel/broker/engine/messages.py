"""A message as it is read from its row, and as it is handed to a client."""

from __future__ import annotations

from typing import Final, NamedTuple


class Stored(NamedTuple):
    """The columns that receiving and moving need, in the order of COLUMNS."""

    id: int
    pos: int
    grp: int | None
    receives: int
    prior: int
    first: int
    enqueued: int
    sent: int
    message_id: str
    body: str
    md5: str
    sender: str
    extra: bytes | None


COLUMNS: Final = ", ".join(Stored._fields)


class Handed(NamedTuple):
    """A message on its way to a client: its new handle, the number of this receive, its first receive, its due."""

    message: Stored
    handle: str
    receive: int
    first: int
    due: int
