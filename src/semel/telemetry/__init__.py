"""Telemetry: the attempt log, metrics, structured logs, the health and control endpoint, the worker registry."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from semel.telemetry.attempt_log import SPARK_SCHEMA as SPARK_SCHEMA
    from semel.telemetry.attempt_log import Attempt as Attempt
    from semel.telemetry.attempt_log import AttemptLog as AttemptLog
    from semel.telemetry.attempt_log import Step as Step

# Each name is loaded when it is first asked for: other modules of this package are used without them.
_WHERE: Final = {
    "Attempt": "semel.telemetry.attempt_log",
    "AttemptLog": "semel.telemetry.attempt_log",
    "SPARK_SCHEMA": "semel.telemetry.attempt_log",
    "Step": "semel.telemetry.attempt_log",
}
__all__ = [
    "SPARK_SCHEMA",
    "Attempt",
    "AttemptLog",
    "Step",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
