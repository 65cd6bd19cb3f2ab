"""The Delta table: its log decides what is committed, and its statistics about files are correct."""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.transaction import AddAction

from semel.errors import SemelError, Unavailable
from semel.spark import retries
from semel.spark.sinks.contract import SinkError, SinkPermissionDenied, SinkUnavailable, Written
from semel.spark.sinks.delta import sink as delta_sink
from semel.spark.sinks.delta.sink import DeltaSink
from semel.spark.sinks.delta.statistics import Statistics
from spark.sinks_support import (
    EVERY_TYPE,
    NOON,
    ORDERS,
    PIPELINE,
    Table,
    batch,
    committed,
    delta_table,
    every_type,
    files_of,
    orders,
    put,
    read_only,
    run,
    s3_options,
    s3_server,
    write,
)

ROUNDS = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def table(folder: Path) -> Table:
    return delta_table(str(folder))


def race(path: str, start: Any, answers: Any) -> None:
    """A driver's process: writes and commits the same batches as the other one, each at the same moment."""
    try:
        sink = DeltaSink(path)
        sink.open(ORDERS)
        for number in range(ROUNDS):
            written = write(sink, number, [orders(f"{number}-a")], [orders(f"{number}-b")])
            start.wait(60)
            sink.commit(batch(number), written)
        answers.put("done")
    except BaseException as error:  # noqa: BLE001 - told to the test
        answers.put(repr(error))


@pytest.mark.slow
def test_of_two_processes_that_commit_the_same_batches_at_once_each_batch_is_in_once(
    table: Table, folder: Path
) -> None:
    processes = multiprocessing.get_context("spawn")
    start, answers = processes.Barrier(2), processes.Queue()
    drivers = [processes.Process(target=race, args=(str(folder), start, answers)) for _ in range(2)]
    for driver in drivers:
        driver.start()
    assert [answers.get(timeout=120) for _ in drivers] == ["done", "done"]
    for driver in drivers:
        driver.join()
    assert table.ids() == sorted(f"{number}-{part}" for number in range(ROUNDS) for part in "ab")
    assert DeltaTable(folder).version() == ROUNDS  # creating it, and each batch
    answers.close()
    answers.join_thread()


def test_delta_refuses_a_second_commit_of_a_batch_that_was_looked_up_before_the_first(
    table: Table, folder: Path
) -> None:
    """What the sink is built upon: else a driver that pauses between looking and committing would double rows."""
    sink = table.driver()
    stale = DeltaTable(folder)
    put(sink, 0, [orders("a")])
    properties = CommitProperties(app_transactions=[Transaction(PIPELINE, 0)])
    action = AddAction("twice.parquet", 1, {}, 0, True, '{"numRecords":1}')
    with pytest.raises(Exception, match="Concurrent transaction"):
        stale.create_write_transaction([action], "append", stale.schema(), commit_properties=properties)


def test_the_batch_is_an_application_transaction_that_anybody_can_look_up(table: Table, folder: Path) -> None:
    put(table.driver(), 4, [orders("a")])
    assert DeltaTable(folder).transaction_version(PIPELINE) == 4


def test_a_batch_is_still_known_when_the_log_was_checkpointed_and_cleaned_up(table: Table, folder: Path) -> None:
    sink = table.driver()
    for number in range(3):
        put(sink, number, [orders(str(number))])
    log = DeltaTable(folder)
    log.create_checkpoint()
    for file in sorted((folder / "_delta_log").glob("*.json"))[:-1]:
        file.unlink()
    after = table.driver()
    assert committed(after, batch(2))
    put(after, 3, [orders("3")])
    assert table.ids() == ["0", "1", "2", "3"]


def test_a_batch_without_rows_is_noted_so_that_the_table_is_not_behind_the_checkpoint(
    table: Table, folder: Path
) -> None:
    sink = table.driver()
    put(sink, 0, [], [])
    assert DeltaTable(folder).transaction_version(PIPELINE) == 0
    assert table.ids() == []


def test_somebody_elses_commits_in_between_do_not_matter(table: Table, folder: Path) -> None:
    sink = table.driver()
    written = write(sink, 0, [orders("a")])
    write_deltalake(str(folder), pa.table({"id": ["b"], "amount": [1]}, schema=ORDERS), mode="append")
    DeltaTable(folder).optimize.compact()
    sink.commit(batch(0), written)
    assert table.ids() == ["a", "b"]


def test_files_of_a_driver_that_died_are_removed_and_no_others(table: Table, folder: Path) -> None:
    put(table.driver(), 0, [orders("a")])
    before = files_of(folder)
    write(table.driver(), 1, [orders("b")])
    stranger = folder / "part-ffffffffffff-b0000000001-t0000-x.parquet"
    stranger.write_bytes(b"")
    after = table.driver()
    (kept,) = write(after, 1, [orders("b")])
    after.commit(batch(1), [kept])
    assert files_of(folder) == sorted([*before, kept.payload["file"], stranger.name])
    assert table.ids() == ["a", "b"]


