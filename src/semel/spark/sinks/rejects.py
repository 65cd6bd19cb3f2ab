"""Where rejected messages go: a dead-letter queue, or a table. Both are sinks, written in the tasks of the rows.

The rule: a rejected message is stored before its batch is committed. In a table it is stored once. In a queue it is
sent once, with one exception: if a task dies, or runs twice, between sending messages and recording that, they are sent
again. A FIFO queue drops such duplicates within five minutes, and in all queues they have the same `semel-key` and
`semel-message-id`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import pyarrow as pa

from semel.errors import Unavailable
from semel.messages import dead_letter_attributes as own_attributes
from semel.spark.segments.storage import Store
from semel.spark.sinks.commit_log import CommitLog
from semel.spark.sinks.contract import (
    Commit,
    MicroBatch,
    SinkError,
    Written,
    already_committed,
    results_with_rows,
    store_at,
)
from semel.spark.sinks.parquet.sink import ParquetSink, ParquetWriter
from semel.spark.sinks.sqs import Address, check_sendable
from semel.spark.sinks.table_schema import UTC_TIME
from semel.spark.source.column_types import REJECTED
from semel.spark.source.columns import arrow_columns
from semel.spark.writer.sender import client_for
from semel.sqs import Attribute, Client, Entry, Failure, Queue
from semel.sqs.client.error_parser import transient
from semel.sqs.errors import ServerFailed, SqsError

_REASON: Final = [pa.field("reason", pa.string()), pa.field("field", pa.string())]
TABLE: Final = pa.schema(
    [*arrow_columns(REJECTED[:3]), *_REASON, *arrow_columns(REJECTED[3:]), pa.field("rejected_at", UTC_TIME)]
)
_FOLDER: Final = "rejects"
_NOTE: Final = re.compile(rf"{_FOLDER}/b(\d+)-t\d+\Z")
_AT_ONCE: Final = 500  # messages in memory as entries to send


def flattened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a message, `reason` and `field`. The message may be given as columns or as a struct `message`."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    message = columns.pop("message", None)
    if message is not None:
        columns |= dict(zip([part.name for part in message.type], message.flatten(), strict=True))
    if columns["body"].null_count:
        raise SinkError("a rejected message came without its body; nothing of its batch is committed")
    names = [name for name in (*REJECTED, "reason", "field") if name in columns]
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names)


class RejectTable:
    """Rejected messages as a folder of Parquet files."""

    def __init__(self, path: str, compression: str = "zstd") -> None:
        self._sink = ParquetSink(path, compression, prefix="rejects")

    @property
    def name(self) -> str:
        return f"rejects in {self._sink.name}"

    def open(self, schema: pa.Schema | None = None) -> None:  # noqa: ARG002 - rejects have a schema of their own
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
    """Rejected messages as dead-letter messages like the consumer's: body, attributes, and the reason.

    `queue`: name, URL or ARN; None: the queue in the RedrivePolicy of each of `sources`. The ids of sent messages are
    recorded under `<checkpoint>/rejects`.
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
        self._commits = _commit_log(self._store)
        self._queue, self._sources = queue, tuple(sources)
        self._address: Address = (endpoint_url, region, profile)
        self._targets: dict[str, str] | None = None

    @property
    def name(self) -> str:
        return f"dead-letter queue {self._queue or 'of ' + ', '.join(self._sources)}"

    def open(self, schema: pa.Schema | None = None) -> None:  # noqa: ARG002 - rejects have a schema of their own
        self._targets = self._find_targets(client_for(self._address))
        last = self._commits.last()
        if last is not None:
            notes = [(name, _NOTE.match(name)) for name in self._store.names(_FOLDER)]
            self._store.delete([name for name, note in notes if note and int(note[1]) <= last.number])

    def check(self, schema: pa.Schema | None, pipeline: str | None, *, adopt: bool = False) -> None:  # noqa: ARG002
        with Client(*self._address) as client:  # less patient than the one that sends
            for url in sorted(set(self._find_targets(client).values())):
                queue = client.queue(url)
                check_sendable(f"dead-letter queue {queue.name}", queue)

    def check_owner(self, pipeline: str | None) -> None:
        """A queue may have several senders."""

    def last(self, pipeline: str) -> Commit | None:  # noqa: ARG002 - its folder is in the pipeline's checkpoint
        return self._commits.last()

    def writer(self, batch: MicroBatch) -> RejectQueueWriter:
        if self._targets is None:
            raise SinkError(f"{self.name} was not opened")
        return RejectQueueWriter(self.name, self._store.url, batch.number, self._address, self._targets)

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        notes = [result.payload["note"] for result in results_with_rows(batch, written)]
        if notes and not already_committed(self.name, self.last(batch.pipeline), batch):
            self._commits.record(batch)
            self._store.delete(notes)

    def close(self) -> None:
        pass

    def _find_targets(self, client: Client) -> dict[str, str]:
        """The URL of the dead-letter queue for each source, or under "" the one for all sources."""
        try:
            if self._queue is not None:
                return {"": client.queue(self._queue).url}
            return by_url_and_name(
                {
                    source.url: client.queue(_redrive_target(source, source.attributes("RedrivePolicy"))).url
                    for source in map(client.queue, self._sources)
                }
            )
        except Unavailable:
            raise
        except SqsError as error:
            raise SinkError(f"{self.name} cannot be used: {error}") from error


