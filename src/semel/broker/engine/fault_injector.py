"""Where the rules of SQS leave room for misbehaviour: the engine asks here, and is told to behave by default."""

from __future__ import annotations

from typing import Protocol

from semel.broker.engine.store import Queue


class FaultInjector(Protocol):
    """What may go wrong inside the service; answers are per question, as often as it is asked."""

    @property
    def active(self) -> bool:
        """Whether there is any point in asking."""
        ...

    def short_poll(self, queue: str, want: int) -> int:
        """How many of the `want` messages a short poll gets to see."""
        ...

    def visibility(self, queue: Queue, timeout: int) -> int:
        """How many milliseconds a message stays hidden that should be hidden for `timeout`."""
        ...

    def loses_delete(self, queue: Queue) -> bool:
        """Whether a delete is answered and forgotten."""
        ...


class NoFaults:
    """No faults at all."""

    active = False

    def short_poll(self, queue: str, want: int) -> int:  # noqa: ARG002
        return want

    def visibility(self, queue: Queue, timeout: int) -> int:  # noqa: ARG002
        return timeout

    def loses_delete(self, queue: Queue) -> bool:  # noqa: ARG002
        return False
