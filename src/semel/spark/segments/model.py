"""The values of the segment log: a segment's identity and acknowledgement, a batch's content, and the totals.

The rule: a file is identified by its name. The name of an ack contains the attempt that sealed the segment. So a list
of names says what a batch is made of, and all writers of an ack write the same name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from semel.spark.segments.codec import Meta

_FILE: Final = re.compile(r"b(?P<batch>\d{10})/t(?P<task>\d{4,})-p(?P<part>\d{5,})\.(?:seg|(?P<attempt>[^/]*)\.ack)")


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """One part of what one task of a batch received."""

    batch: int
    task: int
    part: int

    @property
    def name(self) -> str:
        return f"{self._stem}.seg"

    def ack_name(self, attempt: str) -> str:
        return f"{self._stem}.{attempt}.ack"

    @property
    def _stem(self) -> str:
        return f"{folder(self.batch)}/t{self.task:04d}-p{self.part:05d}"

    @classmethod
    def parse(cls, name: str) -> SegmentId:
        """The segment that a file of the log belongs to."""
        match = _FILE.fullmatch(name)
        assert match is not None, name
        return cls(int(match["batch"]), int(match["task"]), int(match["part"]))


def folder(batch: int) -> str:
    return f"b{batch:010d}"


def is_plan(value: Mapping[str, Any]) -> bool:
    tasks = value.get("plan")
    return (
        isinstance(value.get("id"), str)
        and type(value.get("batch")) is int
        and isinstance(tasks, dict)
        and all(type(count) is int for count in tasks.values())
    )


def task_count(plan: Mapping[str, Any]) -> int:
    return sum(plan["plan"].values())


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files of a batch, from one listing of its folder. `acked`: for each segment with an ack, the attempt that
    sealed it. `replaced`: segments with acks of several attempts: the first segment is gone, and another attempt has
    sealed one under the same name."""

    names: tuple[str, ...]
    sealed: tuple[SegmentId, ...]
    acked: Mapping[SegmentId, str]
    replaced: Mapping[SegmentId, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, names: Iterable[str]) -> BatchFiles:
        names, sealed = tuple(names), []
        acked: dict[SegmentId, str] = {}
        replaced: dict[SegmentId, tuple[str, ...]] = {}
        for name in names:
            match = _FILE.fullmatch(name)
            if match is None:
                continue
            segment_id = SegmentId(int(match["batch"]), int(match["task"]), int(match["part"]))
            if match["attempt"] is None:
                sealed.append(segment_id)
            else:
                if segment_id in acked:
                    replaced[segment_id] = (*replaced.get(segment_id, (acked[segment_id],)), match["attempt"])
                acked[segment_id] = match["attempt"]
        return cls(names, tuple(sealed), acked, replaced)

    @property
    def all(self) -> list[SegmentId]:
        """Every segment that exists or existed: an ack proves that there was one."""
        return sorted({*self.sealed, *self.acked})

    @property
    def gaps(self) -> dict[SegmentId, range]:
        """Parts of which nothing is left, not even an ack, by the next part that is left: it proves that they existed.
        They are a range, because the part number in a file name may be huge."""
        gaps: dict[SegmentId, range] = {}
        task, missing = -1, 0
        for segment_id in self.all:
            if segment_id.task != task:
                task, missing = segment_id.task, 0
            if segment_id.part > missing:
                gaps[segment_id] = range(missing, segment_id.part)
            missing = segment_id.part + 1
        return gaps

    def attempts(self, segment_id: SegmentId) -> tuple[str, ...]:
        """The attempts that have an ack of this segment; several if the segment was replaced."""
        acked = (self.acked[segment_id],) if segment_id in self.acked else ()
        return self.replaced.get(segment_id, acked)

    def is_replaced(self, segment: Sealed) -> bool:
        """Whether an earlier segment had this name and is gone: then there is an ack of another attempt."""
        return any(attempt != segment.meta.attempt for attempt in self.attempts(segment.segment_id))

    def unplanned(self, tasks: int) -> list[SegmentId]:
        """Segments of tasks that a plan with `tasks` tasks does not have: they were sealed under another plan."""
        return [segment_id for segment_id in self.all if segment_id.task >= tasks]


@dataclass(frozen=True, slots=True)
class Sealed:
    segment_id: SegmentId
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

    `received`: number of deliveries; `rows`: how many of them were sealed. `redelivered`: recognised as sealed before;
    `in_ledger`: done according to the ledger; `duplicates`: delivered twice to one task. `unconfirmed`: ids whose
    delete is not confirmed, with the times they were sent; `confirmed`: ids from earlier segments that came back and
    are now deleted. `refused`: ids that were sealed, but whose keys another worker has claimed since; they are neither
    given out nor deleted. `deleted`: false until the deletes were tried. `backlog`: rows that were sent before an
    AvailableNow query began. `attempt`: the attempt that sealed the segment.
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

    def without(self, returned: Collection[str]) -> SegmentAck:
        """Without unconfirmed deletes of these messages: they are returned to their queue, and not deleted."""
        return replace(self, unconfirmed={id_: at for id_, at in self.unconfirmed.items() if id_ not in returned})


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A batch, by its number in a segment log. It is known before the tasks run, and a reset does not change it."""

    log: str
    number: int

    def __str__(self) -> str:
        return f"{self.log}-{folder(self.number)}"

    def is_or_follows(self, other: LogBatch) -> bool:
        return self.log == other.log and self.number >= other.number


@dataclass(frozen=True, slots=True)
class Content:
    """The segments that a batch is made of, as a name: it identifies the batch in a sink, and is unique over all
    logs."""

    log: str
    batch: int
    seals: str

    @property
    def log_batch(self) -> LogBatch:
        return LogBatch(self.log, self.batch)

    def __str__(self) -> str:
        return f"{self.log}/{self.batch}/{self.seals}"

    @classmethod
    def of(cls, log: str, batch: int, attempts: Mapping[SegmentId, str]) -> Content:
        digest = blake2b(digest_size=7)  # 56 bits: some sinks can store only an integer
        for segment_id, attempt in sorted(attempts.items()):
            digest.update(f"{segment_id.task}/{segment_id.part}/{attempt}\n".encode())
        return cls(log, batch, digest.hexdigest())

    @classmethod
    def parse(cls, text: str) -> Content | None:
        log, _, rest = text.partition("/")
        batch, _, seals = rest.partition("/")
        return cls(log, int(batch), seals) if log and batch.isdecimal() else None


@dataclass(slots=True)
class Totals:
    """Counts over all committed batches."""

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
    """Batches up to `through` are committed; `totals` counts them."""

    through: int = 0
    totals: Totals = field(default_factory=Totals)