def by_url_and_name(targets: Mapping[str, str]) -> dict[str, str]:
    """`targets` by the URLs of the sources, and also by their names, unless queues of two accounts have the same
    name."""
    names = [url.rpartition("/")[2] for url in targets]
    by_name = zip(names, targets.values(), strict=True)
    return dict(targets) | {name: target for name, target in by_name if names.count(name) == 1}


def _commit_log(store: Store) -> CommitLog:
    """The commits of batches that had rejects."""
    return CommitLog(store, f"{_FOLDER}/commits", former=f"{_FOLDER}/committed.json")


def _redrive_target(queue: Queue, attributes: Mapping[str, str]) -> str:
    try:
        target: str = json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"]
    except (KeyError, ValueError, TypeError):
        raise SinkError(
            f"queue {queue.name} has no dead-letter queue for rejected messages: run with --create-dlq, give it a "
            "RedrivePolicy, or name a queue or a table under [rejects]"
        ) from None
    return target


@dataclass(frozen=True, slots=True)
class RejectQueueWriter:
    """`targets`: the URL of the dead-letter queue by the source's URL or name; under "" the one for all sources."""

    sink: str
    folder: str
    number: int
    address: Address
    targets: Mapping[str, str] = field(default_factory=dict)

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        store, note = store_at(self.folder), f"{_FOLDER}/b{self.number:010}-t{task:04}"
        known, rows, size = None, 0, 0
        sent: list[str] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            if known is None and (last := _commit_log(store).last()) is not None and last.number >= self.number:
                break  # a late task: another driver has committed the batch
            known = _noted(store, note) if known is None else known
            new = [row for row in flattened(batch).to_pylist(maps_as_pydicts="lossy") if row["message_id"] not in known]
            for start in range(0, len(new), _AT_ONCE):
                self._send(new[start : start + _AT_ONCE])
            sent += [row["message_id"] for row in new]
            rows, size = rows + batch.num_rows, size + sum(len(row["body"]) for row in new)
        if sent:
            store.put(note, orjson.dumps([*(known or ()), *sent]))
        return Written(task, attempt, rows, size, {"note": note} if rows else {})

    def _send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        client = client_for(self.address)
        by_target: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            by_target.setdefault(self._target(row), []).append(row)
        for url, group in by_target.items():
            queue = client.queue(url)
            try:
                outcomes = queue.send_many([dead_letter_entry(row, fifo=queue.fifo) for row in group])
            except Unavailable:
                raise
            except SqsError as error:
                raise SinkError(f"{self.sink}: cannot send rejected messages to {queue.name}: {error}") from error
            for row, outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, Failure):
                    raise self._failure(row, queue, outcome)

    def _failure(self, row: Mapping[str, Any], queue: Queue, outcome: Failure) -> Exception:
        text = (
            f"{self.sink}: message {row['message_id']} of {row['queue']} ({row['reason']}) cannot be sent to "
            f"{queue.name}: {outcome.message}. Nothing of its batch is committed"
        )
        if transient(outcome.code, sender_fault=outcome.sender_fault):
            return ServerFailed(text, code=outcome.code, operation="SendMessageBatch", queue=queue.name)
        return SinkError(text)

    def _target(self, row: Mapping[str, Any]) -> str:
        target = self.targets.get(row["queue"] or "") or self.targets.get("")
        if target is None:
            raise SinkError(
                f"{self.sink}: message {row['message_id']} came from queue {row['queue']}, which is not the name or "
                "the URL of exactly one source: name a queue or a table under [rejects]"
            )
        return target


def _noted(store: Store, note: str) -> set[str]:
    data = store.read(note)
    return set() if data is None else set(orjson.loads(data))


def dead_letter_entry(row: Mapping[str, Any], *, fifo: bool) -> Entry:
    """The dead-letter message of a rejected message. It is always small enough to be sent."""
    reason, _, error = row["reason"].partition(": ")
    about = error or row["reason"]
    # A message id is not passed on as the key: after a redrive it would take precedence over the handler's key rule.
    ids = (row["message_id"], (row.get("attributes") or {}).get(own_attributes.MESSAGE_ID))
    details = own_attributes.DeadLetterDetails(
        key="" if row["key"] in ids else row["key"] or "",
        reason=reason,
        error=f"field {row['field']}: {about}" if row.get("field") else about,
        attempts=row.get("receive_count") or 1,
        message_id=row["message_id"],
        queue=row["queue"] or "",
    )
    own = {name: Attribute("String", value) for name, value in (row.get("attributes") or {}).items()}
    size = len(row["body"].encode())
    entry = _entry(row, own_attributes.attributes(details, own, size), fifo=fifo)
    # Binary attributes are longer as text. If the message is too large, attributes are dropped, never the body.
    for fewer in (own_attributes.attributes(details, {}, size), {}):
        if entry.unsendable() is None:
            break
        entry = _entry(row, fewer, fifo=fifo)
    return entry


def _entry(row: Mapping[str, Any], attributes: Mapping[str, Attribute], *, fifo: bool) -> Entry:
    return Entry(
        row["body"],
        attributes=attributes,
        group=(row.get("group_id") or "dead-letters") if fifo else None,
        dedup=row["message_id"] if fifo else None,
    )
