"""How long a message is hidden, and the limit of twelve hours."""

from __future__ import annotations

from semel.messages.visibility import visibility_for


def test_a_message_is_hidden_in_whole_seconds_never_shorter_than_asked() -> None:
    assert [visibility_for(delay, 0.0) for delay in (0, 0.2, 1.0, 1.2)] == [0, 1, 1, 2]


def test_no_wait_reaches_past_twelve_hours_from_the_receive() -> None:
    assert visibility_for(50_000, 0.0) == 43_195
    assert visibility_for(3_600, 42_000.0) == 1_195
    assert visibility_for(3_600, 42_000.3) == 1_194
    assert visibility_for(float("inf"), 0.0) == 43_195


def test_a_message_whose_twelve_hours_are_over_is_made_visible_at_once() -> None:
    assert visibility_for(10, 43_200.0) == 0
    assert visibility_for(10, 99_999.0) == 0
