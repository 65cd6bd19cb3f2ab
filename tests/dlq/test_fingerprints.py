"""One error, one fingerprint: the error groups of dead-letter messages are those of the doctor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlq.dead_letters import message
from semel.dlq import fingerprints
from semel.dlq.messages import as_json
from semel.doctor.diagnosis import Request, diagnose
from semel.messages.fingerprint import fingerprint, shape

ERRORS = (
    "",
    "TimeoutError: read from 'bank' timed out after 30 s",
    'KeyError: "tenant-17" in `orders`',
    "order 6d2f0c1a-8a1e-4c0b-9b4a-0d9c8a7b6c5d is unknown",
    "order 6D2F0C1A8A1E4C0B9B4A0D9C8A7B6C5D is unknown",
    "hash deadbeef01 differs from cafebabe and 12345678",
    "an unclosed 'quote and \"another",
    "numbers ٣٤ of other scripts, and ４２",
    "é1é 2_3 a4b ünïcödé 'ü'",
    "line one 1\nline 'two' 2\r\nline three",
    "x" * 295 + " 'cut here' 123",
    "emoji 😀 1 'a😀b' " + "😀" * 400,
    "ABCDEF0123 abcdef0123 aBcDeF0123ſ Kelvin K1",
)


@pytest.mark.parametrize(
    ("error", "other"),
    [
        ("order 17 of 'acme' timed out", "order 4 of 'umbrella' timed out"),
        ("id 6d2f0c1a-8a1e-4c0b-9b4a-0d9c8a7b6c5d", "id 00000000-8A1E-4c0b-9b4a-0d9c8a7b6c5d"),
        ("x" * 300 + "a", "x" * 300 + "b"),
    ],
)
def test_what_differs_only_in_numbers_ids_and_quotes_is_one_kind(error: str, other: str) -> None:
    assert shape(error) == shape(other)
    assert fingerprint(error) == fingerprint(other)


def test_other_words_are_another_kind() -> None:
    assert fingerprint("timed out") != fingerprint("was refused")
    assert fingerprint("") != fingerprint("x")


@given(st.text(max_size=400))
def test_any_text_has_a_fingerprint_of_ten_digits(text: str) -> None:
    assert set(fingerprint(text)) <= set("0123456789abcdef")
    assert len(fingerprint(text)) == 10


def test_a_message_is_described_as_in_the_attempt_log() -> None:
    """Which says `reason: error`, and of an error without a reason only that."""
    assert fingerprints.error_of(message(reason="ValueError", error="bad")) == "ValueError: bad"
    assert fingerprints.error_of(message(reason="poisonous", error="poisonous")) == "poisonous"
    assert fingerprints.error_of(message(reason="", error="")) == "moved by SQS: received too often"


def test_only_a_message_that_another_queue_had_is_said_to_be_moved() -> None:
    assert as_json(message(reason="", error=""))["why"] == "moved by SQS: received too often"
    assert as_json(message(reason="", error="", source=""))["why"] == ""
    assert as_json(message(reason="ValueError", error="bad", source=""))["why"] == "ValueError: bad"


def test_the_doctor_makes_the_same_shapes_in_sql() -> None:
    import duckdb

    from semel.doctor.logs.line_sql import error_kind

    query = f"SELECT {error_kind('error')} FROM (SELECT unnest(?) AS error)"
    shapes = [row[0] for row in duckdb.connect().execute(query, [list(ERRORS)]).fetchall()]
    assert shapes == [shape(error) for error in ERRORS]


def test_the_doctor_names_a_group_of_errors_by_the_fingerprint_that_a_filter_takes(tmp_path: Path) -> None:
    error, lines = "order 17 of 'acme' timed out", []
    for at, event in enumerate(("received", "started", "failed")):
        line = {"time": 1_700_000_000.0 + at, "event": event, "queue": "orders", "message_id": "m", "receive_count": 1}
        lines.append(json.dumps(line | ({"error": error} if event == "failed" else {})))
    (tmp_path / "app.jsonl").write_text("\n".join(lines) + "\n")
    (case,) = diagnose(Request(logs=(str(tmp_path),))).cases
    assert case.behaviour is not None
    (group,) = case.behaviour.errors
    assert group.fingerprint == fingerprint(error)
