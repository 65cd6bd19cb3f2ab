"""The segment log: which segments exist, which of them are settled, and which batches are over.

    log.json                      who this log is, of which queues, and which query it belongs to
    b0000000007/plan.json         the end of batch 7 as its query planned it: which tasks it has
    b0000000007/t0001-p00000.seg  the first part of what task 1 of batch 7 received
    b0000000007/t0001-p00000.ack  what became of its messages in the queue
    unconfirmed.json              messages of committed batches whose delete was not confirmed
    committed.json                batches up to this one are committed and dropped, with what they came to
    returned/0000000006.json      ack=committed: messages that the sink's batch 6 has not finished and gives back

The rules:
1. The parts of a task are a log of their own: to seal part p, one has won or read part p - 1, and it was not the last.
2. A batch is dropped in this order: unconfirmed.json, committed.json, its files. Whoever seals looks at the
   second afterwards: if the batch
   is over by then, its name was free only because it had been dropped, and the seal is taken back.
3. A batch has one plan, sealed before its first task is started, with an id that no other plan has. Whoever finds
   another plan than its own is another query, or has another checkpoint, and stops. A task that does not find the plan
   of its batch does not see the driver's log, and stops, too.
4. An ack without its segment is damage: what was in it is in no queue any more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import SemelError
from semel.spark.segments import codec
from semel.spark.segments.codec import Meta, SegmentDamaged
from semel.spark.segments.storage import Store, open_store

FORMAT: Final = 3  # 1 had no plans, 2 other names
IDENTITY: Final = "log.json"
PLAN: Final = "plan.json"
UNCONFIRMED: Final = "unconfirmed.json"
COMMITTED: Final = "committed.json"
RETURNED: Final = "returned"
_BATCH: Final = re.compile(r"b(?P<batch>\d{10})/")
_PART: Final = re.compile(r"b(?P<batch>\d{10})/t(?P<task>\d{4,})-p(?P<part>\d{5})\.(?P<kind>seg|ack)")
# A message cannot come back after the longest retention; an hour for clocks that differ.
HORIZON: Final = 14 * 86_400 + 3_600


NOTHING_DONE: Final = "Nothing was received or deleted"


def way_out(owner: str | None) -> str:
    """What is safe when log and checkpoint do not belong together. Queries with a name are those of pipelines."""
    if owner is not None:
        return "`semel pipeline reset FILE` goes on from what the log and the table have, and says what that means"
    return (
        "Go on with the checkpoint that belongs to this log. If that is lost, begin with a new checkpoint, a new "
        "folder for 'segments' and a new table; for what is sealed in the old log only see 'When checkpoint and log "
        "do not agree' in docs/spark.md"
    )


class LogError(SemelError):
    """The segment log does not fit what is asked of it."""


class OtherQuery(LogError):
    """The log, or a batch of it, is another query's; nothing was received or deleted for this one."""


