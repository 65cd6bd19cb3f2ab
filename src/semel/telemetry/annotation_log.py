"""Annotations in time, such as deploys: one JSON object a line, shown as a line on every chart."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson

from semel.errors import SemelError

FILE: Final = "annotations.jsonl"
LONGEST: Final = 200  # characters
_READ: Final = 1 << 20  # bytes from the end: the newest few thousand


@dataclass(frozen=True, slots=True)
class Annotation:
    """Something that happened at a time, such as a deploy: a line on every chart."""

    at: float
    text: str
    who: str = ""


def add(folder: Path, text: str, who: str, at: float) -> Annotation:
    said = " ".join(text.split())
    if not said:
        raise SemelError('an annotation needs a text, as in: semel annotate "deployed 1.4.2"')
    annotation = Annotation(at, said[:LONGEST], who)
    try:
        handle = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, orjson.dumps(asdict(annotation)) + b"\n")
        finally:
            os.close(handle)
    except OSError as error:
        raise SemelError(f"the annotation cannot be written to {folder / FILE}: {error.strerror or error}") from None
    return annotation


def since(folder: Path, at: float = 0.0) -> list[Annotation]:
    """The oldest first."""
    found = []
    try:
        with (folder / FILE).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _READ))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SemelError(f"the annotations in {folder / FILE} cannot be read: {error.strerror or error}") from None
    for line in lines:
        try:
            annotation = Annotation(**orjson.loads(line))
        except (ValueError, TypeError):
            continue  # the half of a line that the window begins with
        if annotation.at >= at:
            found.append(annotation)
    return found
