"""How a command says that it was called wrongly."""

from __future__ import annotations

from semel.errors import SemelError


class UsageError(SemelError):
    """Wrong usage: the options or arguments make no sense, whatever the state of the queues. Exit code 2."""
