"""What every sink promises, tested on each: whatever happens, a batch's rows are in the table exactly once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest

from semel.errors import SemelError
from semel.spark import crash_points
from semel.spark.segments.storage import open_store
from semel.spark.sinks.contract import Commit, MicroBatch, Sink, SinkError
from spark.sinks_support import (
    EVERY_ROW,
    EVERY_TYPE,
    ORDERS,
    PIPELINE,
    Table,
    batch,
    committed,
    delta_table,
    every_type,
    log_batch,
    orders,
    parquet_table,
    postgres_table,
    put,
    put_by_spark,
    run,
    s3_options,
    s3_server,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = ["parquet", "delta", "postgres", "postgres-upsert"]
IN_S3 = ["parquet-s3", "delta-s3"]
EVOLVED = ORDERS.append(pa.field("country", pa.string()))


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=HERE)
def table(request: Any, tmp_path: Path) -> Iterator[Table]:
    made = _table(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=HERE + IN_S3)
def any_table(request: Any, tmp_path: Path) -> Iterator[Table]:
    made = _table(request.param, request, tmp_path)
    yield made
    made.close()


def _table(kind: str, request: Any, tmp_path: Path) -> Table:
    name = f"t{uuid4().hex[:12]}"
    if kind.startswith("postgres"):
        server = request.getfixturevalue("postgres_server")
        options = {"mode": "upsert", "key": ["id"]} if kind == "postgres-upsert" else {}
        return postgres_table(server.url, name, **options)
    where = f"{request.getfixturevalue('s3')}/{name}" if kind.endswith("s3") else str(tmp_path / name)
    if kind.startswith("parquet"):
        return parquet_table(where)
    return delta_table(where, **(s3_options() if kind.endswith("s3") else {}))


def test_batches_that_go_well_are_in_the_table(any_table: Table) -> None:
    sink = any_table.driver()
    assert not committed(sink, batch(0))
    put(sink, 0, [orders("a"), orders("b", "c")], [orders("d")])
    put(sink, 1, [orders("e")])
    assert any_table.ids() == ["a", "b", "c", "d", "e"]
    assert committed(sink, batch(0))
    assert committed(sink, batch(1))
    assert not committed(sink, batch(2))


def test_a_batch_whose_driver_died_before_the_commit_is_written_again_and_is_in_once(any_table: Table) -> None:
    put(any_table.driver(), 0, [orders("a")])
    write(any_table.driver(), 1, [orders("b")], [orders("c")])
    after = any_table.driver()
    assert not committed(after, batch(1))
    put(after, 1, [orders("b")], [orders("c")])
    assert any_table.ids() == ["a", "b", "c"]


def test_a_batch_whose_driver_died_after_the_commit_is_known_to_be_in(table: Table) -> None:
    put(table.driver(), 0, [orders("a")], [orders("b")])
    after = table.driver()
    assert committed(after, batch(0))
    put(after, 1, [orders("c")])
    assert table.ids() == ["a", "b", "c"]


def test_a_replay_that_commits_what_is_in_already_changes_nothing(table: Table) -> None:
    put(table.driver(), 0, [orders("a")], [orders("b")])
    put(table.driver(), 0, [orders("a")], [orders("b")])
    assert table.ids() == ["a", "b"]


def test_a_zombie_that_commits_its_own_attempts_late_changes_nothing(any_table: Table) -> None:
    zombie, after = any_table.driver(), any_table.driver()
    late = write(zombie, 0, [orders("a")], [orders("b")])
    put(after, 0, [orders("a")], [orders("b")])
    put(after, 1, [orders("c")])
    zombie.commit(batch(0), late)
    assert any_table.ids() == ["a", "b", "c"]
    assert committed(after, batch(1))


def test_a_batch_to_which_a_reset_gave_another_number_is_in_once(any_table: Table) -> None:
    """Also if the table has files of its first run, as in a bucket, and if it had more tasks then."""
    put(any_table.driver(), log_batch(0, 6), [orders("z")], [orders("y")], [orders("x")])
    write(any_table.driver(), log_batch(1, 7), [orders("a")], [orders("b")], [orders("c")], [orders("d")])
    after = any_table.driver()
    put(after, log_batch(2, 7), [orders("a"), orders("b")], [], [orders("c", "d")])
    put(after, log_batch(3, 8), [orders("e")])
    assert any_table.ids() == ["a", "b", "c", "d", "e", "x", "y", "z"]


@pytest.mark.parametrize("kind", ["parquet", "parquet-s3"])
@pytest.mark.parametrize("place", [7, 6])
def test_what_is_committed_of_a_batch_stays_if_it_is_made_of_other_segments_after_a_reset(
    kind: str, place: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """As rejects of which a segment was lost since; or the log was replaced by an older copy."""
    table = _table(kind, request, tmp_path)
    put(table.driver(), log_batch(0, 6), [orders("z")])
    put(table.driver(), log_batch(1, 7), [orders("a")], [orders("b")])
    put(table.driver(), log_batch(2, place, seals=1), [orders("a")])
    assert table.ids() == ["a", "a", "b", "z"]


@pytest.mark.parametrize("kind", ["parquet", "parquet-s3", "delta", "delta-s3"])
def test_a_driver_that_stands_still_in_its_commit_takes_back_none_of_those_that_follow(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _table(kind, request, tmp_path)
    zombie, after = table.driver(), table.driver()
    late = write(zombie, 0, [orders("a")])

    def stand_still(point: str) -> None:
        assert point == "during-commit"
        monkeypatch.setattr(crash_points, "on_point", None)
        put(after, 0, [orders("a")])
        put(after, 1, [orders("b")])

    monkeypatch.setattr(crash_points, "on_point", stand_still)
    zombie.commit(batch(0), late)
    assert after.last(PIPELINE) == Commit(1)
    assert table.ids() == ["a", "b"]


def test_a_table_tells_the_last_batch_of_a_pipeline_and_what_it_was_made_of(any_table: Table) -> None:
    sink = any_table.driver()
    assert sink.last(PIPELINE) is None
    for number, content in enumerate(("0123456789ab/7/00112233445566", "0123456789ab/8/ffeeddccbbaa99")):
        made = MicroBatch(PIPELINE, number, content)
        sink.commit(made, [run(sink.writer(made), [orders(str(number))])])
        assert any_table.driver().last(PIPELINE) == Commit(number, content)
    any_table.sinks.append(closed := any_table.make())
    assert closed.last(PIPELINE) == Commit(1, content)  # also before it is opened
    assert sink.last("f" * 32) is None


def test_another_batch_under_the_number_of_one_that_is_in_is_an_error_and_not_left_out_in_silence(
    any_table: Table,
) -> None:
    sink = any_table.driver()
    first, second = (MicroBatch(PIPELINE, 0, f"0123456789ab/{n}/00112233445566") for n in (1, 2))
    sink.commit(first, [run(sink.writer(first), [orders("a")])])
    late = run(sink.writer(second), [orders("b")], task=1)
    with pytest.raises(SinkError, match="holds another batch 0"):
        sink.commit(second, [late])


def test_of_two_drivers_that_commit_a_batch_at_once_one_puts_it_in(any_table: Table) -> None:
    drivers = [any_table.driver(), any_table.driver()]
    written = [write(sink, 0, [orders("a")], [orders("b")]) for sink in drivers]
    commits = [partial(sink.commit, batch(0), theirs) for sink, theirs in zip(drivers, written, strict=True)]
    assert at_once(commits) == []
    assert any_table.ids() == ["a", "b"]
    assert all(committed(sink, batch(0)) for sink in drivers)


def test_drivers_that_make_the_table_at_once_make_one(table: Table) -> None:
    assert at_once([table.driver] * 4) == []
    put(table.sinks[0], 0, [orders("a")])
    assert table.ids() == ["a"]


def at_once(actions: Sequence[Callable[[], object]]) -> list[BaseException]:
    """What went wrong when all were done at the same moment."""
    start = threading.Barrier(len(actions))
    failed: list[BaseException] = []

    def act(action: Callable[[], object]) -> None:
        start.wait()
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=act, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def test_only_the_attempt_that_spark_counts_is_in_the_table(table: Table) -> None:
    sink = table.driver()
    writer = sink.writer(batch(0))
    counted, twin, other = (
        run(writer, [orders("a", "b")]),
        run(writer, [orders("a", "b")]),
        run(writer, [orders("c")], 1),
    )
    sink.commit(batch(0), [counted, other])
    assert twin.rows == 2
    assert table.ids() == ["a", "b", "c"]


def test_an_attempt_that_fails_half_way_leaves_nothing(table: Table) -> None:
    sink = table.driver()

    def broken() -> Iterator[pa.RecordBatch]:
        yield orders("a")
        raise RuntimeError("the executor is gone")

    with pytest.raises(RuntimeError, match="gone"):
        sink.writer(batch(0)).write(broken(), 0, "first")
    put(sink, 0, [orders("a"), orders("b")])
    assert table.ids() == ["a", "b"]


def test_tasks_without_rows_and_batches_without_rows_are_fine(table: Table) -> None:
    sink = table.driver()
    put(sink, 0, [], [orders()], [orders("a")])
    put(sink, 1, [])
    put(sink, 2, [orders("b")])
    assert table.ids() == ["a", "b"]


def test_two_pipelines_that_write_to_one_table_do_not_take_each_other_for_themselves(table: Table) -> None:
    put(table.driver(), 0, [orders("a")])
    other = table.driver()
    theirs = batch(0, "f" * 32)
    assert not committed(other, theirs)
    other.commit(theirs, [run(other.writer(theirs), [orders("b")])])
    assert table.ids() == ["a", "b"]


def test_two_results_of_one_task_are_refused(table: Table) -> None:
    sink = table.driver()
    writer = sink.writer(batch(0))
    with pytest.raises(SinkError, match="more than one result of the same task"):
        sink.commit(batch(0), [run(writer, [orders("a")]), run(writer, [orders("a")])])


def test_every_type_comes_back_as_it_was(any_table: Table) -> None:
    put(any_table.driver(EVERY_TYPE), 0, [every_type()])
    rows_by_id = {row["id"]: row for row in any_table.read()}
    assert set(rows_by_id) == {row["id"] for row in EVERY_ROW}
    for row in EVERY_ROW:
        for name, value in row.items():
            assert rows_by_id[row["id"]][name] == value, name


def test_times_of_another_zone_are_the_same_moments(table: Table) -> None:
    kind = pa.timestamp("us", tz="America/New_York")
    schema = pa.schema([("id", pa.string()), ("at", kind)])
    at = EVERY_ROW[0]["at"]
    put(table.driver(schema), 0, [pa.RecordBatch.from_pylist([{"id": "a", "at": at}], schema=schema)])
    assert [row["at"] for row in table.read()] == [at]


def test_a_new_column_that_may_be_null_appears_and_old_rows_have_nothing_there(any_table: Table) -> None:
    put(any_table.driver(), 0, [orders("a")])
    after = any_table.driver(EVOLVED)
    put(after, 1, [pa.RecordBatch.from_pylist([{"id": "b", "amount": 1, "country": "DE"}], schema=EVOLVED)])
    rows = sorted(any_table.read(), key=lambda row: str(row["id"]))
    assert [(row["id"], row["country"]) for row in rows] == [("a", None), ("b", "DE")]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (pa.schema([ORDERS.field(0), ("amount", pa.string())]), "column amount: the table has"),
        (ORDERS.append(pa.field("country", pa.string(), nullable=False)), "column country: is new and NOT NULL"),
        (pa.schema([ORDERS.field(1)]), "id"),
    ],
)
def test_a_change_that_would_break_the_table_is_refused_and_leaves_it_alone(
    table: Table, changed: pa.Schema, said: str
) -> None:
    put(table.driver(), 0, [orders("a")])
    with pytest.raises(SemelError, match=said):
        table.driver(changed)
    put(table.driver(), 1, [orders("b")])
    assert table.ids() == ["a", "b"]


def test_all_that_is_wrong_is_said_at_once(table: Table) -> None:
    table.driver()
    changed = pa.schema([ORDERS.field(0), ("amount", pa.string()), pa.field("x", pa.int64(), nullable=False)])
    with pytest.raises(SemelError) as caught:
        table.driver(changed)
    assert "column amount" in str(caught.value)
    assert "column x" in str(caught.value)


def test_rows_of_another_shape_than_the_table_was_opened_for_are_an_error(table: Table) -> None:
    writer = table.driver().writer(batch(0))
    odd = pa.RecordBatch.from_pylist([{"id": "a", "price": 1}])
    with pytest.raises(SinkError, match="price"):
        run(writer, [odd])
    nothing = pa.RecordBatch.from_pylist([{"id": None, "amount": 1}], schema=pa.schema(list(orders().schema)[::-1]))
    with pytest.raises(SinkError, match="column id is NOT NULL"):
        run(writer, [nothing])


def test_a_sink_says_its_name_and_that_it_was_not_opened(table: Table) -> None:
    sink: Sink = table.make()
    assert "table" in sink.name
    with pytest.raises(SinkError, match="not opened"):
        sink.writer(batch(0))


def test_in_s3_a_task_that_was_given_up_brings_no_file_back(s3: str) -> None:
    path = f"{s3}/t{uuid4().hex[:12]}"
    table = parquet_table(path)
    late = table.driver().writer(batch(0))
    put(table.driver(), 0, [orders("a")])
    (name,) = [name for name in open_store(path).names() if name.endswith(".parquet")]
    open_store(path).delete([name])  # merged into another one
    run(late, [orders("a")])
    assert name not in open_store(path).names()


def test_a_task_that_has_no_rows_any_more_leaves_none_of_its_dead_attempt(any_table: Table) -> None:
    """The batch is run again after a constraint was tightened: what was a row is a reject now."""
    write(any_table.driver(), 0, [orders("too small")], [orders("b")])
    put(any_table.driver(), 0, [], [orders("b")])
    assert any_table.ids() == ["b"]


def test_spark_writes_it(table: Table, spark: SparkSession) -> None:
    sink = table.driver(pa.schema([("id", pa.string()), ("amount", pa.int64())]))
    df = spark.range(0, 1_000, 1, 3).selectExpr("concat('order-', id) AS id", "id AS amount")
    written = put_by_spark(sink, 0, df)
    assert sorted(output.task for output in written) == [0, 1, 2]
    put_by_spark(table.driver(pa.schema([("id", pa.string()), ("amount", pa.int64())])), 0, df)
    assert table.ids() == sorted(f"order-{number}" for number in range(1_000))
