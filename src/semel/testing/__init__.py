"""What a user's own tests need: a broker in a thread, the manual clock, faults, and a pytest plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.broker import EmbeddedBroker, running

__all__ = ["EmbeddedBroker", "running"]


def __getattr__(name: str) -> Any:
    # pytest loads this package in every run that has Semel installed; the broker only where it is used.
    if name in __all__:
        import semel.broker

        return getattr(semel.broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
