"""The segment log: which segments exist, which of them are acknowledged, and which batches are committed.

    log.json                      the id of this log, its queues, and the query that it belongs to
    b0000000007/plan.json         the end of batch 7 as its query planned it: which tasks it has
    b0000000007/t0001-p00000.seg  the first part of what task 1 of batch 7 received
    b0000000007/t0001-p00000.<attempt>.ack   what became of its messages in the queue; <attempt> has sealed it
    b0000000007/sink.json         a pipeline's sink has committed batch 7, made of these segments
    commits/0000000006.json       batches up to 6 are committed: their totals, and their unconfirmed deletes; only the
                                  newest file counts
    returned/0000000006.json      ack=committed: messages that the sink's batch 6 has not finished and returns

The rules:
1. The parts of a task are a log of their own: an attempt seals part p only after it has sealed or read part p - 1, and
   only if that was not the last one.
2. A batch is committed by a put-if-absent of its own name under commits/. Then its files are dropped. So only one of
   two drivers decides what is recorded of the batch, and a late driver cannot undo it. Whoever seals a segment lists
   commits/ afterwards: if the batch is committed by then, the segment's name was free only because the first one had
   been dropped, and the new segment is deleted.
3. A batch has one plan, with a unique id, which is sealed before the first task starts. A driver that finds another
   plan than its own is another query, or has another checkpoint, and stops. A task that does not find the plan of its
   batch does not see the driver's log, and stops, too.
4. A batch is planned when the one before it is committed: the batch in progress is the one after the last committed.
5. A pipeline's batch is committed here only after its sink has committed it, whatever Spark's progress says: that can
   be an older copy, or written by a driver that was replaced.
6. An ack without its segment is damage: its messages are in no queue any more. So is a segment with acks of two
   attempts: the segment that was acknowledged first is gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec
import orjson
import pyarrow as pa

from semel.errors import SemelError
from semel.spark.segments import codec
from semel.spark.segments.codec import Meta, SegmentDamaged
from semel.spark.segments.model import (
    BatchFiles,
    Committed,
    Content,
    Sealed,
    SegmentAck,
    SegmentId,
    Totals,
    folder,
    is_plan,
    task_count,
)
from semel.spark.segments.storage import Store, open_store

Read = TypeVar("Read")
Unconfirmed = Mapping[str, Mapping[str, int]]

FORMAT: Final = 4  # 1 had no plans; 2 had other names; 3 had committed.json and unconfirmed.json, not commits/
_READABLE: Final = (3, FORMAT)
IDENTITY: Final = "log.json"
PLAN: Final = "plan.json"
SINK: Final = "sink.json"
COMMITS: Final = "commits"
FORMER_UNCONFIRMED: Final = "unconfirmed.json"  # of format 3
FORMER_COMMITTED: Final = "committed.json"
RETURNED: Final = "returned"
NOTHING_DONE: Final = "Nothing was received or deleted"
_BATCH: Final = re.compile(r"b(?P<batch>\d{10})/")


class LogError(SemelError):
    """The segment log does not fit the query. Do what the text says."""


class OtherQuery(LogError):
    """The log, or a batch of it, belongs to another query. Nothing was deleted for this one. Give each query a
    `segments` folder of its own."""


class BatchAlreadyCommitted(LogError):
    """Another attempt has committed this batch. Do nothing: the messages return to the queue by themselves."""


def advice(owner: str | None) -> str:
    """What is safe to do if log and checkpoint do not belong together. Only queries of pipelines have a name."""
    if owner is not None:
        return "`semel pipeline reset FILE` goes on from what the log and the table have, and says what that means"
    return (
        "Go on with the checkpoint that belongs to this log. If that is lost, begin with a new checkpoint, a new "
        "folder for 'segments' and a new table; for what is sealed in the old log only see 'When checkpoint and log "
        "do not agree' in docs/reference/spark.md"
    )


def counts(url: str) -> Totals:
    """The totals of the committed batches of a log."""
    return SegmentLog(open_store(url)).committed().totals


class _Identity(msgspec.Struct):
    id: str
    queues: list[str]
    format: int = 0
    owner: str | None = None


class _Commit(msgspec.Struct):
    through: int
    totals: Totals
    unconfirmed: dict[str, dict[str, int]] = {}

    @property
    def committed(self) -> Committed:
        return Committed(self.through, self.totals)


class SegmentLog:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._id: str | None = None

    def _read(self, name: str, kind: type[Read]) -> Read | None:
        """The content of a small file of the log; None if it does not exist. An incomplete or different one is
        damage."""
        data = self.store.read(name)
        try:
            return None if data is None else msgspec.json.decode(data, type=kind)
        except (ValueError, RecursionError) as error:
            raise self._damaged(name, str(error)) from None

    def _damaged(self, name: str, what: str) -> LogError:
        return LogError(
            f"{self.store.url}/{name} is damaged: {what}. Restore this one file from a copy, or see "
            "'A damaged segment' in docs/reference/spark.md"
        )

    # Identity and ownership.

    def identity(self) -> dict[str, Any] | None:
        read = self._read(IDENTITY, _Identity)
        return None if read is None else msgspec.structs.asdict(read)

    @property
    def id(self) -> str:
        """The log's id, read once; empty while there is no log."""
        if self._id is None:
            identity = self.identity()
            self._id = None if identity is None else identity["id"]
        return self._id or ""

    def create(self, queues: tuple[str, ...], owner: str | None = None) -> dict[str, Any]:
        """The log's identity; created if there is none. `owner`: the query that it belongs to, if that has a name."""
        check = getattr(self.store, "check", None)
        if self.store.read(IDENTITY) is None:
            if check is not None:
                check()
            made = {"id": uuid4().hex[:12], "format": FORMAT, "queues": list(queues), "owner": owner}
            self.store.put_if_absent(IDENTITY, orjson.dumps(made))
        identity = self.identity()
        assert identity is not None
        self._check_owner(identity, owner)
        return identity

    def check(self, log_id: str, queues: tuple[str, ...], owner: str | None = None) -> None:
        """Checks that an offset belongs to this log, and the log to this query, and that no queue is missing."""
        identity = self.identity()
        if identity is None or identity["id"] != log_id:
            there = "is empty or was removed" if identity is None else f"holds another log ({identity['id']})"
            raise LogError(
                f"the checkpoint goes on from the segment log {log_id}, but {self.store.url} {there}. Set the option "
                "'segments' that this checkpoint was made with: the messages received last may be in there only"
            )
        self._check_owner(identity, owner)
        missing = [name for name in identity["queues"] if name not in queues]
        if missing:
            raise LogError(
                f"the segment log {self.store.url} has messages of {', '.join(missing)} too, which 'queue' no longer "
                "names. They may be sealed and not yet deleted. Name it again, or begin with a new checkpoint, a new "
                "segment log and a new table"
            )
        if set(queues) != set(identity["queues"]) or identity["format"] != FORMAT:
            self.store.put(IDENTITY, orjson.dumps({**identity, "format": FORMAT, "queues": list(queues)}))

    def hand_over(self, owner: str) -> None:
        """Gives the log to this query. From now on its former owner cannot plan batches."""
        identity = self.identity()
        if identity is None:
            raise LogError(f"the segment log {self.store.url} is empty or was removed meanwhile. Run the reset again")
        self.store.put(IDENTITY, orjson.dumps({**identity, "format": FORMAT, "owner": owner}))

    def check_owner(self, owner: str | None) -> None:
        """Checks that the log was not given to another query meanwhile."""
        identity = self.identity()
        if identity is not None:
            self._check_owner(identity, owner)

    def _check_owner(self, identity: Mapping[str, Any], owner: str | None) -> None:
        if identity.get("format") not in _READABLE:
            raise LogError(
                f"the segment log {self.store.url} was written by an earlier version of Semel, whose plans and names "
                "this one cannot read. Let that version process what is sealed in it, then take the pipeline over "
                "with `semel pipeline reset FILE`"
            )
        if identity.get("owner") != owner:
            raise OtherQuery(
                f"the segment log {self.store.url} belongs to another query ({identity.get('owner') or 'unnamed'}), "
                f"and this one is {owner or 'unnamed'}; it stops, and deletes nothing from the queue. A segment log is "
                "read by one query: give each its own 'segments' and checkpoint"
                + ("" if owner is None else f". After a reset only the next run goes on. If none does: {advice(owner)}")
            )

    # Plans.

    def plan(self, batch: int) -> dict[str, Any] | None:
        name = f"{folder(batch)}/{PLAN}"
        plan = self._read(name, dict[str, Any])
        if plan is not None and not is_plan(plan):
            raise self._damaged(name, "it has no id, no number of its batch, or no number of tasks for each queue")
        return plan

    def seal_plan(self, end: Mapping[str, Any], owner: str | None = None) -> None:
        """Called before a batch's first task: from now on the batch has this plan and no other. Idempotent."""
        batch = end["batch"]
        name = f"{folder(batch)}/{PLAN}"
        won = self.store.put_if_absent(name, orjson.dumps(end))
        if self.through() >= batch:
            if won:
                self.store.delete([name])
            raise OtherQuery(
                f"batch {batch} of the segment log {self.store.url} is committed already, but this checkpoint is only "
                f"about to run it: it is an older copy, or another query has gone on from it. {NOTHING_DONE}. "
                f"{advice(owner)}"
            )
        plan = self.plan(batch)
        if plan is None or plan["id"] != end["id"]:
            raise self.planned_by_another(batch, owner)
        identity = self.identity()
        if identity is None or identity.get("owner") != owner:  # handed over meanwhile
            raise self.planned_by_another(batch, owner)

    def planned_by_another(self, batch: int, owner: str | None) -> OtherQuery:
        return OtherQuery(
            f"batch {batch} of the segment log {self.store.url} was planned by another query, or by this one with "
            f"another checkpoint. {NOTHING_DONE}. A segment log is read by one query: if two of them share the option "
            f"'segments', give each a folder and a checkpoint of its own. If the checkpoint was lost or is an older "
            f"copy: {advice(owner)}"
        )

    def begun(self) -> list[int]:
        """The numbers of batches that have files, committed or not. Lists the whole log."""
        return sorted({int(match["batch"]) for name in self.store.names() if (match := _BATCH.match(name))})

    # Segments and their acknowledgements.

    def files(self, batch: int) -> BatchFiles:
        return BatchFiles.parse(self.store.names(folder(batch)))

    def read(self, segment_id: SegmentId) -> Sealed | None:
        data = self.store.read(segment_id.name)
        if data is None:
            return None
        meta, table = codec.decode(data, f"{self.store.url}/{segment_id.name}")
        return Sealed(segment_id, meta, table)

    def seal(self, segment_id: SegmentId, table: pa.Table, meta: Meta) -> Sealed:
        """Seals a segment. Returns the one that is sealed from now on: this one, or that of an attempt that was
        first."""
        won = self.store.put_if_absent(segment_id.name, codec.encode(table, meta))
        winner = Sealed(segment_id, meta, table) if won else self.read(segment_id)
        if self.through() >= segment_id.batch:
            if won:
                self.store.delete([segment_id.name])
            winner = None
        if winner is None:  # meanwhile the batch was committed, and perhaps dropped
            raise BatchAlreadyCommitted(
                f"batch {segment_id.batch} of {self.store.url} was committed by another attempt"
            )
        return winner

    def lost(self, segment_id: SegmentId) -> SegmentDamaged:
        return SegmentDamaged(f"{self.store.url}/{segment_id.name}", "it is not there any more, but its .ack is")

    def replaced(self, segment_id: SegmentId) -> SegmentDamaged:
        what = "it is gone, its .ack is there, and a late attempt has sealed other messages under its name"
        return SegmentDamaged(f"{self.store.url}/{segment_id.name}", what)

    def write_ack(self, segment_id: SegmentId, ack: SegmentAck) -> None:
        self.store.put(segment_id.ack_name(ack.attempt), orjson.dumps(asdict(ack)))

    def read_ack(self, segment_id: SegmentId, attempt: str | None = None) -> SegmentAck | None:
        """`attempt`: the attempt that sealed the segment. If it is not given, the batch is listed to find it."""
        if attempt is None:
            attempt = self.files(segment_id.batch).acked.get(segment_id)
        return None if attempt is None else self._read(segment_id.ack_name(attempt), SegmentAck)

    def content(self, batch: int) -> Content:
        """The segments of a batch, as its content; the same after each run of its tasks. Makes one listing, and reads
        only segments without an ack."""
        return self.content_of(batch, self.plan(batch), self.files(batch))

    def content_of(self, batch: int, plan: Mapping[str, Any] | None, files: BatchFiles) -> Content:
        unplanned = () if plan is None else files.unplanned(task_count(plan))
        attempts = {}
        for segment_id in files.all:
            if segment_id in unplanned:  # no task of the batch reads it
                continue
            if segment_id in files.replaced:
                raise self.replaced(segment_id)
            attempts[segment_id] = files.acked.get(segment_id) or self._sealer(segment_id)
        return Content.of(self.id, batch, attempts)

    def _sealer(self, segment_id: SegmentId) -> str:
        sealed = self.read(segment_id)
        if sealed is None:
            raise self.lost(segment_id)
        return sealed.meta.attempt

    # What the sink has.

    def record_sink_commit(self, content: str) -> None:
        """Records that the sink has the batch with this content. Idempotent."""
        batch = Content.parse(content)
        if batch is not None:
            self.store.put(f"{folder(batch.batch)}/{SINK}", orjson.dumps({"content": content}))

    def in_sink(self, batch: int) -> str | None:
        """The content that the sink has as this batch; None if it is not recorded that the sink has the batch."""
        record = self._read(f"{folder(batch)}/{SINK}", dict[str, str])
        return None if record is None else record.get("content", "")

    # What goes back to its queue.

    def give_back(self, number: int, until: Mapping[str, float]) -> None:
        """Records the messages that the sink's committed batch with this number leaves in the queue: until when each is
        to stay hidden, by message id. Replaces the records of earlier batches."""
        own = f"{RETURNED}/{number:010d}.json"
        if until:
            self.store.put(own, orjson.dumps(until))
        self.store.delete([name for name in self.store.names(RETURNED) if not (until and name == own)])

    def returned(self) -> dict[str, float]:
        returned: dict[str, float] = {}
        for name in self.store.names(RETURNED):
            returned |= self._read(name, dict[str, float]) or {}
        return returned

    # The end of a batch.

    def through(self) -> int:
        """Batches up to this one are committed."""
        names = self.store.names(COMMITS)
        return int(names[-1].rpartition("/")[2][:10]) if names else self._former_commit().through

    def committed(self) -> Committed:
        commit = self._last_commit()
        return self._former_commit() if commit is None else commit.committed

    def unconfirmed_deletes(self) -> Unconfirmed:
        """By queue: ids of messages that were given out and may come back, with the times they were sent (ms)."""
        return self.last_commit()[1]

    def last_commit(self) -> tuple[Committed, Unconfirmed]:
        """What is committed, and the unconfirmed deletes, both as written by the same driver."""
        commit = self._last_commit()
        if commit is not None:
            return commit.committed, commit.unconfirmed
        return self._former_commit(), self._read(FORMER_UNCONFIRMED, dict[str, dict[str, int]]) or {}

    def _last_commit(self) -> _Commit | None:
        while names := self.store.names(COMMITS):
            commit = self._read(names[-1], _Commit)
            if commit is not None:  # else there is a newer one by now
                return commit
        return None

    def _former_commit(self) -> Committed:
        """The commit of a log of format 3 that has none in this format yet. For a new log: batch 0."""
        commit = self._read(FORMER_COMMITTED, _Commit)
        return Committed() if commit is None else commit.committed

    def finish(self, committed: Committed, unconfirmed: Unconfirmed | None, names: tuple[str, ...]) -> bool:
        """Commits batches: records their totals and the unconfirmed deletes, then drops their files (`names`).
        `unconfirmed`: None if unchanged. Returns False if another driver was first; then its record counts."""
        if unconfirmed is None:
            unconfirmed = self.unconfirmed_deletes()
        own = f"{COMMITS}/{committed.through:010d}.json"
        totals = asdict(committed.totals)
        data = orjson.dumps({"through": committed.through, "totals": totals, "unconfirmed": unconfirmed})
        # If it exists already, this call may have created it: an answer was lost, and the call was repeated.
        ours = self.store.put_if_absent(own, data) or self.store.read(own) == data
        commits = self.store.names(COMMITS)
        newest = max([own, *commits])
        self.store.delete([*names, *(name for name in commits if name < newest)])
        return ours and newest == own