class BatchAlreadyCommitted(LogError):
    """Somebody else has finished this batch: what was received for it goes back to the queue."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """One part of what one task of a batch received."""

    batch: int
    task: int
    part: int

    @property
    def name(self) -> str:
        return f"{folder(self.batch)}/t{self.task:04d}-p{self.part:05d}.seg"

    @property
    def ack_name(self) -> str:
        return self.name.removesuffix("seg") + "ack"


@dataclass(frozen=True, slots=True)
class Sealed:
    place: SegmentId
    meta: Meta
    table: pa.Table

    def without(self, ids: Collection[str]) -> Sealed:
        if not ids:
            return self
        kept = pc.invert(pc.is_in(self.table.column("message_id"), pa.array(list(ids), pa.string())))
        return replace(self, table=self.table.filter(kept))


@dataclass(frozen=True, slots=True)
class SegmentAck:
    """What became of a segment's messages in the queue.

    `received`: deliveries; `rows`: of them, what was sealed. `redelivered`: recognised as sealed before; `in_ledger`:
    done according to the ledger; `duplicates`: delivered twice to one task. `unconfirmed`: ids whose delete was not
    confirmed, with the time they were sent; `confirmed`: ids of earlier segments that came back and are deleted now.
    `refused`: sealed, but another has their keys in the ledger by now; they are neither given out nor deleted.
    `deleted` is false while that is to be done. `backlog`: rows that were waiting when an AvailableNow query began.
    `attempt`: who sealed the segment.
    """

    queue: str
    rows: int = 0
    bytes: int = 0
    received: int = 0
    redelivered: int = 0
    in_ledger: int = 0
    duplicates: int = 0
    backlog: int = 0
    deleted: bool = True
    unconfirmed: Mapping[str, int] = field(default_factory=dict)
    confirmed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    attempt: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """What a batch is made of: it names the batch to a sink, and no other batch of any log has the same name."""

    log: str
    batch: int
    seals: str

    def __str__(self) -> str:
        return f"{self.log}/{self.batch}/{self.seals}"

    @classmethod
    def parse(cls, text: str) -> Content | None:
        log, _, rest = text.partition("/")
        batch, _, seals = rest.partition("/")
        return cls(log, int(batch), seals) if log and batch.isdecimal() else None


@dataclass(slots=True)
class Totals:
    """What the batches that are over came to."""

    batches: int = 0
    received: int = 0
    rows: int = 0
    bytes: int = 0
    redelivered: int = 0
    in_ledger: int = 0
    duplicates: int = 0
    unconfirmed: int = 0
    confirmed: int = 0

    def add(self, ack: SegmentAck) -> None:
        for name in ("received", "rows", "bytes", "redelivered", "in_ledger", "duplicates"):
            setattr(self, name, getattr(self, name) + getattr(ack, name))
        self.unconfirmed += len(ack.unconfirmed)
        self.confirmed += len(ack.confirmed)


@dataclass(frozen=True, slots=True)
class Committed:
    through: int = 0
    totals: Totals = field(default_factory=Totals)


def folder(batch: int) -> str:
    return f"b{batch:010d}"


def segment_id_of(name: str) -> SegmentId:
    """The place that the name of a segment or of its ack is of."""
    match = _PART.fullmatch(name)
    assert match is not None, name
    return SegmentId(int(match["batch"]), int(match["task"]), int(match["part"]))


def counts(url: str) -> Totals:
    """What the batches of a log came to, up to the last that is known to be committed."""
    return SegmentLog(open_store(url)).committed().totals


class SegmentLog:
    def __init__(self, store: Store) -> None:
        self.store = store

    # Who it is.

    def identity(self) -> dict[str, Any] | None:
        data = self.store.read(IDENTITY)
        return None if data is None else orjson.loads(data)

    def create(self, queues: tuple[str, ...], owner: str | None = None) -> dict[str, Any]:
        """The log's identity; made if there is none. `owner`: the query that it belongs to, where that has a name."""
        check = getattr(self.store, "check", None)
        if self.store.read(IDENTITY) is None:
            if check is not None:
                check()
            made = {"id": uuid4().hex[:12], "format": FORMAT, "queues": list(queues), "owner": owner}
            self.store.put_if_absent(IDENTITY, orjson.dumps(made))
        found = self.identity()
        assert found is not None
        self._check_owner(found, owner)
        return found

    def check(self, log_id: str, queues: tuple[str, ...], owner: str | None = None) -> None:
        """That an offset's log is this one and its query's, and that it has not lost a queue."""
        found = self.identity()
        if found is None or found["id"] != log_id:
            there = "is empty or was removed" if found is None else f"holds another log ({found['id']})"
            raise LogError(
                f"the checkpoint goes on from the segment log {log_id}, but {self.store.url} {there}. Give the option "
                "'segments' that this checkpoint was made with; messages that were received last may be in there only"
            )
        self._check_owner(found, owner)
        missing = [name for name in found["queues"] if name not in queues]
        if missing:
            raise LogError(
                f"this checkpoint has read from {', '.join(missing)} too, which 'queue' no longer names. Messages of "
                "it may be sealed and not yet deleted. Name it again, or begin with a new checkpoint, a new segment "
                "log and a new table"
            )
        if set(queues) != set(found["queues"]):
            self.store.put(IDENTITY, orjson.dumps({**found, "queues": list(queues)}))

    def hand_over(self, owner: str) -> None:
        """From now on the log is this query's; who had it before can plan no batch any more."""
        found = self.identity()
        assert found is not None
        self.store.put(IDENTITY, orjson.dumps({**found, "format": FORMAT, "owner": owner}))

    def _check_owner(self, found: Mapping[str, Any], owner: str | None) -> None:
        if found.get("format") != FORMAT:
            raise LogError(
                f"the segment log {self.store.url} was written by an earlier version of Semel, which did not seal its "
                "plans, so this one cannot tell whose it is. Let that version process what is sealed in it, then "
                "take the pipeline over with `semel pipeline reset FILE`"
            )
        if found.get("owner") != owner:
            raise OtherQuery(
                f"the segment log {self.store.url} belongs to another query ({found.get('owner') or 'without a name'}"
                f"), and this one is {owner or 'without a name'}; it stops, and has received nothing. A segment log "
                "is read by one query: give each its own 'segments' and checkpoint"
            )

    # Plans.

    def plan(self, batch: int) -> dict[str, Any] | None:
        data = self.store.read(f"{folder(batch)}/{PLAN}")
        return None if data is None else orjson.loads(data)

    def seal_plan(self, end: Mapping[str, Any], owner: str | None = None) -> None:
        """Before a batch's first task: from now on it has this plan and no other. Sealing it again is fine."""
        batch = end["batch"]
        name = f"{folder(batch)}/{PLAN}"
        won = self.store.put_if_absent(name, orjson.dumps(end))
        if self.committed().through >= batch:
            if won:
                self.store.delete([name])
            raise OtherQuery(
                f"batch {batch} of the segment log {self.store.url} is over already, but this checkpoint is only about "
                f"to run it: it is an older copy, or another query has gone on from it. {NOTHING_DONE}. "
                f"{way_out(owner)}"
            )
        found = self.plan(batch)
        if found is None or found["id"] != end["id"]:
            raise self.planned_by_another(batch, owner)
        identity = self.identity()
        if identity is None or identity.get("owner") != owner:  # handed over meanwhile
            raise self.planned_by_another(batch, owner)

    def planned_by_another(self, batch: int, owner: str | None) -> OtherQuery:
        return OtherQuery(
            f"batch {batch} of the segment log {self.store.url} was planned by another query, or by this one with "
            f"another checkpoint. {NOTHING_DONE}. A segment log is read by one query: if two of them share the option "
            f"'segments', give each a folder and a checkpoint of its own. If the checkpoint was lost or is an older "
            f"copy: {way_out(owner)}"
        )

    def last_planned(self) -> int:
        """The newest batch that has a plan, or else the last one that is over."""
        found = [int(match["batch"]) for name in self.store.names() if (match := _BATCH.match(name))]
        return max([self.committed().through, *found])

    def content(self, batch: int) -> Content:
        """What is sealed of a batch, as a name for it; the same whenever its tasks are through."""
        identity = self.identity()
        sealed, acked = self.places(batch)
        digest = blake2b(digest_size=7)  # 56 bits: some sinks can keep no more than a whole number
        for place in sorted({*sealed, *acked}):
            digest.update(f"{place.task}/{place.part}/{self._attempt(place)}\n".encode())
        return Content("" if identity is None else identity["id"], batch, digest.hexdigest())

    def _attempt(self, place: SegmentId) -> str:
        ack = self.read_ack(place)
        if ack is not None and ack.attempt:
            return ack.attempt
        sealed = self.read(place)
        if sealed is None:
            raise self.lost(place)
        return sealed.meta.attempt

    def lost(self, place: SegmentId) -> SegmentDamaged:
        return SegmentDamaged(f"{self.store.url}/{place.name}", "it is not there any more, but its .ack is")

    # Segments.

    def read(self, place: SegmentId) -> Sealed | None:
        data = self.store.read(place.name)
        if data is None:
            return None
        meta, table = codec.decode(data, f"{self.store.url}/{place.name}")
        return Sealed(place, meta, table)

    def seal(self, place: SegmentId, table: pa.Table, meta: Meta) -> Sealed:
        """What is sealed at a place from now on: this, or what another attempt has sealed before."""
        won = self.store.put_if_absent(place.name, codec.encode(table, meta))
        if self.committed().through >= place.batch:
            if won:
                self.store.delete([place.name])
            raise BatchAlreadyCommitted(f"batch {place.batch} of {self.store.url} was finished by another attempt")
        if won:
            return Sealed(place, meta, table)
        winner = self.read(place)
        if winner is None:  # sealed, finished and dropped between the two
            raise BatchAlreadyCommitted(f"batch {place.batch} of {self.store.url} was finished by another attempt")
        return winner

    def places(self, batch: int) -> tuple[list[SegmentId], set[SegmentId]]:
        """The sealed parts of a batch, and those of them that are acked."""
        sealed, acked = [], set()
        for name in self.store.names(folder(batch)):
            match = _PART.fullmatch(name)
            if match is not None:
                place = SegmentId(batch, int(match["task"]), int(match["part"]))
                if match["kind"] == "seg":
                    sealed.append(place)
                else:
                    acked.add(place)
        return sorted(sealed), acked

    def write_ack(self, place: SegmentId, ack: SegmentAck) -> None:
        self.store.put(place.ack_name, orjson.dumps(asdict(ack)))

    def read_ack(self, place: SegmentId) -> SegmentAck | None:
        data = self.store.read(place.ack_name)
        if data is None:
            return None
        found = orjson.loads(data)
        lists = {name: tuple(found.get(name, ())) for name in ("confirmed", "refused")}
        return SegmentAck(**{**found, **lists})

    # What goes back to its queue.

    def give_back(self, number: int, until: Mapping[str, float]) -> None:
        """By message id: what the sink's batch of this number, which it has committed, leaves in the queue, and until
        when it is to stay hidden. It takes the place of what earlier batches have left there."""
        own = f"{RETURNED}/{number:010d}.json"
        if until:
            self.store.put(own, orjson.dumps(until))
        self.store.delete([name for name in self.store.names(RETURNED) if not (until and name == own)])

    def returned(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name in self.store.names(RETURNED):
            found |= orjson.loads(self.store.read(name) or b"{}")
        return found

    # The end of a batch.

    def committed(self) -> Committed:
        data = self.store.read(COMMITTED)
        if data is None:
            return Committed()
        found = orjson.loads(data)
        known = {name.name for name in fields(Totals)}
        return Committed(found["through"], Totals(**{n: v for n, v in found["totals"].items() if n in known}))

    def unconfirmed_deletes(self) -> dict[str, dict[str, int]]:
        """By queue: the ids that may come back although they were given out, with the time they were sent (ms)."""
        data = self.store.read(UNCONFIRMED)
        return {} if data is None else orjson.loads(data)

    def finish(self, committed: Committed, unconfirmed: Mapping[str, Mapping[str, int]] | None, batches: range) -> None:
        """Batches are committed: keep what must be remembered of them, then drop them. `unconfirmed`: None
        if it is as before."""
        if unconfirmed is not None:
            self.store.put(UNCONFIRMED, orjson.dumps(unconfirmed))
        self.store.put(COMMITTED, orjson.dumps({"through": committed.through, "totals": asdict(committed.totals)}))
        for batch in batches:
            self.store.delete(self.store.names(folder(batch)))
