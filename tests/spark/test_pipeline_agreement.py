"""A pipeline whose checkpoint, segment log and table do not belong together: nothing is started, received or deleted;
and after `semel pipeline reset` nothing is lost or doubled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.broker import EmbeddedBroker, running
from semel.cli import main
from semel.spark import crash_points
from semel.spark.pipeline import agreement
from semel.spark.pipeline.checkpoint import Checkpoint, Disagreement, Record
from semel.spark.pipeline.config_file import load
from semel.spark.pipeline.runner import Report, run
from semel.spark.segments.codec import SegmentDamaged
from semel.spark.segments.model import Content, SegmentId, folder
from semel.spark.segments.segment_log import PLAN, LogError, OtherQuery
from semel.spark.sinks.contract import Commit, MicroBatch, Written
from semel.spark.sinks.handlers.row_messages import NEEDED
from semel.spark.sinks.handlers.sink import HandlerSink
from semel.spark.sinks.parquet.sink import ParquetSink
from semel.spark.sinks.rejects import RejectTable
from semel.spark.source.planner import assignments
from semel.sqs import Client, Entry
from spark.intake import Intake, intake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = """
name = "orders"
checkpoint = "checkpoint"
[source]
queues = ["orders"]
key = "$.id"
dedup = "segments"
endpoint_url = "{url}"
visibility = 30
max_seconds_per_batch = 5
[schema]
ddl = "id STRING NOT NULL"
[rejects]
table = "rejects"
[sink]
type = "{sink}"
path = "rows"
"""


class Shop:
    """A queue of orders, and a pipeline file that makes a table of it."""

    def __init__(self, broker: EmbeddedBroker, client: Client, folder: Path, sink: str = "parquet") -> None:
        self.broker, self.folder, self.sink = broker, folder, sink
        self.queue = client.create_queue("orders")
        self.file = folder / "orders.toml"
        self.file.write_text(FILE.format(url=broker.url, sink=sink))
        self.checkpoint = folder / "checkpoint"

    def orders(self, *numbers: int) -> None:
        self.queue.send_many([Entry(json.dumps({"id": f"o{number}"})) for number in numbers])

    def run(self, **options: Any) -> Report:
        return run(load(self.file), **{"exit_when_empty": True, "show": "none", **options})

    def refused(self, **options: Any) -> str:
        """Why it does not run."""
        before = self.waiting()
        report = self.run(**options)
        assert report.error is not None
        assert self.waiting() == before
        return str(report.error)

    def waiting(self) -> int:
        attributes = self.queue.attributes()
        return sum(int(attributes[f"ApproximateNumberOfMessages{part}"]) for part in ("", "NotVisible"))

    def rows(self) -> list[str]:
        if self.sink == "delta":
            from deltalake import DeltaTable

            table = DeltaTable(self.folder / "rows").to_pyarrow_table()
        else:
            table = pq.read_table(self.folder / "rows")
        return sorted(table.column("id").to_pylist())


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with running() as broker, Client(broker.url) as client:
        yield Shop(broker, client, tmp_path)


def named(*numbers: int) -> list[str]:
    return sorted(f"o{number}" for number in numbers)


@contextmanager
def begun(
    folder: Path, queue: str = "orders", **options: Any
) -> Iterator[tuple[Intake, Checkpoint, Record, tuple[ParquetSink, RejectTable]]]:
    """A pipeline without Spark."""
    checkpoint = Checkpoint(str(folder / "checkpoint"))
    record = checkpoint.fresh({})
    checkpoint.keep(record)
    sinks = ParquetSink(str(folder / "rows")), RejectTable(str(folder / "rejects"))
    with intake(folder / "checkpoint" / "segments", queue) as place:
        yield place.with_options(owner=record.query, **options), checkpoint, record, sinks


def rows_of(place: Intake) -> list[str]:
    """The bodies of all that a query from its beginning gives out, each batch committed."""
    planner, rows = place.planner(), []
    start = planner.initial()
    while (end := planner.latest(start, 10)) != start:
        rows += [body for assignment in planner.assignments(start, end) for body in place.run(assignment)]
        place.commit_in_sink(end["batch"])
        planner.committed(end)
        start = end
    planner.stop()
    return rows


def test_a_reset_leaves_in_their_queue_the_messages_that_a_handler_has_put_off(tmp_path: Path) -> None:
    """They are not done, so that nobody may take them for deleted when they come back."""
    with begun(tmp_path, ack="committed") as (place, checkpoint, record, _):
        place.send("done", "put off")
        planner = place.planner()
        start = planner.initial()
        end = planner.latest(start, 10)
        (assignment,) = planner.assignments(start, end)
        ids = {row["body"]: row["message_id"] for table in place.task(assignment).tables() for row in table.to_pylist()}
        sink = HandlerSink("shop:app", str(tmp_path / "checkpoint" / "handler"))
        sink.open(NEEDED)
        content = agreement.DriverLog(place.log).content()
        returned = {ids["put off"]: place.now() + 7}
        sink.commit(MicroBatch(record.id, 0, content), [Written(0, "a", 1, 0, {"counts": {}, "returned": returned})])
        planner.stop()  # the driver dies, and somebody removes Spark's progress

        after = HandlerSink("shop:app", str(tmp_path / "checkpoint" / "handler"))
        plan = agreement.plan_reset(checkpoint, record, place.log, [after])
        assert (plan.ended, plan.loses) == ((1,), False)
        now = agreement.reset(checkpoint, record, place.log, [after], plan)
        place.clock.advance(place.options.visibility + 1)
        assert rows_of(place.with_options(owner=now.query)) == ["put off"]


def dies_before_the_commit(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(point: str) -> None:
        if point == "before-commit":
            raise RuntimeError("the driver dies")

    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "reached", reached)
        assert shop.run().error is not None


def test_a_pipeline_whose_query_was_removed_is_refused_and_after_a_reset_loses_and_repeats_nothing(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.orders(0, 1)
    assert shop.run().clean
    shop.orders(2, 3)
    dies_before_the_commit(shop, monkeypatch)  # these two are sealed, in no table, and in no queue any more
    assert shop.waiting() == 0
    shutil.rmtree(shop.checkpoint / "query")
    shop.orders(4, 5)

    assert "query/ was removed" in (why := shop.refused())
    assert "semel pipeline reset" in why
    assert main(["pipeline", "check", str(shop.file)]) == 3
    assert "query/ was removed" in capsys.readouterr().out
    assert main(["pipeline", "reset", str(shop.file), "--output", "json"]) == 3
    assert "query/ was removed" in shop.refused()  # it has changed nothing
    capsys.readouterr()
    assert main(["pipeline", "reset", str(shop.file), "--output", "json", "--yes"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["done"], output["replayed"], output["in_sink"], output["may_lose"]) == (True, 2, 0, [])

    assert shop.run().clean
    assert shop.rows() == named(*range(6))
    assert shop.run().clean
    assert shop.rows() == named(*range(6))


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["parquet", "delta"])
def test_an_older_copy_of_the_checkpoint_is_refused_and_new_messages_are_not_taken_for_old_ones(
    spark: SparkSession, tmp_path: Path, sink: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with running() as broker, Client(broker.url) as client:
        shop = Shop(broker, client, tmp_path, sink)
        shop.orders(0, 1)
        assert shop.run().clean
        shutil.copytree(shop.checkpoint, tmp_path / "copy")
        shop.orders(2, 3)
        assert shop.run().clean
        shutil.rmtree(shop.checkpoint)
        shutil.copytree(tmp_path / "copy", shop.checkpoint)
        shop.orders(4, 5)

        assert "it is an older copy" in shop.refused()
        assert main(["pipeline", "reset", str(shop.file), "--yes"]) == 1
        assert "older copy than the table" in capsys.readouterr().out
        assert "it is an older copy" in shop.refused()
        assert main(["pipeline", "reset", str(shop.file), "--yes", "--accept-loss"]) == 0
        assert shop.run().clean
        assert shop.rows() == named(*range(6))


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["parquet", "delta"])
def test_a_table_that_is_older_than_the_checkpoint_is_refused_and_a_reset_says_what_is_missing(
    spark: SparkSession, shop: Shop, sink: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(shop.broker, shop.queue.client, shop.folder, sink)
    shop.orders(0, 1)
    assert shop.run().clean
    shutil.copytree(shop.folder / "rows", shop.folder / "copy")
    shop.orders(2, 3)
    assert shop.run().clean
    shutil.rmtree(shop.folder / "rows")
    shutil.move(shop.folder / "copy", shop.folder / "rows")
    shop.orders(4)
    error = shop.refused()
    assert "has no batch 1: it was removed, or is an older copy" in error
    assert main(["pipeline", "reset", str(shop.file), "--yes"]) == 0
    assert "a reset does not bring them back" in capsys.readouterr().out
    assert shop.run().clean
    assert shop.rows() == named(0, 1, 4)
    assert shop.run().clean


@pytest.mark.slow
def test_a_batch_that_is_in_the_table_is_not_written_again_by_a_reset(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(point: str) -> None:
        if point == "after-commit":
            raise RuntimeError("the driver dies")

    shop.orders(0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "reached", reached)
        assert shop.run().error is not None
    assert shop.rows() == named(0, 1)
    assert main(["pipeline", "reset", str(shop.file), "--yes"]) == 0
    shop.orders(2)
    assert shop.run().clean
    assert shop.rows() == named(0, 1, 2)


@pytest.mark.slow
def test_a_segment_that_is_gone_stops_the_pipeline_and_a_reset_goes_on_without_it_only_if_it_is_told_to(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.orders(0, 1)
    dies_before_the_commit(shop, monkeypatch)
    (segment,) = (shop.checkpoint / "segments").glob("b*/*.seg")
    segment.unlink()
    shop.orders(2, 3)
    assert "is not there any more" in shop.refused()
    assert main(["pipeline", "reset", str(shop.file), "--yes"]) == 1
    assert main(["pipeline", "reset", str(shop.file), "--yes", "--accept-loss"]) == 0
    assert shop.run().clean
    assert shop.rows() == named(2, 3)


def test_a_table_that_was_written_with_another_checkpoint_is_refused_unless_it_is_to_be_adopted(
    spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.orders(0)
    assert shop.run().clean
    shutil.rmtree(shop.checkpoint)
    shop.orders(1)
    assert "is not this pipeline's" in (why := shop.refused())
    assert "--adopt" in why
    assert main(["pipeline", "check", str(shop.file)]) == 3
    assert "is not this pipeline's" in capsys.readouterr().out
    assert main(["pipeline", "check", str(shop.file), "--adopt"]) == 0
    assert shop.run(adopt=True).clean
    assert shop.rows() == named(0, 1)
    shop.orders(2)
    assert shop.run().clean  # from now on it is its own
    assert shop.rows() == named(0, 1, 2)


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_version_is_refused_in_words_and_a_reset_takes_it_over(
    spark: SparkSession, shop: Shop
) -> None:
    shop.orders(0)
    assert shop.run().clean
    record = orjson.loads((shop.checkpoint / "pipeline.json").read_bytes())
    (shop.checkpoint / "pipeline.json").write_bytes(
        orjson.dumps({name: record[name] for name in ("id", "semel", "spec")})
    )
    log = shop.checkpoint / "segments/log.json"
    log.write_bytes(orjson.dumps({**orjson.loads(log.read_bytes()), "format": 1}))
    for commits in shop.folder.glob("*/_semel/*.commits"):
        (newest,) = commits.iterdir()
        commits.with_suffix(".committed").write_bytes(orjson.dumps({"number": int(newest.name)}))
        shutil.rmtree(commits)
    shop.orders(1)
    assert "an earlier version of Semel" in shop.refused()
    assert main(["pipeline", "reset", str(shop.file), "--yes"]) == 0
    assert shop.run().clean
    assert shop.rows() == named(0, 1)


def test_a_pipeline_that_is_reset_after_its_rejects_are_in_and_before_its_rows_are_runs_again(tmp_path: Path) -> None:
    with begun(tmp_path) as (place, checkpoint, record, (rows, rejects)):
        place.send("0")
        planner = place.planner()
        place.batch(planner, planner.initial())
        content = agreement.DriverLog(place.log).content()
        rejects.open()
        rejects.commit(MicroBatch(record.id, 0, content), [])

        plan = agreement.plan_reset(checkpoint, record, place.log, (rows, rejects))
        record = agreement.reset(checkpoint, record, place.log, (rows, rejects), plan)

        assert (plan.batch, plan.base) == (1, 0)
        agreement.check(checkpoint, record, place.log, (rows, rejects))
        rejects.commit(MicroBatch(record.id, 1, content), [])
        with pytest.raises(Disagreement, match="only got to batch"):
            agreement.check(checkpoint, record, place.log, (rows, rejects))


@pytest.mark.parametrize("lost", [False, True])
def test_rejects_of_a_batch_that_the_log_no_longer_has_as_it_was_come_again_and_the_reset_says_so(
    tmp_path: Path, lost: bool
) -> None:
    """A segment is gone, or the log is an older copy: the batch cannot be run under its former number."""
    with begun(tmp_path) as (place, checkpoint, record, (rows, rejects)):
        place.send("0")
        planner = place.planner()
        place.batch(planner, planner.initial())
        rejects.open()
        rejects.commit(MicroBatch(record.id, 0, agreement.DriverLog(place.log).content()), [])
        files = place.log.files(1)
        place.store.delete([name for name in files.names if name.endswith(".seg" if lost else (".seg", ".ack"))])

        plan = agreement.plan_reset(checkpoint, record, place.log, (rows, rejects))
        record = agreement.reset(checkpoint, record, place.log, (rows, rejects), plan)

        assert (plan.base, plan.rejects_again, plan.loses, plan.older_log) == (1, True, True, not lost)
        agreement.check(checkpoint, record, place.log, (rows, rejects))


def test_a_reset_names_what_it_drops_if_the_table_has_the_batch_made_of_other_segments(tmp_path: Path) -> None:
    """Found by the simulation: an older copy of the log was restored, in which the batch is planned and not received.
    A task of that plan was still running, and sealed other messages."""
    with begun(tmp_path) as (place, checkpoint, record, sinks):
        planner = place.planner()
        place.send("0")
        end, _ = place.batch(planner, planner.initial())
        sinks[0].open(pa.schema([]))
        sinks[0].commit(MicroBatch(record.id, 0, agreement.DriverLog(place.log).content()), [])
        assert agreement.plan_reset(checkpoint, record, place.log, sinks).dropped == ()
        place.store.delete([name for name in place.log.files(1).names if not name.endswith("plan.json")])
        place.send("1")
        assert place.run(assignments(end)[0]) == ["1"]

        plan = agreement.plan_reset(checkpoint, record, place.log, sinks)
        assert (plan.loses, plan.dropped) == (True, ("b0000000001/t0000-p00000.seg",))
        later = Content(agreement.DriverLog(place.log).content().partition("/")[0], 2, "seals")
        sinks[0].commit(MicroBatch(record.id, 1, str(later)), [])  # with a log that is newer than the copy
        plan = agreement.plan_reset(checkpoint, record, place.log, sinks)
        assert (plan.older_log, plan.dropped) == (True, ("b0000000001/t0000-p00000.seg",))


@pytest.mark.parametrize("in_the_table", [False, True])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_reset_drops_segments_of_no_task_and_says_so_if_their_messages_are_in_no_queue(
    tmp_path: Path, in_the_table: bool, deleted: bool
) -> None:
    """They are of tasks that ran while somebody replaced the log."""
    with begun(tmp_path) as (place, checkpoint, record, sinks):
        planner = place.planner()
        place.send("0")
        end, _ = place.batch(planner, planner.initial())
        if in_the_table:
            sinks[0].open(pa.schema([]))
            sinks[0].commit(MicroBatch(record.id, 0, agreement.DriverLog(place.log).content()), [])
        place.send("1")
        stray = place.task(replace(assignments(end)[0], task=1))
        if not deleted:
            stray._acknowledge = lambda sealed, *_: sealed  # type: ignore[method-assign]
        assert len(list(stray.tables())) == 1
        with pytest.raises(LogError, match="a task that the plan of batch 1 does not have"):
            planner.committed(end)

        plan = agreement.plan_reset(checkpoint, record, place.log, sinks)
        assert (plan.loses, len(plan.dropped)) == (deleted, deleted)
        assert (plan.replayed, plan.in_sink) == ((0, 1) if in_the_table else (1, 0))
        record = agreement.reset(checkpoint, record, place.log, sinks, plan)
        assert not any(place.log.unconfirmed_deletes().values()), "what is in the queue is received again"
        assert [s for s in place.log.files(1).all if s.task == 1] == []
        again = place.with_options(owner=record.query)
        place.clock.advance(place.options.visibility + 1)
        assert rows_of(again) == ([] if in_the_table else ["0"]) + ([] if deleted else ["1"])


def test_a_reset_takes_nothing_for_written_that_appears_in_the_log_after_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: somebody restored an older copy, with a segment of no task and without the plan."""
    with begun(tmp_path) as (place, checkpoint, record, sinks):
        planner = place.planner()
        place.send("0")
        end, _ = place.batch(planner, planner.initial())
        sinks[0].open(pa.schema([]))
        sinks[0].commit(MicroBatch(record.id, 0, agreement.DriverLog(place.log).content()), [])
        place.send("1")
        stray = place.task(replace(assignments(end)[0], task=1))
        stray._acknowledge = lambda sealed, *_: sealed  # type: ignore[method-assign]
        list(stray.tables())
        name, delete = SegmentId(1, 1, 0).name, place.store.delete
        older = place.store.read(name)
        assert older is not None

        def delete_and_restore(names: Iterable[str]) -> None:
            delete(names)
            if place.store.read(name) is None:
                place.store.put(name, older)
                delete([f"{folder(1)}/{PLAN}"])

        plan = agreement.plan_reset(checkpoint, record, place.log, sinks)
        monkeypatch.setattr(place.store, "delete", delete_and_restore)
        record = agreement.reset(checkpoint, record, place.log, sinks, plan)
        monkeypatch.undo()
        assert not any(place.log.unconfirmed_deletes().values())
        place.clock.advance(place.options.visibility + 1)
        assert rows_of(place.with_options(owner=record.query)) == ["1"]


