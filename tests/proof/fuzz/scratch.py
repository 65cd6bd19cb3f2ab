"""A folder for the files that targets read, in memory if the system has `/dev/shm`. It is removed with the process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final


def _place() -> str | None:
    shared = "/dev/shm"
    return shared if "TMPDIR" not in os.environ and os.access(shared, os.W_OK) else None


FOLDER: Final = Path(tempfile.mkdtemp(prefix="semel-fuzz-", dir=_place()))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def folder(name: str) -> Path:
    """A new empty folder of this name in FOLDER."""
    place = FOLDER / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place
