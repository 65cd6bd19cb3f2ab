"""Checks whether a checkpoint, its segment log and its sinks belong together, and resets a pipeline if they do not.

    pipeline.json   the query that the checkpoint belongs to, and the number of that query's first batch
    query/          Spark's progress: the query's id, and the batches that are planned and done
    segments/       the query that the log belongs to, the committed batches, and what is sealed of the next one
    the sinks       the last batch that they have, by number and content: which batch of which log, and its segments

The rule: nothing is started unless all four agree. SQS cannot be read twice: if a sink took a batch for another one,
the batch would be deleted from the queue and written nowhere.

A reset continues from the log and the sinks, which are never wrong about what was received and what was written.
Spark's progress starts anew. Messages that are sealed and not in the sink are the first batch of the new query, under
the number that the batch had.

A driver may still be running, so:
1. A reset first takes the log away from the former query, which can then begin no other batch. After that the reset
   plans once more; if the plan has changed, nothing is dropped.
2. A batch is written in this order: its plan and segments, the rejects, the rows, Spark's commit, the log's commit. It
   is read in the reverse order: whoever sees one step sees all steps before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from semel.spark.pipeline.checkpoint import QUERY, RESET, Checkpoint, CheckpointError, Disagreement, Record
from semel.spark.pipeline.config import segments_of
from semel.spark.segments import codec
from semel.spark.segments.codec import Meta, SegmentDamaged
from semel.spark.segments.model import (
    BatchFiles,
    Committed,
    Content,
    LogBatch,
    Sealed,
    SegmentAck,
    SegmentId,
    task_count,
)
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.segments.storage import open_store
from semel.spark.sinks.contract import Commit, ReturnsMessages, Sink
from semel.spark.source.acknowledger import sent_times
from semel.spark.source.columns import SEALED_COLUMNS
from semel.version import __version__

MAX_MISSING_PARTS: Final = 10_000  # of a task, in a row; a reset names each, and seals an empty segment in its place
NOTHING_STARTED: Final = "Nothing was started, received or deleted"


def log_of(checkpoint: Checkpoint) -> SegmentLog:
    return SegmentLog(open_store(segments_of(checkpoint.url)))


class DriverLog:
    """The segment log, as the driver of a batch needs it. `committed`: the totals of the batches before this one."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self.committed = Committed()

    def in_progress(self) -> LogBatch:
        """The batch after the last committed one: Spark asks for a batch when the one before it is committed."""
        return LogBatch(self._log.id, self._log.through() + 1)

    def content(self) -> str:
        """The content of the batch in progress, the one after the last committed, once its tasks have run."""
        self.committed = self._log.committed()
        return str(self._log.content(self.committed.through + 1))

    def record_sink_commit(self, content: str) -> None:
        self._log.record_sink_commit(content)

    def give_back(self, number: int, until: Mapping[str, float]) -> None:
        self._log.give_back(number, until)


