"""Where Semel keeps files that outlive a process: the audit log, snapshots, jobs, and the registry of workers.

Each user has one folder, which nobody else can read, because its files may quote messages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from semel.errors import SemelError


def state_folder(environment: Mapping[str, str] | None = None) -> Path:
    """`$SEMEL_STATE`, else `$XDG_STATE_HOME/semel`, else `~/.local/state/semel`; created if it does not exist."""
    known = os.environ if environment is None else environment
    if own := known.get("SEMEL_STATE"):
        folder = Path(os.path.expanduser(own))
    else:
        base = known.get("XDG_STATE_HOME")
        folder = (Path(base) if base and Path(base).is_absolute() else _home(known)) / "semel"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SemelError(
            f"the state folder {folder} cannot be created: {error.strerror or error}; "
            "set SEMEL_STATE to a folder that this user may write to"
        ) from None
    return folder


def _home(known: Mapping[str, str]) -> Path:
    home = known.get("HOME")
    return (Path(home) if home else Path.home()) / ".local" / "state"
