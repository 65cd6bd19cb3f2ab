"""What was not looked at, and which option would show it. A report that is silent about it would look too good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from semel.doctor.model import Case, Diagnosis


@dataclass(frozen=True, slots=True)
class Gap:
    """`what` nobody gave; `option` gives it; `shows` is what it would show."""

    what: str
    option: str
    shows: str


_KNOWN: Final[tuple[tuple[Callable[[Case], bool], Gap], ...]] = (
    (
        lambda case: case.behaviour is not None,
        Gap("logs", "--log PATH", "duplicates, their causes and the time that the work takes"),
    ),
    (
        lambda case: case.state is not None,
        Gap("queue settings", "--queue URL", "timeouts, dead letters and retention as they are set"),
    ),
    (
        lambda case: case.series is not None,
        Gap("metrics", "--metrics FILE", "what is received but not deleted, in flight, the age of the oldest"),
    ),
    (
        lambda case: case.ledger is not None,
        Gap("the ledger", "--ledger URL", "whether it remembers for long enough"),
    ),
    (
        lambda case: case.alarmed is not None or case.dlq_alarmed is not None,
        Gap("alarms", "--alarms FILE", "dead letters that nobody is told of"),
    ),
)


def gaps(diagnosis: Diagnosis) -> tuple[Gap, ...]:
    """What is known of no queue at all."""
    return tuple(gap for is_there, gap in _KNOWN if not any(is_there(case) for case in diagnosis.cases))
