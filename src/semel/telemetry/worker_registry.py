"""The workers of this machine: each one with a health endpoint has an entry in the state folder while it runs.

An entry is a file that is written atomically and removed when the worker ends. A killed worker leaves its entry; the
next reader of the registry removes it. An entry has the address of the worker's endpoint, but never its token.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from semel.errors import SemelError
from semel.state_folder import state_folder
from semel.telemetry.worker_control import Identity

FOLDER: Final = "workers"
LARGEST: Final = 64 * 1024  # bytes of an entry
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+\.json")


@dataclass(frozen=True, slots=True)
class Registered:
    """The entry of a worker. `born`: when its process started, to tell it from a later process with the same pid."""

    id: str
    url: str
    pid: int
    host: str
    started: float
    queues: tuple[str, ...] = ()
    app: str = ""
    processes: int = 1
    needs_token: bool = False
    born: str = ""


def register(
    identity: Identity,
    url: str,
    queues: Sequence[str],
    *,
    processes: int = 1,
    needs_token: bool = False,
    folder: Path | None = None,
) -> Path:
    """Write the entry; returns its file, for `unregister`. Raises SemelError where it cannot be written."""
    entry = Registered(
        identity.id,
        url,
        identity.pid,
        identity.host,
        identity.started,
        tuple(queues),
        identity.app,
        processes,
        needs_token,
        born(identity.pid),
    )
    place = (folder or state_folder()) / FOLDER
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place, prefix=".", suffix=".new")  # readable by this user only
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(entry), file)
        final = place / f"{identity.id}.json"
        os.replace(name, final)
    except OSError as error:
        raise SemelError(
            f"this worker cannot be registered in {place}: {error.strerror or error}; semel top and the dashboard "
            "will not find it by themselves"
        ) from None
    return final


def unregister(entry: Path) -> None:
    with contextlib.suppress(OSError):
        entry.unlink()


def workers(folder: Path | None = None) -> list[Registered]:
    """The workers that run, oldest first. Entries of processes of this machine that have ended are removed."""
    place = (folder or state_folder()) / FOLDER
    entries = []
    try:
        names = sorted(name for name in os.listdir(place) if _NAME.fullmatch(name))
    except OSError:
        return []
    for name in names:
        entry = _read(place / name)
        if entry is None:
            continue
        if entry.host == socket.gethostname() and not _runs(entry):
            unregister(place / name)
            continue
        entries.append(entry)
    return sorted(entries, key=lambda entry: (entry.started, entry.id))


def _read(path: Path) -> Registered | None:
    """None for a file that is not an entry; it is left alone."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        fields = json.loads(path.read_text(encoding="utf-8"))
        return Registered(
            id=str(fields["id"]),
            url=str(fields["url"]),
            pid=int(fields["pid"]),
            host=str(fields["host"]),
            started=float(fields["started"]),
            queues=tuple(map(str, fields["queues"])),
            app=str(fields.get("app", "")),
            processes=int(fields.get("processes", 1)),
            needs_token=bool(fields.get("needs_token", False)),
            born=str(fields.get("born", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _runs(entry: Registered) -> bool:
    try:
        os.kill(entry.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return False  # another user's process: ours has ended, and its pid was used again
    return not entry.born or born(entry.pid) == entry.born


def born(pid: int) -> str:
    """When a process started, in Linux's clock ticks since the boot; "" on other systems."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name before may hold spaces and parentheses
    return fields[19] if len(fields) > 19 else ""
