"""The rules: each looks at one case and returns a finding, or None if all is well or nothing is known.

`ALL` has them in the order in which users see them: by module as listed here, within a module in its order."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from semel.doctor.errors import DoctorError
from semel.doctor.rules import dead_letters, duplicates, failures, fifo, flow, ledger, permissions, receives, timeouts
from semel.doctor.rules.rule import Rule

__all__ = ["ALL", "Rule", "choose"]

_MODULES: Final = (duplicates, failures, timeouts, permissions, ledger, dead_letters, flow, receives, fifo)
ALL: Final = tuple(rule for module in _MODULES for rule in vars(module).values() if isinstance(rule, Rule))
_NAMES: Final = [rule.name for rule in ALL]


def choose(only: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Rule, ...]:
    """All rules, or only these, without those to ignore; in their usual order."""
    for option, names in (("--rule", only), ("--ignore", ignore)):
        for name in names:
            if name not in _NAMES:
                near = get_close_matches(name, _NAMES, n=3, cutoff=0.4)
                hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(_NAMES)}"
                raise DoctorError(f"{option} {name}: there is no such rule; {hint}")
    return tuple(rule for rule in ALL if (not only or rule.name in only) and rule.name not in ignore)
