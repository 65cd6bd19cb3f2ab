"""Messages that go back to their queue.

The rule: SQS is asked once, and only while the messages are ours. After a lost answer another task may have received
them: asking again would show them to a third one, although the second has them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from semel.sqs.client import Queue
from semel.sqs.errors import SqsError

_log: Final = logging.getLogger("semel.spark")
LONGEST: Final = 30.0  # seconds: a task or a stop is not held up longer


class Returned(NamedTuple):
    """A message is to be hidden for so many seconds, or shown at once with 0. `hidden_until`: how long it is ours."""

    receipt: str
    hidden_until: float
    seconds: int = 0


def return_messages(queue: Queue, messages: Iterable[Returned], now: float) -> None:
    """`now` by the monotonic clock. What fails, or is not ours any more, comes back when its visibility ends."""
    ours = [message for message in messages if message.hidden_until > now]
    if not ours:
        return
    timeout = min(LONGEST, min(message.hidden_until for message in ours) - now)
    try:
        queue.change_visibility([(message.receipt, message.seconds) for message in ours], timeout=timeout)
    except SqsError as error:
        _log.warning("queue %s: %d messages could not be returned: %s", queue.name, len(ours), error)
