"""The token that a dashboard made for itself: a file in the state folder, where commands of the same user find it.

Only this user can read the file. The token is sent only to the exact address in the file: `localhost` can also mean
::1, where another user's server could listen on the same port.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from semel.errors import SemelError
from semel.state_folder import state_folder


def write(folder: Path, url: str, token: str) -> None:
    """Writes the file, in place of that of an earlier dashboard on the same port."""
    file = _file(folder, url)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        json.dump({"url": url, "token": token}, stream)
    draft.replace(file)


def remove(folder: Path, url: str, token: str) -> None:
    """Removes the file, unless another dashboard has replaced it."""
    with suppress(OSError, ValueError):
        if _read(folder, url)["token"] == token:
            _file(folder, url).unlink()


def find(url: str, folder: Path | None = None) -> str | None:
    """The token of the dashboard at `url`, if it runs on this machine as this user and made one."""
    with suppress(OSError, ValueError, SemelError):
        known = _read(state_folder() if folder is None else folder, url)
        if known["url"] == url.rstrip("/"):
            return known["token"]
    return None


def _read(folder: Path, url: str) -> dict[str, str]:
    try:
        content = json.loads(_file(folder, url).read_bytes())
        return {"url": str(content["url"]), "token": str(content["token"])}
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(error) from None


def _file(folder: Path, url: str) -> Path:
    return folder / f"dashboard-{urlsplit(url).port}.json"
