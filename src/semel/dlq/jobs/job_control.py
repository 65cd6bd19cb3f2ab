"""How one process requests that another pauses, resumes or cancels a job, and whether a job's process is alive.

A request is one line, appended to the job's control file with a single write. The process that runs the job reads the
lines in order, and lists the requests that it has carried out in the job's own file. A process of this machine is alive
if the operating system lists it; a process of another machine, if its heartbeat is recent.
"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path
from typing import Final, Literal

import msgspec

from semel.errors import SemelError

ACTIONS: Final = ("pause", "resume", "cancel")
HEARTBEAT: Final = 5.0  # seconds between two heartbeats of a running job
HEARTBEAT_TIMEOUT: Final = 60.0  # seconds without a heartbeat until a process of another machine is considered gone


class JobNotRunning(SemelError):
    """The job has ended, or its process is gone: it cannot be paused, resumed or cancelled. Start it again for the
    rest, if something is left."""


class ControlRequest(msgspec.Struct, frozen=True):
    action: Literal["pause", "resume", "cancel"]
    who: str
    at: float
    id: str


class ControlFile:
    """The requests for one job, next to its own file. Any number of processes may write to it."""

    def __init__(self, job_file: Path) -> None:
        self._path = job_file.with_suffix(".control")
        self._offset = 0

    def ask(self, action: str, who: str, at: float) -> ControlRequest:
        request = msgspec.convert({"action": action, "who": who, "at": at, "id": uuid.uuid4().hex}, ControlRequest)
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, msgspec.json.encode(request) + b"\n")
            finally:
                os.close(handle)
        except OSError as error:
            raise SemelError(
                f"cannot {action} job {self._path.stem}: {self._path} cannot be written: {error.strerror or error}"
            ) from None
        return request

    def new(self) -> list[ControlRequest]:
        """The requests since the last call, in order."""
        try:
            if self._path.stat().st_size == self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except OSError:  # no request yet
            return []
        lines = content[: content.rfind(b"\n") + 1]
        self._offset += len(lines)
        return [request for line in lines.splitlines() if (request := _request(line)) is not None]

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _request(line: bytes) -> ControlRequest | None:
    try:
        return msgspec.json.decode(line, type=ControlRequest)
    except (ValueError, RecursionError):
        return None


class Process(msgspec.Struct, frozen=True):
    """The process that runs a job. `born`, its start time, distinguishes it from a later process with the same id."""

    pid: int = 0
    host: str = ""
    born: str = ""
    heartbeat: float = 0.0


def this_process(now: float) -> Process:
    return Process(os.getpid(), _host(), _born(), now)


def alive(process: Process, now: float) -> bool:
    if process.host == _host() and process.born:
        return process.born == _born(process.pid)
    return now - process.heartbeat < HEARTBEAT_TIMEOUT


def _host() -> str:
    """The name of the machine and its process namespace: two containers may share a name, and each has a process 1."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _born(pid: int | str = "self") -> str:
    """The start time of a process, as the system has it; "" if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if stat[0] in ("Z", "X") else stat[19]
    except (OSError, IndexError):
        return ""
