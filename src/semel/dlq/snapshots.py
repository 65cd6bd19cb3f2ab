"""Messages as JSON lines, with everything that a restore needs. Exports and snapshots have the same format.

Each line is an object: `semel` (the format, 1), `exported_at`, `queue` (where the message was), `id`, `body`,
`attributes` (its own: `type` and `value`, or `base64` for bytes), `group`, `dedup`, `trace`, and `source`, `key`,
`reason`, `error`, `attempts`, `original_id`, `redrives`, `by_semel`; for people: `sent`, `receives`, `first_received`,
`fingerprint`, `system`.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import orjson

from semel.dlq.messages import DeadLetterMessage, as_json
from semel.errors import SemelError
from semel.sqs.client.messages import Attribute

FORMAT: Final = 1
_KEPT_FOR: Final = 90 * 86_400.0  # seconds
_KEPT_FILES: Final = 1_000
_LONGEST_NAME: Final = 200  # characters; a file system takes 255 bytes
_FIELDS: Final = (
    *("id", "queue", "body", "sent", "receives", "first_received", "source", "key", "reason", "error", "attempts"),
    *("original_id", "group", "dedup", "sequence", "trace", "redrives", "by_semel", "fingerprint", "attributes"),
    "system",
)


class SnapshotError(SemelError):
    """A file of messages cannot be written, or a line of it cannot be read. Check the file and the line that the text
    names."""


def line(message: DeadLetterMessage, *, at: float) -> bytes:
    if message.cut:
        raise SnapshotError(
            f"message {message.id}: only the beginning of its body was read; a snapshot needs all of it"
        )
    content = as_json(message)
    return orjson.dumps({"semel": FORMAT, "exported_at": at} | {name: content[name] for name in _FIELDS}) + b"\n"


def read(text: bytes, number: int = 1, name: str = "the file") -> DeadLetterMessage:
    """The message of a line. Raises SnapshotError, which names the line."""
    try:
        content = orjson.loads(text)
        if not isinstance(content, dict):
            raise TypeError("it is not a JSON object")
        if content["semel"] != FORMAT:
            raise SnapshotError(
                f"{name}, line {number}: written by a newer Semel (format {content['semel']}); update this one"
            )
        optional: dict[str, Any] = {
            key: _text(content, key) if content.get(key) is not None else ""
            for key in ("source", "key", "reason", "error", "original_id", "group", "dedup", "sequence", "trace")
        }
        return DeadLetterMessage(
            id=_text(content, "id"),
            queue=_text(content, "queue"),
            body=_text(content, "body"),
            sent=float(content.get("sent") or 0),
            receives=int(content.get("receives") or 0),
            attributes={key: attribute(value) for key, value in (content.get("attributes") or {}).items()},
            system=content.get("system") or {},
            attempts=int(content.get("attempts") or 0),
            redrives=int(content.get("redrives") or 0),
            by_semel=bool(content.get("by_semel")),
            body_bytes=len(content["body"].encode()),
            **optional,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise SnapshotError(
            f"{name}, line {number} is not a message as `semel dlq export` writes it ({why}); nothing was sent "
            "from this line on"
        ) from None


def _text(content: dict[str, Any], key: str) -> str:
    value = content[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is not a string")
    return value


def attribute(value: dict[str, str]) -> Attribute:
    return Attribute(
        value["type"], b64decode(value["base64"], validate=True) if value.get("base64") is not None else value["value"]
    )


def new_path(state: Path, queue: str, at: float) -> Path:
    """A new file for a snapshot of this queue. Removes snapshots beyond the newest 1,000, and those older than 90 days:
    SQS itself keeps no message that long."""
    prune(state / "snapshots", at)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(at))
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", queue.rpartition("/")[2])[:_LONGEST_NAME]
    folder = state / "snapshots"
    path = folder / f"{safe}-{stamp}.jsonl"
    number = 2
    while path.exists():
        path = folder / f"{safe}-{stamp}-{number}.jsonl"
        number += 1
    return path


def newest_first(paths: Iterable[Path]) -> list[tuple[Path, float]]:
    """The files, newest first, with the times at which they were last written."""
    dated = []
    for path in paths:
        with contextlib.suppress(OSError):
            dated.append((path, path.stat().st_mtime))
    return sorted(dated, key=lambda item: item[1], reverse=True)


def prune(folder: Path, now: float) -> None:
    for number, (path, at) in enumerate(newest_first(folder.glob("*.jsonl"))):
        if number >= _KEPT_FILES or now - at > _KEPT_FOR:
            for old in (path, path.with_name(path.name + ".restored")):
                with contextlib.suppress(OSError):
                    old.unlink(missing_ok=True)


class Writer:
    """Writes a new file of messages, which must not exist yet. When `sync` returns, all of it is on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise SnapshotError(f"{path} exists already; name a new file") from None
        except OSError as error:
            raise SnapshotError(f"{path} cannot be written: {error.strerror or error}") from None
        self._file = os.fdopen(handle, "wb")

    def write(self, messages: Iterable[DeadLetterMessage], *, at: float) -> None:
        self.add(line(message, at=at) for message in messages)

    def add(self, lines: Iterable[bytes]) -> None:
        for text in lines:
            self._file.write(text)
            self.count += 1

    def sync(self) -> None:
        """Raises SnapshotError if the file could not be synced: then nothing may rely on it."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            sync_folder(self.path.parent)
        except OSError as error:
            raise SnapshotError(f"{self.path} cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def sync_folder(folder: Path) -> None:
    """Syncs a folder, so that a new file's name is on disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_lines(lines: Iterable[bytes], to: Path | IO[bytes] | None) -> int:
    """Writes lines and returns their number. A file appears only when complete; with None, lines are only counted."""
    if not isinstance(to, Path):
        count = 0
        for text in lines:
            count += 1
            if to is not None:
                to.write(text)
        return count
    draft = to.with_name(f".{to.name}.{os.getpid()}.part")
    draft.unlink(missing_ok=True)
    writer = Writer(draft)
    try:
        writer.add(lines)
        writer.sync()
        draft.replace(to)
    except OSError as error:
        raise SnapshotError(f"{to} cannot be written: {error.strerror or error}") from None
    finally:
        writer.close()
        draft.unlink(missing_ok=True)
    return writer.count


def messages_in(path: Path) -> Iterator[DeadLetterMessage]:
    """The messages of a file, one by one. Skips half a line at the end: its writer was killed before it could sync."""
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    if text.strip():
                        yield read(text, number, path.name)
                except SnapshotError:
                    if text.endswith(b"\n"):
                        raise
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror or error}") from None
