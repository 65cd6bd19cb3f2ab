"""Mistakes that Spark's source, the segment log or a sink could make. The model of batches must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final

import orjson
import pyarrow as pa

from models.batches import Batches, Faults
from models.driver import Driver, Log, Plan, segment
from models.replay import Outside
from semel.spark.segments.codec import Meta, encode
from semel.spark.segments.model import BatchFiles, Committed, Sealed, SegmentId
from semel.spark.segments.segment_log import COMMITS, SegmentLog, Unconfirmed
from semel.spark.sinks.contract import Commit, MicroBatch, Sink
from semel.spark.source.committer import BatchCommitter

_NONE: Final = Faults(0, 0, 0, 0, 0, 0)


def _one_fault(fault: str) -> Faults:
    return _NONE._replace(**{fault: 1, "total": 1})


# The log.


class OverwritesSegments(Log):
    def seal(self, segment_id: SegmentId, table: pa.Table, meta: Meta) -> Sealed:
        self.store.put(segment_id.name, encode(table, meta))
        return Sealed(segment_id, meta, table)


class SealsWithoutALookAtCommits(Log):
    def through(self) -> int:
        return 0


class ForgetsUnconfirmedDeletes(Log):
    def finish(self, committed: Committed, unconfirmed: Unconfirmed | None, names: tuple[str, ...]) -> bool:
        del unconfirmed
        return super().finish(committed, {}, names)


class DropsBeforeItCommits(Log):
    def finish(self, committed: Committed, unconfirmed: Unconfirmed | None, names: tuple[str, ...]) -> bool:
        self.store.delete(names)
        return super().finish(committed, unconfirmed, ())


class OverwritesCommits(Log):
    """The last driver to commit a batch decides what is kept of it."""

    def finish(self, committed: Committed, unconfirmed: Unconfirmed | None, names: tuple[str, ...]) -> bool:
        values = {"through": committed.through, "totals": asdict(committed.totals), "unconfirmed": unconfirmed or {}}
        self.store.put(f"{COMMITS}/{committed.through:010d}.json", orjson.dumps(values))
        self.store.delete(names)
        return True

    def in_sink(self, batch: int) -> str | None:
        """Otherwise a late driver would find that its batch is gone, and stop."""
        return str(self.content(batch))


# The committer.


class DropsWhateverIsThere(BatchCommitter):
    def _checked(self, batch: int, plan_id: str | None) -> BatchFiles:
        del plan_id
        return self._log.files(batch)


# The driver and its tasks.


class DoesNotSealPlans(Driver):
    def seal_plan(self, log: SegmentLog, end: Plan) -> None: ...

    def check_plan(self, log: SegmentLog, end: Plan) -> None: ...


class DeletesBeforeItSeals(Driver):
    def sealed(self, outside: Outside, log: SegmentLog, segment_id: SegmentId, fresh: tuple[str, ...]) -> Sealed:
        if fresh:
            outside.call("delete", *fresh)
        return super().sealed(outside, log, segment_id, fresh)


class DeletesWhatItDidNotSeal(Driver):
    """A task that loses the race for a seal deletes its messages, as if the winner had sealed them."""

    def lose(self, outside: Outside, winner: Sealed, receipts: tuple[str, ...]) -> None:
        del winner
        if receipts:
            outside.call("delete", *receipts)


class GivesOutItsOwnRows(Driver):
    """A task that loses the race for a seal returns the rows that it has received, not the winner's."""

    def sealed(self, outside: Outside, log: SegmentLog, segment_id: SegmentId, fresh: tuple[str, ...]) -> Sealed:
        winner = super().sealed(outside, log, segment_id, fresh)
        if winner.meta.attempt == outside.attempt:
            return winner
        return Sealed(segment_id, winner.meta, segment(fresh))


class SealsWhatWasSealed(Driver):
    def known(self, log: SegmentLog, segment_id: SegmentId) -> frozenset[str]:
        del log, segment_id
        return frozenset()


# The sink.


def _in_by_number(_sink: Sink, last: Commit | None, batch: MicroBatch, _content: Callable[[], str]) -> bool:
    return last is not None and last.number >= batch.number


def _committed_by_number(table: str, last: Commit | None, batch: MicroBatch) -> bool:
    del table
    return last is not None and last.number >= batch.number


def _never_committed(table: str, last: Commit | None, batch: MicroBatch) -> bool:
    del table, last, batch
    return False


# These take more than a second to find.
LONG: Final = frozenset({"two drivers overwrite each other's commits", "plans are not sealed"})
# The name says what is wrong. Each model has the mistake, and the faults and switches that are needed to show it.
MUTANTS: Final[dict[str, Callable[[], Batches]]] = {
    "a segment can be overwritten": lambda: Batches(Driver("sealed", log=OverwritesSegments), faults=_NONE, switches=2),
    "a seal is not taken back if the batch is committed": lambda: Batches(
        Driver("sealed", log=SealsWithoutALookAtCommits), faults=_NONE, switches=2
    ),
    "deletes that are not confirmed are forgotten": lambda: Batches(
        Driver("sealed", log=ForgetsUnconfirmedDeletes), faults=_one_fault("lost"), switches=0, messages=1
    ),
    "a batch is dropped before its commit is written": lambda: Batches(
        Driver("sealed", log=DropsBeforeItCommits), faults=_NONE, switches=2
    ),
    "two drivers overwrite each other's commits": lambda: Batches(
        Driver("committed", log=OverwritesCommits), faults=_one_fault("redelivery"), switches=2
    ),
    "plans are not sealed": lambda: Batches(
        DoesNotSealPlans("sealed", committer=DropsWhateverIsThere), faults=_NONE, switches=3
    ),
    "a message is deleted before it is sealed": lambda: Batches(
        DeletesBeforeItSeals("sealed"), faults=_NONE, switches=0, messages=1
    ),
    "who loses a seal deletes what it received": lambda: Batches(
        DeletesWhatItDidNotSeal("sealed"), faults=_NONE, switches=2
    ),
    "who loses a seal gives out its own rows": lambda: Batches(GivesOutItsOwnRows("sealed"), faults=_NONE, switches=2),
    "what was sealed before is sealed again": lambda: Batches(
        SealsWhatWasSealed("committed"), faults=_one_fault("redelivery"), switches=0
    ),
    "a batch is known by its number only": lambda: Batches(
        Driver("sealed", tasks=1, is_in=_in_by_number),
        faults=_one_fault("removed"),
        switches=1,
        already_committed=_committed_by_number,
    ),
    "a sink commits a batch again": lambda: Batches(
        Driver("sealed"), faults=_NONE, switches=1, messages=1, already_committed=_never_committed
    ),
    "messages are deleted at the seal though ack=committed": lambda: Batches(
        DeletesBeforeItSeals("committed"), faults=_NONE, switches=0, messages=1
    ),
}
