"""The error for logs without a single event: how many lines there are, what is wrong with them, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from semel.doctor.errors import DoctorError
from semel.doctor.logs.discovery import local_path
from semel.doctor.logs.mapping import LogMapping
from semel.doctor.logs.phrases import MOST_SHOWN
from semel.doctor.model import Quality
from semel.doctor.text_format import clean, listed
from semel.telemetry.field_mapping import written
from semel.text import count

EXAMPLE: Final = "--map id=.messageId,time=.timestamp,event=.event"
MOST_FIELDS: Final = 12
FIRST_LINE_BYTES: Final = 64 * 1024


def refuse(paths: Sequence[str], quality: Quality, mapping: LogMapping) -> None:
    """Raises DoctorError if files were read, and nothing in them can be used, whatever the time."""
    if quality.events or quality.out_of_range or quality.dropped or not (quality.files or quality.unreadable):
        return
    raise DoctorError("\n".join(_sentences(paths, quality, mapping)))


def _sentences(paths: Sequence[str], quality: Quality, mapping: LogMapping) -> Iterator[str]:
    where = f"--log {' '.join(paths)}"
    if quality.unreadable:
        yield f"{where}: {count(len(quality.unreadable), 'file')} cannot be read: {listed(quality.unreadable)}"
    elif not quality.lines:
        yield f"{where}: {count(quality.files, 'file')}, without a single line"
    if not quality.lines:
        return
    wanted = "no event of Semel's attempt log" if mapping.is_own else "no event by this --map"
    yield f"{where}: {count(quality.lines, 'line')}, and {wanted}: {', '.join(_flaws(quality, mapping))}."
    if quality.malformed and quality.samples:
        yield f"For example: {clean(quality.samples[0], 300)}"
    if quality.unknown_words:
        words = [clean(word, MOST_SHOWN) for word in quality.unknown_words]
        yield f"Say what its words mean ({listed(words)}), for example: --events started={words[0]}"
        return
    fields = _fields_of_first_line(paths)
    if quality.malformed == quality.lines and not fields:
        yield "The doctor reads JSON lines: one object for each line, with a message id and a time."
        return
    if fields:
        yield f"The fields of its first line: {listed(fields, MOST_FIELDS)}"
    if mapping.is_own:
        yield f"If it is your application's own log, say where its fields are, for example: {EXAMPLE}"
    else:
        id_and_time = ", ".join(
            f"{name}={written(path)}" for name, path in mapping.paths.items() if name in ("id", "time")
        )
        yield f"Correct the paths of --map: they are {id_and_time}"


def _flaws(quality: Quality, mapping: LogMapping) -> Iterator[str]:
    own = mapping.is_own
    for number, flaw in (
        (quality.malformed, "not JSON, or with values of other types" if own else "not JSON"),
        (quality.incomplete, "without message_id, at or step" if own else "without id, time or event"),
        (quality.unknown_events, "with an unknown event"),
    ):
        if number:
            yield f"{number:,} {flaw}"


def _fields_of_first_line(paths: Sequence[str]) -> list[str]:
    """The paths in the first line of the first file, as `--map` writes them; none if it cannot be seen at once."""
    try:
        with Path(local_path(paths[0])).open("rb") as file:
            line: Any = json.loads(file.readline(FIRST_LINE_BYTES))
    except (OSError, ValueError, DoctorError):  # a folder, a bucket, a compressed file
        return []
    return [clean(written(path), MOST_SHOWN) for path in _leaves(line)] if isinstance(line, dict) else []


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves(below, (*path, name))
    elif isinstance(value, list) and value:
        yield from _leaves(value[0], (*path, 0))
    else:
        yield path
