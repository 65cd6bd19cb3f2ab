"""Encodes rows as messages: which column is used for what, the id of each message, and why a row cannot be sent.

The rule: a message's id is made of its origin (query and batch, or job), the task and its content; equal rows of a task
are numbered. So a retried task makes the same ids, in whatever order its rows come, and two rows never share one.
"""

from __future__ import annotations

import base64
import datetime
import decimal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa

from semel.messages.keys import PRODUCER_KEY
from semel.sqs import Entry, limits

_ID_BYTES: Final = 16
_SHORT_BYTES: Final = 8  # of an id, to recognise equal rows; a collision is harmless: the row gets a number


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a message is made of. Without `body`, the whole row is the body, as a JSON object.

    `attributes` is a map; `fields` are columns that become attributes with their own names.
    """

    body: str | None = None
    group: str | None = None
    dedup: str | None = None
    key: str | None = None
    delay: str | None = None
    attributes: str | None = None
    fields: tuple[str, ...] = ()


class Outgoing(NamedTuple):
    """A row as a message. `number` counts the task's rows from 0; `problem` says why SQS would refuse it, or is ""."""

    number: int
    id: str
    entry: Entry
    problem: str

    @property
    def key(self) -> str:
        return str((self.entry.attributes or {}).get(PRODUCER_KEY, self.id))

    @property
    def size(self) -> int:
        body: str | None = self.entry.body
        return 0 if body is None else self.entry.size


@dataclass(slots=True)
class Rows:
    """Encodes the rows of one task. To number equal rows it keeps 8 bytes per row, which take about 80 in Python."""

    columns: Columns
    scope: str
    fifo: bool
    largest: int = limits.MAX_MESSAGE_BYTES
    _count: int = 0
    _digests: set[int] = field(default_factory=set)
    _repeats: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def messages(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        columns = self.columns
        prefix = blake2b(self.scope.encode() + b"\0", digest_size=_ID_BYTES)
        groups, dedups, keys = (_texts(batch, name) for name in (columns.group, columns.dedup, columns.key))
        delays = _values(batch, columns.delay)
        for row, (body, attributes) in enumerate(
            zip(_bodies(batch, columns), _attributes(batch, columns), strict=True)
        ):
            group, dedup, key, delay = groups[row], dedups[row], keys[row], delays[row]
            digest = prefix.copy()
            digest.update(orjson.dumps([body, group, dedup, key, delay, sorted(attributes.items())]))
            id_ = self._numbered(digest.digest())
            attributes.setdefault(PRODUCER_KEY, key or id_)
            if self.fifo:
                dedup = dedup or _token(attributes[PRODUCER_KEY])
            entry = Entry(body, attributes, delay, group, dedup if self.fifo else None)
            yield Outgoing(self._count, id_, entry, problem(entry, self.fifo, self.largest))
            self._count += 1

    def _numbered(self, digest: bytes) -> str:
        short = int.from_bytes(digest[:_SHORT_BYTES], "big")
        if short not in self._digests:
            self._digests.add(short)
            return digest.hex()
        self._repeats[short] += 1
        return f"{digest.hex()}-{self._repeats[short]}"


def problem(entry: Entry, fifo: bool, largest: int) -> str:
    """Why SQS would refuse the message, and perhaps the nine others of its call with it; "" if it would not."""
    body: str | None = entry.body
    if not body:
        return "its body is null" if body is None else "its body is empty"
    if refused := _refused(body):
        return f"its body has the character {refused}, which SQS refuses"
    if entry.size > largest:
        return f"it has {entry.size} bytes with its attributes; the queue takes at most {largest}"
    return _attributes_problem(entry.attributes or {}) or _ids_problem(entry, fifo)


def _attributes_problem(attributes: Mapping[str, Any]) -> str:
    if len(attributes) > limits.MAX_MESSAGE_ATTRIBUTES:
        return f"it has {len(attributes) - 1} attributes and {PRODUCER_KEY}; SQS takes ten in all"
    for name, value in attributes.items():
        if not limits.ATTRIBUTE_NAME.match(name):
            return f"{name!r} is not a valid attribute name"
        if not value:
            return f"its attribute {name!r} is empty"
        if refused := _refused(value):
            return f"its attribute {name!r} has the character {refused}, which SQS refuses"
    return ""


def _ids_problem(entry: Entry, fifo: bool) -> str:
    if fifo and entry.group is None:
        return "its group is null; a FIFO queue needs one"
    for what, value in (("group", entry.group), ("deduplication id", entry.dedup)):
        if value is not None and not limits.TOKEN.match(value):
            return f"its {what} {value[:40]!r} must be 1 to 128 ASCII letters, digits and punctuation marks"
    if entry.delay is not None and not 0 <= entry.delay <= limits.MAX_DELAY:
        return f"its delay is {entry.delay} s; it must be from 0 to {limits.MAX_DELAY}"
    return ""


def _refused(text: str) -> str:
    if text.isascii() and text.isprintable():
        return ""
    match = limits.FORBIDDEN_CHARACTER.search(text)
    return f"U+{ord(match[0]):04X}" if match else ""


def _token(text: str) -> str:
    """A valid deduplication id for `text`: itself, or its digest."""
    return text if limits.TOKEN.match(text) else blake2b(text.encode(), digest_size=32).hexdigest()


# Columns.


def _values(batch: pa.RecordBatch, name: str | None) -> list[Any]:
    return [None] * batch.num_rows if name is None else batch.column(name).to_pylist()


def _texts(batch: pa.RecordBatch, name: str | None) -> list[str | None]:
    return [None if value is None else as_text(value) for value in _values(batch, name)]


def _bodies(batch: pa.RecordBatch, columns: Columns) -> list[str]:
    if columns.body is not None:
        texts: list[str] = batch.column(columns.body).to_pylist()
        return texts
    return [as_json(row) for row in batch.to_pylist(maps_as_pydicts="strict")]


def _attributes(batch: pa.RecordBatch, columns: Columns) -> Iterator[dict[str, str]]:
    named = [(name, batch.column(name).to_pylist()) for name in columns.fields]
    for row, pairs in enumerate(_values(batch, columns.attributes)):
        attributes = {name: value for name, value in pairs or () if value is not None}
        attributes |= {name: as_text(values[row]) for name, values in named if values[row] is not None}
        yield attributes


def as_text(value: Any) -> str:
    """A value as an attribute: texts unchanged, anything else as in JSON."""
    return value if isinstance(value, str) else as_json(value).strip('"')


def as_json(value: Any) -> str:
    """As Spark's `to_json`: null fields are left out, decimals are numbers, bytes are base64."""
    return orjson.dumps(_plain(value), default=_other, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z).decode()


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(item) for name, item in value.items() if item is not None}
        case list():
            return [_plain(item) for item in value]
        case datetime.datetime() if value.tzinfo is not None:
            return value.astimezone(datetime.UTC)
    return value


def _other(value: Any) -> Any:
    match value:
        case decimal.Decimal():
            return orjson.Fragment(f"{value:f}")
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.timedelta():
            return value.total_seconds()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
