"""A micro-batch from its rows to its commit, on a real Spark with a stream of files instead of the source."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.errors import SemelError
from semel.spark.pipeline.checkpoint import Disagreement
from semel.spark.pipeline.micro_batch import Batches
from semel.spark.pipeline.micro_batch_task import Outcome, Task
from semel.spark.pipeline.progress.metrics import Metrics
from semel.spark.pipeline.progress.snapshot import State
from semel.spark.pipeline.progress.totals import Progress
from semel.spark.pipeline.runner import Runner
from semel.spark.pipeline.stop_request import Stop
from semel.spark.pipeline.stream import End, Stream, Trigger
from semel.spark.segments.model import LogBatch
from semel.spark.sinks.contract import Commit, InvalidRow, MicroBatch, Sink, Written
from semel.spark.sinks.parquet.sink import ParquetSink, ParquetWriter
from semel.spark.sinks.rejects import RejectTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semel.spark.pipeline.streaming_query import PipelineQuery

ID = "c" * 32
ROWS = pa.schema([("id", pa.string()), ("n", pa.int64())])
MESSAGE = "STRUCT<message_id STRING, body STRING, key STRING, receive_count INT, queue STRING>"
PARSED = (
    "row STRUCT<id STRING, n BIGINT>, key STRING, received_at TIMESTAMP, reason STRING, field STRING, "
    f"message {MESSAGE}, message_id STRING, queue STRING, group_id STRING, sent_at TIMESTAMP, receive_count INT"
)


def good(id_: str, n: int = 1, at: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {"row": {"id": id_, "n": n}, "key": id_, "received_at": at, "message_id": f"m-{id_}", "queue": "orders"}


def bad(id_: str, reason: str = "not JSON: line 1") -> dict[str, Any]:
    message = {"message_id": f"m-{id_}", "body": "{", "key": id_, "receive_count": 1, "queue": "orders"}
    own = {"message_id": f"m-{id_}", "queue": "orders", "receive_count": 1}
    return {"row": None, "key": id_, "received_at": "2026-01-01T00:00:00Z", "reason": reason, "message": message, **own}


class NoLog:
    """The rows of these batches are from no segment log."""

    def in_progress(self) -> LogBatch | None:
        return None

    def content(self) -> str:
        return ""

    def record_sink_commit(self, content: str) -> None: ...

    def give_back(self, number: int, until: Mapping[str, float]) -> None: ...


@dataclass
class Query:
    """The part of a pipeline's query that the runner needs, on rows from anywhere."""

    stream: Stream
    rows: DataFrame
    checkpoint: str
    trigger: Trigger
    name: str = "orders"

    def start(self, spark: SparkSession) -> None:
        self.stream.start(self.rows, self.name, self.checkpoint, self.trigger)

    def set_state(self, state: State, error: SemelError | None = None) -> None: ...


