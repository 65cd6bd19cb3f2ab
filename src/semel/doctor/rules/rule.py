"""What a rule is: a name, how bad it is, and a look at a case that ends in a finding or in nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from semel.doctor.model import Case, Duplicate, Finding, Remedy, Severity

Figures = Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Observation:
    """What a rule saw: a finding that does not know its rule yet. `severity` only if it is not the rule's own."""

    observed: str
    why: str
    remedy: Remedy
    severity: Severity | None = None
    examples: tuple[Duplicate, ...] = ()
    figures: Figures | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that can be wrong. `needs`: the inputs without which it is silent; `remedy`: its cure in short."""

    name: str
    severity: Severity
    title: str
    needs: str
    remedy: str
    find: Callable[[Case], Observation | None]

    def look(self, case: Case) -> Finding | None:
        found = self.find(case)
        if found is None:
            return None
        return Finding(
            rule=self.name,
            severity=self.severity if found.severity is None else found.severity,
            queue=case.queue,
            observed=found.observed,
            why=found.why,
            remedy=found.remedy,
            examples=found.examples,
            figures=found.figures or {},
        )