@pytest.mark.parametrize("in_the_table", [False, True])
@pytest.mark.parametrize("acked", [False, True])
def test_after_a_reset_messages_that_a_late_attempt_sealed_in_the_stead_of_a_lost_segment_are_rows(
    tmp_path: Path, in_the_table: bool, acked: bool
) -> None:
    """Found by the simulation: the reset took them for messages of the lost segment, which were in the table."""
    with begun(tmp_path, ack="committed") as (place, checkpoint, record, sinks):
        planner = place.planner()
        place.send("0")
        end, _ = place.batch(planner, planner.initial())
        planner.stop()
        if in_the_table:
            sinks[0].open(pa.schema([]))
            sinks[0].commit(MicroBatch(record.id, 0, agreement.DriverLog(place.log).content()), [])
        name = SegmentId(1, 0, 0).name
        place.store.delete([name])
        place.send("1")
        zombie = place.task(assignments(end)[0])
        zombie._sealed = lambda _: None  # type: ignore[method-assign,assignment]
        zombie._check_not_replaced = lambda _: None  # type: ignore[method-assign,assignment]
        if not acked:
            zombie._acknowledge = lambda sealed, *_: sealed  # type: ignore[method-assign]
        assert len(list(zombie.tables())) == 1

        plan = agreement.plan_reset(checkpoint, record, place.log, sinks)
        assert plan.loses
        assert (plan.lost, plan.unknown, plan.dropped) == (
            ((), (name,), (name,)) if in_the_table else ((name,), (), ())
        )
        record = agreement.reset(checkpoint, record, place.log, sinks, plan)
        again = place.with_options(owner=record.query)
        place.clock.advance(place.options.visibility + 1)
        assert sorted(rows_of(again)) == ["0", "1"]