class Setup:
    """A stream of files, two tables, and runs of a query over them; each file is a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.sink: Sink = ParquetSink(str(folder / "rows"))
        self.rejects: Sink | None = RejectTable(str(folder / "rejects"))
        self.board = Progress("orders", ID, self.sink.name, None)
        self.done: list[tuple[int, list[Outcome]]] = []
        self.stop = Stop()
        self._files = 0
        (folder / "in").mkdir()

    def arrive(self, *rows: dict[str, Any]) -> None:
        path = self.folder / "in" / f"{self._files:04}.json"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        os.utime(path, (1_700_000_000 + self._files,) * 2)  # Spark takes them by their age
        self._files += 1

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(PARSED).option("maxFilesPerTrigger", 1).json(str(self.folder / "in"))

    def run(self, rows: DataFrame | None = None, *, trigger: Trigger | None = None, drain: float = 30.0) -> End:
        from semel.spark.pipeline.progress.listener import Listener

        self.sink.open(ROWS)
        if self.rejects is not None:
            self.rejects.open(pa.schema([]))
        listener = Listener(self.board, Metrics(self.board.snapshot, ("orders",)))
        batches = Batches(ID, self.sink, self.rejects, NoLog(), self._committed, traced=True)
        query = Query(
            Stream(batches, listener),
            self.stream() if rows is None else rows,
            (self.folder / "query").as_uri(),
            trigger or Trigger(available_now=True),
        )
        (end,) = Runner([cast("PipelineQuery", query)], self.stop, drain=drain).run(self.spark)
        return end

    def _committed(self, number: int, began: float, outcomes: Sequence[Outcome]) -> None:
        self.done.append((number, list(outcomes)))
        rows = sum(outcome.rows for outcome in outcomes)
        self.board.committed(number, began, rows=rows, size=0, rejects={})

    def forget_commit(self, number: int) -> None:
        """As if the driver had died before Spark wrote down that the batch was done."""
        for name in (f"{number}", f".{number}.crc"):
            (self.folder / "query" / "commits" / name).unlink(missing_ok=True)

    @property
    def rows(self) -> list[str]:
        return sorted(cast("list[str]", pq.read_table(self.folder / "rows").column("id").to_pylist()))

    @property
    def rejected(self) -> list[str]:
        return sorted(cast("list[str]", pq.read_table(self.folder / "rejects").column("message_id").to_pylist()))


@pytest.fixture
def setup(spark: SparkSession, tmp_path: Path) -> Setup:
    return Setup(spark.newSession(), tmp_path)


def test_rows_and_rejects_end_where_they_belong(setup: Setup) -> None:
    setup.arrive(good("a"), bad("x"), good("b"))
    setup.arrive(bad("y", "amount is positive"), good("c"))
    assert setup.run() == End()
    assert setup.rows == ["a", "b", "c"]
    assert setup.rejected == ["m-x", "m-y"]
    assert [number for number, _ in setup.done] == [0, 1]
    reasons = [outcome.rejects for _, outcomes in setup.done for outcome in outcomes if outcome.rejects]
    assert reasons == [{"not JSON": 1}, {"amount is positive": 1}]


def test_without_a_place_for_rejected_messages_a_batch_that_has_some_is_not_committed(setup: Setup) -> None:
    setup.rejects = None
    setup.arrive(good("a"), bad("b"))
    assert "no place for them; nothing is committed" in str(setup.run().error)
    assert not list((setup.folder / "rows").glob("*.parquet"))


def test_every_task_gives_exactly_one_result_also_without_rows(setup: Setup) -> None:
    setup.arrive(good("a"))
    setup.run(setup.stream().repartition(3))
    ((_, outcomes),) = setup.done
    assert [outcome.task for outcome in outcomes] == [0, 1, 2]
    assert sorted(outcome.rows for outcome in outcomes) == [0, 0, 1]
    assert all(outcome.written is not None and outcome.rejected is not None for outcome in outcomes)


def test_a_batch_that_is_in_already_is_run_again_without_writing(setup: Setup) -> None:
    setup.arrive(good("a"), bad("x"))
    setup.run()
    setup.forget_commit(0)
    assert setup.run() == End()
    assert setup.rows == ["a"]
    assert setup.rejected == ["m-x"]
    again = setup.done[1][1]
    assert setup.done[1][0] == 0
    assert all(outcome.written is None and outcome.rejected is None for outcome in again)
    assert sum(outcome.rows for outcome in again) == 1


def test_a_batch_that_is_run_again_advances_the_state_of_the_keys(setup: Setup) -> None:
    setup.spark.conf.set("spark.sql.shuffle.partitions", "2")

    def once() -> DataFrame:
        return setup.stream().withWatermark("received_at", "1 hour").dropDuplicatesWithinWatermark(["key"])

    setup.arrive(good("a"), good("b"), good("a"))
    setup.run(once())
    setup.forget_commit(0)
    setup.arrive(good("b"), good("c"), bad("a"))
    setup.run(once())
    assert setup.rows == ["a", "b", "c"]
    assert [number for number, _ in setup.done] == [0, 0, 1]


class Broken(ParquetSink):
    """Dies with its first commit, before or after it is done."""

    def __init__(self, path: str, *, done: bool) -> None:
        super().__init__(path)
        self._done, self._broken = done, True

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        broken, self._broken = self._broken, False
        if self._done or not broken:
            super().commit(batch, written)
        if broken:
            raise SemelError("table rows: the disk is full; make room")


@pytest.mark.parametrize("done", [False, True])
def test_a_driver_that_dies_before_or_after_the_commit_of_the_rows_loses_and_doubles_nothing(
    setup: Setup, done: bool
) -> None:
    setup.sink = Broken(str(setup.folder / "rows"), done=done)
    setup.arrive(good("a"), good("b"), bad("x"))
    end = setup.run()
    assert str(end.error) == "table rows: the disk is full; make room"
    assert setup.done == []
    assert setup.run() == End()
    assert setup.rows == ["a", "b"]
    assert setup.rejected == ["m-x"]


class Failing:
    """A writer whose task fails half-way."""

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        for _ in batches:
            try:
                raise ValueError("deep inside")
            except ValueError as error:
                raise SemelError("table rows, column n: 7 does not fit; change its type") from error
        return Written(task, attempt, 0, 0)


class FailingSink(ParquetSink):
    def writer(self, batch: MicroBatch) -> Any:
        return Failing()


def test_an_error_in_a_task_is_told_in_its_own_words(setup: Setup) -> None:
    setup.sink = FailingSink(str(setup.folder / "rows"))
    setup.arrive(good("a"))
    end = setup.run()
    assert str(end.error) == "table rows, column n: 7 does not fit; change its type"
    assert "Traceback" in cast(Any, end.error).trace


def test_an_error_of_sparks_own_is_one_line(setup: Setup) -> None:
    setup.arrive(good("a"))
    end = setup.run(setup.stream().selectExpr("raise_error('oh no') AS row", "key", "reason", "field", "message"))
    assert end.error is not None
    assert "oh no" in str(end.error)
    assert "\n" not in str(end.error)


# Stopping.


class Held(ParquetSink):
    """Holds its commit until it is let go."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.reached, self.go = threading.Event(), threading.Event()

    def commit(self, batch: MicroBatch, written: Sequence[Written]) -> None:
        self.reached.set()
        assert self.go.wait(60)
        super().commit(batch, written)


