"""The fields of a log's lines, and the rules that recognise them: by their names, and by whether their values fit.

The rule: a name alone decides nothing; at least nine of ten values must fit the field.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from semel.telemetry.field_mapping import Path, as_text, plain

MOST_FIELDS: Final = 300  # of a line
DEEPEST: Final = 8  # names in a path
FITTING: Final = 0.9  # of all values
_LOGURU_UPTIME: Final = ("record", "elapsed")  # since the start of the program, not of the work


@dataclass(frozen=True, slots=True)
class Rule:
    """How a field is recognised. `names` are regular expressions for the end of its name, the surest first."""

    names: tuple[str, ...]
    fits: Callable[[Any], bool]
    unless: str = "(?!)"  # words in names that mean something else

    def rank(self, name: str) -> int | None:
        """The place of the first expression that the name matches."""
        if re.search(rf"(?:^|_)(?:{self.unless})(?:_|$)", name):
            return None
        return next((rank for rank, end in enumerate(self.names) if re.search(rf"(?:^|_)(?:{end})$", name)), None)


@dataclass(frozen=True, slots=True)
class Field:
    path: Path
    name: str  # the names of its path, in snake case
    values: Mapping[int, Any]  # by number of the line; null and empty values are left out

    def fits(self, rule: Rule) -> bool:
        return sum(map(rule.fits, self.values.values())) >= FITTING * len(self.values)

    @property
    def texts(self) -> list[str]:
        return [as_text(value) for value in self.values.values()]


def fields_of(lines: Sequence[Mapping[str, Any]]) -> list[Field]:
    values: dict[Path, dict[int, Any]] = {}
    for number, line in enumerate(lines):
        for path, value in islice(_leaves(line), MOST_FIELDS):
            if path[:2] != _LOGURU_UPTIME:
                values.setdefault(path, {})[number] = value
    return [Field(path, _snake(path), by_line) for path, by_line in values.items()]


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values of a line by path, in nested objects, and in the first element of a list, but not of a list in it."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            if isinstance(name, str) and len(path) < DEEPEST:
                yield from _leaves(below, (*path, name))
    elif isinstance(value, list):
        if value and 0 not in path:
            yield from _leaves(value[0], (*path, 0))
    elif as_text(value):
        yield path, value


def _snake(path: Path) -> str:
    names = "_".join(part for part in path if isinstance(part, str))
    return plain(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", names))


# Values.

_UUID: Final = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_SQS: Final = re.compile(r"arn:[a-z-]+:sqs:.+|https?://[^/]*(?:sqs|queue)[^/]*/\d+/.+")
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_WITH_UNIT: Final = re.compile(r"[\d.]+ ?(?:ns|us|µs|μs|ms|s|sec|seconds?|m|min|h)")
_EPOCHS: Final = (1.0, 1e3, 1e6, 1e9)


def number(value: Any) -> float | None:
    text = "" if isinstance(value, bool) else as_text(value)
    return float(text) if _NUMBER.fullmatch(text) else None


def moment(value: Any) -> float | None:
    """Seconds since 1970, from ISO 8601 or a number of seconds, milli-, micro- or nanoseconds from 2001 to 2065."""
    seconds = number(value)
    if seconds is not None:
        return next((seconds / unit for unit in _EPOCHS if 1e9 <= seconds / unit < 3e9), None)
    try:
        time = (
            value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(as_text(value).removesuffix(" UTC"))
        )
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp()


def _is_time(value: Any) -> bool:
    return moment(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    """An id, a host, a queue: short, without blanks."""
    if isinstance(value, bool | float | dt.datetime):
        return False
    text = as_text(value)
    return len(text) <= 256 and not re.search(r"\s", text)


def _is_word(value: Any) -> bool:
    return _is_name(value) and number(value) is None


def _is_uuid(value: Any) -> bool:
    return _UUID.fullmatch(as_text(value)) is not None


def _is_queue(value: Any) -> bool:
    return _SQS.fullmatch(as_text(value)) is not None


def _is_count(value: Any) -> bool:
    count = number(value)
    return count is not None and count.is_integer() and 1 <= count <= 10_000


def _is_duration(value: Any) -> bool:
    return number(value) is not None or _WITH_UNIT.fullmatch(as_text(value)) is not None


# Names.

_BUSINESS: Final = (
    "order|invoice|payment|booking|transaction|shipment|purchase|reservation|claim|ticket|charge|refund|transfer"
)
_OTHER_IDS: Final = (
    "request|trace|span|correlation|session|user|customer|account|tenant|client|connection|group|sequence|parent|root|"
    "previous|original|source|reply|event|receipt|md5|hash|digest|checksum|etag|process|thread|pod|host|container|"
    "instance|function|aws|worker|email|sns|version"
)
_OTHER_TIMES: Final = "sent|first|enqueued|queued|published|expir\\w*|deadline|scheduled|due|eta|until|before"
_OTHER_QUEUES: Final = "dlq|dead|target|reply|redrive|destination"

RULES: Final = {
    "id": Rule(
        ("(message|msg|sqs)_?id", "task_(id|uuid)", "job_id"),
        _is_name,
        "parent|original|previous|last|source|reply|sns|email|chat",
    ),
    "time": Rule(
        ("(timestamp|time)(_\\w+)?|time_stamp|ts|datetime|asctime|logged_at", "t|at|when|date|created|created_at"),
        _is_time,
        f"{_OTHER_TIMES}|start|started|begin",
    ),
    "receives": Rule(
        (
            "receives?|received?_count",
            "delivery(_count|_attempt|_number)?|deliveries",
            "attempts?|attempt_\\w+|try|tries",
        ),
        _is_count,
    ),
    "queue": Rule(("queue(_url|_name|_arn)?|event_source_arn",), _is_word, _OTHER_QUEUES),
    "worker": Rule(
        (
            "worker(_id|_name)?",
            "hostname|machine|log_stream|(host|node|pod|instance|container)(_id|_name)?",
            "pid|process|process_id",
            "thread|thread_id|thread_name",
        ),
        _is_name,
    ),
    "sent": Rule(("sent_timestamp|sent_at|sent|enqueued_at|queued_at|published_at",), _is_time),
    "group": Rule(("message_group_id|message_group|group_id",), _is_name),
    "visibility": Rule(("visibility|visibility_timeout(_s|_seconds)?",), _is_duration),
    "handler": Rule(("handler|handler_name|function_name|task_name|job_name|job_class|consumer",), _is_name),
    "error": Rule(
        (
            "(error|err|exception|exc)(_message|_msg|_text|_value)?",
            "exc_info|exception_name|(error|exception)_type|failure|reason",
            "traceback|stack_?trace|stack",
        ),
        _is_text,
    ),
    "key": Rule(
        (
            "idempotency_key|dedup\\w*_(id|key)|business_key",
            f"key|({_BUSINESS})(_?(id|number|no|num|nr|ref|key|code|uuid))?",
            "\\w+_(id|number|ref|key|uuid)",
        ),
        _is_name,
        f"message|msg|task|job|routing|{_OTHER_IDS}",
    ),
}

# If no name fits, the values decide.
ANY_ID: Final = Rule(("^(id|uuid)",), _is_word)
UUIDS: Final = Rule((".*",), _is_uuid, f"{_OTHER_IDS}|{_BUSINESS}")
TIMES: Final = Rule((".*",), _is_time, _OTHER_TIMES)
QUEUES: Final = Rule((".*",), _is_queue, _OTHER_QUEUES)

_DURATION: Final = "(duration|took|elapsed|latency|run_?time|(processing|execution|handler|elapsed|duration)_time)"
_UNITS: Final = {
    "seconds": "s|secs?|seconds?",
    "milliseconds": "ms|msecs?|millis|milliseconds?",
    "microseconds": "us|micros|microseconds?",
    "nanoseconds": "ns|nanos|nanoseconds?",
}
_OTHER_DURATIONS: Final = "visibility|timeout|delay|wait|retry|ttl|age"
DURATIONS: Final = {
    name: Rule((f"{_DURATION}(_in)?_({unit})", name), _is_duration, _OTHER_DURATIONS) for name, unit in _UNITS.items()
}
NO_UNIT: Final = Rule((_DURATION,), _is_duration, _OTHER_DURATIONS)

EVENTS: Final = Rule(
    (
        "event|event_name|event_type|step|action|phase|stage|state|status|outcome|activity",
        "message|msg",
        "success|succeeded|ok|result|text|description|type|operation",
    ),
    _is_text,
)
NO_EVENTS: Final = Rule(
    ("level|levelname|level_name|severity|logger|module|filename|pathname|func_name|error",), _is_text
)