def test_the_loser_of_a_race_removes_nothing(table: Table, folder: Path) -> None:
    winner, loser = table.driver(), table.driver()
    late = write(loser, 0, [orders("a")])
    (won,) = write(winner, 0, [orders("a")])
    winner.commit(batch(0), [won])
    loser.commit(batch(0), late)
    assert won.payload["file"] in files_of(folder)
    assert table.ids() == ["a"]


def test_a_driver_that_was_overtaken_while_it_looked_takes_the_batch_for_committed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner, loser = table.driver(), table.driver()
    late = write(loser, 0, [orders("a")])
    put(winner, 0, [orders("a")])  # which removes the files of the other
    answers, look = iter([True]), delta_sink._last
    monkeypatch.setattr(delta_sink, "_last", lambda delta, which: None if next(answers, False) else look(delta, which))
    loser.commit(batch(0), late)
    assert table.ids() == ["a"]


def test_vacuum_removes_what_twins_have_left_and_keeps_the_rows(table: Table, folder: Path) -> None:
    sink = table.driver()
    put(sink, 0, [orders("a")])
    writer = sink.writer(batch(1))
    counted, twin = run(writer, [orders("b")]), run(writer, [orders("b")])
    sink.commit(batch(1), [counted])
    assert twin.payload["file"] in files_of(folder)
    DeltaTable(folder).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert twin.payload["file"] not in files_of(folder)
    assert table.ids() == ["a", "b"]


def test_a_folder_that_the_driver_does_not_share_is_noticed(table: Table, folder: Path) -> None:
    sink = table.driver()
    (written,) = write(sink, 0, [orders("a")])
    (folder / written.payload["file"]).unlink()
    with pytest.raises(SinkError, match="every executor must see the same folder"):
        sink.commit(batch(0), [written])
    assert not committed(sink, batch(0))


# Statistics.


@pytest.mark.parametrize(
    "condition",
    [
        "text = 'a \"quoted\", line\nwith \\ and é 🎈 \t'",
        "flag",
        "tiny = -128",
        "big = -9223372036854775808",
        "double = 0.1",
        "single = 0.5",
        "price = CAST('-9999999999.99' AS DECIMAL(12, 2))",
        "huge > CAST('1234567890123456789012345677' AS DECIMAL(38, 10))",
        "day = DATE '2024-02-29'",
        "at >= TIMESTAMP '2026-02-28T12:30:59.123456Z'",
        "local >= TIMESTAMP '2026-02-28T12:30:59.123456'",
    ],
)
def test_no_reader_skips_a_row_by_what_the_log_says(table: Table, folder: Path, condition: str) -> None:
    put(table.driver(EVERY_TYPE), 0, [every_type()])
    rows = QueryBuilder().register("t", DeltaTable(folder)).execute(f"SELECT id FROM t WHERE {condition}")
    assert pa.table(rows).column("id").to_pylist() == ["full"]


def stats(column: pa.Array, *more: pa.Array) -> dict[str, Any]:
    gathered = Statistics(pa.schema([("c", column.type)]))
    for _ in gathered.observe(pa.record_batch({"c": part}) for part in (column, *more)):
        pass
    statistics: dict[str, Any] = orjson.loads(gathered.json())
    return statistics


def test_the_log_has_the_ends_and_the_nulls_of_each_simple_column() -> None:
    assert stats(pa.array([3, None]), pa.array([1, 7])) == {
        "numRecords": 4,
        "minValues": {"c": 1},
        "maxValues": {"c": 7},
        "nullCount": {"c": 1},
    }
    assert stats(pa.array([Decimal("1.10")]))["minValues"] == {"c": 1.1}
    assert stats(pa.array([NOON]))["maxValues"] == {"c": "2026-02-28T12:30:59.123456Z"}
    assert stats(pa.array([None], pa.string()))["minValues"] == {}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, math.nan]),
        pa.array([1.0, math.inf]),
        pa.array([Decimal("12345678901234567.8")]),
        pa.array([b"a"]),
        pa.array([True]),
        pa.array([2**60], pa.timestamp("us")),
    ],
)
def test_where_an_end_could_mislead_the_log_has_none(column: pa.Array) -> None:
    statistics = stats(column, column)
    assert (statistics["minValues"], statistics["maxValues"]) == ({}, {})


def test_of_long_texts_the_log_has_the_beginning_of_the_least_only() -> None:
    statistics = stats(pa.array(["a" * 100, "b" * 100]))
    assert statistics["minValues"] == {"c": "a" * 32}
    assert statistics["maxValues"] == {}


# Tables of others, and tables that change.


