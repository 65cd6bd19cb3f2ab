"""The options of `format("sqs")`, read and checked once. Names are as Spark users write them: camelCase, any case."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from semel.errors import SemelError
from semel.sqs import limits

MIB: Final = 1 << 20
# Spark adds these by itself.
_NOT_OURS: Final = frozenset({"path", "checkpointlocation", "querynamed", "queryname", "outputmode"})

READ: Final = {
    "queue": "queue",
    "segments": "segments",
    "receivers": "receivers",
    "threads": "threads",
    "maxmessagesperbatch": "max_messages",
    "maxbytesperbatch": "max_bytes",
    "maxsecondsperbatch": "max_seconds",
    "visibility": "visibility",
    "ack": "ack",
    "dedup": "dedup",
    "ledger": "ledger",
    "ledgerurl": "ledger",  # Spark hides the value of an option that is named so, in plans and in its UI
    "key": "key",
    "columns": "columns",
    "inflight": "in_flight",
    "attemptlog": "attempt_log",
    "owner": "owner",
    "endpointurl": "endpoint_url",
    "region": "region",
    "profile": "profile",
}
_ENDS: Final = ("MessagesPerBatch", "BytesPerBatch", "SecondsPerBatch", "Flight", "Log", "Url")


def _camel(lower: str) -> str:
    end = next((end for end in _ENDS if lower.endswith(end.lower())), "")
    return lower.removesuffix(end.lower()) + end


_PASSWORD: Final = re.compile(r"://[^/@:]*:[^@]+@|\bpassword=", re.IGNORECASE)
SPELLED: Final = tuple(_camel(name) for name in READ)


SCHEMA: Final = (
    "message_id STRING, body STRING, key STRING, group_id STRING, dedup_id STRING, sequence_number STRING, "
    "sent_at TIMESTAMP, first_received_at TIMESTAMP, received_at TIMESTAMP, receive_count INT, "
    "attributes MAP<STRING, STRING>, queue STRING, planned_at TIMESTAMP"
)
COLUMN_NAMES: Final = tuple(part.split()[0] for part in SCHEMA.replace("MAP<STRING, STRING>", "MAP").split(", "))


class OptionError(SemelError):
    """An option of the source or the sink is wrong; the text names it."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What `spark.readStream.format("sqs")` was told. See docs/spark.md for each."""

    queues: tuple[str, ...]
    segments: str | None = None
    receivers: int | None = None
    threads: int = 8
    max_messages: int = 100_000
    max_bytes: int = 128 * MIB
    max_seconds: float = 10.0
    visibility: int = 120
    ack: str = "sealed"
    dedup: str = "segments"
    ledger: str | None = field(default=None, repr=False)  # it may hold a password
    key: str | None = None
    columns: tuple[str, ...] | None = None
    in_flight: str = "leave"
    attempt_log: str | None = None
    owner: str | None = None  # the query that the log belongs to, if it has a name: a pipeline's does
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None

    @property
    def address(self) -> tuple[str | None, str | None, str | None]:
        return self.endpoint_url, self.region, self.profile

    @property
    def margin(self) -> float:
        """A message is sealed only if it stays hidden for so long: enough for the seal and the delete."""
        return min(30.0, self.visibility / 4)

    def receivers_of(self, queue: str) -> int:
        """Tasks that receive from a queue at once. One for FIFO, as then a partition has each group in order."""
        if self.receivers is not None:
            return self.receivers
        return 1 if queue.rstrip("/").endswith(".fifo") else min(8, os.cpu_count() or 2)


def read_options(given: Mapping[str, str], *, column_names: tuple[str, ...]) -> ReadOptions:
    """Raises OptionError that names the option and says what is possible."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        field = READ.get(name.lower())
        if field is None:
            if name.lower() in _NOT_OURS:
                continue
            raise OptionError(f"format 'sqs' has no option {name!r}{_nearest(name, SPELLED)}")
        if name.lower() == "ledger" and _PASSWORD.search(value):
            raise OptionError(
                "option 'ledger' holds a password, and Spark shows the value in its plans. Give the address as "
                "'ledgerUrl', which Spark hides"
            )
        if value.strip():
            found[field] = value.strip()
    queues = _list(found.pop("queue", ""))
    if not queues:
        raise OptionError("option 'queue' is missing: a queue's name, URL or ARN, or several with commas between them")
    if len(set(queues)) != len(queues):
        raise OptionError(f"option 'queue' names a queue twice: {', '.join(queues)}")
    for field, (low, high, kind) in _NUMBERS.items():
        if field in found:
            found[field] = _number(_spelled(field), found[field], low, high, kind)
    for field, possible in _CHOICES.items():
        if field in found and found[field] not in possible:
            raise OptionError(f"option '{_spelled(field)}' is {found[field]!r}: possible are {', '.join(possible)}")
    if "columns" in found:
        found["columns"] = _columns(found["columns"], column_names)
    options = ReadOptions(queues=queues, **found)
    _check_together(options)
    return options


_NUMBERS: Final[dict[str, tuple[float, float, type]]] = {
    "receivers": (1, 10_000, int),
    "threads": (1, 256, int),
    "max_messages": (1, 100_000_000, int),
    "max_bytes": (MIB, 1 << 40, int),
    "max_seconds": (0.1, 3_600, float),
    "visibility": (10, limits.MAX_VISIBILITY, int),
}
_CHOICES: Final = {
    "ack": ("sealed", "committed"),
    "dedup": ("segments", "ledger"),
    "in_flight": ("leave", "wait"),
}


def _check_together(options: ReadOptions) -> None:
    if options.dedup == "ledger" and options.ledger is None:
        raise OptionError("dedup 'ledger' needs the option 'ledger', such as postgresql://host/db or redis://host")
    if options.ledger is not None and options.dedup != "ledger":
        raise OptionError("option 'ledger' is given, but dedup is 'segments': set dedup to 'ledger' or leave it out")
    if options.visibility < 2 * options.max_seconds + options.margin:
        raise OptionError(
            f"visibility {options.visibility} s is too short for batches that receive for {options.max_seconds:g} s: "
            f"messages would be visible again before they are sealed. Set visibility to at least "
            f"{int(2 * options.max_seconds + 30)}, or maxSecondsPerBatch lower"
        )


def _number(name: str, text: str, low: float, high: float, kind: type) -> Any:
    try:
        value = kind(text.replace("_", ""))
    except ValueError:
        raise OptionError(f"option '{name}' is {text!r}, which is no number") from None
    if not low <= value <= high:
        raise OptionError(f"option '{name}' is {text}: it must be from {low:g} to {high:g}")
    return value


def _columns(text: str, possible: tuple[str, ...]) -> tuple[str, ...]:
    wanted = _list(text)
    for name in wanted:
        if name not in possible:
            raise OptionError(f"option 'columns': there is no column {name!r}{_nearest(name, possible)}")
    return wanted


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _spelled(field: str) -> str:
    lower = next(name for name, known in READ.items() if known == field)
    return next(name for name in SPELLED if name.lower() == lower)


def _nearest(name: str, possible: tuple[str, ...] | list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), [known.lower() for known in possible], 1, 0.5)
    if close:
        meant = next(known for known in possible if known.lower() == close[0])
        return f"; did you mean {meant!r}?"
    return f"; there are: {', '.join(possible)}"


assert {field.name for field in fields(ReadOptions)} - {"queues"} == set(READ.values()) - {"queue"}
