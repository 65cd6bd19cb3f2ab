"""The driver of a pipeline and its tasks, as a program of the model. Semel's own code makes the decisions: the segment
log, the committer of batches, and the rules by which a sink recognises a batch. The receiving in between is written
here, in the same steps as in source/reader.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa

from models.replay import Outside, Part, TaskDied
from semel.spark.pipeline.agreement import DriverLog
from semel.spark.pipeline.micro_batch import is_in
from semel.spark.segments import codec
from semel.spark.segments.codec import Meta
from semel.spark.segments.model import Sealed, SegmentAck, SegmentId
from semel.spark.segments.segment_log import (
    COMMITS,
    FORMAT,
    FORMER_COMMITTED,
    FORMER_UNCONFIRMED,
    IDENTITY,
    RETURNED,
    BatchAlreadyCommitted,
    LogError,
    SegmentLog,
)
from semel.spark.sinks.contract import Commit, MicroBatch, Sink, SinkError
from semel.spark.source.committer import BatchCommitter
from semel.spark.source.options import ReadOptions
from semel.spark.source.sqs_clock import SqsClock
from semel.sqs.client import Failure, Queue

QUEUE: Final = "orders"
OWNER: Final = "pipeline"
TRIES: Final = 2  # attempts of a task before its driver gives up
BATCHES: Final = 2  # batches that a driver runs
FAR: Final = 1e9
LOG_ID: Final = "log-1"
# Files that never change.
_CONSTANT: Final[dict[str, bytes | None]] = {
    IDENTITY: json.dumps({"id": LOG_ID, "format": FORMAT, "queues": [QUEUE], "owner": OWNER}).encode(),
    FORMER_COMMITTED: None,
    FORMER_UNCONFIRMED: None,
}

Plan = dict[str, Any]
File = tuple[str, bytes]


class Files:
    """The store of the segment log. Each call is one step of the model, except calls whose answer never changes."""

    url = spark_url = "memory://log"

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.last_commit: File | None = None  # the last one that was read or written
        self.remembered = False  # whether reads are answered from `last_commit` only

    def read(self, name: str) -> bytes | None:
        if name in _CONSTANT:
            return _CONSTANT[name]
        if self.remembered:
            return self.last_commit[1] if self.last_commit else None
        data: bytes | None = self._outside.call("read", name)
        self._note(name, data)
        return data

    def names(self, folder: str = "") -> list[str]:
        if folder == RETURNED:
            return []
        if self.remembered:
            return [self.last_commit[0]] if self.last_commit and folder == COMMITS else []
        return list(self._outside.call("list", folder))

    def names_with(self, prefix: str) -> list[str]:
        raise NotImplementedError  # used by sinks, not by the log

    def _note(self, name: str, data: bytes | None) -> None:
        if name.startswith(COMMITS) and data is not None:
            self.last_commit = name, data

    def put(self, name: str, data: bytes) -> None:
        self._outside.call("put", name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        won = bool(self._outside.call("put if absent", name, data))
        if won:
            self._note(name, data)
        return won

    def delete(self, names: Iterable[str]) -> None:
        if files := tuple(names):
            self._outside.call("drop", *files)


class Receipts:
    """The queue, for deletes only."""

    name = scope = QUEUE
    fifo = False

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def delete(self, receipts: Sequence[str]) -> list[Failure | None]:
        confirmed = self._outside.call("delete", *receipts)
        return [None if ok else Failure("InternalError", "no answer") for ok in confirmed]


class Table:
    name = "the table"

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def last(self, _pipeline: str) -> Commit | None:
        commit = self._outside.call("last commit")
        return None if commit is None else Commit(*commit)


@cache
def segment(receipts: tuple[str, ...]) -> pa.Table:
    """A receipt is "message@attempt"."""
    ids = [receipt.partition("@")[0] for receipt in receipts]
    sent = pa.array([0] * len(ids), pa.timestamp("us"))
    return pa.table(
        {"message_id": pa.array(ids, pa.string()), "receipt": pa.array(receipts, pa.string()), "sent_at": sent}
    )


class Log(SegmentLog):
    """Decodes each segment only once, for speed."""

    def read(self, segment_id: SegmentId) -> Sealed | None:
        data = self.store.read(segment_id.name)
        return None if data is None else _decoded(segment_id, data)


@cache
def _decoded(segment_id: SegmentId, data: bytes) -> Sealed:
    return Sealed(segment_id, *codec.decode(data, segment_id.name))


def _files(log: SegmentLog) -> Files:
    return cast("Files", log.store)


def ids_of(sealed: Sealed) -> tuple[str, ...]:
    return tuple(sealed.table.column("message_id").to_pylist())


class Run(NamedTuple):
    """What a driver knows between the parts of its program. `name` is unique to this run of the driver, so its plans
    and attempts have unique names. `offset`: the end of batch `number`, or of the one before it. `memory`: the last
    commit that its committer knows. `left`: how many batches it will still run."""

    name: str
    number: int
    offset: str
    memory: File | None
    left: int = BATCHES

    @property
    def plan(self) -> Plan:
        plan: Plan = json.loads(self.offset)
        return plan


@dataclass(frozen=True)
class Driver:
    """`ack`: when messages are deleted. `tasks`: the maximum for a batch. The rest are the parts that make decisions,
    which mutants replace."""

    ack: str
    tasks: int = 2
    log: type[SegmentLog] = Log
    committer: type[BatchCommitter] = BatchCommitter
    is_in: Callable[[Sink, Commit | None, MicroBatch, Callable[[], str]], bool] = is_in

    def __call__(self, outside: Outside, part: Part) -> Part | None:
        following: Part | None = getattr(self, part[0])(outside, self.log(Files(outside)), *part[1:])
        return following

    def start(self, outside: Outside, log: SegmentLog, name: str) -> Part:
        """Start from the checkpoint. If it is empty, the log knows up to which batch everything is committed."""
        offsets, done = outside.call("read checkpoint")
        number = done + 1
        known: dict[int, str] = dict(offsets)
        if number and number - 1 not in known:
            raise LogError("the checkpoint has a commit without its offset")
        begin = known[number - 1] if number else json.dumps({"batch": log.through()})
        self._committer(outside, log)
        run = Run(name, number, known.get(number, begin), _files(log).last_commit)
        return ("begin" if number in known else "plan"), run

    def plan(self, outside: Outside, log: SegmentLog, run: Run) -> Part | None:
        """As source/planner.py does: commit the batch before this one, and plan the waiting messages."""
        files, begin = _files(log), run.plan
        files.last_commit, files.remembered = run.memory, True
        committer = self._committer(outside, log)
        files.remembered = False
        committer.commit_through(begin["batch"], begin.get("id"))
        batch = begin["batch"] + 1
        end = log.plan(batch) if run.left == BATCHES else None
        if end is None:
            waiting = outside.call("count")
            if not waiting:
                return None
            end = {"id": f"{run.name}/{batch}", "batch": batch, "plan": {QUEUE: min(waiting, self.tasks)}}
        offset = json.dumps(end, sort_keys=True)
        outside.call("write offset", run.number, offset)
        return "begin", run._replace(offset=offset, memory=files.last_commit)

    def begin(self, outside: Outside, log: SegmentLog, run: Run) -> Part:
        self.seal_plan(log, run.plan)
        table, batch = cast("Sink", Table(outside)), MicroBatch(OWNER, run.number)
        rows_in = self.is_in(table, table.last(OWNER), batch, DriverLog(log).content)
        return "task", run, rows_in, (), 0

    def task(
        self, outside: Outside, log: SegmentLog, run: Run, rows_in: bool, rows: tuple[tuple[str, ...], ...], tried: int
    ) -> Part:
        plan = run.plan
        outside.begin_task(f"{run.name}.{plan['batch']}.{len(rows)}.{tried}")
        try:
            rows = (*rows, self._task(outside, log, plan, SegmentId(plan["batch"], len(rows), 0)))
        except TaskDied:
            if tried + 1 == TRIES:
                raise
            return "task", run, rows_in, rows, tried + 1
        if len(rows) < plan["plan"][QUEUE]:
            return "task", run, rows_in, rows, 0
        return "commit", run, rows_in, tuple(sorted(message for ids in rows for message in ids))

    def commit(self, outside: Outside, log: SegmentLog, run: Run, rows_in: bool, rows: tuple[str, ...]) -> Part | None:
        """As pipeline/micro_batch.py does. Then Spark writes to its checkpoint that the batch is done."""
        content = DriverLog(log).content()
        if not rows_in and outside.call("commit", run.number, content, rows) == "refused":
            raise SinkError("another batch has this number")
        log.record_sink_commit(content)
        outside.call("write commit", run.number)
        return ("plan", run._replace(number=run.number + 1, left=run.left - 1)) if run.left > 1 else None

    def seal_plan(self, log: SegmentLog, end: Plan) -> None:
        log.seal_plan(end, OWNER)

    def _committer(self, outside: Outside, log: SegmentLog) -> BatchCommitter:
        options = cast("ReadOptions", SimpleNamespace(ack=self.ack, owner=OWNER, threads=1, visibility=30))
        clock = SqsClock(lambda: None, lambda: 0.0, lambda: 0.0)
        return self.committer(
            log, {QUEUE: cast("Queue", Receipts(outside))}, options, clock, lambda _: FAR, lambda: 0.0
        )

    # A task.

    def _task(self, outside: Outside, log: SegmentLog, end: Plan, segment_id: SegmentId) -> tuple[str, ...]:
        self.check_plan(log, end)
        sealed = log.read(segment_id)
        again: tuple[str, ...] = ()
        if sealed is None:
            receipts: tuple[str, ...] = outside.call("receive", outside.attempt)
            known = self.known(log, segment_id) if receipts else frozenset[str]()
            again = tuple(receipt for receipt in receipts if receipt.partition("@")[0] in known)
            fresh = tuple(receipt for receipt in receipts if receipt not in again)
            sealed = self.sealed(outside, log, segment_id, fresh)
        ack = log.read_ack(segment_id, sealed.meta.attempt) if sealed.meta.attempt != outside.attempt else None
        if ack is None:
            self._acknowledge(outside, log, sealed, again)
        return ids_of(sealed)

    def check_plan(self, log: SegmentLog, end: Plan) -> None:
        plan = log.plan(end["batch"])
        if plan is None or plan["id"] != end["id"]:
            raise LogError(f"there is another plan of batch {end['batch']}")

    def known(self, log: SegmentLog, segment_id: SegmentId) -> frozenset[str]:
        """Messages sealed before: by other tasks of this batch, or by earlier batches whose deletes are unconfirmed."""
        ids = set(log.unconfirmed_deletes().get(QUEUE, {}))
        files = log.files(segment_id.batch)
        for other in files.sealed:
            if other.task != segment_id.task and (sealed := log.read(other)) is not None:
                ids |= set(ids_of(sealed))
        return frozenset(ids)

    def sealed(self, outside: Outside, log: SegmentLog, segment_id: SegmentId, fresh: tuple[str, ...]) -> Sealed:
        """Seals the messages that are certainly still ours. An attempt that loses returns those that the winner has not
        sealed."""
        if fresh:
            fresh = outside.call("still hidden", *fresh)
        meta = Meta(QUEUE, outside.attempt, last=True, hidden_until=FAR)
        try:
            sealed = log.seal(segment_id, segment(fresh), meta)
        except BatchAlreadyCommitted:
            self.give_back(outside, fresh)
            raise
        if sealed.meta.attempt != outside.attempt:
            self.lose(outside, sealed, fresh)
        return sealed

    def lose(self, outside: Outside, winner: Sealed, receipts: tuple[str, ...]) -> None:
        won = ids_of(winner)
        self.give_back(outside, tuple(receipt for receipt in receipts if receipt.partition("@")[0] not in won))

    def give_back(self, outside: Outside, receipts: tuple[str, ...]) -> None:
        if receipts:
            outside.call("return", *receipts)

    def _acknowledge(self, outside: Outside, log: SegmentLog, sealed: Sealed, again: tuple[str, ...]) -> None:
        """`again`: redeliveries of messages that were sealed before. With ack=committed, they are deleted only if they
        are certainly committed."""
        receipts = tuple(sealed.table.column("receipt").to_pylist()) if self.ack == "sealed" else ()
        if self.ack == "committed" and again:
            committed = log.unconfirmed_deletes().get(QUEUE, {})
            again = tuple(receipt for receipt in again if receipt.partition("@")[0] in committed)
        outcomes = outside.call("delete", *receipts, *again) if receipts or again else ()
        failed = {
            receipt.partition("@")[0]: 0 for receipt, ok in zip((*receipts, *again), outcomes, strict=True) if not ok
        }
        confirmed = tuple(id_ for receipt in again if (id_ := receipt.partition("@")[0]) not in failed)
        ack = SegmentAck(QUEUE, deleted=self.ack == "sealed", unconfirmed=failed, confirmed=confirmed)
        log.write_ack(sealed.segment_id, replace(ack, attempt=sealed.meta.attempt))
