"""How a command says that it was called wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from semel.cli.command import UsageError as UsageError
from semel.errors import SemelError


@contextmanager
def wrong_usage(option: str = "") -> Iterator[None]:
    """Around code that only checks options: what it refuses is wrong usage, of `option` if it is named."""
    try:
        yield
    except (SemelError, ValueError) as error:
        raise UsageError(f"{option}: {error}" if option else str(error)) from None
