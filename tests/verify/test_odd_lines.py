"""Any line is an event, ignored, or unreadable; reading continues, and the verdict reports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.telemetry.attempt_log import Step
from semel.verify import EventKind
from semel.verify.mapping import FIELDS
from semel.verify.report import HistoryRequest, verify
from semel.verify.text_report import report_text
from suite import effort

SETTINGS: Final = settings(
    max_examples=effort(fast=30, full=300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES: Final = ("kind", "message", "step", "at", "message_id", "handler", "sent_at", "count", "file", "line", *FIELDS)
VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*EventKind, *Step, "1e999", "2026-11-16", "9" * 5_000]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
RECORDS: Final = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8).map(json.dumps).map(str.encode)
LINES: Final = st.lists(RECORDS | VALUES.map(json.dumps).map(str.encode) | st.binary(max_size=20), max_size=6)
EVENT: Final = b'{"kind":"send","key":"k"}'
ATTEMPT: Final = b'{"at":1,"step":"received","queue":"q","message_id":"m"}'


def written(path: Path, lines: list[bytes]) -> int:
    """How many lines there are that are not blank."""
    content = b"\n".join(lines)
    path.write_bytes(content)
    return sum(bool(line.strip()) for line in content.split(b"\n"))


def accounted(path: Path, **options: Any) -> int:
    report = verify(HistoryRequest((str(path),), **options))
    assert report_text(report, limit=10, width=80)
    json.dumps(report.to_json())
    return report.verdict.counts.events + report.unreadable + sum(report.ignored.values())


@SETTINGS
@given(LINES)
def test_no_line_of_a_history_ends_its_reading_and_each_is_accounted_for(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "history.jsonl"
    count = written(path, [EVENT, *lines])
    assert accounted(path) == count


@SETTINGS
@given(LINES)
def test_no_line_of_an_attempt_log_ends_its_reading(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "attempts.jsonl"
    count = written(path, [ATTEMPT, *lines])
    assert 1 <= accounted(path) <= count  # steps that say nothing here are not counted


@SETTINGS
@given(LINES)
def test_no_line_of_a_mapped_log_ends_its_reading_and_each_is_accounted_for(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "app.log"
    first = b'{"what":"send","id":"k"}'
    mapping = "id=.id,event=.what,time=.time,fence=.fence[0],sequence=.sequence,queue=.queue,group=.group.x"
    count = written(path, [first, *lines])
    assert accounted(path, fields=mapping) == count


def test_a_line_that_is_nested_too_deeply_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    written(path, [EVENT, b'{"kind":' * 100_000, EVENT])
    assert accounted(path) == 3
