"""Lines of one file as events. The first line shows what the file is: a history, Semel's attempt log, or another log,
which a mapping explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from semel.errors import SemelError
from semel.telemetry.field_mapping import Path, near, value_at, written
from semel.verify.history import EventKind, HistoryEvent
from semel.verify.mapping import HistoryMapping, UnreadableLine, attempt, is_attempt, own

_EXAMINED: Final = 200  # lines at the beginning of a file whose fields are looked at
_LATEST: Final = 1e12  # seconds; larger values are in milliseconds or smaller units
_FIELDS: Final = HistoryEvent.__struct_fields__
_DECODER: Final = msgspec.json.Decoder(HistoryEvent)
_JSON: Final = msgspec.json.Decoder()


class HistoryError(SemelError):
    """A history cannot be read at all. Correct the file or the option that the text names."""


class FileParser:
    """`parse` turns a line, or a row of Parquet, into an event, or into None if it does not matter here."""

    def __init__(
        self, path: str, kind: EventKind | None, mapping: HistoryMapping, mapped: bool, first: Mapping[str, Any]
    ) -> None:
        self._path, self._kind, self._mapping = path, kind, mapping
        self._own_mapping = HistoryMapping(own().paths, words=mapping.words)
        self._examined = 0
        self._odd: dict[str, str] = {}  # fields that may be misspelled, and what may be meant
        self.missing: set[str] | None = None  # mapped fields that no line has; None: the mapping is not for this file
        event_at = mapping.paths.get("event") if mapped else None
        if is_attempt(first) and event_at != ("step",):
            self.parse = self._parse_attempt
        elif _is_own(first, event_at) if mapped else "kind" in first or kind is not None:
            self.parse = self._parse_own
        elif mapped:
            if kind is None and "event" not in {*mapping.paths, *mapping.constants}:
                raise HistoryError(
                    f"{path}: --map does not say which events its lines are; add event=.field to it, or write "
                    f"effect={path} if all are effects"
                )
            self.parse = self._parse_mapped
            self.missing = set(mapping.paths)
        else:
            names = ", ".join(written((name,)) for name in list(first)[:12]) or "no fields"
            raise HistoryError(
                f"{path}: its lines are neither events of a history nor of Semel's attempt log; they have {names}. "
                "Say what these mean, as in --map id=.messageId,event=.event,time=.ts"
            )

    def notes(self) -> Iterator[str]:
        """Notes on fields that may be misspelled."""
        for name, hint in self._odd.items():
            yield f"{self._path}: the field {name} is ignored{hint}"

    def _parse_attempt(self, content: Any) -> HistoryEvent | None:
        return attempt(record_of(content))

    def _parse_mapped(self, content: Any) -> HistoryEvent | None:
        record = record_of(content)
        if self.missing:
            paths = self._mapping.paths
            self.missing -= {name for name in self.missing if value_at(record, paths[name]) is not None}
        return self._mapping.event(record, self._kind)

    def _parse_own(self, content: Any) -> HistoryEvent | None:
        if self._examined < _EXAMINED:
            self._examine(record_of(content))
        if isinstance(content, bytes) and self._kind is None:
            try:
                event = _DECODER.decode(content)
            except msgspec.ValidationError:
                pass  # such as a time as a text, or a word of --events
            else:
                if _is_plain(event):
                    return event
        return self._own_mapping.event(record_of(content), self._kind)

    def _examine(self, record: Mapping[str, Any]) -> None:
        self._examined += 1
        for name in record:
            if name not in _FIELDS and name not in self._odd and (hint := near(name, _FIELDS)):
                self._odd[name] = hint


def _is_plain(event: HistoryEvent) -> bool:
    """Whether it needs no conversion: its queue is a name, its time is in seconds."""
    in_seconds = event.time is None or event.time < _LATEST
    return in_seconds and bool(event.message or event.key) and not event.queue.startswith(("http", "arn:"))


def _is_own(first: Mapping[str, Any], event_at: Path | None) -> bool:
    """Whether a line is in Semel's own format, although a mapping is given (for other files)."""
    return first.get("kind") in tuple(EventKind) and event_at != ("kind",)


def record_of(content: Any) -> Mapping[str, Any]:
    record = _JSON.decode(content) if isinstance(content, bytes) else content
    if not isinstance(record, Mapping):
        raise UnreadableLine("it is not a JSON object")
    return record
