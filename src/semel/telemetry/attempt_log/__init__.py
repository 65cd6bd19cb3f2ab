"""The attempt log: every step of every message as one event, in rolling files in a local or remote folder."""

from semel.telemetry.attempt_log.events import SPARK_SCHEMA, Attempt, Step
from semel.telemetry.attempt_log.log import AttemptLog

__all__ = ["SPARK_SCHEMA", "Attempt", "AttemptLog", "Step"]
