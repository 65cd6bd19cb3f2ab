"""A diagnosis for machines: all of it, under the names of the model, with a version.

The rule: a name that was there stays, and keeps its meaning, as long as `VERSION` does; new ones may come. The text is
ASCII, whatever stood in a log, and holds no figure that JSON does not know (NaN and infinity are null).
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from semel.doctor.model import Behaviour, Case, Diagnosis, Finding, Severity
from semel.doctor.report.summary import gaps
from semel.version import __version__

VERSION: Final = 2


def render(diagnosis: Diagnosis) -> str:
    return json.dumps(as_dict(diagnosis), indent=2, allow_nan=False) + "\n"


def as_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """What `render` writes, before it is text."""
    worst = diagnosis.worst
    return {
        "version": VERSION,
        "semel": __version__,
        "made_at": _value(diagnosis.made_at),
        "since": _value(diagnosis.since),
        "until": _value(diagnosis.until),
        "worst": worst.word if worst is not None else None,
        "counts": {
            level.word: sum(finding.severity is level for finding in diagnosis.findings) for level in reversed(Severity)
        },
        "queues": [_case(case) for case in diagnosis.cases],
        "findings": [finding(found) for found in diagnosis.findings],
        "recommendations": _value(diagnosis.recommendations),
        "quality": _value(diagnosis.quality),
        "notes": _value(diagnosis.notes),
        "not_looked_at": _value(gaps(diagnosis)),
        "engine": diagnosis.engine,
    }


def finding(found: Finding) -> dict[str, Any]:
    result: dict[str, Any] = _value(found)
    return result


def _case(case: Case) -> dict[str, Any]:
    result: dict[str, Any] = _value(case)
    return result | {"behaviour": None if case.behaviour is None else _behaviour(case.behaviour)}


def _behaviour(seen: Behaviour) -> dict[str, Any]:
    """With the figures that follow from the others, so that nobody has to know how."""
    result: dict[str, Any] = _value(seen)
    result |= {name: _value(getattr(seen, name)) for name in ("duplicates", "duplicate_share", "wasted")}
    result["replays"] = [_value(change) | {"share": change.share(seen.messages)} for change in seen.replays]
    return result


def _value(value: Any) -> Any:
    """A value of the model as one of JSON's."""
    match value:
        case Severity():
            return value.word
        case enum.Enum():
            return value.value
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(name): _value(part) for name, part in value.items()}
        case frozenset():
            return sorted(_value(part) for part in value)
        case Iterable():
            return [_value(part) for part in value]
        case _:
            return {field.name: _value(getattr(value, field.name)) for field in dataclasses.fields(value)}