@pytest.mark.slow
def test_a_batch_in_progress_is_finished_and_no_other_is_begun(setup: Setup) -> None:
    setup.sink = held = Held(str(setup.folder / "rows"))
    setup.arrive(good("a"))
    setup.arrive(good("b"))

    def stop() -> None:
        assert held.reached.wait(60)
        setup.stop.ask()
        held.go.set()

    helper = threading.Thread(target=stop)
    helper.start()
    assert setup.run(trigger=Trigger()) == End(stopped=True)
    helper.join()
    assert setup.rows == ["a"]
    assert (setup.folder / "query" / "commits" / "0").exists()
    setup.stop = Stop()
    assert setup.run() == End()
    assert setup.rows == ["a", "b"]


def test_a_query_that_is_to_stop_begins_no_batch(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "__init__", _stopping(Batches.__init__))
    setup.arrive(good("a"))
    assert setup.run(trigger=Trigger()) == End(stopped=True)
    monkeypatch.undo()
    assert setup.done == []
    assert setup.run() == End()
    assert setup.rows == ["a"]


def _stopping(make: Any) -> Any:
    def made(self: Batches, *arguments: Any, **more: Any) -> None:
        make(self, *arguments, **more)
        self.stop()

    return made


def test_whoever_insists_is_not_kept_waiting_and_the_batch_is_run_again(setup: Setup) -> None:
    setup.sink = held = Held(str(setup.folder / "rows"))
    setup.arrive(good("a"))

    def insist() -> None:
        assert held.reached.wait(60)
        setup.stop.ask()
        setup.stop.ask()
        threading.Timer(0.5, held.go.set).start()

    helper = threading.Thread(target=insist)
    helper.start()
    assert setup.run(trigger=Trigger()) == End(stopped=True, unfinished=True)
    helper.join()
    setup.stop = Stop()
    assert setup.run() == End()
    assert setup.rows == ["a"]


