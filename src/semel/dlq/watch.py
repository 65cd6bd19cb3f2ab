"""Alarms for dead-letter queues: messages have arrived, or the first of them will soon expire.

`Watch` does no I/O: counts and the time go in, alarms come out. `AlarmChannel` delivers them to one destination, and
keeps the state of that destination in a file. An alarm is on disk before it is delivered, and is removed from the file
only after it was delivered: a webhook that is down, or a killed process, delays an alarm but never loses it. Nothing
here receives a message.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from semel.dlq.messages import DeadLetterQueue
from semel.errors import SemelError
from semel.text import reason

FOLDER: Final = "watch"
REPEAT: Final = 3_600.0  # seconds after which an alarm is raised again if the expiry is still near
_ATTEMPTS: Final = 4
_WEBHOOK_TIMEOUT: Final = 10.0
_COMMAND_TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """`kind` is arrival or expiry. `new`: messages that have arrived since the last arrival alarm was delivered."""

    kind: str
    queue: str
    text: str
    at: float
    depth: int
    new: int = 0
    first_expires: float | None = None


class QueueState(msgspec.Struct):
    depths: list[int] = []  # the last two, because SQS's counts are approximate and vary
    expiry_alarm_at: float | None = None


class WatchState(msgspec.Struct):
    queues: dict[str, QueueState] = {}
    pending: list[Alarm] = []  # raised and not yet delivered: at most one of each kind for each queue


class Watch:
    """`before`: how long before a message expires the alarm is raised; None for never."""

    def __init__(self, before: float | None, state: WatchState | None = None) -> None:
        self._before = before
        self.state = state if state is not None else WatchState()

    def ignore_existing(self, queues: Sequence[DeadLetterQueue]) -> None:
        """Raises no alarm for messages that are in the queues now."""
        for queue in queues:
            self.state.queues[queue.name] = QueueState([queue.depth])

    def check(self, queues: Sequence[DeadLetterQueue], now: float) -> None:
        """Adds new alarms to the pending ones. An alarm replaces a pending one of its kind, and adds its count."""
        for queue in queues:
            state = self.state.queues.setdefault(queue.name, QueueState())
            before = max(state.depths, default=0)
            if queue.depth > before:
                self._raise("arrival", queue, now, queue.depth - before)
            state.depths = [*state.depths, queue.depth][-2:]
            if self._expires_soon(queue, state, now):
                state.expiry_alarm_at = now
                self._raise("expiry", queue, now)

    def delivered(self, alarm: Alarm) -> None:
        self.state.pending.remove(alarm)

    def _raise(self, kind: str, queue: DeadLetterQueue, now: float, new: int = 0) -> None:
        pending = [alarm for alarm in self.state.pending if (alarm.kind, alarm.queue) == (kind, queue.name)]
        new += sum(alarm.new for alarm in pending)
        text = _arrival(queue, new) if kind == "arrival" else _expiry(queue, now)
        self.state.pending = [alarm for alarm in self.state.pending if alarm not in pending]
        self.state.pending.append(Alarm(kind, queue.name, text, now, queue.depth, new, queue.first_expires))

    def _expires_soon(self, queue: DeadLetterQueue, state: QueueState, now: float) -> bool:
        if self._before is None or queue.first_expires is None:
            return False
        if not queue.depth or queue.first_expires - now > self._before:
            state.expiry_alarm_at = None
            return False
        return state.expiry_alarm_at is None or now - state.expiry_alarm_at >= REPEAT


def _arrival(queue: DeadLetterQueue, new: int) -> str:
    if new < queue.depth:
        return f"{new:,} new {_messages(new)} in {queue.name}, which has {queue.depth:,}"
    sources = f" of {', '.join(queue.sources)}" if queue.sources else ""
    return f"{queue.depth:,} {_messages(queue.depth)}{sources} in {queue.name}"


def _expiry(queue: DeadLetterQueue, now: float) -> str:
    hours, minutes = divmod(int(max(0.0, (queue.first_expires or now) - now)) // 60, 60)
    return f"the first of {queue.depth:,} {_messages(queue.depth)} in {queue.name} expires in {hours} h {minutes} min"


def _messages(count: int) -> str:
    return "message" if count == 1 else "messages"


class AlarmChannel:
    """One destination of alarms: the output, a webhook or a command. Each has its own state: an alarm that was shown on
    a terminal is still posted to the webhook of another process.

    The function `deliver` returns why it failed, or an empty string."""

    def __init__(
        self, folder: Path, endpoint: str, name: str, deliver: Callable[[Alarm], str], *, before: float | None
    ) -> None:
        digest = hashlib.sha256(f"{endpoint}\n{name}".encode()).hexdigest()[:16]  # a webhook's address may be a secret
        self._path = folder / FOLDER / f"{digest}.json"
        self._deliver = deliver
        self.watch = Watch(before, _load(self._path))

    @property
    def pending(self) -> tuple[Alarm, ...]:
        return tuple(self.watch.state.pending)

    def check(self, queues: Sequence[DeadLetterQueue], now: float) -> None:
        self.watch.check(queues, now)
        self._save()

    def deliver(self) -> str:
        """Delivers pending alarms up to the first failure; returns why it failed, or an empty string."""
        for alarm in self.pending:
            if problem := self._deliver(alarm):
                return problem
            self.watch.delivered(alarm)
            self._save()
        return ""

    def _save(self) -> None:
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.encode(self.watch.state))
            draft.replace(self._path)
        except OSError as error:
            raise SemelError(
                f"the state of the watch cannot be written to {self._path}: {error.strerror or error}; "
                "set SEMEL_STATE to a folder that this user may write to"
            ) from None


def _load(path: Path) -> WatchState:
    try:
        return msgspec.json.decode(path.read_bytes(), type=WatchState)
    except (OSError, ValueError, RecursionError):
        return WatchState()


def check_webhook(url: str) -> None:
    try:
        is_http = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:  # an invalid IPv6 address
        is_http = False
    if not is_http:
        raise SemelError(f"--webhook {url!r} is not a URL; write https://host/path")


def post(alarm: Alarm, url: str, *, sleep: Callable[[float], object] = time.sleep) -> str:
    """POSTs an alarm as JSON, with retries; returns why it failed, or an empty string."""
    data = json.dumps({"source": "semel dlq watch", **asdict(alarm)}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "semel"}
    problem = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(2.0 ** (attempt - 1))
        request = urllib.request.Request(url, data=data, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_WEBHOOK_TIMEOUT):
                return ""
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code}"
            error.close()
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError) as error:
            problem = reason(getattr(error, "reason", None) or error)
    return f"the webhook of {urlsplit(url).hostname} did not accept the alarm for {alarm.queue}: {problem}"


def execute(alarm: Alarm, command: str) -> str:
    """Runs a command with the alarm in its environment; returns why it failed, or an empty string."""
    variables: dict[str, Any] = {f"SEMEL_ALARM_{name.upper()}": value for name, value in asdict(alarm).items()}
    environment = os.environ | {name: "" if value is None else str(value) for name, value in variables.items()}
    try:
        done = subprocess.run(command, shell=True, env=environment, timeout=_COMMAND_TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"--exec {command!r}: {error}"
    return f"--exec {command!r} exited with status {done.returncode}" if done.returncode else ""
