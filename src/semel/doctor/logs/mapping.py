"""What `--map` and `--events` say: which fields of a log mean what, and which words.

    --map id=.msg.messageId,time=.ts,event=.event,milliseconds=.took_ms,queue=orders
    --map 'time=.ts,text=.message,pattern="order (?P<id>[^ ]+) (?P<event>started|done)"'
    --events recorded=charged|shipped,retried=bounced

Paths are jq's: .a.b, ."@timestamp", .a["x.y"], .Records[0].messageId. Every mapping can be written as options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from semel.doctor.errors import DoctorError
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
    unquoted,
    value_at,
    written,
)

DURATIONS: Final = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}
NAMES: Final = (
    "id",
    "time",
    "event",
    "queue",
    "key",
    "worker",
    "receives",
    "sent",
    "group",
    *DURATIONS,
    "visibility",
    "error",
    "handler",
)
CONSTANTS: Final = ("queue", "handler", "worker", "visibility")  # these may be constants instead of paths
_OPTIONS: Final = (*NAMES, "text", "pattern", "records")
NO_QUEUE: Final = "log"

# Common words for what happens to a message, by the step they mean. Case and punctuation do not matter.
_WORDS: Final = {
    Step.RECEIVED: "received receive receiving polled poll fetched dequeued",
    Step.STARTED: "started start starting begin began begun processing process invoked invoke handling handle running "
    "executing execute in_progress",
    Step.RECORDED: "recorded done finished finish completed complete success succeeded successful processed ok end "
    "ended handled executed committed true",
    Step.RETRIED: "retried retry retrying error errored failed fail failure exception nack nacked crashed timeout "
    "timed_out false",
    Step.DELETED: "deleted delete acked ack acknowledged acknowledge removed",
    Step.DELETE_FAILED: "delete_failed ack_failed",
    Step.DUPLICATE: "duplicate duplicated deduplicated already_processed already_done",
    Step.SKIPPED: "skipped skip ignored",
    Step.REJECTED: "rejected reject dead_letter dead_lettered deadlettered dlq poison discarded",
    Step.RELEASED: "released release requeued returned",
    Step.HEARTBEAT: "heartbeat extended extend visibility_extended visibility_changed",
}
_LIKE: Final = {"finished": Step.RECORDED, "failed": Step.RETRIED, "done": Step.RECORDED}
_STEPS: Final = tuple(step for step in Step if step not in (Step.DROPPED, Step.SENT))  # those belong to no delivery


AROUND: Final = r"^(message|msg|job|task)_|_(message|msg|job|task)$"  # parts of a word that do not matter


DEFAULT_WORDS: Final[Mapping[str, Step]] = {
    **{step.value: step for step in _STEPS},
    **{word: step for step, words in _WORDS.items() for word in words.split()},
}


@dataclass(frozen=True, slots=True)
class LogMapping:
    """Where each value is in a line, what is the same for all lines, and what the words mean.

    A value is taken from the group of its name that `pattern` captures in the field `text`, else from the path of its
    name, else from the constant.
    """

    paths: Mapping[str, Path]
    constants: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Step] = field(default_factory=lambda: DEFAULT_WORDS)
    pattern: str = ""  # in the syntax that Python and RE2 share
    records: Path | None = None  # the file is one JSON document, with its lines in the list at this path
    is_own: bool = False  # Semel's attempt log

    @property
    def captured(self) -> tuple[str, ...]:
        """The names that `pattern` captures, in the order of its groups, of which all are named."""
        return tuple(re.compile(self.pattern).groupindex)

    @property
    def names(self) -> frozenset[str]:
        """Everything that has a path, a constant or a group."""
        return frozenset((*self.paths, *self.constants, *self.captured))

    @property
    def has_receives(self) -> bool:
        return "receives" in self.names

    @property
    def duration(self) -> str | None:
        """The name under which the duration is mapped."""
        return next((name for name in DURATIONS if name in self.names), None)

    def values(self, record: Mapping[str, Any]) -> dict[str, str]:
        """What a line says, as text by name. This is the definition; engines do the same in SQL."""
        values = dict(self.constants)
        for name, path in self.paths.items():
            if text := as_text(value_at(record, path)):
                values[name] = text
        if self.pattern and (match := re.search(self.pattern, values.get("text", ""))):
            values.update({name: text for name, text in match.groupdict().items() if text})
        return values

    def step_of(self, word: str) -> Step | None:
        """What a word of the log means; punctuation, and `message` or `task` around it, do not matter."""
        bare = re.sub(AROUND, "", plain(word))
        return next((self.words[form] for form in (word.lower(), plain(word), bare) if form in self.words), None)

    def as_option(self) -> str:
        """The value of `--map` that says the same."""
        mapped = [(name, written(path)) for name, path in self.paths.items()]
        mapped += [(name, _quoted(value)) for name, value in self.constants.items()]
        if self.pattern:
            mapped.append(("pattern", json.dumps(self.pattern, ensure_ascii=False)))
        if self.records:
            mapped.append(("records", written(self.records)))
        return ",".join(f"{name}={value}" for name, value in mapped)

    def as_events_option(self) -> str:
        """The value of `--events` that says the same; empty if the usual words are enough."""
        unusual: dict[Step, list[str]] = {}
        for word, step in self.words.items():
            if DEFAULT_WORDS.get(word) is not step:
                unusual.setdefault(step, []).append(word)
        return ",".join(f"{step}={'|'.join(words)}" for step, words in unusual.items())


def own() -> LogMapping:
    """Semel's attempt log, which needs no option."""
    names = {"id": "message_id", "time": "at", "event": "step", "receives": "receive_count", "sent": "sent_at"}
    same = ("queue", "key", "worker", "group", "seconds", "visibility", "error", "handler")
    paths: dict[str, Path] = {name: (column,) for name, column in (*names.items(), *zip(same, same, strict=True))}
    return LogMapping(paths, words={step.value: step for step in _STEPS}, is_own=True)


