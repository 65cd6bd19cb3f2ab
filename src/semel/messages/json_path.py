"""JSON paths that name exactly one value: $.order.id, $['order']['id'], $.lines[0], $.lines[-1].sku.

Paths are parsed once, when a handler is registered. A path that could name several values is refused then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from semel.errors import SemelError

STEP: Final = re.compile(
    r"""
    \. (?P<name> [^\s.\[\]'"*?@(),:]+ )
    | \[ (?P<index> -?\d{1,18} ) \]
    | \[ ' (?P<single> (?: [^'\\] | \\. )* ) ' \]
    | \[ " (?P<double> (?: [^"\\] | \\. )* ) " \]
    """,
    re.VERBOSE,
)


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final[_Missing] = _Missing()


@dataclass(frozen=True, slots=True)
class JsonPath:
    text: str
    steps: tuple[str | int, ...]

    @staticmethod
    def parse(text: str) -> JsonPath:
        steps: list[str | int] = []
        end = 1
        while text.startswith("$") and end < len(text) and (step := STEP.match(text, end)):
            steps.append(_step(step))
            end = step.end()
        if not steps or end != len(text):
            raise SemelError(
                f"{text!r} is not a path to one value of a JSON body; it is written as $.order.id, $['order id'], "
                "$.lines[0].sku or $.lines[-1], without wildcards, slices or filters"
            )
        return JsonPath(text, tuple(steps))

    def find(self, parsed: Any) -> Any:
        """The value at this path, or MISSING."""
        for step in self.steps:
            if isinstance(step, str):
                if type(parsed) is not dict or step not in parsed:
                    return MISSING
            elif type(parsed) is not list or not -len(parsed) <= step < len(parsed):
                return MISSING
            parsed = parsed[step]
        return parsed


def _step(match: re.Match[str]) -> str | int:
    if match["index"] is not None:
        return int(match["index"])
    if match["name"] is not None:
        return match["name"]
    quoted = match["single"] if match["single"] is not None else match["double"]
    return re.sub(r"\\(.)", r"\1", quoted)
