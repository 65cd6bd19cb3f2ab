"""The control of a runtime: shows what is in progress, and carries out an operator's commands.

The rules: an answer never shows a message's body; a command is checked before anything changes. Pausing stops only the
receiving: what is in progress is finished, with its heartbeats.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from semel.consumer.context import logger
from semel.telemetry.worker_control import MAX_SHOWN, Action, Command, Identity, Refused, done, page

if TYPE_CHECKING:
    from semel.consumer.delivery import Delivery
    from semel.consumer.queue_consumer import QueueConsumer
    from semel.consumer.queue_setup import QueueSetup
    from semel.consumer.runtime import Runtime

SHOWN_SETTINGS: Final = ("lease", "wait", "max_attempts", "max_runtime", "size", "linger", "on_failure", "missing_key")


class RuntimeControl:
    """The control of a runtime in this process."""

    def __init__(self, runtime: Runtime, identity: Identity) -> None:
        self._runtime = runtime
        self._identity = identity

    def workers(self) -> dict[str, Any]:
        return page(self._identity, [view(self._runtime)])

    def do(self, command: Command) -> dict[str, Any]:
        answer = done(command, carry_out(self._runtime, command), [view(self._runtime)])
        logger.info("operator command: %s", answer["done"])
        return answer


def carry_out(runtime: Runtime, command: Command) -> list[str]:
    """Carry out a command. Returns the names of the queues that it affected."""
    if command.action is Action.STOP:
        runtime.stop()
        return [consumer.name for consumer in runtime.consumers]
    if runtime.stopping.is_set():
        raise Refused("the worker is stopping: there is nothing left to change", 409)
    names = check(command, [consumer.setup for consumer in runtime.consumers])
    for consumer in runtime.consumers:
        if consumer.name in names:
            if command.action is Action.PAUSE:
                consumer.receiver.pause()
            elif command.action is Action.RESUME:
                consumer.receiver.resume()
            elif command.value is not None:
                consumer.set_concurrency(command.value)
    return names


def check(command: Command, setups: Sequence[QueueSetup]) -> list[str]:
    """The names of the queues that a command affects. Raises Refused if it cannot be carried out for all of them."""
    affected = [setup for setup in setups if command.queue is None or setup.name == command.queue]
    if not affected:
        names = ", ".join(sorted(setup.name for setup in setups))
        raise Refused(f"this worker does not receive from {command.queue!r}; its queues are {names}", 404)
    for setup in affected:
        if command.action is Action.CONCURRENCY and setup.fifo and setup.handler.is_batch:
            raise Refused(
                f"the batch handler of {setup.name} works on one batch at a time, to keep the order: its concurrency "
                "cannot be changed; change its `size` where it is declared",
                409,
            )
    return [setup.name for setup in affected]


def view(runtime: Runtime) -> dict[str, Any]:
    """What one process has in progress; picklable, so that a parent process can ask for it."""
    now = runtime.tools.monotonic()
    queues = {consumer.name: _queue(consumer, now) for consumer in runtime.consumers}
    return {"pid": os.getpid(), "stopping": runtime.stopping.is_set(), "queues": queues}


def _queue(consumer: QueueConsumer, now: float) -> dict[str, Any]:
    setup, in_flight = consumer.setup, consumer.in_flight
    deliveries = list(in_flight.deliveries.values())
    longest = heapq.nsmallest(MAX_SHOWN, deliveries, key=lambda delivery: delivery.received_at)
    return {
        "handler": setup.handler.name,
        "batch": setup.handler.is_batch,
        "concurrency": in_flight.concurrency,
        "paused": in_flight.paused,
        "receivers": consumer.receiver.count,
        "seconds_since_poll": round(max(0.0, now - consumer.receiver.last_poll), 1),
        "in_progress": len(deliveries),
        "settings": {name: getattr(setup.settings, name) for name in SHOWN_SETTINGS},
        "messages": [_message(delivery, now) for delivery in longest],
    }


def _message(delivery: Delivery, now: float) -> dict[str, Any]:
    """The time of the last heartbeat is derived from the end of the visibility timeout, which counts from it."""
    lease = int(delivery.setup.settings.lease)
    started = delivery.started_at
    return {
        "message_id": delivery.received.message_id,
        "key": delivery.key,
        "handler": delivery.setup.handler.name,
        "state": delivery.state.name.lower(),
        "since": round(now - delivery.received_at, 3),
        "working": round(now - started, 3) if started else None,
        "attempt": delivery.attempt,
        "receive_count": delivery.received.receive_count,
        "fence": delivery.fence,
        "heartbeat_age": round(max(0.0, now - (delivery.visible_at - lease)), 3),
        "visible_for": round(delivery.visible_at - now, 3),
        "lease_for": round(delivery.lease_ends - now, 3) if delivery.claim is not None else None,
        "group": delivery.group or "",
        "pid": os.getpid(),
    }
