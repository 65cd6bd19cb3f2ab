"""Who did what to which queue, when, and what came of it: one JSON object a line, added to and never changed.

The rules: an action is in the log before it begins and once more when it has ended, so that a crash leaves the first.
A line is written with one call and is on disk before anything else happens. What cannot be written down is not done.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from semel.dlq.filter import parser as filters
from semel.dlq.filter.fields import Field
from semel.errors import SemelError

FILE: Final = "audit.jsonl"
_log: Final = logging.getLogger("semel.dlq")
_BLOCK: Final = 64 * 1024
_LONGEST: Final = 4_000  # characters of a text in it


class AuditError(SemelError):
    """The audit log cannot be written to or read. `reason` is the system's."""

    reason = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`outcome` is "begun" where an action starts, then done, stopped, cancelled, failed …; `count`: messages."""

    at: float
    who: str
    action: str
    queue: str = ""
    where: str = ""
    count: int | None = None
    outcome: str = ""
    job: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Ending:
    """What is known of an action at its end."""

    outcome: str = "done"
    count: int | None = None
    details: dict[str, str] = field(default_factory=dict)


class Audit:
    """The log in a state folder. Safe for any number of threads and processes."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    @classmethod
    def at(cls, folder: Path, *, clock: Callable[[], float] = time.time) -> Audit:
        return cls(folder / FILE, clock=clock)

    def write(
        self,
        who: str,
        action: str,
        *,
        queue: str = "",
        where: str = "",
        count: int | None = None,
        outcome: str = "",
        job: str = "",
        details: Mapping[str, str] | None = None,
    ) -> AuditEntry:
        cut = {name: _short(text) for name, text in (details or {}).items() if text}
        entry = AuditEntry(self._clock(), who, action, queue, _short(where), count, _short(outcome), job, cut)
        line = orjson.dumps(asdict(entry)) + b"\n"
        try:
            # Only then is a line never torn by another process's: O_APPEND, and all of it at once.
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, line)
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            refused = AuditError(
                f"{action} {queue}: not done, as it cannot be written to the audit log {self.path}: "
                f"{error.strerror or error}; set SEMEL_STATE to a folder that this user may write to"
            )
            refused.reason = f"{self.path}: {error.strerror or error}"
            raise refused from None
        return entry

    def add(self, who: str, action: str, **known: Any) -> str:
        """The same for what is done already: why it could not be written down, or nothing."""
        try:
            self.write(who, action, **known)
        except AuditError as error:
            return f"this could not be written to the audit log: {error.reason}"
        return ""

    @contextmanager
    def around(self, who: str, action: str, *, queue: str = "", **details: str) -> Iterator[Ending]:
        """In the log before it begins, and once more when it has ended, however that was."""
        self.write(who, action, queue=queue, outcome="begun", details=details)
        ending = Ending()
        try:
            yield ending
        except Exception as error:
            self.add(who, action, queue=queue, count=ending.count, outcome=f"failed: {error}", details=details)
            raise
        details |= ending.details
        if problem := self.add(who, action, queue=queue, count=ending.count, outcome=ending.outcome, details=details):
            _log.warning("%s %s: %s", action, queue, problem)

    def entries(self, where: str = "", limit: int | None = None) -> Iterator[AuditEntry]:
        """The newest first. `where` is a filter over who, action, queue, where, outcome, job, count, at and age."""
        wanted, now = filters.parse(where, FIELDS), self._clock()
        found = 0
        for line in _backwards(self.path):
            entry = _read(line)
            if entry is None or not wanted.holds(SeenEntry(entry, now)):
                continue
            yield entry
            found += 1
            if found == limit:
                return


def somebody() -> str:
    """The user at this machine, for the command line."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user id without a name
        return f"uid {os.getuid()}@{socket.gethostname()}"


# The filter's view of an entry.


class SeenEntry:
    def __init__(self, entry: AuditEntry, now: float) -> None:
        self.entry, self.now = entry, now

    @property
    def texts(self) -> tuple[str, ...]:
        entry = self.entry
        named = (entry.who, entry.action, entry.queue, entry.where, entry.outcome, entry.job)
        return named + tuple(entry.details.values())


def _text(name: str) -> Field:
    return Field(name, "text", lambda seen: (found,) if (found := getattr(seen.entry, name)) else ())


FIELDS: Final = {
    one.name: one
    for one in (
        *map(_text, ("who", "action", "queue", "where", "outcome", "job")),
        Field("count", "number", lambda seen: () if seen.entry.count is None else (seen.entry.count,)),
        Field("at", "time", lambda seen: (seen.entry.at,)),
        Field("age", "duration", lambda seen: (max(0.0, seen.now - seen.entry.at),)),
    )
}


# Lines.


def _read(line: bytes) -> AuditEntry | None:
    try:
        content: dict[str, Any] = orjson.loads(line)
        return AuditEntry(**{name: content[name] for name in AuditEntry.__slots__ if name in content})
    except (ValueError, TypeError, KeyError):
        return None  # a line that a full disk has cut


def _backwards(path: Path) -> Iterator[bytes]:
    """The lines of a file, the last one first, whatever its size."""
    try:
        with path.open("rb") as file:
            place = file.seek(0, os.SEEK_END)
            rest = b""
            while place:
                size = min(_BLOCK, place)
                place = file.seek(place - size)
                first, *lines = (file.read(size) + rest).split(b"\n")
                yield from (line for line in reversed(lines) if line)
                rest = first
            if rest:
                yield rest
    except FileNotFoundError:
        return
    except OSError as error:
        raise AuditError(f"the audit log {path} cannot be read: {error.strerror or error}") from None


def _short(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
