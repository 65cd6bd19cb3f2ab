"""Why duplicates came, read off the attempt log while it grows: each line once, and only what was added since.

What a worker notes of a duplicate is enough to tell: SQS counts the deliveries of one message, so a first delivery of a
key that is done is a second message of a producer, or a redrive, and a later one is SQS' own. Only JSON lines are
followed, the open file of a Parquet log among them. The doctor, which sees all of the log, tells more.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import orjson

MOST_AT_FIRST: Final = 64 * 1024 * 1024  # bytes of what was there before, the newest first
MOST_FILES: Final = 10_000
_BLOCK: Final = 1 << 20
_FILES: Final = re.compile(r"[^._].*\.(jsonl|ndjson)|\.attempts-.+\.(jsonl|parquet)\.open")
# Only these lines are parsed; the others, most of them, are passed over as bytes.
_TELLING: Final = re.compile(rb'^.*"step":\s?"(?:duplicate|bounced)".*$', re.MULTILINE)
# cause: (title, what happened and why it did no harm)
WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "lost-delete": (
        "Delivered again when done",
        "SQS delivered it again after its effect was recorded: a delete was lost or late. Deleted, not run.",
    ),
    "producer": ("Sent twice", "A producer sent the same key as another message. Its effect was there: not run again."),
    "redrive": (
        "Redriven when done",
        "Somebody sent it back though its effect was there. Its key told: not run again.",
    ),
    "visibility": (
        "Delivered while worked on",
        "Its visibility ended, or SQS handed it out twice, while a worker had its key. Put back, not run.",
    ),
}


class Causes:
    """`since`: what happened before is not counted. Thread-safe."""

    def __init__(self, logs: Sequence[str], *, clock: Callable[[], float] = time.time) -> None:
        self._paths = [path for text in logs if (path := _local(text)) is not None]
        self._clock = clock
        self._lock = threading.Lock()
        self._read: dict[tuple[int, int], int] = {}  # by device and inode: a file keeps them when it is renamed
        self._counts: Counter[str] = Counter()
        self._since: float | None = None

    def __bool__(self) -> bool:
        return bool(self._paths)

    def counts(self, since: float | None) -> Counter[str]:
        """How many duplicates of each cause there were; `since` counts when it is asked for the first time."""
        with self._lock:
            first = self._since is None
            if self._since is None:
                self._since = self._clock() - 86_400 if since is None else since
            left = MOST_AT_FIRST
            for path, info in self._files():
                known = (info.st_dev, info.st_ino)
                start = self._read.get(known, 0)
                if info.st_mtime < self._since or info.st_size <= start:
                    continue
                if first and (left := left - info.st_size) < 0:
                    self._read[known] = info.st_size
                    continue
                self._read[known] = self._follow(path, start)
            return Counter(self._counts)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """The newest first."""
        found: list[tuple[Path, os.stat_result]] = []
        for root in self._paths:
            for folder, folders, names in os.walk(root):
                folders[:] = [name for name in folders if not name.startswith((".", "_"))]
                for name in names:
                    if _FILES.fullmatch(name):
                        path = Path(folder, name)
                        try:
                            found.append((path, path.stat()))
                        except OSError:
                            continue  # renamed just now; it is read next time, under its new name
        found.sort(key=lambda one: one[1].st_mtime, reverse=True)
        return found[:MOST_FILES]

    def _follow(self, path: Path, place: int) -> int:
        """Count what is there from `place` on, whole lines only; returns where it ended."""
        try:
            with path.open("rb") as file:
                file.seek(place)
                while block := file.read(_BLOCK):
                    end = block.rfind(b"\n") + 1
                    if not end:
                        return place if len(block) < _BLOCK else place + len(block)
                    for line in _TELLING.finditer(block, 0, end):
                        self._count(line[0])
                    place += end
                    file.seek(place)
        except OSError:
            pass
        return place

    def _count(self, line: bytes) -> None:
        try:
            event: dict[str, Any] = orjson.loads(line)
            if event["at"] >= (self._since or 0.0):
                self._counts[cause_of(event)] += 1
        except (ValueError, KeyError, TypeError):
            return


def cause_of(event: Mapping[str, Any]) -> str:
    again = (event.get("receive_count") or 0) > 1
    if event["step"] == "bounced":
        return "visibility" if again else "producer"
    if again:
        return "lost-delete"
    return "redrive" if event.get("key_origin") == "carried" else "producer"


def _local(text: str) -> Path | None:
    """A folder on this machine; buckets are the doctor's matter."""
    parts = urlsplit(text)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in text else Path(text)


def pairs(counts: Mapping[str, int]) -> Iterator[tuple[str, str, str, int]]:
    """(cause, title, text, count) of those that happened."""
    for cause, (title, text) in WORDS.items():
        if counts.get(cause):
            yield cause, title, text, counts[cause]
