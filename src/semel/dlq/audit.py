"""The audit log: who did what to which queue, when, and with which outcome; one JSON object per line.

An action is logged before it begins and again when it has ended, so a crash leaves the first entry. Each line is on
disk before anything else happens. An action that cannot be logged is not carried out.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from semel.dlq.filter import parser as filters
from semel.dlq.filter.fields import Field
from semel.errors import SemelError
from semel.telemetry.rotating_log import RotatingLog

FILE: Final = "audit.jsonl"
MAX_BYTES: Final = 64 << 20  # of one file
KEEP: Final = 7  # rotated files
_MAX_TEXT: Final = 4_000  # characters
_log: Final = logging.getLogger("semel.dlq")


class AuditError(SemelError):
    """The audit log cannot be written or read. `reason` has the file and the system's error. Set SEMEL_STATE to a
    folder that this user may write to."""

    reason = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`outcome` is "begun" in the first entry of an action, and done, stopped, cancelled, failed … in the second.
    `count` is the number of messages."""

    at: float
    who: str
    action: str
    queue: str = ""
    where: str = ""
    count: int | None = None
    outcome: str = ""
    job: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


_DECODER: Final = msgspec.json.Decoder(AuditEntry)


@dataclass(slots=True)
class Ending:
    """The content of an action's second entry. `problem`, set after the block, says why it could not be written."""

    outcome: str = "done"
    count: int | None = None
    details: dict[str, str] = field(default_factory=dict)
    problem: str = ""


class Audit:
    """The log in a state folder. Safe for any number of threads and processes."""

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.time, max_bytes: int = MAX_BYTES, keep: int = KEEP
    ) -> None:
        self.path = path
        self._clock = clock
        self._file = RotatingLog(path, max_bytes=max_bytes, keep=keep)

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
        """Logs an action before it begins. Raises AuditError if it cannot be logged: then it must not be done."""
        kept = {name: _short(text) for name, text in (details or {}).items() if text}
        entry = AuditEntry(
            self._clock(), _short(who), action, _short(queue), _short(where), count, _short(outcome), job, kept
        )
        try:
            self._file.append(msgspec.json.encode(entry), sync=True)
        except OSError as error:
            what = f"{action} {queue}".rstrip()
            refused = AuditError(
                f"{what}: not done, as it cannot be written to the audit log {self.path}: "
                f"{error.strerror or error}; set SEMEL_STATE to a folder that this user may write to"
            )
            refused.reason = f"{self.path}: {error.strerror or error}"
            raise refused from None
        return entry

    def add(self, who: str, action: str, **known: Any) -> str:
        """Logs the end of an action. Returns why it could not be logged, or an empty string."""
        try:
            self.write(who, action, **known)
        except AuditError as error:
            return f"the end of this action could not be written to the audit log: {error.reason}"
        return ""

    @contextmanager
    def around(
        self, who: str, action: str, *, queue: str = "", where: str = "", job: str = "", **details: str
    ) -> Iterator[Ending]:
        """Logs the beginning before the block runs, or raises AuditError; logs the end even if the block raises."""
        known: dict[str, Any] = {"queue": queue, "where": where, "job": job}
        self.write(who, action, outcome="begun", details=details, **known)
        ending = Ending()
        try:
            yield ending
        except BaseException as error:
            ending.outcome = _failure(error)
            raise
        finally:
            ending.problem = self.add(
                who, action, count=ending.count, outcome=ending.outcome, details=details | ending.details, **known
            )
            if ending.problem:
                _log.warning("%s %s: %s", action, queue, ending.problem)

    def entries(self, where: str = "", limit: int | None = None) -> Iterator[AuditEntry]:
        """Newest first. `where` is a filter over who, action, queue, where, outcome, job, count, at and age."""
        wanted, now = filters.parse(where, FIELDS), self._clock()
        count = 0
        try:
            for line in self._file.newest_first():
                try:
                    entry = _DECODER.decode(line)
                except (ValueError, RecursionError):
                    continue  # truncated by a full disk, or damaged
                if not wanted.holds(AuditCandidate(entry, now)):
                    continue
                yield entry
                count += 1
                if count == limit:
                    return
        except OSError as error:
            raise AuditError(f"the audit log {self.path} cannot be read: {error.strerror or error}") from None


def somebody() -> str:
    """The current user, as user@host; for the command line."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user id without a name
        return f"uid {os.getuid()}@{socket.gethostname()}"


def _failure(error: BaseException) -> str:
    if isinstance(error, SemelError):
        return f"failed: {error}"
    if isinstance(error, Exception):
        return f"failed: {type(error).__name__}: {error}"
    return f"interrupted: {type(error).__name__}"


def _short(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


class AuditCandidate:
    """An entry as filters read it."""

    def __init__(self, entry: AuditEntry, now: float) -> None:
        self.entry, self.now = entry, now

    @property
    def texts(self) -> tuple[str, ...]:
        entry = self.entry
        return (
            *(entry.who, entry.action, entry.queue, entry.where, entry.outcome, entry.job),
            *entry.details.values(),
        )


def _text(name: str) -> Field:
    return Field(name, "text", lambda candidate: (text,) if (text := getattr(candidate.entry, name)) else ())


FIELDS: Final = {
    known.name: known
    for known in (
        *map(_text, ("who", "action", "queue", "where", "outcome", "job")),
        Field("count", "number", lambda candidate: () if candidate.entry.count is None else (candidate.entry.count,)),
        Field("at", "time", lambda candidate: (candidate.entry.at,)),
        Field("age", "duration", lambda candidate: (max(0.0, candidate.now - candidate.entry.at),)),
    )
}
