"""What a rule is: a function that takes a case and returns an observation or None, declared by the decorator `rule`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from semel.doctor.model import Case, Duplicate, Finding, Remedy, Severity

Figures = Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Observation:
    """What a rule saw. A remedy without commands is only its text; `severity` is set if it is not the rule's own."""

    observed: str
    why: str
    remedy: Remedy | str
    severity: Severity | None = None
    examples: tuple[Duplicate, ...] = ()
    figures: Figures | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that can be wrong. `needs`: the inputs that it cannot do without; `remedy`: what to do, in short."""

    name: str
    severity: Severity
    title: str
    needs: str
    remedy: str
    observe: Callable[[Case], Observation | None]

    def look(self, case: Case) -> Finding | None:
        observation = self.observe(case)
        if observation is None:
            return None
        remedy = observation.remedy
        return Finding(
            rule=self.name,
            severity=self.severity if observation.severity is None else observation.severity,
            queue=case.queue,
            observed=observation.observed,
            why=observation.why,
            remedy=Remedy(remedy) if isinstance(remedy, str) else remedy,
            examples=observation.examples,
            figures=observation.figures or {},
        )


def rule(
    name: str, severity: Severity, *, title: str, needs: str, remedy: str
) -> Callable[[Callable[[Case], Observation | None]], Rule]:
    """Make a rule of the function below: `@rule("clock-skew", Severity.WARNING, title=…, needs=…, remedy=…)`."""
    return lambda observe: Rule(name, severity, title, needs, remedy, observe)
