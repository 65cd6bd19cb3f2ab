"""How a command says that it was called wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from semel.errors import SemelError


class UsageError(SemelError):
    """Wrong usage: the options or arguments make no sense, whatever the state of the queues. Exit code 2."""


@contextmanager
def wrong_usage(option: str = "") -> Iterator[None]:
    """Around code that only checks options: what it refuses is wrong usage, of `option` if it is named."""
    try:
        yield
    except (SemelError, ValueError) as error:
        raise UsageError(f"{option}: {error}" if option else str(error)) from None
