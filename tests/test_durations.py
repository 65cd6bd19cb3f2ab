"""Durations: what people write is understood, and what is none is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from semel.durations import Duration, seconds
from semel.errors import SemelError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 0.5), ("30s", 30), ("5m", 300), ("2h", 7_200), ("1d", 86_400), ("1h30m", 5_400), ("1.5 h", 5_400),
        (" 2 m ", 120), (7, 7.0), (0.25, 0.25), (timedelta(minutes=1), 60.0), ("0s", 0),
        ("30", 30), (" 1.5 ", 1.5),
    ],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(text: Duration, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["", "s", "30 5", "1.5.2", "30 seconds", "-5s", "5s!", "x5s", -1, float("nan"), float("inf"), True]
)
def test_what_is_no_duration_is_refused_by_name(text: Duration) -> None:
    with pytest.raises(SemelError, match="duration"):
        seconds(text)
