"""For users' own tests: a broker in a thread, a manual clock, faults, an app run step by step, crash points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.lazy_imports import lazy_names

if TYPE_CHECKING:
    from semel.broker import EmbeddedBroker as EmbeddedBroker
    from semel.broker import running as running
    from semel.testing.driver import CRASH_POINTS as CRASH_POINTS
    from semel.testing.driver import Driver as Driver
    from semel.testing.driver import driving as driving

# pytest loads this package in every run where Semel is installed, so the rest is imported only when it is used.
_WHERE: Final = {
    "CRASH_POINTS": "semel.testing.driver",
    "Driver": "semel.testing.driver",
    "EmbeddedBroker": "semel.broker",
    "driving": "semel.testing.driver",
    "running": "semel.broker",
}
__all__ = ["CRASH_POINTS", "Driver", "EmbeddedBroker", "driving", "running"]
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
