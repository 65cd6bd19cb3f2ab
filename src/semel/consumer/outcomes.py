"""The outcomes that a handler can choose besides returning (done) and any other exception (try again later)."""

from __future__ import annotations

from semel.durations import Duration, seconds
from semel.errors import SemelError


class Outcome(SemelError):
    """An outcome that a handler raises instead of returning. It is not a failure. Raise one of its subclasses in a
    handler, and do not catch it."""


class Retry(Outcome):
    """The handler is called again with this message, after `after` (30, "30s", "5m", a timedelta) or, if that is not
    given, after the handler's back-off. SQS can hide a message for twelve hours at most. Raise it in a handler to try
    again later.

    >>> from semel import App, Retry
    >>> app = App()
    >>> @app.handler("payments")
    ... def charge(payment: dict) -> None:
    ...     if bank.is_closed():
    ...         raise Retry("the bank is closed", after="10m")
    """

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason or "the handler asked to be called again")
        self.after = None if after is None else seconds(after)


class Reject(Outcome):
    """The handler is never called again with this message. Raise it in a handler to send the message to the dead-letter
    queue.

    >>> from semel import App, Reject
    >>> app = App()
    >>> @app.handler("payments")
    ... def charge(payment: dict) -> None:
    ...     if payment["amount"] < 0:
    ...         raise Reject("the amount is negative")
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Skip(Outcome):
    """The message counts as done, without a result. Raise it in a handler when there is nothing to do.

    >>> from semel import App, Skip
    >>> app = App()
    >>> @app.handler("payments")
    ... def charge(payment: dict) -> None:
    ...     if payment.get("test"):
    ...         raise Skip("a test payment")
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Lost(Outcome):
    """The claim may be lost: another worker may have the message by now. If a handler raises it, no outcome is
    recorded. Stop working on the message, and do not catch it.

    >>> from semel import App, Context
    >>> app = App()
    >>> @app.handler("reports")
    ... def build(report: dict, ctx: Context) -> None:
    ...     for page in report["pages"]:
    ...         ctx.check()  # raises Lost if another worker may have the message
    ...         render(page)
    """
