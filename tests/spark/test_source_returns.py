"""Messages that are returned to their queue: once, and only while this task still has them."""

from __future__ import annotations

from typing import Any

import pytest

from semel.spark.source.returns import Returned, return_messages
from spark.intake import Intake, down


def received(place: Intake, visibility: int) -> list[Returned]:
    until = place.now() + visibility
    return [Returned(message.receipt, until) for message in place.queue.receive(10, visibility=visibility)]


def test_messages_are_shown_at_once_or_hidden_for_as_long_as_it_is_said(place: Intake) -> None:
    place.send("a", "b")
    first, second = received(place, 60)
    return_messages(place.queue, [first, second._replace(seconds=20)], place.now())
    assert place.waiting() == (1, 1)
    place.clock.advance(21)
    assert place.waiting() == (2, 0)


def test_a_message_that_may_be_anothers_by_now_is_left_alone(place: Intake) -> None:
    place.send("a")
    late = received(place, 30)
    place.clock.advance(31)
    assert len(received(place, 600)) == 1  # another consumer has it: an older receipt still changes its visibility
    return_messages(place.queue, late, place.now())
    assert place.waiting() == (0, 1)


def test_a_return_without_an_answer_is_not_repeated(place: Intake) -> None:
    """Another consumer may have received the messages after the first request."""
    place.send("a")
    messages, exchange, requests = received(place, 60), place.queue.client._transport.exchange, []

    def no_answer(*arguments: Any, **options: Any) -> Any:
        requests.append(exchange(*arguments, **options))
        raise ConnectionResetError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place.queue.client._transport, "exchange", no_answer)
        return_messages(place.queue, messages, place.now())
    assert len(requests) == 1
    assert place.waiting() == (1, 0)


def test_messages_that_cannot_be_returned_are_logged_and_come_back_by_themselves(
    place: Intake, caplog: pytest.LogCaptureFixture
) -> None:
    place.send("a")
    messages = received(place, 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place.queue, "change_visibility", down)
        return_messages(place.queue, messages, place.now())
    assert "queue orders: 1 messages could not be returned: down" in caplog.text
    place.clock.advance(61)
    assert place.waiting() == (1, 0)
