"""A diagnosis for machines: all of it, under the names of the model, with a version.

The rule: as long as `VERSION` stays the same, names stay and keep their meaning; new ones may be added. The text is
ASCII, whatever the logs contain, and has no number that JSON does not know (NaN and infinity are null).
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from semel.doctor.model import Behaviour, Diagnosis, Severity
from semel.doctor.report.summary import gaps
from semel.version import __version__

VERSION: Final = 2


def render(diagnosis: Diagnosis) -> str:
    counts = Counter(finding.severity for finding in diagnosis.findings)
    document = {"version": VERSION, "semel": __version__} | value(diagnosis)
    document["queues"] = document.pop("cases")
    document["worst"] = diagnosis.worst.word if diagnosis.worst is not None else None
    document["counts"] = {level.word: counts[level] for level in reversed(Severity)}
    document["not_looked_at"] = value(gaps(diagnosis))
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def value(thing: Any) -> Any:
    """A value of the model as one of JSON's."""
    match thing:
        case Severity():
            return thing.word
        case enum.Enum():
            return thing.value
        case None | bool() | int() | str():
            return thing
        case float():
            return thing if math.isfinite(thing) else None
        case Mapping():
            return {str(name): value(part) for name, part in thing.items()}
        case frozenset():
            return sorted(value(part) for part in thing)
        case Iterable():
            return [value(part) for part in thing]
    fields = {field.name: value(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    if isinstance(thing, Behaviour):  # with the figures that follow from the others, so that nobody has to derive them
        fields |= {name: value(getattr(thing, name)) for name in ("duplicates", "duplicate_share", "wasted")}
        fields["replays"] = [value(replay) | {"share": replay.share(thing.messages)} for replay in thing.replays]
    return fields
