"""What a handler can say besides returning (done) and raising (try again later): each is an exception."""

from __future__ import annotations

from semel.durations import Duration, seconds
from semel.errors import SemelError


class Outcome(SemelError):
    """Control flow, not failure."""


class Retry(Outcome):
    """Call me again with this message, `after` so long (30, "30s", "5m", a timedelta); by the handler's back-off if not
    given. SQS can hide a message for twelve hours at most."""

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason or "the handler asked to be called again")
        self.after = None if after is None else seconds(after)


class Reject(Outcome):
    """Never call me again with this message: put it into the dead-letter queue, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Skip(Outcome):
    """Nothing to do: count the message as done, without a result."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Lost(Outcome):
    """The claim may be gone: another worker may have the message by now. A handler that raises it has no outcome."""
