"""What a line of a log means as an event of a history: Semel's own formats, and what `--map` and `--events` say.

    --map id=.MessageId,key=.order.id,time=.ts,event=.what,queue=orders
    --events send=published,effect=charged|shipped

Paths and words are written as for `semel doctor`. A missing value is unknown; a value that does not fit its field makes
the line unreadable.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from semel.telemetry.attempt_log import Step
from semel.telemetry.field_mapping import (
    MappingError,
    Path,
    as_text,
    near,
    pairs,
    parse_words,
    path_or_constant,
    plain,
    value_at,
)
from semel.verify.history import EventKind, HistoryEvent

FIELDS: Final = ("id", "key", "event", "time", "queue", "group", "sequence", "worker", "fence", "detail")
_OWN_NAMES: Final = {"id": "message", "event": "kind"}  # what HistoryEvent calls them
_ALIASES: Final = {theirs: ours for ours, theirs in _OWN_NAMES.items()}
_CONSTANTS: Final = ("event", "queue", "worker")  # these may be constants instead of paths

# Common words for each kind. Case and punctuation do not matter.
_WORDS: Final = {
    EventKind.SEND: "send sent publish published enqueue enqueued queued produce produced accepted",
    EventKind.DELIVER: "deliver delivered receive received dequeued",
    EventKind.CLAIM: "claim claimed",
    EventKind.EFFECT: "effect effected applied done completed processed handled executed",
    EventKind.RECORD: "record recorded committed",
    EventKind.DELETE: "delete deleted ack acked acknowledge acknowledged",
    EventKind.DEAD_LETTER: "dead_letter dead_lettered deadlettered dlq",
    EventKind.REFUSE: "refuse refused",
    EventKind.PRESENT: "present remaining",
}
DEFAULT_WORDS: Final[Mapping[str, EventKind]] = {word: kind for kind, words in _WORDS.items() for word in words.split()}
_EPOCHS: Final = (1e9, 1e6, 1e3)  # nano-, micro- and milliseconds per second
_NOT_BEFORE_2001: Final = 1e9  # seconds
_LATEST: Final = 1e12  # seconds


class UnreadableLine(ValueError):
    """The line is not an event; the text says why."""


class OtherEvent(Exception):
    """The line is an event of a kind that does not matter here; the text is its word."""


@dataclass(frozen=True, slots=True)
class HistoryMapping:
    """Where the values of an event are in a line, and what the words mean."""

    paths: Mapping[str, Path]
    constants: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, EventKind] = field(default_factory=lambda: DEFAULT_WORDS)

    def event(self, record: Mapping[str, Any], kind: EventKind | None) -> HistoryEvent:
        """The event of a line. `kind`: the kind of all lines of the file, if it was given."""
        if kind is None:
            kind = self._kind(as_text(self._value(record, "event")))
        message, key = as_text(self._value(record, "id")), as_text(self._value(record, "key"))
        if not message and not key:
            raise UnreadableLine("it has neither a message id nor a key")
        return HistoryEvent(
            kind,
            message,
            key,
            moment(self._value(record, "time")),
            queue_name(as_text(self._value(record, "queue"))),
            as_text(self._value(record, "group")),
            _whole("sequence", self._value(record, "sequence")),
            as_text(self._value(record, "worker")),
            _whole("fence", self._value(record, "fence")),
            as_text(self._value(record, "detail")),
        )

    def _kind(self, word: str) -> EventKind:
        kind = self.words.get(word) or self.words.get(plain(word))
        if kind is None:
            raise OtherEvent(word)
        return kind

    def _value(self, record: Mapping[str, Any], name: str) -> Any:
        path = self.paths.get(name)
        value = None if path is None else value_at(record, path)
        return self.constants.get(name) if value is None else value


def own() -> HistoryMapping:
    """The mapping of events whose fields are those of HistoryEvent."""
    return HistoryMapping({name: (_OWN_NAMES.get(name, name),) for name in FIELDS})


def parse(fields: str | None, words: str | None = None) -> HistoryMapping:
    """The mapping that the options describe. MappingError names the option, what is wrong, and what is possible."""
    kinds = {kind.value: kind for kind in EventKind}
    known = {**DEFAULT_WORDS, **parse_words(words or "", kinds, tuple(kinds), "event")}
    if fields is None:
        return HistoryMapping(own().paths, words=known)
    paths: dict[str, Path] = {}
    constants: dict[str, str] = {}
    for mapped, value in pairs("--map", fields):
        name = _ALIASES.get(mapped, mapped)
        if name not in FIELDS:
            every = ", ".join(FIELDS)
            raise MappingError(f"--map {mapped}=…: no such field{near(mapped, FIELDS)}; there are {every}")
        if name in paths or name in constants:
            raise MappingError(f"--map {mapped}=…: given twice")
        if isinstance(place := path_or_constant(mapped, value, constant=name in _CONSTANTS), str):
            constants[name] = place
        else:
            paths[name] = place
    if "id" not in paths and "key" not in paths:
        raise MappingError("--map: id=.path or key=.path is missing: one of them says which message a line is about")
    word = constants.get("event")
    if word is not None and word not in known and plain(word) not in known:
        raise MappingError(f"--map event={word}: no such event; there are {', '.join(EventKind)}")
    return HistoryMapping(paths, constants, known)


# Semel's attempt log. Its `sent` steps do not count as sends: they are those of the outbox only.
_STEPS: Final = {
    Step.RECEIVED: EventKind.DELIVER,
    Step.CLAIMED: EventKind.CLAIM,
    Step.TAKEN_OVER: EventKind.CLAIM,
    Step.RECORDED: EventKind.RECORD,
    Step.DUPLICATE: EventKind.RECORD,  # it was found to be recorded
    Step.DELETED: EventKind.DELETE,
    Step.REJECTED: EventKind.DEAD_LETTER,
}
_KNOWN_STEPS: Final = frozenset(Step)


def is_attempt(record: Mapping[str, Any]) -> bool:
    step = record.get("step")
    return isinstance(step, str) and step in _KNOWN_STEPS and "at" in record


def attempt(record: Mapping[str, Any]) -> HistoryEvent | None:
    """An event of the attempt log; None for a step that does not matter here.

    Events without a handler come from a pipeline. It deletes messages that are sealed in its segment log, which this
    log does not show, and it records a whole batch at once. So its deletes and groups are left out."""
    step = record.get("step")
    if not isinstance(step, str) or step not in _KNOWN_STEPS:
        raise UnreadableLine("it is not an event of the attempt log, unlike the first line")
    if step == Step.DROPPED:
        raise UnreadableLine(f"the log dropped {record.get('count', 'some')} events here")
    kind = _STEPS.get(Step(step))
    of_handler = bool(record.get("handler"))
    if kind is None or (kind is EventKind.DELETE and not of_handler):
        return None
    message, key = as_text(record.get("message_id")), as_text(record.get("key"))
    if not message and not key:
        raise UnreadableLine("it has neither a message id nor a key")
    queue, sent_at = as_text(record.get("queue")), record.get("sent_at")
    ordered = of_handler and queue.endswith(".fifo")
    return HistoryEvent(
        kind,
        message,
        key,
        moment(record.get("at")),
        queue,
        as_text(record.get("group")) if ordered else "",
        round(sent_at * 1_000) if ordered and isinstance(sent_at, int | float) and 0 < sent_at < _LATEST else None,
        as_text(record.get("worker")),
        None if step == Step.DUPLICATE else _whole("fence", record.get("fence")),
        step if step != kind else "",
    )


# Values.


def queue_name(text: str) -> str:
    """A queue's name, from its name, URL or ARN, so that it is the same in all logs."""
    if text.startswith(("http://", "https://")):
        return text.rstrip("/").rpartition("/")[2]
    return text.rpartition(":")[2] if text.startswith("arn:") else text


def moment(value: Any) -> float | None:
    """Seconds, from a number of seconds, milli-, micro- or nanoseconds, or from ISO 8601 (UTC if it has no zone)."""
    if value is None or value == "":
        return None
    if isinstance(value, dt.datetime):
        return _timestamp(value)
    if isinstance(value, bool):
        raise UnreadableLine(f"its time is {value!r}")
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        pass
    else:
        if seconds != seconds or seconds in (float("inf"), float("-inf")):
            raise UnreadableLine(f"its time is {value!r}")
        return next((seconds / unit for unit in _EPOCHS if seconds / unit >= _NOT_BEFORE_2001), seconds)
    try:
        return _timestamp(dt.datetime.fromisoformat(as_text(value).removesuffix(" UTC")))
    except (ValueError, OverflowError):
        raise UnreadableLine(f"its time is {as_text(value)[:40]!r}, which is neither seconds nor ISO 8601") from None


def _timestamp(time: dt.datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp()


def _whole(name: str, value: Any) -> int | None:
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise UnreadableLine(f"its {name} is {as_text(value)[:40]!r}, which is not a whole number") from None
