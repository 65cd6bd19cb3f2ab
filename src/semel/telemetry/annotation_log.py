"""Annotations in time, such as deploys: one JSON object a line, shown as a line on every chart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from semel.errors import SemelError
from semel.telemetry.rotating_log import RotatingLog

FILE: Final = "annotations.jsonl"
MAX_LENGTH: Final = 200  # characters
MAX_BYTES: Final = 1 << 20  # of one file; some ten thousand annotations
KEEP: Final = 3
_MAX_SKEW: Final = 3_600.0  # seconds by which annotations may be out of order


@dataclass(frozen=True, slots=True)
class Annotation:
    """Something that happened at a time, such as a deploy: a line on every chart."""

    at: float
    text: str
    who: str = ""


_DECODER: Final = msgspec.json.Decoder(Annotation)


def add(folder: Path, text: str, who: str, at: float) -> Annotation:
    text = " ".join(text.split())
    if not text:
        raise SemelError('an annotation needs a text, as in: semel annotate "deployed 1.4.2"')
    annotation = Annotation(at, text[:MAX_LENGTH], who)
    try:
        _log(folder).append(msgspec.json.encode(annotation))
    except OSError as error:
        raise SemelError(f"the annotation cannot be written to {folder / FILE}: {error.strerror or error}") from None
    return annotation


def since(folder: Path, at: float = 0.0) -> list[Annotation]:
    """The annotations since `at`, the oldest first."""
    annotations: list[Annotation] = []
    try:
        for line in _log(folder).newest_first():
            try:
                annotation = _DECODER.decode(line)
            except (ValueError, RecursionError):
                continue  # cut by a full disk, or damaged
            if annotation.at < at - _MAX_SKEW:
                break
            if annotation.at >= at:
                annotations.append(annotation)
    except OSError as error:
        raise SemelError(f"the annotations in {folder / FILE} cannot be read: {error.strerror or error}") from None
    return annotations[::-1]


def _log(folder: Path) -> RotatingLog:
    return RotatingLog(folder / FILE, max_bytes=MAX_BYTES, keep=KEEP)