def test_a_table_is_shared_with_other_writers_and_may_have_columns_that_rows_do_not(table: Table, folder: Path) -> None:
    write_deltalake(str(folder), pa.table({"id": ["old"], "amount": [1], "note": ["x"]}))
    put(table.driver(pa.schema([("id", pa.string()), ("amount", pa.int64())])), 0, [orders("a")])
    rows = {row["id"]: row["note"] for row in table.read()}
    assert rows == {"old": "x", "a": None}


def test_a_new_field_within_a_struct_and_a_local_time_can_come_later(table: Table) -> None:
    old = pa.schema([("id", pa.string()), ("place", pa.struct([("city", pa.string())]))])
    new = pa.schema(
        [
            ("id", pa.string()),
            ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
            ("local", pa.timestamp("us")),
        ]
    )
    put(table.driver(old), 0, [pa.RecordBatch.from_pylist([{"id": "a", "place": {"city": "x"}}], schema=old)])
    row = {"id": "b", "place": {"city": "y", "zip": 1}, "local": NOON.replace(tzinfo=None)}
    put(table.driver(new), 1, [pa.RecordBatch.from_pylist([row], schema=new)])
    assert {row["id"]: row["place"] for row in table.read()} == {
        "a": {"city": "x", "zip": None},
        "b": {"city": "y", "zip": 1},
    }


def test_a_partitioned_table_and_one_with_constraints_are_refused(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a"], "amount": [1]})
    write_deltalake(str(tmp_path / "parts"), rows, partition_by=["id"])
    with pytest.raises(SinkError, match="is partitioned"):
        delta_table(str(tmp_path / "parts")).driver(rows.schema)
    write_deltalake(str(tmp_path / "checks"), rows)
    DeltaTable(tmp_path / "checks").alter.add_constraint({"positive": "amount > 0"})
    with pytest.raises(SinkError, match="has CHECK constraints"):
        delta_table(str(tmp_path / "checks")).driver(rows.schema)


def test_a_folder_of_plain_parquet_files_is_not_made_a_table(table: Table, folder: Path) -> None:
    folder.mkdir()
    pq.write_table(pa.table({"id": ["old"]}), folder / "old.parquet")
    with pytest.raises(SinkError, match="convert_to_deltalake"):
        table.driver()
    assert not DeltaTable.is_deltatable(str(folder))


def test_a_type_that_delta_does_not_have_is_said(table: Table) -> None:
    with pytest.raises(SinkError, match="column at: Delta has no type TIME"):
        table.driver(pa.schema([("at", pa.time64("us"))]))


def test_a_folder_that_cannot_be_written_to_is_said_in_one_line() -> None:
    with pytest.raises(SinkError, match="Delta table /proc/nowhere: cannot open it") as caught:
        DeltaSink("/proc/nowhere").open(ORDERS)
    assert len(str(caught.value).splitlines()) == 1


def test_without_deltalake_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(SemelError, match=r"pip install 'semel\[delta\]'"):
        DeltaSink(str(folder))


def test_a_result_travels_as_json() -> None:
    written = Written(1, "x", 2, 3, {"file": "é"})
    assert Written.decode(written.encode()) == written


# Outages.


def test_a_store_that_does_not_answer_is_an_outage_and_a_missing_bucket_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.spark.retries.SECONDS", 0.0)
    with s3_server() as url:
        options = s3_options() | {"max_retries": "0"}
        sink = DeltaSink(f"{url}/orders", options)
        sink.open(ORDERS)
        writer = sink.writer(batch(0))
        (written,) = write(sink, 0, [orders("a")])
        with pytest.raises(SinkError, match="NoSuchBucket") as refused:
            DeltaSink("s3://no-such-bucket/orders", options).open(ORDERS)
        assert not isinstance(refused.value, Unavailable)
    actions: list[Callable[[], object]] = [
        lambda: run(writer, [orders("a")]),
        lambda: sink.commit(batch(0), [written]),
        lambda: sink.last(PIPELINE),
        lambda: DeltaSink(f"{url}/orders", options).open(ORDERS),
    ]
    for action in actions:
        with pytest.raises(SinkUnavailable, match="Connection refused") as away:
            action()
        assert isinstance(away.value, Unavailable)


def test_a_refused_permission_is_no_outage_and_not_tried_for_long(tmp_path: Path) -> None:
    with read_only(tmp_path / "data"):
        started = time.monotonic()
        with pytest.raises(SinkPermissionDenied, match="ermission denied"):
            DeltaSink(str(tmp_path / "data" / "orders")).open(ORDERS)
    assert time.monotonic() - started < retries.SECONDS


def test_credentials_are_not_shown_by_a_writer(folder: Path) -> None:
    sink = DeltaSink(str(folder), {"AWS_SECRET_ACCESS_KEY": "hidden"})
    sink.open(ORDERS)
    assert "hidden" not in repr(sink.writer(batch(0)))