def test_an_idle_query_stops_at_once(setup: Setup) -> None:
    setup.arrive(good("a"))

    def stop_after_the_first_batch() -> None:
        while not setup.done:
            threading.Event().wait(0.05)
        setup.stop.ask()

    helper = threading.Thread(target=stop_after_the_first_batch)
    helper.start()
    assert setup.run(trigger=Trigger(every=0.1)) == End(stopped=True)
    helper.join()
    assert setup.rows == ["a"]


def test_spark_tells_how_long_a_batch_took(setup: Setup) -> None:
    setup.arrive(good("a"))
    setup.run()
    assert setup.board.snapshot().batch is not None
    last = setup.board.snapshot().batch
    assert last is not None
    began_to_committed = sum(outcome.seconds for outcome in setup.done[0][1])
    assert last.seconds > 0
    assert began_to_committed >= 0


# The task alone, without Spark.


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    message = pa.struct([("message_id", pa.string()), ("body", pa.string()), ("queue", pa.string())])
    row = pa.struct(list(ROWS))
    kinds: dict[str, pa.DataType] = {"row": row, "key": pa.string(), "reason": pa.string(), "field": pa.string()}
    kinds |= {"message": message, "message_id": pa.string(), "queue": pa.string(), "group_id": pa.string()}
    kinds |= {"sent_at": pa.timestamp("us", tz="UTC"), "receive_count": pa.int32()}
    return pa.RecordBatch.from_arrays(
        [pa.array([_known(values.get(name), kind) for values in rows], kind) for name, kind in kinds.items()],
        list(kinds),
    )


def _known(value: Any, kind: pa.DataType) -> Any:
    if value is None or not pa.types.is_struct(kind):
        return value
    return {field.name: value.get(field.name) for field in kind}


class Keeping:
    """A writer that keeps what it gets, takes no n above 9, and may stop early."""

    def __init__(self, most: int | None = None) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._most = most

    def invalid_rows(self, rows: pa.RecordBatch) -> list[InvalidRow]:
        if "n" not in rows.schema.names:
            return []
        return [InvalidRow(place, "n", "too large") for place, n in enumerate(rows.column("n").to_pylist()) if n > 9]

    def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
        for batch in batches:
            self.batches.append(batch)
            if self._most is not None and len(self.batches) >= self._most:
                break
        return Written(task, attempt, sum(map(len, self.batches)), 0)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]


def test_rows_stream_through_a_task_one_batch_at_a_time() -> None:
    pulled: list[int] = []

    def incoming() -> Iterator[pa.RecordBatch]:
        for place in range(5):
            pulled.append(place)
            yield batch(good(str(place)))

    class Looking(Keeping):
        def write(self, batches: Iterator[pa.RecordBatch], task: int, attempt: str) -> Written:
            next(batches)
            assert pulled == [0]
            return super().write(batches, task, attempt)

    outcome = Task(Looking(), Keeping()).run(incoming(), 0, "a")
    assert outcome.rows == 5


def test_a_writer_that_stops_early_does_not_keep_the_partition_from_being_read_to_its_end() -> None:
    incoming = iter([batch(good("a")), batch(good("b"), bad("x")), batch(good("c"))])
    rejects = Keeping()
    outcome = Task(Keeping(most=1), rejects).run(incoming, 0, "a")
    assert next(incoming, None) is None
    assert outcome.rows == 3
    assert [row["message_id"] for row in rejects.rows] == ["m-x"]


