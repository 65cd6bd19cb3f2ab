"""Bugs that are put in on purpose. The simulation of the Spark source must find each of them. Most were real once.

A mutant patches Semel's own code, and undoes this at the end of its `with` block. Its name says what it breaks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any, Final
from unittest.mock import patch

import orjson
import pyarrow as pa

from semel.spark.pipeline import agreement, micro_batch
from semel.spark.segments import codec, segment_log
from semel.spark.segments.codec import Meta
from semel.spark.segments.model import Committed, Sealed, SegmentAck, SegmentId, folder
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.sinks import commit_log
from semel.spark.sinks.contract import Commit, MicroBatch
from semel.spark.sinks.handlers import sink as handlers
from semel.spark.sinks.parquet import sink as parquet
from semel.spark.source import columns
from semel.spark.source.acknowledger import Acknowledger
from semel.spark.source.claims import LedgerClaims
from semel.spark.source.columns import SourceMessage
from semel.spark.source.committer import BatchCommitter
from semel.spark.source.heartbeat import VisibilityHeartbeat
from semel.spark.source.planner import Offset, Planner
from semel.spark.source.reader import SourceTask
from semel.spark.source.sqs_clock import Reading, SqsClock
from simulation import spark_sink

Mutant = Callable[[], Any]
MUTANTS: Final[dict[str, Mutant]] = {}
PARQUET_MUTANTS: Final[dict[str, Mutant]] = {}  # of the Parquet sink
HANDLER_MUTANTS: Final[dict[str, Mutant]] = {}  # of the handler sink
# Only one schedule in thousands shows these. `make proof` runs ten times as many for them as for the others.
RARE: Final = frozenset(
    {
        "a sealed plan is replaced by a later one",
        "the last of two drivers decides which deletes are in doubt",
        "a heartbeat that was answered too late counts",
        "the clocks of other hosts are trusted",
        "an available now query counts batches of earlier runs",
        "an acknowledged segment that is gone is replaced by other messages",
        "a task whose log was replaced deletes what it has sealed",
        "a second driver goes on where the first one is at work",
        "with ack committed a redelivery is deleted as the ledger knows it",
        "what is put off is taken for deleted if two tasks had it",
    }
)


def mutant(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    MUTANTS[make.__name__.replace("_", " ")] = contextmanager(make)
    return make


def parquet_mutant(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    PARQUET_MUTANTS[make.__name__.replace("_", " ")] = contextmanager(make)
    return make


def handler_mutant(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    HANDLER_MUTANTS[make.__name__.replace("_", " ")] = contextmanager(make)
    return make


@contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for thing, name, value in changes:
            stack.enter_context(patch.object(thing, name, value))
        yield


# Sealing.


@mutant
def a_seal_that_looks_and_then_writes() -> Iterator[None]:
    def seal(self: SegmentLog, segment_id: SegmentId, table: pa.Table, meta: Meta) -> Sealed:
        if self.store.read(segment_id.name) is None:
            self.store.put(segment_id.name, codec.encode(table, meta))
            return Sealed(segment_id, meta, table)
        sealed = self.read(segment_id)
        assert sealed is not None
        return sealed

    with patched((SegmentLog, "seal", seal), (SourceTask, "_check_not_replaced", lambda *_arguments: None)):
        yield


@mutant
def a_segment_of_a_zombie_is_accepted_after_its_batch_is_committed() -> Iterator[None]:
    def seal(self: SegmentLog, segment_id: SegmentId, table: pa.Table, meta: Meta) -> Sealed:
        won = self.store.put_if_absent(segment_id.name, codec.encode(table, meta))
        sealed = Sealed(segment_id, meta, table) if won else self.read(segment_id)
        if sealed is None:
            raise segment_log.BatchAlreadyCommitted("dropped meanwhile")
        return sealed

    with patched((SegmentLog, "seal", seal), (SourceTask, "_put", _put_without_a_look_at_the_plan())):
        yield


def _put_without_a_look_at_the_plan() -> Callable[..., Sealed]:
    real = SourceTask._put

    def put(self: SourceTask, segment_id: SegmentId, sifted: Any, *, last: bool) -> Sealed:
        self._check_log = lambda: None  # type: ignore[method-assign]
        return real(self, segment_id, sifted, last=last)

    return put


@mutant
def a_message_is_deleted_before_its_segment_is_sealed() -> Iterator[None]:
    real = SourceTask._put

    def put(self: SourceTask, segment_id: SegmentId, sifted: Any, *, last: bool) -> Sealed:
        if self.options.ack == "sealed":
            self._acknowledger.acknowledge(self._in_time(sifted), self._monotonic() + 60).unconfirmed()
        return real(self, segment_id, sifted, last=last)

    with patched((SourceTask, "_put", put)):
        yield


@mutant
def the_margin_is_not_looked_at_again_before_the_seal() -> Iterator[None]:
    def in_time(self: SourceTask, sifted: Any) -> pa.Table:
        return columns.table(sifted.messages, self._label, self.options.columns)

    with patched((SourceTask, "_in_time", in_time)):
        yield


@mutant
def a_task_whose_log_was_replaced_deletes_what_it_has_sealed() -> Iterator[None]:
    """And a reset does not report the segments that it drops."""
    with patched(
        (SourceTask, "_put", _put_without_a_look_at_the_plan()),
        (SourceTask, "_check_not_replaced", lambda *_arguments: None),
        (agreement, "_dropped", lambda *_arguments: ()),
    ):
        yield


@mutant
def who_loses_the_race_for_a_seal_deletes_its_messages() -> Iterator[None]:
    def lose(self: SourceTask, _winner: Sealed, messages: list[SourceMessage]) -> None:
        self._delete_duplicates(messages).unconfirmed()

    with patched((SourceTask, "_lose", lose)):
        yield


@mutant
def an_acknowledged_segment_that_is_gone_is_replaced_by_other_messages() -> Iterator[None]:
    """Nothing checks for an ack without its segment, or for two acks of one segment."""
    real = SegmentLog.files
    with patched(
        (SourceTask, "_sealed", lambda self, segment_id: self.log.read(segment_id)),
        (SegmentLog, "files", lambda self, batch: replace(real(self, batch), replaced={})),
    ):
        yield


@mutant
def an_executor_does_not_look_whether_it_sees_the_log() -> Iterator[None]:
    with patched((SourceTask, "_check_log", lambda _self: None)):
        yield


@mutant
def a_task_does_not_know_what_others_of_its_batch_have_sealed() -> Iterator[None]:
    with patched((SourceTask, "_sealed_by_others", lambda _self: iter(()))):
        yield


@mutant
def a_retried_task_knows_what_others_have_sealed_only_if_its_batch_is_replayed() -> Iterator[None]:
    def known(self: SourceTask, _arrivals: Sequence[Any]) -> frozenset[str]:
        ids = frozenset(self._unconfirmed_deletes() if self.assignment.unconfirmed else ())
        return ids.union(self._sealed_by_others()) if self.assignment.replay else ids

    with patched((SourceTask, "_known_ids", known)):
        yield


# Plans.


@mutant
def a_plan_that_is_not_sealed() -> Iterator[None]:
    def checked(self: BatchCommitter, number: int, _plan_id: str | None) -> Any:
        return self._log.files(number)

    with patched(
        (SegmentLog, "seal_plan", lambda _self, _end, _owner=None: None),
        (SourceTask, "_check_log", lambda _self: None),
        (BatchCommitter, "_checked", checked),
    ):
        yield


@mutant
def the_lost_answer_to_the_seal_of_a_plan_is_taken_for_a_rival() -> Iterator[None]:
    def seal_plan(self: SegmentLog, end: Mapping[str, Any], owner: str | None = None) -> None:
        if not self.store.put_if_absent(f"{folder(end['batch'])}/{segment_log.PLAN}", orjson.dumps(end)):
            raise self.planned_by_another(end["batch"], owner)

    with patched((SegmentLog, "seal_plan", seal_plan)):
        yield


@mutant
def a_sealed_plan_is_replaced_by_a_later_one() -> Iterator[None]:
    real = SegmentLog.seal_plan

    def seal_plan(self: SegmentLog, end: Mapping[str, Any], owner: str | None = None) -> None:
        if self.through() < end["batch"]:
            self.store.put(f"{folder(end['batch'])}/{segment_log.PLAN}", orjson.dumps(end))
        real(self, end, owner)

    with patched((SegmentLog, "seal_plan", seal_plan)):
        yield


@mutant
def what_a_reset_has_left_to_be_done_is_planned_anew() -> Iterator[None]:
    with patched((Planner, "_left_behind", lambda _self, _batch: None)):
        yield


@mutant
def an_available_now_query_counts_batches_of_earlier_runs() -> Iterator[None]:
    real = Planner._count

    def count(self: Planner, end: Offset, acks: list[SegmentAck]) -> None:
        before = {} if self._available_now is None else {"before": self._available_now.before}
        real(self, {**end, **before}, acks)

    with patched((Planner, "_count", count)):
        yield


# Commits.


@mutant
def a_commit_is_known_by_its_number_only() -> Iterator[None]:
    def is_in(_sink: Any, last: Commit | None, wanted: MicroBatch, _content: Any) -> bool:
        return last is not None and last.number >= wanted.number

    def already(_table: str, last: Commit | None, wanted: MicroBatch) -> bool:
        return last is not None and last.number >= wanted.number

    with patched(
        (micro_batch, "is_in", is_in),
        (spark_sink, "already_committed", already),
        (agreement, "check", lambda *_arguments: None),
        (SegmentLog, "in_sink", lambda self, number: str(self.content(number))),
    ):
        yield


@mutant
def a_batch_that_is_in_the_table_is_written_again() -> Iterator[None]:
    with patched(
        (micro_batch, "is_in", lambda *_arguments: False), (spark_sink, "already_committed", lambda *_arguments: False)
    ):
        yield


# The end of a batch.


@mutant
def unconfirmed_deletes_are_forgotten() -> Iterator[None]:
    with patched((BatchCommitter, "_unconfirmed_after", lambda _self, _acks: {})):
        yield


@mutant
def the_last_of_two_drivers_decides_which_deletes_are_in_doubt() -> Iterator[None]:
    """This was so when all batches shared one file."""
    real = SegmentLog.finish

    def finish(self: SegmentLog, committed: Committed, unconfirmed: Any, names: tuple[str, ...]) -> bool:
        ours = real(self, committed, unconfirmed, names)
        if not ours and unconfirmed is not None:
            newest = self.store.names(segment_log.COMMITS)[-1]
            commit = orjson.loads(self.store.read(newest) or b"{}")
            self.store.put(newest, orjson.dumps({**commit, "unconfirmed": unconfirmed}))
        return ours

    with patched((SegmentLog, "finish", finish)):
        yield


@mutant
def a_delete_that_failed_counts() -> Iterator[None]:
    real = Acknowledger._delete
    with patched((Acknowledger, "_delete", lambda self, page, until: real(self, page, until).slice(0, 0))):
        yield


@mutant
def a_delete_that_was_answered_too_late_counts() -> Iterator[None]:
    real = Acknowledger._delete
    with patched((Acknowledger, "_delete", lambda self, page, _until: real(self, page, float("inf")))):
        yield


@mutant
def a_heartbeat_that_was_answered_too_late_counts() -> Iterator[None]:
    real = VisibilityHeartbeat.extend

    def extend(self: VisibilityHeartbeat, batch: int) -> int:
        self._read_receipts(batch)
        self._until = dict.fromkeys(self._receipts, self._sqs_clock.monotonic() + self._options.visibility)
        return real(self, batch)

    with patched((VisibilityHeartbeat, "extend", extend)):
        yield


@mutant
def the_clocks_of_other_hosts_are_trusted() -> Iterator[None]:
    def read(self: SqsClock) -> Reading:
        ahead = self._clock() - self.monotonic()
        return Reading(ahead, ahead)

    with patched((SqsClock, "read", read)):
        yield


@mutant
def a_batch_is_committed_when_its_tasks_have_run() -> Iterator[None]:
    real = Planner.assignments

    def assignments(self: Planner, start: Any, end: Any) -> Any:
        planned = real(self, start, end)
        files = self.log.files(end["batch"])
        if files.acked:  # a replay: its tasks have run before
            self._committer.commit_through(end["batch"], end["id"])
        return planned

    with patched((Planner, "assignments", assignments)):
        yield


@mutant
def with_ack_committed_messages_are_deleted_when_they_are_sealed() -> Iterator[None]:
    real = SourceTask._acknowledge

    def acknowledge(self: SourceTask, *arguments: Any) -> Sealed:
        self.options = replace(self.options, ack="sealed")
        return real(self, *arguments)

    with patched((SourceTask, "_acknowledge", acknowledge)):
        yield


@mutant
def with_ack_committed_a_redelivery_is_deleted_as_the_ledger_knows_it() -> Iterator[None]:
    real = SourceTask._acknowledge

    def acknowledge(self: SourceTask, *arguments: Any) -> Sealed:
        with patched((self, "_sealed_by_others", lambda: iter(()))):
            return real(self, *arguments)

    with patched((SourceTask, "_acknowledge", acknowledge)):
        yield


# Resets.


@mutant
def a_reset_drops_what_is_sealed_and_in_no_table() -> Iterator[None]:
    real = agreement.plan_reset

    def plan_reset(*arguments: Any) -> agreement.Reset:
        plan = real(*arguments)
        return plan if plan.batch is None else replace(plan, batch=None, ended=(*plan.ended, plan.batch))

    with patched((agreement, "plan_reset", plan_reset)):
        yield


@mutant
def a_reset_does_not_count_on() -> Iterator[None]:
    real = agreement.plan_reset
    with patched((agreement, "plan_reset", lambda *arguments: replace(real(*arguments), base=arguments[1].base))):
        yield


@mutant
def a_reset_does_not_hand_the_log_over() -> Iterator[None]:
    with patched((SegmentLog, "hand_over", lambda _self, _owner: None)):
        yield


@mutant
def a_reset_forgets_which_deletes_are_in_doubt() -> Iterator[None]:
    with patched((agreement, "sent_times", lambda _table: {})):
        yield


# The ledger.


@mutant
def a_row_is_given_out_though_the_ledger_refuses_its_record() -> Iterator[None]:
    real = LedgerClaims.record

    def record(self: LedgerClaims, table: pa.Table) -> frozenset[str]:
        real(self, table)
        return frozenset()

    with patched((LedgerClaims, "record", record)):
        yield


@mutant
def a_segment_has_the_fence_of_a_claim_and_not_its_key() -> Iterator[None]:
    def table(messages: Sequence[SourceMessage], queue: str, wanted: Any) -> pa.Table:
        made = real(messages, queue, wanted)
        if wanted is None or "key" in wanted:
            return made
        return made.set_column(2, made.schema.field(2), pa.nulls(len(made), pa.string()))

    real = columns.table
    with patched(
        (columns, "table", table),
        (LedgerClaims, "_sealed_key", lambda self, _id, key: f"{self._queue.scope}/{key}"),
    ):
        yield


# The Parquet sink.


@parquet_mutant
def a_late_commit_takes_back_those_that_followed() -> Iterator[None]:
    def record(self: Any, batch: MicroBatch) -> None:
        own = f"{self._folder}/{batch.number:010d}"
        self._store.put(own, batch.content.encode())
        self._store.delete([name for name in self._store.names(self._folder) if name != own])

    with patched((commit_log.CommitLog, "record", record)):
        yield


@parquet_mutant
def each_attempt_of_a_task_has_a_file_of_its_own() -> Iterator[None]:
    real, count = parquet._file_name, itertools.count()

    def file_name(files: str, task: int) -> str:
        return real(files, task).replace(".parquet", f"-{next(count)}.parquet")

    with patched((parquet, "_file_name", file_name)):
        yield


@parquet_mutant
def the_commit_of_a_batch_is_not_recorded() -> Iterator[None]:
    with patched((commit_log.CommitLog, "record", lambda _self, _batch: None)):
        yield


# Handlers.


@handler_mutant
def what_is_put_off_is_deleted_with_its_batch() -> Iterator[None]:
    with patched((SegmentLog, "returned", lambda _self: {})):
        yield


@handler_mutant
def what_is_put_off_is_taken_for_deleted_if_two_tasks_had_it() -> Iterator[None]:
    with patched((SegmentAck, "without", lambda self, _returned: self)):
        yield


@handler_mutant
def a_reset_takes_what_is_put_off_for_deleted() -> Iterator[None]:
    real = agreement._drop
    with patched((agreement, "_drop", lambda log, batch, listing, _returned: real(log, batch, listing, ()))):
        yield


@handler_mutant
def a_second_driver_goes_on_where_the_first_one_is_at_work() -> Iterator[None]:
    def put(self: Any, state: Any) -> bool:
        self._store.put(handlers._name(state.version), orjson.dumps(asdict(state)))
        self._state = state
        return True

    with patched((handlers.HandlerSink, "_put", put), (micro_batch, "check_log_batch", lambda _batch: None)):
        yield
