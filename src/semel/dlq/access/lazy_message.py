"""A letter at a glance: of a peeked message only what a filter asks for is worked out.

Of a hundred thousand messages most are looked at once, for their error or a field of the body, and are not wanted. The
rule: whatever is asked of a glance, the answer is the letter's own.
"""

from __future__ import annotations

from typing import Any, Final

from semel.dlq.access.peek import peeked
from semel.dlq.messages import DeadLetterMessage, in_one_line
from semel.messages import dead_letter_attributes as own_attributes

_NOTHING: Final[dict[str, str]] = {}
_PACKED: Final = frozenset({own_attributes.PACKED, own_attributes.OWN})


class LazyMessage:
    """To be used where a DeadLetter is; what it does not know cheaply, it asks the whole letter for."""

    __slots__ = ("_queue", "_whole", "body", "error", "id", "message", "reason")

    def __init__(self, message: dict[str, Any], queue: str) -> None:
        self.message, self._queue = message, queue
        self._whole: DeadLetterMessage | None = None
        self.id: str = message["MessageId"]
        self.body: str = message["Body"]
        found = message.get("MessageAttributes")
        if not found or not (own_attributes.REASON in found or own_attributes.PACKED in found):
            self.reason = self.error = ""
            return
        reason = found.get(own_attributes.REASON, _NOTHING).get("StringValue")
        attempts = found.get(own_attributes.ATTEMPTS, _NOTHING)
        error = found.get(own_attributes.ERROR, _NOTHING)
        # Only where nothing is packed and nothing odd are the attributes of a letter its fields.
        if (
            reason is None
            or "BinaryValue" in error
            or not own_attributes.is_count(attempts.get("StringValue", ""))
            or found.keys() & _PACKED
        ):
            self.reason, self.error = self.whole.reason, self.whole.error
        else:
            self.reason, self.error = reason, error.get("StringValue", "")

    @property
    def why(self) -> str:
        return in_one_line(self.reason, self.error)

    @property
    def whole(self) -> DeadLetterMessage:
        if self._whole is None:
            self._whole = peeked(self.message, self._queue)
        return self._whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)
