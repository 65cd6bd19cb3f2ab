"""Telemetry: the attempt log, metrics, structured logs, the health and control endpoint, the worker registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.lazy_imports import lazy_names

if TYPE_CHECKING:
    from semel.telemetry.attempt_log import SPARK_SCHEMA as SPARK_SCHEMA
    from semel.telemetry.attempt_log import Attempt as Attempt
    from semel.telemetry.attempt_log import AttemptLog as AttemptLog
    from semel.telemetry.attempt_log import Step as Step

# Each name is loaded on first use, because other modules of this package are used without them.
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
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
