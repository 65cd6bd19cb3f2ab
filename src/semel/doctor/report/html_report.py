"""A diagnosis as one HTML file: readable offline, without a script, on a phone, on paper and by a screen reader.

The rule: the page loads nothing and runs nothing (its own policy forbids it), and whatever comes from a log is only
text. The template escapes every value, and `finalize` cleans it first.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from semel.doctor import recommendations
from semel.doctor.model import Case, Diagnosis, Severity
from semel.doctor.report import summary, tables
from semel.doctor.report.charts import Chart, charts, timeline
from semel.doctor.text_format import clean, clean_lines, duration, number, share, when
from semel.text import count
from semel.version import __version__

_SOURCE: Final = (Path(__file__).parent / "report.html").read_text(encoding="utf-8")
_STYLE: Final = _SOURCE.partition("<style>")[2].partition("</style>")[0]
# The page may load nothing, run nothing and send nothing; only this very style is let in, by its digest.
POLICY: Final = (
    "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)


def render(diagnosis: Diagnosis) -> str:
    cases = summary.worst_first(diagnosis)
    sections = [_section(case, diagnosis, f"queue-{index}") for index, case in enumerate(cases, 1)]
    return _TEMPLATE.render(
        diagnosis=diagnosis,
        sections={section.case.queue: section for section in sections},
        overview=tables.overview(cases),
        warnings=[finding for finding in diagnosis.findings if finding.severity > Severity.INFO],
        notes=[finding for finding in diagnosis.findings if finding.severity is Severity.INFO],
        policy=Markup(POLICY),
        version=__version__,
    )


def prose(text: str, most: int = 2_000) -> Markup:
    """Our own sentences, in which `words` are code; text from elsewhere in them is made harmless."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(clean(text, most)))))


def _lines(text: str) -> Markup:
    return escape(clean_lines(text))


def _finalize(value: Any) -> Any:
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure in large type; `alarm` puts it in red."""

    title: str
    value: str
    more: str = ""
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """One queue in full. `name` is its id on the page."""

    name: str
    case: Case
    worst: Severity | None
    tiles: list[Tile]
    charts: list[Chart]
    tables: list[tables.Table]


def _section(case: Case, diagnosis: Diagnosis, name: str) -> Section:
    return Section(
        name,
        case,
        summary.worst(case, diagnosis.findings),
        _tiles(case),
        charts(case.behaviour, case.series, case.visibility, recommendations.visibility(case)),
        tables.of_queue(case, diagnosis.recommendations),
    )


def _tiles(case: Case) -> list[Tile]:
    behaviour, state, timeout = case.behaviour, case.state, case.visibility
    tiles = []
    if behaviour is not None:
        rate = share(behaviour.duplicates, behaviour.messages)
        wasted = duration(round(behaviour.wasted) or None)
        tiles = [
            Tile("Messages", number(behaviour.messages), f"{number(behaviour.deliveries)} deliveries"),
            Tile("Duplicates", rate, number(behaviour.duplicates), behaviour.duplicates > 0),
            Tile("Double effects", number(behaviour.doubled), "keys, by the logs", behaviour.doubled > 0),
            Tile("Wasted time", wasted, "in handlers"),
        ]
        held = behaviour.hold or behaviour.work
        if held is not None:
            late = timeout is not None and held.p99 > timeout and not behaviour.has_heartbeat
            tiles.append(Tile("Held, P99", duration(held.p99), f"timeout {duration(timeout)}", late))
    elif state is not None:
        tiles.append(Tile("Visibility timeout", duration(state.visibility)))
    if state is not None:
        tiles.append(Tile("Waiting now", number(state.visible), f"{number(state.in_flight)} in flight"))
        if state.dead_letters is not None and state.dead_letters.visible is not None:
            waiting = state.dead_letters.visible
            tiles.append(Tile("Dead-letter queue", number(waiting), "messages waiting", waiting > 0))
    return tiles


def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_finalize, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"clean": clean, "prose": prose, "lines": _lines, "when": when}
    environment.globals |= {"summary": summary, "count": count, "events": tables.events, "timeline": timeline}
    return environment


_TEMPLATE: Final = _environment().from_string(_SOURCE)