def parse(text: str, words: str | None = None) -> LogMapping:
    """The mapping that the options describe. DoctorError names the option, what is wrong, and what is possible."""
    try:
        return _parse(text, words)
    except MappingError as error:
        raise DoctorError(str(error)) from None


def _parse(text: str, words: str | None) -> LogMapping:
    paths: dict[str, Path] = {}
    constants: dict[str, str] = {}
    pattern = ""
    for name, value in pairs("--map", text):
        if name not in _OPTIONS:
            raise DoctorError(f"--map {name}=…: no such field{near(name, _OPTIONS)}; there are {', '.join(_OPTIONS)}")
        if name in paths or name in constants or (name == "pattern" and pattern):
            raise DoctorError(f"--map {name}=…: given twice")
        if name == "pattern":
            pattern = _parse_pattern(unquoted(name, value))
        elif isinstance(place := path_or_constant(name, value, constant=name in CONSTANTS), str):
            constants[name] = place
        else:
            paths[name] = place
    records = paths.pop("records", None)
    steps = {step.value: step for step in _STEPS}
    chosen = parse_words(words or "", steps | _LIKE, tuple(steps), "step")
    mapping = LogMapping(paths, constants, {**DEFAULT_WORDS, **chosen}, pattern, records)
    _check(mapping)
    return mapping


def _parse_pattern(text: str) -> str:
    try:
        groups = re.compile(text)
    except re.error as error:
        raise DoctorError(f"--map pattern={text}: not a regular expression: {error}") from None
    import re2  # only a pattern needs it

    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else error
        raise DoctorError(
            f"--map pattern={text}: RE2, which searches logs, does not take it ({reason}); it must do without "
            "look-around, conditions, back references and \\u"
        ) from None
    if not groups.groupindex or len(groups.groupindex) != groups.groups:
        raise DoctorError(f"--map pattern={text}: name each group as a field, (?P<id>…), or write (?:…)")
    for name in groups.groupindex:
        if name not in NAMES:
            raise DoctorError(f"--map pattern={text}: (?P<{name}>…) is no field{near(name, NAMES)}")
    return text


def _check(mapping: LogMapping) -> None:
    paths, constants, names = mapping.paths, mapping.constants, mapping.names
    for name, what in (("id", "the message's id"), ("time", "the time of the line")):
        if name not in names:
            raise DoctorError(f"--map: {name}=.path is missing, where {what} is; as in id=.msg.messageId,time=.ts")
    if ("text" in paths) is not bool(mapping.pattern):
        raise DoctorError('--map: text=.path and pattern="…" go together: the field, and what to look for in it')
    if len(several := [name for name in DURATIONS if name in names]) > 1:
        raise DoctorError(f"--map: {' and '.join(several)} are the same in different units; give one of them")
    if "visibility" in constants and not re.fullmatch(r"\d+(\.\d+)? ?(ms|s|min|m|h)?", constants["visibility"]):
        raise DoctorError(f"--map visibility={constants['visibility']}: give seconds, or a path such as .visibility")
    for name, path in paths.items():
        for other, longer in paths.items():
            if problem := conflict(path, longer):
                raise DoctorError(
                    f"--map: {name}={written(path)} {problem} {other}={written(longer)}; map one of the two"
                )


def conflict(path: Path, other: Path) -> str | None:
    """Why a line cannot have values at both paths."""
    for part, theirs in zip(path, other, strict=False):
        if part != theirs:
            return "has a list where there is an object in" if isinstance(part, int) > isinstance(theirs, int) else None
    return "is a part of" if len(path) < len(other) else None


def _quoted(value: str) -> str:
    """A constant as it is, or as a JSON string if it would be read as something else."""
    return value if re.fullmatch(r"[^\s,\"'.$\[][^\s,\"']*", value) else json.dumps(value, ensure_ascii=False)
