"""The events of a log in one form, whatever wrote the log: the columns of the table `log_lines`, and the steps as bits.

Times are microseconds since 1970 (UTC) and durations are microseconds, as whole numbers: sums do not depend on the
order of the rows, so both engines agree to the last digit. A text that rows are grouped by has a number beside it: the
hash of the text.
"""

from __future__ import annotations

import enum
from functools import reduce
from operator import or_
from typing import Final

from semel.telemetry.attempt_log import Step

MICROSECONDS: Final = 1_000_000


class LineProblem(enum.IntEnum):
    """Why a line is not an event. NONE: it is one."""

    NONE = 0
    MALFORMED = 1  # not JSON, or not an object
    INCOMPLETE = 2  # without a message id, a time, or a word for what happened
    DROPPED = 3  # the attempt log's own note that events are missing
    OUT_OF_RANGE = 4  # before --since or after --until


# name -> type; DuckDB and Spark both know these types.
COLUMNS: Final = {
    "problem": "INTEGER",
    "file": "INTEGER",  # its place in the list of files
    "line_number": "BIGINT",
    "sample": "STRING",  # the beginning of a malformed line
    "dropped": "BIGINT",  # how many events a worker could not write
    "event_time": "BIGINT",
    "word": "STRING",  # the log's own word for what happened
    "queue": "STRING",
    "queue_id": "BIGINT",
    "message_id": "STRING",
    "slot": "BIGINT",  # the hash of queue and message id
    "key": "STRING",
    "key_id": "BIGINT",
    "receive_count": "BIGINT",
    "sent_time": "BIGINT",
    "group_id": "BIGINT",
    "duration": "BIGINT",
    "visibility": "BIGINT",
    "error": "STRING",
    "error_kind": "STRING",  # the error without ids, numbers and quoted texts
    "worker": "STRING",
    "worker_id": "BIGINT",
    "handler": "STRING",
    "handler_id": "BIGINT",
}

# Each step is one bit of a delivery's `flags`.
FLAGS: Final = {
    step: 1 << place
    for place, step in enumerate(
        (
            Step.RECEIVED,
            Step.STARTED,
            Step.RECORDED,
            Step.DELETED,
            Step.CLAIMED,
            Step.HEARTBEAT,
            Step.RETRIED,
            Step.DUPLICATE,
            Step.BOUNCED,
            Step.TAKEN_OVER,
            Step.RELEASED,
            Step.LOST,
            Step.FENCED,
            Step.REJECTED,
            Step.SKIPPED,
            Step.DELETE_FAILED,
            Step.CONFLICT,
            Step.LEDGER_DOWN,
            Step.HELD,
        )
    )
}
STEPS: Final = {flag: step for step, flag in FLAGS.items()}

FINISHED: Final = (Step.RECORDED, Step.SKIPPED, Step.REJECTED, Step.DUPLICATE)  # only the delete is left to be done
RETURNED: Final = (Step.RETRIED, Step.RELEASED, Step.LEDGER_DOWN, Step.BOUNCED, Step.CONFLICT)
LOST: Final = (Step.LOST, Step.FENCED)
OUTCOMES: Final = (*FINISHED, *RETURNED, *LOST)
NOT_RUN: Final = (Step.DUPLICATE, Step.BOUNCED, Step.HELD, Step.CONFLICT, Step.LEDGER_DOWN, Step.RELEASED)
FAILED: Final = (Step.RETRIED, Step.REJECTED)
WITH_ERROR: Final = (*FAILED, Step.FENCED, Step.CONFLICT, Step.LEDGER_DOWN, Step.DELETE_FAILED, Step.LOST)
# Steps whose duration is the time in the handler.
WORKED: Final = (Step.RECORDED, Step.FENCED, Step.RETRIED, Step.REJECTED, Step.SKIPPED, Step.RELEASED)
# Steps that end a run of a handler in an application's own log.
ENDS: Final = (Step.RECORDED, Step.RETRIED, Step.REJECTED, Step.SKIPPED)


def mask(steps: tuple[Step, ...]) -> int:
    return reduce(or_, (FLAGS[step] for step in steps))