def test_a_reset_drops_nothing_if_a_driver_has_gone_on_since_it_was_planned(tmp_path: Path) -> None:
    """Found by the simulation: it dropped the batch that the driver had received meanwhile."""
    with begun(tmp_path) as (place, checkpoint, record, sinks):
        planner = place.planner()
        start = planner.initial()
        plan = agreement.plan_reset(checkpoint, record, place.log, sinks)
        place.send("0")
        place.batch(planner, start)

        with pytest.raises(agreement.ResetOutdated, match="a driver is still at work"):
            agreement.reset(checkpoint, record, place.log, sinks, plan)
        with pytest.raises(Disagreement, match="a reset was interrupted"):
            agreement.check(checkpoint, record, place.log, sinks)
        plan = agreement.plan_reset(checkpoint, record, place.log, sinks)
        assert (plan.batch, plan.replayed, plan.loses) == (1, 1, False)
        record = agreement.reset(checkpoint, record, place.log, sinks, plan)
        again = place.with_options(owner=record.query)
        planner = again.planner()
        assert again.batch(planner, planner.initial())[1] == ["0"]


def test_a_batch_that_is_committed_while_a_reset_is_planned_keeps_its_number(tmp_path: Path) -> None:
    """Found by the simulation: under the next number, the table took it for another one."""
    with begun(tmp_path) as (place, checkpoint, record, (rows, rejects)):
        planner = place.planner()
        place.send("0")
        place.batch(planner, planner.initial())
        rows.open(pa.schema([]))
        batch = MicroBatch(record.id, 0, agreement.DriverLog(place.log).content())

        class Overtaken(ParquetSink):
            """A driver commits right after somebody has looked."""

            def last(self, pipeline: str) -> Commit | None:
                last = super().last(pipeline)
                rows.commit(batch, [])
                checkpoint.store.put("query/commits/0", b"{}")
                return last

        overtaken = Overtaken(str(tmp_path / "rows"))
        plan = agreement._planned(checkpoint, record, place.log, (overtaken, rejects))
        assert (plan.batch, plan.base) == (1, 0)
        plan = agreement._planned(checkpoint, record, place.log, (overtaken, rejects))
        assert (plan.batch, plan.ended, plan.base) == (None, (1,), 1)


