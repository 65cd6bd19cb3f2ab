"""What cannot be shown or done, with the way out in a field of its own."""

from __future__ import annotations

from semel.errors import SemelError


class DashboardError(SemelError):
    """`status` is HTTP's; `what_to_do` is the way out."""

    def __init__(self, error: str, what_to_do: str = "", status: int = 400) -> None:
        super().__init__(f"{error}; {what_to_do}" if what_to_do else error)
        self.error, self.what_to_do, self.status = error, what_to_do, status


class NotThere(DashboardError):
    def __init__(self, error: str, what_to_do: str = "") -> None:
        super().__init__(error, what_to_do, 404)


class ReceiveRequired(DashboardError):
    """On SQS a message is shown only by receiving it, and nobody has asked for that."""

    def __init__(self, error: str, what_to_do: str) -> None:
        super().__init__(error, what_to_do, 409)
