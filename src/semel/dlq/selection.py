"""Which messages an action is about: those that match a filter, those with these ids, or all of the queue.

The rule: exactly one of the three is given. To select nothing is an error; it never means all messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from semel.errors import InvalidRequest


class SelectionError(InvalidRequest):
    """No messages are selected, or they are selected in more than one way. Nothing was touched. Select in one way: a
    filter, ids, or all."""


class Selection(NamedTuple):
    """A filter or ids; all messages if both are empty."""

    where: str
    ids: tuple[str, ...]

    @classmethod
    def of(cls, where: str | None = None, ids: Sequence[str] | None = None, all: bool = False) -> Selection:
        """None means not given. Raises SelectionError."""
        if where is not None and not where.strip():
            raise SelectionError("the filter is empty and selects nothing; to select every message, say all")
        if ids is not None and (not ids or not all_named(ids)):
            raise SelectionError(
                "an id is empty and selects nothing" if ids else "no ids are given: nothing is selected"
            )
        ways = [name for name, said in (("a filter", where), ("ids", ids), ("all", all or None)) if said is not None]
        if not ways:
            raise SelectionError("nothing is selected: give a filter, ids, or say all")
        if len(ways) > 1:
            raise SelectionError(f"{' and '.join(ways)} are given: select in one way only")
        return cls(where or "", tuple(ids or ()))


def all_named(ids: Sequence[str]) -> bool:
    return all(isinstance(id, str) and id.strip() for id in ids)