def test_a_reset_ends_a_batch_that_is_in_the_table_also_if_the_next_one_is_planned(tmp_path: Path) -> None:
    """Found by the simulation, in an older copy of the log: every run after the reset began with the first again."""
    with begun(tmp_path) as (place, checkpoint, record, sinks):
        planner = place.planner()
        place.send("0")
        end, _ = place.batch(planner, planner.initial())
        sinks[0].open(pa.schema([]))
        sinks[0].commit(MicroBatch(record.id, 0, agreement.DriverLog(place.log).content()), [])
        place.send("1")
        place.log.seal_plan(planner.plan(end, {"orders": 1}, 10), record.query)

        plan = agreement.plan_reset(checkpoint, record, place.log, sinks)
        assert (plan.ended, plan.batch, plan.base, plan.loses) == ((1,), 2, 1, False)
        record = agreement.reset(checkpoint, record, place.log, sinks, plan)
        again = place.with_options(owner=record.query)
        planner = again.planner()
        assert again.batch(planner, planner.initial())[1] == ["1"]


def test_a_driver_whose_log_was_handed_over_commits_and_drops_nothing(tmp_path: Path) -> None:
    """Found by the simulation: a reset had put other messages into the batch, and the former driver dropped them."""
    with intake(tmp_path / "checkpoint" / "segments") as place:
        place = place.with_options(owner="before")
        planner = place.planner()
        place.send("0")
        end, _ = place.batch(planner, planner.initial())
        place.commit_in_sink(1)
        place.log.hand_over("after")
        with pytest.raises(OtherQuery):
            planner.committed(end)
        assert (place.log.through(), len(place.log.files(1).sealed)) == (0, 1)


