"""Where the rules of SQS allow misbehaviour, the engine asks a FaultInjector. By default there are no faults."""

from __future__ import annotations

from typing import Protocol

from semel.broker.engine.store import Queue


class FaultInjector(Protocol):
    """Decides what goes wrong inside the service. Each question gets a new decision."""

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
        """Whether a delete is answered but not carried out."""
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
