"""When to raise an alarm over a dead-letter queue: letters have come, or the first of them will soon be lost.

The rule is pure: counts and the time go in, alarms come out. What was told is remembered, so that the next look, or the
next run from cron, does not tell it again; an alarm that was not delivered is not remembered as told. Nothing here
receives a message.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from semel.dlq.messages import DeadLetterQueue
from semel.errors import SemelError

FILE: Final = "watch.json"
AGAIN: Final = 3_600.0  # seconds until an expiry that is still near is told again
_TRIES: Final = 4
_PATIENCE: Final = 10.0
_COMMAND_PATIENCE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """`kind` is arrival or expiry. `new`: letters that came since the last look."""

    kind: str
    queue: str
    text: str
    at: float
    depth: int
    new: int = 0
    first_expires: float | None = None


@dataclass(slots=True)
class Told:
    """What is known of a queue from earlier looks."""

    depths: list[int] = field(default_factory=list)  # the last two: SQS's counts are approximate, and swing
    expiry_at: float | None = None  # when its expiry was last told


class Watch:
    """`before`: how long before a letter is lost that is told; None, never."""

    def __init__(self, before: float | None, told: Mapping[str, Told] | None = None) -> None:
        self._before = before
        self.told: dict[str, Told] = dict(told or {})
        self._delivered = _copied(self.told)

    def know(self, queues: Sequence[DeadLetterQueue]) -> None:
        """Takes what is there as known."""
        for info in queues:
            self.told[info.name] = Told([info.depth])

    def delivered(self, waiting: Collection[str] = ()) -> Mapping[str, Told]:
        """What the next run may take as told: of queues whose alarms wait to be delivered, what was before those."""
        self._delivered |= _copied({name: told for name, told in self.told.items() if name not in waiting})
        return self._delivered

    def look(self, queues: Sequence[DeadLetterQueue], now: float) -> list[Alarm]:
        found: list[Alarm] = []
        for info in queues:
            told = self.told.setdefault(info.name, Told())
            before = max(told.depths, default=0)
            if info.depth > before:
                new = info.depth - before
                text = f"{new:,} new in {info.name}, which has {info.depth:,}" if before else _first(info)
                found.append(Alarm("arrival", info.name, text, now, info.depth, new, info.first_expires))
            told.depths = [*told.depths, info.depth][-2:]
            found += self._expiring(info, told, now)
        return found

    def _expiring(self, info: DeadLetterQueue, told: Told, now: float) -> list[Alarm]:
        left = None if info.first_expires is None else info.first_expires - now
        if self._before is None or left is None or left > self._before or not info.depth:
            if left is not None:
                told.expiry_at = None
            return []
        if told.expiry_at is not None and now - told.expiry_at < AGAIN:
            return []
        told.expiry_at = now
        hours, minutes = divmod(int(max(0.0, left)) // 60, 60)
        text = f"the first of {info.depth:,} in {info.name} is lost in {hours} h {minutes} min, when its retention ends"
        return [Alarm("expiry", info.name, text, now, info.depth, 0, info.first_expires)]


def _copied(told: Mapping[str, Told]) -> dict[str, Told]:
    return {name: Told([*one.depths], one.expiry_at) for name, one in told.items()}


def _first(info: DeadLetterQueue) -> str:
    sources = f" of {', '.join(info.sources)}" if info.sources else ""
    return f"{info.depth:,} dead letter{'' if info.depth == 1 else 's'}{sources} in {info.name}"


# What was told, from run to run.


def load(folder: Path, endpoint: str) -> dict[str, Told]:
    try:
        content = json.loads((folder / FILE).read_text())[endpoint]
        return {name: Told(**one) for name, one in content.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def save(folder: Path, endpoint: str, told: Mapping[str, Told]) -> None:
    path = folder / FILE
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        content = {}
    content = (content if isinstance(content, dict) else {}) | {
        endpoint: {name: asdict(one) for name, one in told.items()}
    }
    draft = path.with_name(f".{FILE}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(content))
        draft.replace(path)
    except OSError as error:
        raise SemelError(f"what was told cannot be remembered in {path}: {error.strerror or error}") from None


# Telling.


def check_webhook(url: str) -> None:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise SemelError(f"--webhook {url!r} is no address; write https://host/path")


def post(alarm: Alarm, url: str, *, sleep: Callable[[float], object] = time.sleep) -> str:
    """Sends an alarm as JSON, with a few attempts; why it failed in the end, or nothing."""
    data = json.dumps({"source": "semel dlq watch", **asdict(alarm)}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "semel"}
    problem = ""
    for attempt in range(_TRIES):
        if attempt:
            sleep(2.0 ** (attempt - 1))
        request = urllib.request.Request(url, data=data, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE):
                return ""
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code}"
            error.close()
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError) as error:
            problem = str(getattr(error, "reason", None) or error)
    return f"the webhook {url} did not take the alarm: {problem}"


def execute(alarm: Alarm, command: str) -> str:
    """Runs a command with the alarm in its environment; why it failed, or nothing."""
    known: dict[str, Any] = {f"SEMEL_ALARM_{name.upper()}": value for name, value in asdict(alarm).items()}
    environment = os.environ | {name: "" if value is None else str(value) for name, value in known.items()}
    try:
        done = subprocess.run(command, shell=True, env=environment, timeout=_COMMAND_PATIENCE, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"--exec {command!r}: {error}"
    return f"--exec {command!r} ended with {done.returncode}" if done.returncode else ""