def check(checkpoint: Checkpoint, record: Record, log: SegmentLog, sinks: Sequence[Sink]) -> None:
    """Raises Disagreement if they do not belong together. Changes nothing."""
    if record.query is None:
        raise Disagreement(
            f"the checkpoint {checkpoint.url} was written by an earlier version of Semel ({record.version}), which did "
            "not keep what proves that it belongs to the table. Let that version process what it has begun (`semel "
            "pipeline run FILE --exit-when-empty`); then `semel pipeline reset FILE` takes it over"
        )
    query = checkpoint.query_id()
    if query != record.query:
        what = "was removed" if query is None else f"is of another query ({query})"
        raise Disagreement(
            f"the checkpoint {checkpoint.url} is of the query {record.query}, but its folder {QUERY}/ {what}. Spark "
            f"would number its batches from 0 again, and the sink takes those for what it has already. "
            f"{NOTHING_STARTED}. {RESET}"
        )
    if (missing := _missing_batches(checkpoint, record, sinks[0])) is not None:
        raise Disagreement(
            f"the checkpoint {checkpoint.url} has committed batch {missing[-1]} of this pipeline, but "
            f"{_behind(sinks[0], missing)}: it was removed, or is an older copy. If you have the newer one, put it "
            f"back. {NOTHING_STARTED}. {RESET}"
        )
    identity = log.identity()
    if identity is not None and identity["owner"] != record.query:
        raise Disagreement(
            f"the segment log {log.store.url} was handed over to the query {identity['owner']}, but the checkpoint "
            f"{checkpoint.url} is of the query {record.query}: a reset was interrupted, or the checkpoint is an older "
            f"copy. {NOTHING_STARTED}. {RESET}"
        )
    planned = checkpoint.newest("offsets")
    newest = record.base + planned
    for sink in sinks:
        last = sink.last(record.id)
        if last is None or last.number < record.base:
            continue
        # After a reset, a query begins with the batch in progress, whose rejects may have been stored before.
        resumed = planned < 0 and last.number == record.base
        if last.number > newest and not resumed:
            raise Disagreement(
                f"{sink.name} has batch {last.number} of this pipeline, but the checkpoint {checkpoint.url} has only "
                f"got to batch {newest}: it is an older copy. New messages would be taken for those that are in. "
                f"{NOTHING_STARTED}. {RESET}"
            )
        _check_log(log, last, sink, in_progress=resumed)


def _missing_batches(checkpoint: Checkpoint, record: Record, sink: Sink) -> range | None:
    """Batches that Spark has recorded as done, although the sink, which commits first, does not have them."""
    done = record.base + checkpoint.newest("commits")
    last = sink.last(record.id)
    first = record.base if last is None else max(record.base, last.number + 1)
    return range(first, done + 1) or None


def _behind(sink: Sink, missing: range) -> str:
    batches = f"batch {missing[0]}" if len(missing) == 1 else f"batches {missing[0]} to {missing[-1]}"
    return f"{sink.name} has no {batches}"


def _check_log(log: SegmentLog, last: Commit, sink: Sink, *, in_progress: bool) -> None:
    """Checks that the batch that a sink has is from this log. `in_progress`: it must be the batch in progress."""
    content, identity = Content.parse(last.content), log.identity()
    if content is not None and identity is not None and content.log == identity["id"]:
        committed = log.committed().through
        if content.batch == committed + 1 and content == log.content(content.batch):
            return
        if content.batch <= committed and not in_progress:
            return
    raise Disagreement(
        f"{sink.name} has batch {last.number} of this pipeline, made of {last.content or 'what is not known'}, and the "
        f"segment log {log.store.url} does not have that: it was removed, damaged, or is an older copy. "
        f"{NOTHING_STARTED}. {RESET}"
    )


class ResetOutdated(CheckpointError):
    """A driver has worked since the reset was planned. Nothing was dropped. Run the reset again."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset will do, or did. `query`: the new query. `base`: the number of its first batch in the sinks.
    `batch`: the number of that batch in the log: sealed, and in no table yet. `ended`: batches of the log that are in
    the table and not committed in the log."""

    query: str
    base: int
    batch: int | None = None
    ended: tuple[int, ...] = ()
    replayed: int = 0  # messages that are sealed and in no table yet
    in_sink: int = 0  # messages that are sealed and in the table: not written again
    lost: tuple[str, ...] = ()  # segments that are gone or damaged, with messages that are in no table yet
    unknown: tuple[str, ...] = ()  # the same, but the table has the messages: they are not recognised if they return
    log_missing: bool = False  # the log that the last batch came from does not exist
    older_log: bool = False  # the log is an older copy: it lacks later segments and unconfirmed deletes
    missing: str = ""  # committed batches that are no longer in the table: no reset brings them back
    rejects_again: bool = False  # rejects of its first batch are stored already, and will be stored once more
    dropped: tuple[str, ...] = ()  # segments whose messages may be in no queue and no table: see `_dropped`

    @property
    def loses(self) -> bool:
        """Whether messages may be lost or come twice, so that the user has to agree."""
        return bool(self.lost or self.unknown or self.dropped) or self.log_missing or self.older_log


