"""What an operator may ask of a running worker, and tell it: who works on what, pause, resume, concurrency, stop.

The rules: an answer never shows a message's body; a command is checked before anything changes, and its answer says
what was done. Pausing stops receiving and nothing else: what is in hand is worked off, with its heartbeats.
"""

from __future__ import annotations

import heapq
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from semel.consumer.context import logger
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.consumer.delivery import Delivery
    from semel.consumer.queue_consumer import QueueConsumer
    from semel.consumer.queue_setup import QueueSetup
    from semel.consumer.runtime import Runtime

MOST_SHOWN: Final = 1_000  # messages in hand, of one queue
MOST_AT_ONCE: Final = 10_000
SHOWN_SETTINGS: Final = ("lease", "wait", "max_attempts", "max_runtime", "size", "linger", "on_failure", "missing_key")


class Action(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    CONCURRENCY = "concurrency"
    STOP = "stop"


class Refused(SemelError):
    """A command that cannot be carried out; `status` is what HTTP calls it."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Command:
    """What to do, to which queue (None: all of them)."""

    action: Action
    queue: str | None = None
    value: int | None = None

    @classmethod
    def read(cls, given: object) -> Command:
        """From JSON. Raises Refused for what is no command."""
        if not isinstance(given, dict):
            raise Refused('a command is an object such as {"action": "pause", "queue": "orders"}')
        if unknown := sorted(map(str, given.keys() - {"action", "queue", "value"})):
            raise Refused(f"a command has no {', '.join(unknown)}: there are action, queue and value")
        try:
            action = Action(given["action"])
        except KeyError:
            raise Refused(f"a command needs an action: one of {', '.join(Action)}") from None
        except ValueError:
            raise Refused(f"action {given['action']!r} is not known: there are {', '.join(Action)}") from None
        queue, value = given.get("queue"), given.get("value")
        if queue is not None and not isinstance(queue, str):
            raise Refused("queue is a name, or null for all queues of this worker")
        if action is Action.CONCURRENCY:
            if type(value) is not int or not 1 <= value <= MOST_AT_ONCE:
                raise Refused(f"value is the new concurrency: a number from 1 to {MOST_AT_ONCE:,}")
        elif value is not None:
            raise Refused(f"{action} takes no value")
        if action is Action.STOP and queue is not None:
            raise Refused(f"a worker stops as a whole; to take nothing more from {queue}, pause it")
        return cls(action, queue, value)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is. `id` is also the name of its file in the registry."""

    id: str
    host: str
    pid: int
    started: float
    app: str
    version: str

    @classmethod
    def new(cls, app: str = "", *, now: Callable[[], float] = time.time) -> Identity:
        from semel import __version__

        host, pid = socket.gethostname(), os.getpid()
        safe = re.sub(r"[^A-Za-z0-9_.]+", "_", host).strip(".")[:60] or "host"
        return cls(f"{safe}-{pid}-{secrets.token_hex(3)}", host, pid, now(), app, __version__)


class Controlled(Protocol):
    """What the health server's control endpoint talks to: one runtime, or the parent of several."""

    def workers(self) -> dict[str, Any]: ...

    def do(self, command: Command) -> dict[str, Any]: ...


class RuntimeControl:
    """The control of a runtime in this process."""

    def __init__(self, runtime: Runtime, identity: Identity) -> None:
        self._runtime = runtime
        self._identity = identity

    def workers(self) -> dict[str, Any]:
        return page(self._identity, [look(self._runtime)])

    def do(self, command: Command) -> dict[str, Any]:
        answer = done(command, carry_out(self._runtime, command), [look(self._runtime)])
        logger.info("told by an operator: %s", answer["done"])
        return answer


def carry_out(runtime: Runtime, command: Command) -> list[str]:
    """Do it; returns the names of the queues that it was done to."""
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
    """The names of the queues that it is about. Raises Refused if it cannot be done to all of them."""
    found = [setup for setup in setups if command.queue is None or setup.name == command.queue]
    if not found:
        has = ", ".join(sorted(setup.name for setup in setups))
        raise Refused(f"this worker takes nothing from {command.queue!r}; it has {has}", 404)
    for setup in found:
        if command.action is Action.CONCURRENCY and setup.fifo and setup.handler.is_batch:
            raise Refused(
                f"the batch handler of {setup.name} works on one batch at a time, to keep the order: its "
                "concurrency cannot be changed; its size can, where it is declared",
                409,
            )
    return [setup.name for setup in found]


# What is going on.


def look(runtime: Runtime) -> dict[str, Any]:
    """What one process has in hand; picklable, so that a parent can ask for it."""
    now = runtime.tools.monotonic()
    queues = {consumer.name: _queue(consumer, now) for consumer in runtime.consumers}
    return {"pid": os.getpid(), "stopping": runtime.stopping.is_set(), "queues": queues}


def _queue(consumer: QueueConsumer, now: float) -> dict[str, Any]:
    setup, in_flight = consumer.setup, consumer.in_flight
    held = list(in_flight.deliveries.values())
    longest = heapq.nsmallest(MOST_SHOWN, held, key=lambda delivery: delivery.received_at)
    return {
        "handler": setup.handler.name,
        "batch": setup.handler.is_batch,
        "concurrency": in_flight.concurrency,
        "paused": in_flight.paused,
        "receivers": consumer.receiver.count,
        "seconds_since_poll": round(max(0.0, now - consumer.receiver.last_poll), 1),
        "in_hand": len(held),
        "settings": {name: getattr(setup.settings, name) for name in SHOWN_SETTINGS},
        "messages": [_message(delivery, now) for delivery in longest],
    }


def _message(delivery: Delivery, now: float) -> dict[str, Any]:
    """The moment of the last heartbeat is what visibility is counted from."""
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


def page(identity: Identity, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `GET /workers` answers: the processes of one worker as one."""
    return {
        "id": identity.id,
        "host": identity.host,
        "pid": identity.pid,
        "started": identity.started,
        "version": identity.version,
        "app": identity.app,
        "processes": len(processes),
        "pids": [process["pid"] for process in processes],
        "stopping": any(process["stopping"] for process in processes),
        "queues": _added_up([process["queues"] for process in processes]),
    }


def _added_up(processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """In hand is the sum; concurrency is what each process has, as it was asked for."""
    names = dict.fromkeys(name for queues in processes for name in queues)
    added = {}
    for name in names:
        each = [queues[name] for queues in processes if name in queues]
        messages = heapq.nlargest(
            MOST_SHOWN, (one for queue in each for one in queue["messages"]), key=lambda one: one["since"]
        )
        added[name] = each[0] | {
            "paused": all(queue["paused"] for queue in each),
            "concurrency": max(queue["concurrency"] for queue in each),
            "receivers": sum(queue["receivers"] for queue in each),
            "seconds_since_poll": max(queue["seconds_since_poll"] for queue in each),
            "in_hand": sum(queue["in_hand"] for queue in each),
            "messages": messages,
        }
    return added


def done(command: Command, queues: Sequence[str], processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer to a command: what was done, and how each queue stands now."""
    added = _added_up([process["queues"] for process in processes])
    return {
        "done": _sentence(command, queues, len(processes)),
        "queues": {
            name: {"paused": queue["paused"], "concurrency": queue["concurrency"], "in_hand": queue["in_hand"]}
            for name, queue in added.items()
        },
    }


def _sentence(command: Command, queues: Sequence[str], processes: int) -> str:
    names = ", ".join(queues)
    match command.action:
        case Action.PAUSE:
            return f"paused {names}: what is in hand goes on, nothing more is received"
        case Action.RESUME:
            return f"resumed {names}"
        case Action.CONCURRENCY:
            each = f", in each of {processes} processes" if processes > 1 else ""
            return f"{names}: {command.value} at a time{each}"
        case Action.STOP:
            return "stopping: what is in hand is finished first; told once more, it stops at once"