def test_a_reset_goes_on_without_parts_of_which_not_even_an_ack_is_left(tmp_path: Path) -> None:
    """Found by the simulation: a task waited for the first part for ever, as the reset had only seen the second."""
    with begun(tmp_path, "orders.fifo") as (place, checkpoint, record, sinks):
        planner = place.planner()
        place.send(*map(str, range(12)), group="g")  # ten at a time
        end, _ = place.batch(planner, planner.initial())
        first = SegmentId(1, 0, 0)
        place.store.delete([name for name in place.log.files(1).names if "-p00000." in name])
        with pytest.raises(SegmentDamaged):
            place.run(assignments(end)[0])

        plan = agreement.plan_reset(checkpoint, record, place.log, sinks)
        assert plan.lost == (first.name,)
        record = agreement.reset(checkpoint, record, place.log, sinks, plan)
        again = place.with_options(owner=record.query)
        planner = again.planner()
        assert again.batch(planner, planner.initial())[1] == ["10", "11"]


@pytest.mark.parametrize("ending", ["seg", "attempt.ack"])
def test_a_file_with_an_enormous_part_number_is_named_and_its_gap_is_not_counted_out(
    tmp_path: Path, ending: str
) -> None:
    with begun(tmp_path) as (place, checkpoint, record, sinks):
        planner = place.planner()
        place.send("0")
        place.batch(planner, planner.initial())
        stray = SegmentId(1, 0, 10**30)
        place.store.put(f"{stray.name.removesuffix('seg')}{ending}", b"")
        with pytest.raises(Disagreement, match=f"{stray.name}, or its .ack, .* Move it out of the log"):
            agreement.plan_reset(checkpoint, record, place.log, sinks)
        place.store.delete([f"{stray.name.removesuffix('seg')}{ending}"])
        assert agreement.plan_reset(checkpoint, record, place.log, sinks).replayed == 1