def plan_reset(checkpoint: Checkpoint, record: Record, log: SegmentLog, sinks: Sequence[Sink]) -> Reset:
    """What a reset would do; changes nothing. The first of `sinks` is the sink of the rows."""
    batches = _missing_batches(checkpoint, record, sinks[0])
    missing = "" if batches is None else _behind(sinks[0], batches)
    return replace(_planned(checkpoint, record, log, sinks), missing=missing)


def _planned(checkpoint: Checkpoint, record: Record, log: SegmentLog, sinks: Sequence[Sink]) -> Reset:
    committed, done, planned = log.through(), checkpoint.newest("commits"), checkpoint.newest("offsets")
    lasts = [sink.last(record.id) for sink in sinks]
    identity, begun = log.identity(), [batch for batch in log.begun() if batch > committed]
    own = None if identity is None else identity["id"]
    rows, *others = (None if last is None else Content.parse(last.content) for last in lasts)
    before = rows if rows is not None and rows.log == own else None  # the last batch of this log that the sink has
    has_rows = lasts[0] is not None and lasts[0].number >= record.base
    base = 1 + max([record.base + done, *(last.number for last in lasts if last is not None)])
    in_table = 0 if before is None else before.batch
    plan = _ended(log, [batch for batch in begun if batch <= in_table], before, Reset(str(uuid4()), base))
    pending = next((batch for batch in begun if batch > in_table), None)
    if pending is None:
        missing = own is None and (has_rows or planned >= 0)
        return replace(plan, log_missing=missing, older_log=in_table > max([committed, *begun]))
    if log.plan(pending) is None:
        raise Disagreement(
            f"batch {pending} of the segment log {log.store.url} was begun by an earlier version of Semel. Let that "
            "version process it (`semel pipeline run FILE --exit-when-empty`), then reset"
        )
    sealed, lost = _sealed(log, pending)
    for last, content in zip(lasts[1:], others, strict=True):
        if last is None or content is None or (content.log, content.batch) != (own, pending):
            continue
        if lost or content != log.content(pending):
            plan = replace(plan, rejects_again=True, older_log=not lost)
        else:
            plan = replace(plan, base=last.number)  # its rejects are stored already, under this number
    return replace(
        plan,
        batch=pending,
        replayed=sealed,
        lost=lost,
        log_missing=has_rows and before is None and record.query is not None,
        dropped=(*plan.dropped, *_dropped(log, pending)),
    )


def _ended(log: SegmentLog, batches: Sequence[int], in_table: Content | None, plan: Reset) -> Reset:
    """Adds to the plan what happens to batches that are in the table."""
    for batch in batches:
        sealed, gone = _sealed(log, batch)
        unknown = (name for name in gone if not _is_deleted(log, SegmentId.parse(name)))
        plan = replace(
            plan,
            ended=(*plan.ended, batch),
            in_sink=plan.in_sink + sealed,
            unknown=(*plan.unknown, *unknown),
            dropped=(*plan.dropped, *_dropped(log, batch, in_table)),
        )
    return plan


