"""How one process asks another to pause, resume or cancel a job, and how it knows whether that job still runs.

The rules: a request is one line, appended with a single write to the job's control file; the process that runs the job
reads the lines in order, none is lost, and its next note of the job says which it has taken. A process of this machine
runs as long as the system knows it; of any other only its last heartbeat is known.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from semel.errors import SemelError

ACTIONS: Final = ("pause", "resume", "cancel")
HEARTBEAT: Final = 5.0  # seconds between two heartbeats of a job that runs
LATE: Final = 60.0  # without one for so long, the process of another machine is taken for gone


class JobNotRunning(SemelError):
    """The job has ended, or its process is gone: nobody is there to pause, resume or cancel it."""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """`action` is pause, resume or cancel."""

    action: str
    who: str
    at: float
    id: str


class ControlFile:
    """Next to a job's own file: what is asked of it. Safe for any number of processes that ask."""

    def __init__(self, job_file: Path) -> None:
        self._path = job_file.with_suffix(".control")
        self._read_to = 0

    def ask(self, action: str, who: str, at: float) -> ControlRequest:
        request = ControlRequest(action, who, at, uuid.uuid4().hex)
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, json.dumps(asdict(request)).encode() + b"\n")
            finally:
                os.close(handle)
        except OSError as error:
            raise SemelError(
                f"job {self._path.stem} cannot be asked to {action}: {self._path} cannot be written: "
                f"{error.strerror or error}"
            ) from None
        return request

    def new(self) -> list[ControlRequest]:
        """What was asked since the last call, in order."""
        try:
            if self._path.stat().st_size == self._read_to:
                return []
            with self._path.open("rb") as file:
                file.seek(self._read_to)
                content = file.read()
        except OSError:  # nobody has asked for anything
            return []
        lines = content[: content.rfind(b"\n") + 1]
        self._read_to += len(lines)
        return [request for line in lines.splitlines() if (request := _request(line)) is not None]

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _request(line: bytes) -> ControlRequest | None:
    try:
        found = ControlRequest(**json.loads(line))
    except (ValueError, TypeError):
        return None
    return found if found.action in ACTIONS else None


# Whether a process is there.


def this_process(heartbeat: float) -> dict[str, Any]:
    """What a job's file says of the process that runs it."""
    return {"pid": os.getpid(), "host": _host(), "born": _born(), "heartbeat": heartbeat}


def alive(process: Mapping[str, Any], now: float) -> bool:
    pid, born = process.get("pid"), process.get("born")
    if process.get("host") == _host() and isinstance(pid, int) and born:
        return bool(born == _born(pid))
    heartbeat = process.get("heartbeat")
    return isinstance(heartbeat, int | float) and now - heartbeat < LATE


def _host() -> str:
    """Where process numbers mean the same: two containers may have one name, and each a process 1."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _born(pid: int | str = "self") -> str:
    """When a process began, in the system's own words; tells it from a later one with the same number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if stat[0] in ("Z", "X") else stat[19]
    except (OSError, IndexError):
        return ""
