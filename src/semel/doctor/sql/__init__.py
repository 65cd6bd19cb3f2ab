"""The doctor's SQL: one file for each table, and `figures.sql` with a named query for each figure.

It uses only what DuckDB and Spark both understand, and runs unchanged on both. `$NAME` stands for a constant.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from string import Template
from typing import Final

from semel.doctor import events
from semel.doctor.events import FLAGS, LineProblem, mask
from semel.doctor.model import Cause
from semel.telemetry.attempt_log import Step

# A delivery's `cause` is a number: 0 is a retry, 1 an earlier delivery that no log has.
RETRY: Final = 0
UNLOGGED: Final = 1
CAUSES: Final = {cause: code for code, cause in enumerate(Cause, 2)}
CAUSE_OF: Final = {code: cause for cause, code in CAUSES.items()}
EXAMPLES: Final = 5  # for each cause; also of broken lines
LOOP: Final = 3  # a message with this many receives loops, and SQS leaves it out of the age of the oldest
WORST: Final = 20
TIMELINE: Final = 40  # events of one example
MOST_REDELIVERIES: Final = 100  # of one message that a replay attributes to a timeout
SLACK: Final = 250_000  # microseconds: clocks of workers differ by less, and answers take less

_CONSTANTS: Final = {
    **{step.name: flag for step, flag in FLAGS.items()},
    **{problem.name: int(problem) for problem in LineProblem},
    # If a step has the same name as a mask or a cause, the mask or the cause counts.
    **{name: mask(getattr(events, name)) for name in ("FINISHED", "RETURNED", "LOST", "OUTCOMES", "NOT_RUN", "FAILED")},
    **{name: mask(getattr(events, name)) for name in ("WITH_ERROR", "WORKED", "ENDS")},
    "HIDES": mask((Step.RECEIVED, Step.HEARTBEAT)),
    "BEGINS": mask((Step.RECEIVED, Step.STARTED)),
    **{cause.name: code for cause, code in CAUSES.items()},
    "RETRY": RETRY,
    "UNLOGGED": UNLOGGED,
    "EXAMPLES": EXAMPLES,
    "LOOP": LOOP,
    "WORST": WORST,
    "TIMELINE": TIMELINE,
    "MOST_REDELIVERIES": MOST_REDELIVERIES,
    "SLACK": SLACK,
}


def table(name: str, **parameters: bool | int) -> str:
    """The query that makes a table: the file of that name."""
    return _filled(_file(name), parameters)


def figure(name: str, **parameters: bool | int) -> str:
    """A query of `figures.sql`."""
    return _filled(_figures()[name], parameters)


def _filled(text: str, parameters: dict[str, bool | int]) -> str:
    values = {name: str(value).upper() for name, value in parameters.items()}
    return Template(text).substitute(_CONSTANTS, **values)


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8")


@cache
def _figures() -> dict[str, str]:
    parts = re.split(r"^-- name: (\w+)\n", _file("figures"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