def reset(checkpoint: Checkpoint, record: Record, log: SegmentLog, sinks: Sequence[Sink], plan: Reset) -> Record:
    """Carries out a reset. The record is written last: after an interruption, nothing runs until it is repeated."""
    if log.identity() is not None:
        log.hand_over(plan.query)
        # Listed before the check. If a segment appears later, it is not of the batch that the table has: an older copy
        # of the log has been restored, or a late attempt has sealed it.
        ended = {batch: _Listing.of(log, batch) for batch in plan.ended}
        _check_plan(plan, plan_reset(checkpoint, record, log, sinks), log)
        returned = sinks[0].returned if isinstance(sinks[0], ReturnsMessages) else {}
        for batch, listing in ended.items():
            listing.drop_unplanned(log)
            _drop(log, batch, listing, returned)
        if plan.batch is not None:
            _Listing.of(log, plan.batch).drop_unplanned(log)
        if plan.older_log:
            last = sinks[0].last(record.id)
            content = None if last is None else Content.parse(last.content)
            if content is not None and content.batch > log.through():
                log.finish(Committed(content.batch, log.committed().totals), None, ())
        for name in plan.lost:
            _give_up(log, name)
    made = replace(record, query=plan.query, base=plan.base, version=__version__)
    checkpoint.store.delete(checkpoint.store.names(QUERY))
    checkpoint.keep(made)
    return made


