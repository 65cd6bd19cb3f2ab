"""What an operator can ask of a running worker: to show its work, pause, resume, change its concurrency, or stop.

Commands and answers are values; a `Controlled` carries the commands out. The rule: a command is checked before anything
changes, and its answer says what was done.
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
from typing import Any, Final, Protocol

from semel.errors import SemelError

MAX_SHOWN: Final = 1_000  # messages in progress, of one queue
MAX_CONCURRENCY: Final = 10_000


class Action(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    CONCURRENCY = "concurrency"
    STOP = "stop"


class Refused(SemelError):
    """A command to a worker that cannot be carried out; `status` is the HTTP status of the answer. Correct the command
    as the text says."""

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
    def read(cls, content: object) -> Command:
        """From JSON. Raises Refused if it is not a command."""
        if not isinstance(content, dict):
            raise Refused('a command is an object such as {"action": "pause", "queue": "orders"}')
        if unknown := sorted(map(str, content.keys() - {"action", "queue", "value"})):
            raise Refused(f"a command has no {', '.join(unknown)}; its fields are action, queue and value")
        try:
            action = Action(content["action"])
        except KeyError:
            raise Refused(f"a command needs an action: one of {', '.join(Action)}") from None
        except ValueError:
            raise Refused(f"unknown action {content['action']!r}; choose one of {', '.join(Action)}") from None
        queue, value = content.get("queue"), content.get("value")
        if queue is not None and not isinstance(queue, str):
            raise Refused("queue is a name, or null for all queues of this worker")
        if action is Action.CONCURRENCY:
            if type(value) is not int or not 1 <= value <= MAX_CONCURRENCY:
                raise Refused(f"value is the new concurrency: a number from 1 to {MAX_CONCURRENCY:,}")
        elif value is not None:
            raise Refused(f"{action} takes no value")
        if action is Action.STOP and queue is not None:
            raise Refused(f"a worker stops as a whole; to receive nothing more from {queue}, pause it")
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
        from semel.version import __version__

        host, pid = socket.gethostname(), os.getpid()
        safe = re.sub(r"[^A-Za-z0-9_.]+", "_", host).strip(".")[:60] or "host"
        return cls(f"{safe}-{pid}-{secrets.token_hex(3)}", host, pid, now(), app, __version__)


class Controlled(Protocol):
    """What the control endpoint talks to: one runtime, or the parent of several processes."""

    def workers(self) -> dict[str, Any]: ...

    def do(self, command: Command) -> dict[str, Any]: ...


def page(identity: Identity, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer to `GET /workers`: all processes of one worker, merged."""
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
        "queues": _merged([process["queues"] for process in processes]),
    }


def done(command: Command, queues: Sequence[str], processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer to a command: what was done, and the state of each queue afterwards."""
    merged = _merged([process["queues"] for process in processes])
    return {
        "done": _sentence(command, queues, len(processes)),
        "queues": {
            name: {field: queue[field] for field in ("paused", "concurrency", "in_progress")}
            for name, queue in merged.items()
        },
    }


def _merged(processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`in_progress` is the sum of all processes; `concurrency` is that of each process, as it was set."""
    names = dict.fromkeys(name for queues in processes for name in queues)
    merged = {}
    for name in names:
        each = [queues[name] for queues in processes if name in queues]
        messages = heapq.nlargest(
            MAX_SHOWN, (message for queue in each for message in queue["messages"]), key=lambda shown: shown["since"]
        )
        merged[name] = each[0] | {
            "paused": all(queue["paused"] for queue in each),
            "concurrency": max(queue["concurrency"] for queue in each),
            "receivers": sum(queue["receivers"] for queue in each),
            "seconds_since_poll": max(queue["seconds_since_poll"] for queue in each),
            "in_progress": sum(queue["in_progress"] for queue in each),
            "messages": messages,
        }
    return merged


def _sentence(command: Command, queues: Sequence[str], processes: int) -> str:
    names = ", ".join(queues)
    match command.action:
        case Action.PAUSE:
            return f"paused {names}: messages in progress are finished, no more are received"
        case Action.RESUME:
            return f"resumed {names}"
        case Action.CONCURRENCY:
            each = f" in each of {processes} processes" if processes > 1 else ""
            return f"set the concurrency of {names} to {command.value}{each}"
        case Action.STOP:
            return "stopping after the messages in progress; a second stop ends at once"
