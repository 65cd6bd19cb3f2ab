"""The rules: each looks at one case and ends in a finding, or in nothing when all is well or nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from semel.doctor.errors import DoctorError
from semel.doctor.rules import (
    dead_letters,
    duplicates,
    failures,
    fifo,
    flow,
    ledger,
    permissions,
    receiving,
    timeouts,
)
from semel.doctor.rules.rule import Rule

__all__ = ["ALL", "Rule", "choose"]

ALL: Final[tuple[Rule, ...]] = (
    *duplicates.RULES,
    *failures.RULES,
    *timeouts.RULES,
    *permissions.RULES,
    *ledger.RULES,
    *dead_letters.RULES,
    *flow.RULES,
    *receiving.RULES,
    *fifo.RULES,
)
_NAMES: Final = {rule.name: rule for rule in ALL}


def choose(only: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Rule, ...]:
    """All rules, or only some, without those to be ignored; in their usual order."""
    for option, names in (("--rule", only), ("--ignore", ignore)):
        for name in names:
            if name not in _NAMES:
                near = get_close_matches(name, _NAMES, n=3, cutoff=0.4)
                meant = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(_NAMES)}"
                raise DoctorError(f"{option} {name}: there is no such rule; {meant}")
    return tuple(rule for rule in ALL if (not only or rule.name in only) and rule.name not in ignore)
