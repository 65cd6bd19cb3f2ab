"""The normal form of an event: what every log is turned into, and all that the transformations know of logs."""

from __future__ import annotations

from typing import Final

# One event of one message. `step` has the words of telemetry.attempt_log.log.Step; message_id and at are never null.
SCHEMA: Final = (
    "at DOUBLE, step STRING, queue STRING, message_id STRING, key STRING, fence BIGINT, receive_count BIGINT, "
    "sent_at DOUBLE, `group` STRING, seconds DOUBLE, visibility DOUBLE, error STRING, worker STRING, handler STRING"
)
COLUMNS: Final = (
    "at",
    "step",
    "queue",
    "message_id",
    "key",
    "fence",
    "receive_count",
    "sent_at",
    "group",
    "seconds",
    "visibility",
    "error",
    "worker",
    "handler",
)
