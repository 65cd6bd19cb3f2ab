"""Durations: the forms that people write are understood, and anything else is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from semel.durations import Duration, seconds, text
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


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-3, "0 s"), (0, "0 s"), (0.0421, "42 ms"), (0.9996, "1 s"), (3, "3 s"), (3.21, "3.2 s"), (62, "62 s"),
        (119.97, "2 min"), (134, "2 min 14 s"), (300, "5 min"), (3_599.9, "1 h"), (5_400, "1 h 30 min"),
        (86_399, "1 d"), (187_200, "2 d 4 h"), (40_000_000, "462 d 23 h"),
    ],
)  # fmt: skip
def test_durations_are_shown_as_people_say_them(value: float, shown: str) -> None:
    assert text(value) == shown


@pytest.mark.parametrize("value", [0, 0.5, 41.3, 134, 5_400, 187_200])
def test_a_duration_that_is_shown_can_be_given_back(value: float) -> None:
    assert seconds(text(value).replace("min", "m")) == pytest.approx(value)


def test_a_text_of_many_digits_is_refused_in_a_time_that_is_proportional_to_its_length() -> None:
    with pytest.raises(SemelError, match="is not a duration"):
        seconds("9" * 100_000 + "x")