def test_without_writers_everything_is_still_read_and_counted() -> None:
    incoming = iter([batch(good("a"), bad("x"))])
    outcome = Task(None, None).run(incoming, 0, "a")
    assert next(incoming, None) is None
    assert (outcome.rows, outcome.rejects) == (1, {"not JSON": 1})
    assert outcome.written is None
    assert outcome.rejected is None


def test_a_row_that_its_table_would_refuse_is_rejected_alone() -> None:
    writer, rejects = Keeping(), Keeping()
    odd = {**good("b", 10), "message": {"message_id": "m-b", "body": "{}", "queue": "orders"}}
    outcome = Task(writer, rejects).run(iter([batch(good("a"), odd, good("c"), bad("x"))]), 0, "a")
    assert [row["id"] for row in writer.rows] == ["a", "c"]
    assert [(row["message_id"], row["reason"], row["field"]) for row in rejects.rows] == [
        ("m-x", "not JSON: line 1", None),
        ("m-b", "too large", "n"),
    ]
    assert outcome.rejects == {"not JSON": 1, "too large": 1}
    assert outcome.rows == 2


def test_an_outcome_travels_as_bytes() -> None:
    outcome = Outcome(3, 5, {"not JSON": 1}, 0.5, Written(3, "a", 5, 9, {"file": "f"}), None, b"events")
    assert Outcome.decode(3, outcome.encode(), b"events") == outcome


def test_a_batch_that_the_table_has_under_an_earlier_number_is_not_committed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: an offset of another driver had replaced the one that the batch was committed under.
    No task of it runs, either: in a bucket, its files would be seen at once."""
    sink = empty_table(tmp_path, monkeypatch)
    rows = cast("DataFrame", None)
    batches = Batches(ID, sink, None, SeventhBatch(), lambda *_: None)
    batches(rows, 0)
    batches(rows, 0)
    monkeypatch.setattr("semel.spark.pipeline.micro_batch.outcomes_of", lambda *_: pytest.fail("a task has run"))
    with pytest.raises(Disagreement, match="as batch 0, and Spark runs it as batch 1"):
        Batches(ID, sink, None, SeventhBatch(), lambda *_: None, base=1)(rows, 0)
    assert sink.last(ID) == Commit(0, "log/7/seals")


def test_files_are_named_for_the_batch_of_the_log_whatever_number_spark_has_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: after a reset, a driver from before it had written offsets into Spark's progress. The
    next driver began with a later number than 0, and its tasks named their files for a later batch of the log."""
    sink = empty_table(tmp_path, monkeypatch)
    writers: list[ParquetWriter] = []

    def writer(batch: MicroBatch) -> ParquetWriter:
        writers.append(ParquetSink.writer(sink, batch))
        return writers[-1]

    monkeypatch.setattr(sink, "writer", writer)
    Batches(ID, sink, None, SeventhBatch(), lambda *_: None)(cast("DataFrame", None), 3)
    assert [writer.files.rpartition("log-")[2] for writer in writers] == ["b0000000007-t"]
    assert sink.last(ID) == Commit(3, "log/7/seals")


def test_a_batch_that_is_another_one_of_the_log_than_its_files_are_named_for_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndsMeanwhile(SeventhBatch):
        def in_progress(self) -> LogBatch:
            return LogBatch("log", 6)

    sink = empty_table(tmp_path, monkeypatch)
    batches = Batches(ID, sink, None, EndsMeanwhile(), lambda *_: None)
    with pytest.raises(Disagreement, match="run batch 0 as log-b0000000006 of the segment log, where log-b0000000007"):
        batches(cast("DataFrame", None), 0)
    assert sink.last(ID) is None


class SeventhBatch(NoLog):
    def in_progress(self) -> LogBatch:
        return LogBatch("log", 7)

    def content(self) -> str:
        return "log/7/seals"


def empty_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ParquetSink:
    monkeypatch.setattr("semel.spark.pipeline.micro_batch.outcomes_of", lambda *_: [])
    sink = ParquetSink(str(tmp_path / "rows"))
    sink.open(pa.schema([]))
    return sink
