"""What `--map` and `--events` say: which fields of an application's JSON lines mean what, and which words.

    --map id=.msg.messageId,time=.ts,event=.event,milliseconds=.took_ms,queue=orders
    --events recorded=charged|shipped,retried=bounced

Paths are jq's: .a.b, ."@timestamp", .a["x.y"], .Records[0].messageId. No Spark here; `mapped` makes columns of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from semel.doctor.errors import DoctorError
from semel.telemetry.attempt_log import Step

Path = tuple[str | int, ...]

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
CONSTANTS: Final = ("queue", "handler", "worker", "visibility")  # these may be given as they are
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
_NOT_FROM_OUTSIDE: Final = frozenset({Step.DROPPED, Step.SENT})


def plain(word: str) -> str:
    """A word as it is looked up; `mapped` does the same to the log's words."""
    return re.sub("[^a-z0-9]+", "_", word.lower()).strip("_")


DEFAULT_WORDS: Final[Mapping[str, Step]] = {
    **{plain(step): step for step in Step if step not in _NOT_FROM_OUTSIDE},
    **{word: step for step, words in _WORDS.items() for word in words.split()},
}


@dataclass(frozen=True, slots=True)
class LogMapping:
    """Where each value is in a line, what is the same for all lines, and what the words mean."""

    paths: Mapping[str, Path]
    constants: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Step] = field(default_factory=lambda: DEFAULT_WORDS)

    @property
    def has_receives(self) -> bool:
        return "receives" in self.paths

    @property
    def duration(self) -> str | None:
        """The name under which the duration is mapped."""
        return next((name for name in DURATIONS if name in self.paths), None)


def parse(text: str, words: str | None = None) -> LogMapping:
    """DoctorError names the option, what it does not understand, and what it would."""
    paths: dict[str, Path] = {}
    constants: dict[str, str] = {}
    for name, value in _pairs("--map", text):
        if name not in NAMES:
            raise DoctorError(f"--map {name}=…: no such field{_near(name, NAMES)}; there are {', '.join(NAMES)}")
        if name in paths or name in constants:
            raise DoctorError(f"--map {name}=…: given twice")
        if value.startswith((".", "$", "[")):
            paths[name] = parse_path(name, value)
        elif name in CONSTANTS and value:
            constants[name] = value.strip("\"'")
        else:
            raise DoctorError(f"--map {name}={value}: a path begins with a dot, as in {name}=.{value or 'field'}")
    _check(paths, constants)
    return LogMapping(paths, constants, {**DEFAULT_WORDS, **_parse_words(words or "")})


def _check(paths: Mapping[str, Path], constants: Mapping[str, str]) -> None:
    for name, what in (("id", "the message's id"), ("time", "the time of the line")):
        if name not in paths:
            raise DoctorError(f"--map: {name}=.path is missing, where {what} is; as in id=.msg.messageId,time=.ts")
    if len(several := [name for name in DURATIONS if name in paths]) > 1:
        raise DoctorError(f"--map: {' and '.join(several)} are the same in different units; give one of them")
    if "visibility" in constants and not re.fullmatch(r"\d+(\.\d+)? ?(ms|s|min|m|h)?", constants["visibility"]):
        raise DoctorError(f"--map visibility={constants['visibility']}: give seconds, or a path such as .visibility")
    for name, path in paths.items():
        for other, longer in paths.items():
            if len(longer) > len(path) and longer[: len(path)] == path:
                raise DoctorError(
                    f"--map: {name}={written(path)} is a part of {other}={written(longer)}; map only one of the two"
                )
            if _differ(path, longer):
                raise DoctorError(
                    f"--map: {name}={written(path)} and {other}={written(longer)} take the same place for a list and "
                    "for an object"
                )


def _differ(one: Path, other: Path) -> bool:
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return isinstance(mine, int) is not isinstance(theirs, int)
    return False


def _parse_words(text: str) -> dict[str, Step]:
    known = [step.value for step in Step if step not in _NOT_FROM_OUTSIDE]
    found: dict[str, Step] = {}
    for name, value in _pairs("--events", text):
        if name not in known and name not in _LIKE:
            raise DoctorError(f"--events {name}=…: no such step{_near(name, known)}; there are {', '.join(known)}")
        step = _LIKE[name] if name in _LIKE else Step(name)
        words = [plain(word) for word in value.strip("\"'").split("|")]
        if not all(words):
            raise DoctorError(f"--events {name}={value}: give words, as in {name}=charged|shipped")
        for word in words:
            if found.setdefault(word, step) is not step:
                raise DoctorError(f"--events: {word} cannot be both {found[word]} and {step}")
    return found


_PAIR: Final = re.compile(r"""\s*([A-Za-z_]+)\s*=\s*((?:"[^"]*"|'[^']*'|\[[^\]]*\]|[^,"'\[])*?)\s*(?:,|$)""")


def _pairs(option: str, text: str) -> Iterator[tuple[str, str]]:
    place = 0
    text = text.strip().rstrip(",")
    while place < len(text):
        match = _PAIR.match(text, place)
        if match is None:
            raise DoctorError(f"{option}: cannot read {text[place:]!r}; write name=value, with commas between them")
        yield match[1], match[2]
        place = match.end()


_PART: Final = re.compile(
    r"""\.?\[\s*(?:"(?P<double>[^"]+)"|'(?P<single>[^']+)'|(?P<index>\d+))\s*\]"""
    r"""|\."(?P<quoted>[^"]+)"|\.(?P<name>[^.\[\]"'\s|]+)"""
)


def parse_path(name: str, text: str) -> Path:
    path: list[str | int] = []
    place = 1 if text.startswith("$") else 0
    while place < len(text):
        match = _PART.match(text, place)
        if match is None:
            raise DoctorError(
                f'--map {name}={text}: cannot read it from {text[place:]!r} on; paths look like .a.b, ."@time", .a[0].b'
            )
        index = match["index"]
        path.append(int(index) if index else match["double"] or match["single"] or match["quoted"] or match["name"])
        place = match.end()
    if not path or isinstance(path[0], int):
        raise DoctorError(f"--map {name}={text}: a line is an object; name a field of it, as in {name}=.field")
    return tuple(path)


def written(path: Path) -> str:
    """A path in jq's way."""
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{part}" if part.isidentifier() else f'["{part}"]' for part in path
    )
    text = "".join(parts)
    return text if text.startswith(".") else f".{text}"


def _near(name: str, known: tuple[str, ...] | list[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f", did you mean {near[0]}?" if near else ""