def _check_plan(plan: Reset, now: Reset, log: SegmentLog) -> None:
    """Checks that the plan, which the user may have agreed to, still holds. More messages may have been sealed."""
    if replace(now, query=plan.query, replayed=plan.replayed, in_sink=plan.in_sink) != plan:
        raise ResetOutdated(
            f"the pipeline's segment log {log.store.url} or its table has changed since this reset was planned: a "
            "driver is still at work. It can begin no other batch now, and nothing was dropped. Run the reset again"
        )


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files of a batch at one moment. `unplanned`: segments that no task of the batch reads, because attempts that
    began before the log was replaced have sealed them."""

    files: BatchFiles
    unplanned: tuple[SegmentId, ...]

    @classmethod
    def of(cls, log: SegmentLog, batch: int) -> _Listing:
        plan, files = log.plan(batch), log.files(batch)
        return cls(files, () if plan is None else tuple(files.unplanned(task_count(plan))))

    @property
    def planned(self) -> list[SegmentId]:
        return [segment_id for segment_id in self.files.all if segment_id not in self.unplanned]

    def drop_unplanned(self, log: SegmentLog) -> None:
        stems = tuple(segment_id.name.removesuffix("seg") for segment_id in self.unplanned)
        log.store.delete([name for name in self.files.names if name.startswith(stems)])


def _dropped(log: SegmentLog, batch: int, in_table: Content | None = None) -> tuple[str, ...]:
    """Segments of the batch in progress whose messages may be in no queue and in no table. Attempts have sealed them
    while the log was being replaced, or under the name of a segment that is gone: for a task that the batch does not
    have, or after the table got the batch (`in_table`), which then is made of other segments."""
    listing = _Listing.of(log, batch)
    acks = {segment_id: log.read_ack(segment_id) for segment_id in listing.unplanned}
    dropped = [segment_id for segment_id, ack in acks.items() if ack is not None and ack.deleted and ack.rows]
    if in_table is not None and in_table.batch >= batch:  # the table does not say what an earlier batch had
        agrees = in_table.batch == batch and _is_content(log, in_table)
        segments = (_read(log, segment_id) for segment_id in listing.files.sealed if segment_id in listing.planned)
        dropped += [
            segment.segment_id
            for segment in segments
            if segment is not None and len(segment.table) and (not agrees or listing.files.is_replaced(segment))
        ]
    return tuple(segment_id.name for segment_id in dropped)


def _is_content(log: SegmentLog, content: Content) -> bool:
    try:
        return log.content(content.batch) == content
    except SegmentDamaged:
        return False


def _sealed(log: SegmentLog, batch: int) -> tuple[int, tuple[str, ...]]:
    """How many messages are sealed of a batch, and which of its segments are gone or cannot be read."""
    count, lost, listing = 0, [], _Listing.of(log, batch)
    gaps = listing.files.gaps
    for segment_id in listing.planned:
        lost += _missing_parts(log, segment_id, gaps.get(segment_id, range(0)))
        segment = _read(log, segment_id)
        if segment is None or listing.files.is_replaced(segment):
            lost.append(segment_id.name)
        count += 0 if segment is None else len(segment.table)
    return count, tuple(lost)


def _missing_parts(log: SegmentLog, segment_id: SegmentId, parts: range) -> list[str]:
    """The segments before this one of which nothing is left."""
    if parts.stop - parts.start > MAX_MISSING_PARTS:
        raise Disagreement(
            f"the segment log {log.store.url} has {segment_id.name}, or its .ack, but none of the "
            f"{parts.stop - parts.start:,} parts before it: no task seals so many, so this file is not of Semel. Move "
            f"it out of the log, and run this again. {NOTHING_STARTED}"
        )
    return [replace(segment_id, part=part).name for part in parts]


def _read(log: SegmentLog, segment_id: SegmentId) -> Sealed | None:
    try:
        return log.read(segment_id)
    except SegmentDamaged:
        return None


def _acks(log: SegmentLog, files: BatchFiles, segment_id: SegmentId, segment: Sealed | None) -> list[SegmentAck]:
    """The acks for the messages that the table has. If the segment has replaced one that is gone, its own ack is for
    other messages, and is left out."""
    own = segment.meta.attempt if segment is not None and files.is_replaced(segment) else None
    acks = (log.read_ack(segment_id, attempt) for attempt in files.attempts(segment_id) if attempt != own)
    return [ack for ack in acks if ack is not None]


def _is_deleted(log: SegmentLog, segment_id: SegmentId) -> bool:
    acks = _acks(log, log.files(segment_id.batch), segment_id, _read(log, segment_id))
    return bool(acks) and all(ack.deleted for ack in acks)


def _drop(log: SegmentLog, batch: int, listing: _Listing, returned: Collection[str]) -> None:
    """Ends a batch that is in the table. Messages whose delete is not certain are recorded as unconfirmed, so that they
    are recognised when they come back. `returned`: ids of messages that are to come back."""
    known, former = log.last_commit()
    unconfirmed, totals = {queue: dict(ids) for queue, ids in former.items()}, known.totals
    totals.batches += 1
    files = listing.files
    for segment_id in listing.planned:
        segment = _read(log, segment_id)
        acks = _acks(log, files, segment_id, segment)
        if segment is not None and not files.is_replaced(segment) and not any(ack.deleted for ack in acks):
            rows = segment.without({*returned, *(acks[0].refused if acks else ())})
            count = len(rows.table)
            ack = acks[0] if acks else SegmentAck(segment.meta.queue, count, segment.table.nbytes, count)
            acks = [replace(ack, unconfirmed={**ack.unconfirmed, **sent_times(rows.table)})]
        for ack in acks:
            totals.add(ack)
            unconfirmed.setdefault(ack.queue, {}).update(ack.without(returned).unconfirmed)
    log.finish(Committed(batch, totals), unconfirmed, files.names)


def _give_up(log: SegmentLog, name: str) -> None:
    """Replaces a segment that cannot be read by an empty one, so that no other messages are received in its place. If
    another attempt has replaced it already, that segment stays."""
    segment_id = SegmentId.parse(name)
    files = log.files(segment_id.batch)
    if (other := _read(log, segment_id)) is not None:
        others = (attempt for attempt in files.attempts(segment_id) if attempt != other.meta.attempt)
        log.store.delete([segment_id.ack_name(attempt) for attempt in others])
        return
    sealer, attempt = files.acked.get(segment_id), uuid4().hex
    former = None if sealer is None else log.read_ack(segment_id, sealer)
    further = any(other.task == segment_id.task and other.part > segment_id.part for other in files.all)
    queue = "" if former is None else former.queue
    log.store.put(segment_id.name, codec.encode(SEALED_COLUMNS.empty_table(), Meta(queue, attempt, not further, 0.0)))
    unconfirmed = {} if former is None else former.unconfirmed
    log.write_ack(segment_id, SegmentAck(queue, attempt=attempt, unconfirmed=unconfirmed))
    if sealer is not None:
        log.store.delete([segment_id.ack_name(sealer)])
