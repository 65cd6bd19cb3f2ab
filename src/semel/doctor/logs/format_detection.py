"""What the fields of a log mean, decided by its first lines: known formats, else names and values together.

Only lines with a message id count: most lines of an application's log are about something else. The result says what is
uncertain and what the log lacks. A log without a message id or a time is an error, whose text shows how to begin.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from semel.doctor.errors import DoctorError
from semel.doctor.logs import fields
from semel.doctor.logs.fields import RULES, Field, Rule, moment, number
from semel.doctor.logs.mapping import DEFAULT_WORDS, LogMapping, conflict, own
from semel.doctor.logs.phrases import MOST_PHRASES, MOST_SHOWN, event_words, phrase_step
from semel.doctor.text_format import clean, listed
from semel.telemetry.attempt_log import Step
from semel.telemetry.field_mapping import Path, as_text, value_at, written
from semel.text import count

LINES: Final = 200  # the number of lines that decide
SHOWN_FIELDS: Final = 12


@dataclass(frozen=True, slots=True)
class MissingField:
    """A field that the log does not have, and what the report lacks because of that."""

    name: str
    effect: str


@dataclass(frozen=True, slots=True)
class Detection:
    format: str  # for people
    mapping: LogMapping
    missing: tuple[MissingField, ...] = ()
    doubts: tuple[str, ...] = ()


MISSING: Final = {
    "event": "each line is read as one run of the handler: as its end if it has a duration, else as its beginning",
    "receives": "deliveries are told apart by the order of lines, which is less certain",
    "seconds": "the time in the handler is known only where a start and an end are logged",
    "key": "doubled effects are counted by message, and a producer that sends twice is not noticed",
    "queue": "all messages count as messages of one queue",
    "worker": "the report cannot say which worker had a message, nor how many workers there are",
    "error": "failures are counted, but not grouped by their error",
    "sent": "how long messages wait in the queue is not known",
}


def detect(records: Sequence[Mapping[str, Any]]) -> Detection:
    """The meaning of the fields, by the first lines of a log. Raises DoctorError without a message id or a time."""
    lines = [record for record in records[:LINES] if isinstance(record, Mapping) and record]
    if not lines:
        raise DoctorError(
            "The log has no line with fields: the doctor reads JSON objects, CSV with a header, or Parquet."
        )
    if document := _document(lines):
        detection = detect(value_at(lines[0], document))
        return replace(detection, mapping=replace(detection.mapping, records=document))
    if any({"at", "step", "message_id"} <= line.keys() and line["step"] in set(Step) for line in lines):
        return Detection("Semel attempt log", own())
    if sum({"eventSource", "eventName", "userIdentity"} <= line.keys() for line in lines) > len(lines) / 2:
        raise DoctorError(CLOUDTRAIL)
    return _Log(lines).detection()


CLOUDTRAIL: Final = """\
This is a CloudTrail log. It shows who called SQS, from where and when, but not for which message: only SendMessage has
a message id. ReceiveMessage has no response in it; DeleteMessage and ChangeMessageVisibility have a receipt handle,
which differs with each delivery. So the deliveries of a message cannot be counted.
Log a JSON line in the consumer instead, for each receive, start, end and delete:
{"time": …, "event": "received", "message_id": …, "receive_count": …, "queue": …, "worker": …}"""


def _document(lines: Sequence[Mapping[str, Any]]) -> Path:
    """The path of the list of lines, in a file that is one JSON document; else empty."""
    lists = (
        (name,)
        for name, value in lines[0].items()
        if isinstance(value, list) and len(value) > 1 and all(isinstance(element, Mapping) for element in value)
    )
    flat = any(moment(value) for value in lines[0].values())  # then it is a line with a list in it
    return next(lists, ()) if len(lines) == 1 and not flat else ()


_CELERY: Final = (
    r"^Task (?P<handler>[^\[]+)\[(?P<id>[^\]]+)\] "
    r"(?P<event>received|succeeded|retry|raised expected|raised unexpected|reject|ignored|INTERNAL ERROR)"
    r"(?: in (?P<seconds>[0-9.]+)s|: (?P<error>.*))?"
)
_CELERY_WORDS: Final = dict.fromkeys(("raised_expected", "raised_unexpected", "internal_error"), Step.RETRIED)


class _Log:
    """The fields of the first lines, and the choices made so far."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self.lines = lines
        self.about = len(lines)  # how many lines are about a message
        self.fields = fields.fields_of(lines)
        self.paths: dict[str, Path] = {}
        self.doubts: list[str] = []

    def detection(self) -> Detection:
        celery = next(
            (field for field in self.fields if any(_is_celery(value) for value in field.values.values())), None
        )
        if celery is not None:
            about = {line for line, value in celery.values.items() if _is_celery(value)}
            self._keep(about)
            self.paths["text"] = celery.path
            self._choose_time()
            self._choose("queue", "worker")
            mapping = LogMapping(self.paths, words={**DEFAULT_WORDS, **_CELERY_WORDS}, pattern=_CELERY)
        else:
            mapping = self._guess()
        name = self._format(mapping)
        if name == "Celery":
            self.doubts.append(
                "Celery logs its task id, not the SQS message id; a retry is a new message with the same task id"
            )
        names = mapping.names | ({"seconds"} if mapping.duration else set())
        missing = tuple(MissingField(name, effect) for name, effect in MISSING.items() if name not in names)
        return Detection(name, mapping, missing, tuple(self.doubts))

    def _guess(self) -> LogMapping:
        message_id = self._choose_id()
        self._keep(message_id.values.keys())
        self._choose_time()
        words, pattern = self._choose_event()
        self._choose("receives", "queue", "worker", "sent", "group", "visibility", "handler", "error")
        self._choose_duration()
        self._choose_key(message_id)
        return LogMapping(self.paths, words={**DEFAULT_WORDS, **words}, pattern=pattern)

    # Each choice.

    def _best(self, rule: Rule, least: float = 0.0) -> tuple[int, Field] | None:
        """The field that fits the rule best, by its name and by how many lines have it."""
        ranked = [
            (rank, field)
            for field in self._free()
            if len(field.values) >= least * self.about
            and (rank := rule.rank(field.name)) is not None
            and field.fits(rule)
        ]

        def cost(entry: tuple[int, Field]) -> tuple[float, int]:
            rank, field = entry
            return (rank * 0.3 - len(field.values) / self.about, len(field.path))

        return min(ranked, key=cost, default=None)

    def _free(self) -> Iterator[Field]:
        """The fields that are not yet chosen, and do not conflict with one that is."""
        for field in self.fields:
            if not any(
                field.path == path or conflict(field.path, path) or conflict(path, field.path)
                for path in self.paths.values()
            ):
                yield field

    def _choose(self, *names: str) -> None:
        for name in names:
            best = self._best(RULES[name]) or (self._best(fields.QUEUES) if name == "queue" else None)
            if best is None:
                continue
            rank, field = best
            self.paths[name] = field.path
            if name == "receives" and rank == 2:
                self.doubts.append(f"{written(field.path)} is read as the receive count; it may count something else")

    def _choose_id(self) -> Field:
        rule = RULES["id"]
        best = self._best(rule)
        if best is None:
            rule = next((rule for rule in (fields.ANY_ID, fields.UUIDS) if self._best(rule)), fields.UUIDS)
            best = self._best(rule)
            if best is None or (len(set(best[1].texts)) == 1 and self.about > 1):
                raise self._unusable("no message id")
            why = "its values are UUIDs" if rule is fields.UUIDS else "of its name"
            self.doubts.append(f"{written(best[1].path)} is taken for the message id because {why}")
        rank, field = best
        self.paths["id"] = field.path
        self._note_rivals("message id", rank, field, rule, as_text)
        above = field.path[: field.path.index(0)] if 0 in field.path else ()
        longest = max(len(value_at(self.lines[line], above)) for line in field.values) if above else 1
        if longest > 1:
            self.doubts.append(f"{written(above)} has up to {longest} messages in a line; only the first is read")
        return field

    def _choose_time(self) -> None:
        rule = RULES["time"]
        best = self._best(rule, 0.5)
        if best is None:
            rule = fields.TIMES
            best = self._best(rule, 0.5)
            if best is None:
                raise self._unusable("no time")
            self.doubts.append(f"{written(best[1].path)} is taken for the time because its values are times")
        rank, field = best
        self.paths["time"] = field.path
        self._note_rivals("time", rank, field, rule, lambda value: round(moment(value) or 0))

    def _note_rivals(self, what: str, rank: int, field: Field, rule: Rule, meaning: Callable[[Any], Any]) -> None:
        """Notes other fields that fit the rule as well but have other values."""
        different = []
        for other in self._free():
            if rule.rank(other.name) == rank and other.fits(rule):
                lines = field.values.keys() & other.values.keys()
                if any(meaning(field.values[line]) != meaning(other.values[line]) for line in lines):
                    different.append(written(other.path))
        if different:
            self.doubts.append(f"{written(field.path)} is taken for the {what}, not {listed(different)}")

    def _choose_event(self) -> tuple[Mapping[str, Step], str]:
        """Chooses the field of the event. Returns unusual words, and the pattern that finds them if the text varies."""
        candidates = [field for field in self._free() if fields.NO_EVENTS.rank(field.name) is None]
        field = max(candidates, key=self._score, default=None)
        if field is None or self._score(field) <= 0:
            return {}, ""
        words, pattern, doubts = event_words(Counter(field.texts), written(field.path))
        self.paths["text" if pattern else "event"] = field.path
        self.doubts += doubts
        return words, pattern

    def _score(self, field: Field) -> float:
        """How well a field says what happened: the share of lines with a known word, and what its name promises."""
        rank = fields.EVENTS.rank(field.name)
        words = field.texts
        if rank is None:  # the name does not help: its values must be a few usual words, other than true and false
            words = [] if len(set(words)) > MOST_PHRASES else [word for word in words if word not in ("true", "false")]
        meaning, least = (LogMapping({}).step_of, 0.5) if rank is None else (phrase_step, 0.2)
        steps = [step for word in words if (step := meaning(word))]
        share = len(steps) / self.about
        return share + 0.1 * (len(set(steps)) > 1) - 0.1 * (3 if rank is None else rank) if share >= least else 0.0

    def _choose_duration(self) -> None:
        for unit, rule in fields.DURATIONS.items():
            if best := self._best(rule):
                self.paths[unit] = best[1].path
                return
        if best := self._best(fields.NO_UNIT):
            field = best[1]
            numbers = [value for value in map(number, field.values.values()) if value is not None]
            whole = all(value.is_integer() for value in numbers)
            unit = "milliseconds" if numbers and whole and median(numbers) >= 50 else "seconds"
            self.paths[unit] = field.path
            if numbers:
                self.doubts.append(f"{written(field.path)} names no unit; it is read as {unit}")

    def _choose_key(self, message_id: Field) -> None:
        """A key is the same in all lines of a message, and only few messages share it."""
        rule = RULES["key"]
        keys: list[tuple[int, float, Field]] = []
        for field in self._free():
            rank = rule.rank(field.name)
            if rank is None or not field.fits(rule):
                continue
            pairs = {(message_id.values[line], text) for line, text in zip(field.values, field.texts, strict=True)}
            messages = len({message for message, _ in pairs})
            if len(pairs) == messages and len(set(field.texts)) >= max(messages / 2, 2 if messages > 1 else 1):
                keys.append((rank, -len(field.values), field))
        if not keys:
            return
        best, _, field = min(keys, key=lambda entry: entry[:2])
        self.paths["key"] = field.path
        if others := [written(other.path) for rank, _, other in keys if rank == best and other is not field]:
            self.doubts.append(f"{written(field.path)} is taken for the key, not {listed(others)}")

    # Around the choices.

    def _keep(self, about: Set[int]) -> None:
        """From here on, only lines about messages count."""
        self.about = len(about)
        kept = (replace(field, values={n: v for n, v in field.values.items() if n in about}) for field in self.fields)
        self.fields = [field for field in kept if field.values]

    def _format(self, mapping: LogMapping) -> str:
        names = {field.name for field in self.fields}
        if mapping.pattern == _CELERY or {"task_id", "task_name"} <= names or {"data_id", "data_name"} <= names:
            return "Celery"
        if "function_request_id" in names or {"location", "service", "timestamp"} <= names:
            return "Lambda Powertools"
        level = bool(names & {"level", "levelname", "severity", "log_level", "record_level_name"})
        if "event" in names and level and not names & {"message", "msg"}:
            return "structlog"
        return "JSON log" if level and names & {"message", "msg", "record_message"} else "guessed"

    def _unusable(self, lack: str) -> DoctorError:
        names = [clean(written(field.path), MOST_SHOWN) for field in self.fields]
        time = self._best(RULES["time"])
        start = f"id={written(self.paths['id']) if 'id' in self.paths else '.path.of.message_id'},"
        start += f"time={written(time[1].path) if time else '.path.of.time'}"
        text = f"The log has {lack} that can be recognised in {count(self.about, 'line')}.\n"
        text += f"Its fields: {listed(names, SHOWN_FIELDS)}\n" if names else "Its lines have no values.\n"
        packed = next((field for field in self.fields if all(value.startswith("{") for value in field.texts)), None)
        if packed is not None:
            text += f"{written(packed.path)} has JSON as text: unpack it first, for example with fromjson of jq.\n"
        return DoctorError(f"{text}Say which field is which, beginning with: --map {shlex.quote(start)}")


def _is_celery(value: Any) -> bool:
    return isinstance(value, str) and re.search(_CELERY, value) is not None
