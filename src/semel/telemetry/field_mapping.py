"""Options that say where values are in the lines of a foreign log: `name=value` pairs, and paths as in jq.

    id=.msg.messageId,time=.ts,event=.event,queue=orders

Paths are .a.b, ."@timestamp", .a["x.y"], .Records[0].messageId.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from semel.errors import InvalidRequest

Path = tuple[str | int, ...]
T = TypeVar("T")


class MappingError(InvalidRequest):
    """An option that names fields cannot be read. Write the option as the text shows."""


def plain(word: str) -> str:
    """A word in the form in which it is looked up: case and punctuation do not matter."""
    return re.sub("[^a-z0-9]+", "_", word.lower()).strip("_")


def value_at(record: Any, path: Path) -> Any:
    """The value at the path; None if there is none."""
    for part in path:
        try:
            record = record[part]
        except (KeyError, IndexError, TypeError):
            return None
    return record


def as_text(value: Any) -> str:
    """A value as text, trimmed; objects and lists as JSON. Empty if there is none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | dict | list):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return str(value)


_STRING: Final = r'"(?:[^"\\]|\\.)*"'  # as in JSON
_PAIR: Final = re.compile(rf"\s*([A-Za-z_]+)\s*=\s*((?:{_STRING}|'[^']*'|[^,\"'])*?)\s*(?:,|$)", re.DOTALL)


def pairs(option: str, text: str) -> Iterator[tuple[str, str]]:
    place = 0
    text = _checked(option, text.strip().rstrip(","))
    while place < len(text):
        match = _PAIR.match(text, place)
        if match is None:
            raise MappingError(f"{option}: cannot read {text[place:]!r}; write name=value, with commas between them")
        yield match[1], match[2]
        place = match.end()


_PART: Final = re.compile(
    rf"\.?\[\s*(?:(?P<bracketed>{_STRING}|'[^']*')|(?P<index>\d+))\s*\]"
    rf"|\.(?P<quoted>{_STRING})|\.(?P<name>[^.\[\]\"'\s|]+)",
    re.DOTALL,
)


def parse_path(name: str, text: str) -> Path:
    path: list[str | int] = []
    place = 1 if text.startswith("$") else 0
    while place < len(text):
        match = _PART.match(text, place)
        if match is None:
            raise MappingError(
                f'--map {name}={text}: cannot read it from {text[place:]!r} on; paths look like .a.b, ."@time", .a[0].b'
            )
        string = match["bracketed"] or match["quoted"]
        path.append(int(match["index"]) if match["index"] else unquoted(name, string) if string else match["name"])
        place = match.end()
    if not path or isinstance(path[0], int):
        raise MappingError(f"--map {name}={text}: a line is an object; name a field of it, as in {name}=.field")
    return tuple(path)


def path_or_constant(name: str, value: str, *, constant: bool) -> Path | str:
    """The path of a field or, if a `constant` is allowed instead, that text."""
    if value.startswith((".", "$", "[")):
        return parse_path(name, value)
    if constant and (text := unquoted(name, value)):
        return text
    raise MappingError(f"--map {name}={value}: a path begins with a dot, as in {name}=.{value or 'field'}")


def parse_words(text: str, meanings: Mapping[str, T], names: Collection[str], kind: str) -> dict[str, T]:
    """What each word of `--events` means. An unknown name is refused, with a list of `names`."""
    chosen: dict[str, T] = {}
    for name, value in pairs("--events", text):
        if name not in meanings:
            every = ", ".join(names)
            raise MappingError(f"--events {name}=…: no such {kind}{near(name, names)}; there are {every}")
        words = [plain(word) for word in value.strip("\"'").split("|")]
        if not all(words):
            raise MappingError(f"--events {name}={value}: give words, as in {name}=charged|shipped")
        for word in words:
            if chosen.setdefault(word, meanings[name]) is not meanings[name]:
                raise MappingError(f"--events: {word} cannot be both {chosen[word]} and {meanings[name]}")
    return chosen


def written(path: Path) -> str:
    """A path as jq writes it."""
    parts = (f"[{part}]" if isinstance(part, int) else _written(part) for part in path)
    text = "".join(parts)
    return text if text.startswith(".") else f".{text}"


def _written(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{json.dumps(name, ensure_ascii=False)}]"


def unquoted(name: str, value: str) -> str:
    if value.startswith("'") and value.endswith("'"):
        return value.strip("'")
    if not value.startswith('"'):
        return value
    try:
        text: str = json.loads(value, strict=False)
    except ValueError as error:
        raise MappingError(f"--map {name}={value}: not a string as in JSON: {error}") from None
    return _checked(f"--map {name}", text)


def _checked(option: str, text: str) -> str:
    """Text that can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MappingError(f"{option}: {text[error.start : error.end]!r} is half of a character") from None
    return text


def near(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, known, 1)
    return f", did you mean {close[0]}?" if close else ""
