"""Where messages go that are no rows: a dead-letter queue, or a table. Both are sinks, written in the rows' own tasks.

The rule: a rejected message is put aside before its batch is committed. In a table it is there once. In a queue it is
there once, too, but for one window: a task, or its twin, that ends between sending letters and noting that they were
sent has its letters sent again; on a FIFO queue SQS drops those within five minutes, and anywhere they carry the same
`semel-key` and `semel-message-id`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import pyarrow as pa

from semel.messages import dead_letter_attributes as letters
from semel.spark.segments.storage import Store
from semel.spark.sinks.contract import Commit, MicroBatch, SinkError, Written, checked, is_in, store_at
from semel.spark.sinks.parquet import ParquetSink, ParquetWriter
from semel.spark.sinks.table_schema import UTC_TIME
from semel.spark.source.column_types import REJECTED
from semel.spark.source.columns import arrow_columns
from semel.spark.writer.sender import client_for
from semel.sqs import Attribute, Entry, Failure
from semel.sqs.errors import SqsError

_REASON: Final = [pa.field("reason", pa.string()), pa.field("field", pa.string())]
TABLE: Final = pa.schema(
    [*arrow_columns(REJECTED[:3]), *_REASON, *arrow_columns(REJECTED[3:]), pa.field("rejected_at", UTC_TIME)]
)
_FOLDER: Final = "rejects"
_COMMITTED: Final = f"{_FOLDER}/committed.json"
_MARK: Final = re.compile(rf"{_FOLDER}/b(\d+)-t\d+\Z")
_AT_ONCE: Final = 500  # letters in memory as messages to send

Address = tuple[str | None, str | None, str | None]  # endpoint, region, profile


def flattened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns `reason`, `field` and those of a message, whether these come as columns or as a struct `message`."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    message = columns.pop("message", None)
    if message is not None:
        columns |= dict(zip([part.name for part in message.type], message.flatten(), strict=True))
    if columns["body"].null_count:
        raise SinkError("a rejected message came without its body; nothing of its batch is committed")
    names = [name for name in (*REJECTED, "reason", "field") if name in columns]
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names)


class RejectTable:
    """Rejected messages as a folder of Parquet files, as `ParquetSink` keeps it."""

    def __init__(self, path: str, compression: str = "zstd") -> None:
        self._sink = ParquetSink(path, compression, prefix="rejects")

    @property
    def name(self) -> str:
        return f"rejects in {self._sink.name}"

    def open(self, schema: pa.Schema | None = None) -> None:  # noqa: ARG002 - what is rejected always looks the same
        self._sink.open(TABLE)

    def check(self, schema: pa.Schema | None, pipeline: str | None, *, adopt: bool = False) -> None:  # noqa: ARG002
        self._sink.check(TABLE, pipeline, adopt=adopt)

    def check_owner(self, pipeline: str | None) -> None:
        self._sink.check_owner(pipeline)

    def last(self, pipeline: str) -> Commit | None:
        return self._sink.last(pipeline)

    def writer(self, batch: MicroBatch) -> RejectTableWriter:
        return RejectTableWriter(self._sink.writer(batch))

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        self._sink.commit(batch, written)

    def close(self) -> None:
        self._sink.close()


@dataclass(frozen=True, slots=True)
class RejectTableWriter:
    inner: ParquetWriter

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        now = datetime.now(UTC)
        return self.inner.write((_as_table(batch, now) for batch in batches), task, attempt)


def _as_table(batch: pa.RecordBatch, now: datetime) -> pa.RecordBatch:
    rows = flattened(batch)
    columns = []
    for column in TABLE:
        if column.name == "rejected_at":
            columns.append(pa.repeat(pa.scalar(now, column.type), rows.num_rows))
        elif column.name in rows.schema.names:
            columns.append(rows.column(column.name).cast(column.type))
        else:
            columns.append(pa.nulls(rows.num_rows, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=TABLE)


class RejectQueue:
    """Rejected messages as dead letters, as the consumer writes them: body and attributes, and why they are there.

    `queue`: name, URL or ARN; None: the one that the RedrivePolicy of each of `sources` names. What was sent is noted
    under `<checkpoint>/rejects`.
    """

    def __init__(
        self,
        checkpoint: str,
        queue: str | None = None,
        sources: Sequence[str] = (),
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        profile: str | None = None,
    ) -> None:
        self._store = store_at(checkpoint)
        self._queue, self._sources = queue, tuple(sources)
        self._address: Address = (endpoint_url, region, profile)
        self._targets: dict[str, str] | None = None

    @property
    def name(self) -> str:
        return f"dead-letter queue {self._queue or 'of ' + ', '.join(self._sources)}"

    def open(self, schema: pa.Schema | None = None) -> None:  # noqa: ARG002 - what is rejected always looks the same
        client = client_for(self._address)
        try:
            if self._queue is not None:
                self._targets = {"": client.queue(self._queue).url}
            else:
                self._targets = {
                    queue.name: client.queue(_redrive_target(queue.name, queue.attributes("RedrivePolicy"))).url
                    for queue in map(client.queue, self._sources)
                }
        except SqsError as error:
            raise SinkError(f"{self.name} cannot be used: {error}") from error
        last = _last(self._store)
        done = -1 if last is None else last.number
        left = [name for name in self._store.names(_FOLDER) if (mark := _MARK.match(name)) and int(mark[1]) <= done]
        if left:
            self._store.delete(left)

    def last(self, pipeline: str) -> Commit | None:  # noqa: ARG002 - its folder is in the pipeline's checkpoint
        return _last(self._store)

    def writer(self, batch: MicroBatch) -> RejectQueueWriter:
        if self._targets is None:
            raise SinkError(f"{self.name} was not opened")
        return RejectQueueWriter(self.name, self._store.url, batch.number, self._address, self._targets)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        marks = [one.payload["mark"] for one in checked(batch, written)]
        if marks and not is_in(self.name, self.last(batch.pipeline), batch):
            self._store.put(_COMMITTED, orjson.dumps({"number": batch.number, "content": batch.content}))
            self._store.delete(marks)

    def close(self) -> None:
        pass


def _last(store: Store) -> Commit | None:
    """The last batch that had rejects, and whose rejects were committed."""
    data = store.read(_COMMITTED)
    if data is None:
        return None
    found = orjson.loads(data)
    return Commit(int(found["number"]), found.get("content", ""))


def _redrive_target(queue: str, attributes: Mapping[str, str]) -> str:
    try:
        target: str = json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"]
    except (KeyError, ValueError, TypeError):
        raise SinkError(
            f"queue {queue} has no dead-letter queue for messages that are no rows: run with --create-dlq, give it a "
            "RedrivePolicy, or name a queue or a table under [rejects]"
        ) from None
    return target


@dataclass(frozen=True, slots=True)
class RejectQueueWriter:
    """`targets`: the URL of the dead-letter queue by the source's name; "" for all."""

    sink: str
    folder: str
    number: int
    address: Address
    targets: Mapping[str, str] = field(default_factory=dict)

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        store, mark = store_at(self.folder), f"{_FOLDER}/b{self.number:010}-t{task:04}"
        known, rows, size = None, 0, 0
        sent: list[str] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            if known is None and (last := _last(store)) is not None and last.number >= self.number:
                break  # the batch is over: this is the task of a driver that does not know it
            known = _marked(store, mark) if known is None else known
            new = [row for row in flattened(batch).to_pylist(maps_as_pydicts="lossy") if row["message_id"] not in known]
            for start in range(0, len(new), _AT_ONCE):
                self._send(new[start : start + _AT_ONCE])
            sent += [row["message_id"] for row in new]
            rows, size = rows + batch.num_rows, size + sum(len(row["body"]) for row in new)
        if sent:
            store.put(mark, orjson.dumps([*(known or ()), *sent]))
        return Written(task, attempt, rows, size, {"mark": mark} if rows else {})

    def _send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        client = client_for(self.address)
        by_target: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            by_target.setdefault(self._target(row), []).append(row)
        for url, group in by_target.items():
            queue = client.queue(url)
            try:
                outcomes = queue.send_many([letter_for(row, fifo=queue.fifo) for row in group])
            except SqsError as error:
                raise SinkError(f"{self.sink}: dead letters cannot be sent to {queue.name}: {error}") from error
            for row, outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, Failure):
                    raise SinkError(
                        f"{self.sink}: message {row['message_id']} of {row['queue']} ({row['reason']}) cannot become a "
                        f"dead letter in {queue.name}: {outcome.message}. Nothing of its batch is committed"
                    )

    def _target(self, row: Mapping[str, Any]) -> str:
        found = self.targets.get(row["queue"] or "") or self.targets.get("")
        if found is None:
            raise SinkError(
                f"{self.sink}: a message came from queue {row['queue']}, which is no source of the pipeline"
            )
        return found


