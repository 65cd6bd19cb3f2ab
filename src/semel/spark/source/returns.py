"""Returns messages to their queue.

The rule: SQS is called once, and only while the messages are ours. If the answer is lost, another task may have
received them: a second call would make them visible to a third task while the second one has them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from semel.sqs.client import Queue
from semel.sqs.errors import SqsError

_log: Final = logging.getLogger("semel.spark")
LONGEST: Final = 30.0  # seconds: a task or a stop waits no longer than this


class Returned(NamedTuple):
    """A message to hide for `seconds`, or to make visible at once with 0. `hidden_until`: until when it is ours."""

    receipt: str
    hidden_until: float
    seconds: int = 0


def return_messages(queue: Queue, messages: Iterable[Returned], now: float) -> None:
    """`now`: a time of the monotonic clock. Messages that are no longer ours, or for which the call fails, come back
    when their visibility timeout ends."""
    ours = [message for message in messages if message.hidden_until > now]
    if not ours:
        return
    timeout = min(LONGEST, min(message.hidden_until for message in ours) - now)
    try:
        queue.change_visibility([(message.receipt, message.seconds) for message in ours], timeout=timeout)
    except SqsError as error:
        _log.warning("queue %s: %d messages could not be returned: %s", queue.name, len(ours), error)