def test_a_reset_seals_nothing_in_the_gap_of_a_task_that_the_batch_does_not_have(tmp_path: Path) -> None:
    with begun(tmp_path) as (place, checkpoint, record, sinks):
        planner = place.planner()
        place.send("0")
        place.batch(planner, planner.initial())
        place.store.put(SegmentId(1, 7, 1).name, b"")  # its part 0 is not there
        plan = agreement.plan_reset(checkpoint, record, place.log, sinks)
        assert plan.lost == ()
        agreement.reset(checkpoint, record, place.log, sinks, plan)
        assert [segment_id.task for segment_id in place.log.files(1).all] == [0]


def test_nothing_is_reset_where_nothing_ran(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "reset", str(shop.file), "--yes"]) == 1
    assert "there is nothing to reset" in capsys.readouterr().err


@pytest.mark.slow
def test_of_two_queries_from_one_dataframe_one_is_refused_and_each_message_is_given_out_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running() as broker, Client(broker.url) as client:
        client.create_queue("orders").send_many([Entry(str(number)) for number in range(50)])
        rows = (
            spark.readStream.format("sqs")
            .options(queue="orders", endpointUrl=broker.url, region="us-east-1", segments=str(tmp_path / "segments"))
            .load()
        )
        queries = [
            rows.writeStream.format("parquet")
            .option("path", str(tmp_path / name))
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
            for name in ("a", "b")
        ]
        errors = []
        for query in queries:
            try:
                query.awaitTermination()
            except Exception as error:  # noqa: BLE001 - a StreamingQueryException, with the whole trace as its text
                errors.append(str(error))
        assert len(errors) == 1
        assert "A segment log is read by one query" in errors[0] or "this checkpoint is new" in errors[0]
        bodies = [
            body
            for name in ("a", "b")
            for path in (tmp_path / name).glob("*.parquet")
            for body in pq.read_table(path).column("body").to_pylist()
        ]
        assert sorted(bodies, key=int) == [str(number) for number in range(50)]