def _marked(store: Store, mark: str) -> set[str]:
    data = store.read(mark)
    return set() if data is None else set(orjson.loads(data))


def letter_for(row: Mapping[str, Any], *, fifo: bool) -> Entry:
    """The dead letter of a rejected message. It is always small enough to be sent."""
    reason, _, error = row["reason"].partition(": ")
    about = error or row["reason"]
    # An id is carried as what it is: as a key it would come before a business key's rule when the message is sent back.
    ids = (row["message_id"], (row.get("attributes") or {}).get(letters.MESSAGE_ID))
    letter = letters.Letter(
        key="" if row["key"] in ids else row["key"] or "",
        reason=reason,
        error=f"field {row['field']}: {about}" if row.get("field") else about,
        attempts=row.get("receive_count") or 1,
        message_id=row["message_id"],
        queue=row["queue"] or "",
    )
    own = {name: Attribute("String", value) for name, value in (row.get("attributes") or {}).items()}
    entry = _entry(row, letters.attributes(letter, own, len(row["body"].encode())), fifo=fifo)
    # Attributes that were bytes are longer as text. What the message says counts for more than they do.
    for fewer in _fewer(letter, row):
        if entry.unsendable() is None:
            break
        entry = _entry(row, fewer, fifo=fifo)
    return entry


def _fewer(letter: letters.Letter, row: Mapping[str, Any]) -> Iterable[Mapping[str, Attribute]]:
    yield letters.attributes(letter, {}, len(row["body"].encode()))
    yield {}


def _entry(row: Mapping[str, Any], attributes: Mapping[str, Attribute], *, fifo: bool) -> Entry:
    return Entry(
        row["body"],
        attributes=attributes,
        group=(row.get("group_id") or "dead-letters") if fifo else None,
        dedup=row["message_id"] if fifo else None,
    )
