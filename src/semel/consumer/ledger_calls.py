"""Calls to the ledger for many messages: if the ledger refuses one of them, that must not hold up the others.

LedgerUnavailable is not about any one message, and is raised: the same call can be made again later. Any other error
may be about one of the messages, so the call is repeated for each message alone, and only those that are refused fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from semel.ledger.contract import LedgerError, LedgerUnavailable
from semel.user_exceptions import described

T = TypeVar("T")
R = TypeVar("R")


def one_by_one(ask: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T]) -> list[R | LedgerError]:
    """The answer for each item, in order, or why the ledger refuses it."""
    try:
        return list(ask(items))
    except LedgerUnavailable:
        raise
    except LedgerError as error:
        refused = error
    except Exception as error:  # noqa: BLE001 - a driver's, or of somebody's own store
        refused = LedgerError(f"the ledger failed with {described(error)}")
    if len(items) == 1:
        return [refused]
    return [answer for item in items for answer in one_by_one(ask, [item])]
