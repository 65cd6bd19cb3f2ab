"""The folder of Parquet files: what a reader sees in it, and when."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.errors import Unavailable
from semel.spark import crash_points
from semel.spark.sinks.contract import SinkError, SinkPermissionDenied, SinkUnavailable
from semel.spark.sinks.delta.sink import DeltaSink
from semel.spark.sinks.parquet.encoder import file_error
from semel.spark.sinks.parquet.sink import ParquetSink
from semel.spark.sinks.rejects import RejectTable
from spark.sinks_support import (
    ORDERS,
    Table,
    batch,
    committed,
    files_of,
    orders,
    parquet_table,
    put,
    read_only,
    run,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = "part-0123456789ab-b0000000000-t0000.parquet"
SECOND = "part-0123456789ab-b0000000000-t0001.parquet"


class Dead(BaseException):
    """The driver dies here."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def table(folder: Path) -> Table:
    return parquet_table(str(folder))


def hidden_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "_semel" / "writing").iterdir())


def test_a_file_has_the_name_of_its_batch_and_task(table: Table, folder: Path) -> None:
    put(table.driver(), 7, [], [orders("a")], [orders("b")])
    assert files_of(folder) == [
        "part-0123456789ab-b0000000007-t0001.parquet",
        "part-0123456789ab-b0000000007-t0002.parquet",
    ]


def test_nothing_is_to_be_seen_before_the_commit(table: Table, folder: Path) -> None:
    sink = table.driver()
    written = write(sink, 0, [orders("a")])
    assert files_of(folder) == []
    sink.commit(batch(0), written)
    assert files_of(folder) == [FIRST]
    assert hidden_in(folder) == []


def test_every_reader_sees_each_row_once(table: Table, folder: Path, spark: SparkSession) -> None:
    import pandas as pd  # type: ignore[import-untyped]

    sink = table.driver()
    write(sink, 0, [orders("z")])  # of an attempt that nobody counts
    put(sink, 0, [orders("a"), orders("b")], [orders("c")])
    write(sink, 1, [orders("y")])
    assert sorted(pd.read_parquet(folder)["id"]) == ["a", "b", "c"]
    assert sorted(pq.read_table(folder).column("id").to_pylist()) == ["a", "b", "c"]
    assert sorted(row.id for row in spark.read.parquet(str(folder)).collect()) == ["a", "b", "c"]


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_driver_that_dies_within_a_commit_leaves_nothing_double_and_nothing_out(
    table: Table, folder: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    left = moment

    def reached(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Dead

    sink = table.driver()
    written = write(sink, 0, [orders("a")], [orders("b")])
    monkeypatch.setattr(crash_points, "reached", reached)
    with pytest.raises(Dead):
        sink.commit(batch(0), written)
    monkeypatch.undo()
    assert len(files_of(folder)) == min(moment, 2)
    after = table.driver()
    assert not committed(after, batch(0))
    put(after, 0, [orders("a")], [orders("b")])
    assert table.ids() == ["a", "b"]
    sink.commit(batch(0), written)  # the zombie's way on
    assert table.ids() == ["a", "b"]


def test_a_commit_that_was_cut_short_can_be_finished(table: Table, folder: Path) -> None:
    sink = table.driver()
    written = write(sink, 0, [orders("a")], [orders("b")])
    (folder / "_semel" / "writing" / written[0].payload["hidden"]).rename(folder / FIRST)
    sink.commit(batch(0), written)
    assert table.ids() == ["a", "b"]


def test_a_task_that_has_no_rows_any_more_leaves_none_of_a_commit_that_was_cut_short(
    table: Table, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is run again after a constraint was tightened: what was a row is a reject now."""
    dead = table.driver()
    written = write(dead, 0, [orders("too small")], [orders("b")])

    def dies(point: str) -> None:
        raise Dead

    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "reached", dies)
        with pytest.raises(Dead):
            dead.commit(batch(0), written)
    assert files_of(folder) == [FIRST]
    put(table.driver(), 0, [], [orders("b")])
    assert files_of(folder) == [SECOND]


def test_what_dead_attempts_left_is_removed_with_a_later_batch(table: Table, folder: Path) -> None:
    sink = table.driver()
    write(sink, 0, [orders("a")])
    put(sink, 0, [orders("a")])
    stranger = folder / "_semel" / "writing" / "part-ffffffffffff-b0000000000-t0000.parquet.x"
    stranger.write_bytes(b"")
    assert len(hidden_in(folder)) == 2
    late = write(sink, 1, [orders("b")])
    sink.commit(batch(1), late)
    assert hidden_in(folder) == [stranger.name]


def test_a_file_that_was_merged_away_does_not_come_back(table: Table, folder: Path) -> None:
    zombie, after = table.driver(), table.driver()
    late = write(zombie, 0, [orders("a")])
    put(after, 0, [orders("a")])
    (folder / FIRST).rename(folder / "merged.parquet")
    zombie.commit(batch(0), late)
    put(table.driver(), 0, [orders("a")])
    assert table.ids() == ["a"]


def test_a_folder_that_the_driver_does_not_share_is_noticed(table: Table, folder: Path) -> None:
    sink = table.driver()
    (written,) = write(sink, 0, [orders("a")])
    (folder / "_semel" / "writing" / written.payload["hidden"]).unlink()
    with pytest.raises(SinkError, match="every executor must see the same folder"):
        sink.commit(batch(0), [written])
    assert not committed(sink, batch(0))


def test_a_folder_of_somebody_elses_files_is_taken_if_the_columns_agree(table: Table, folder: Path) -> None:
    folder.mkdir()
    pq.write_table(pa.table({"id": ["old"], "amount": [1]}), folder / "old.parquet")
    put(table.driver(pa.schema([("id", pa.string()), ("amount", pa.int64())])), 0, [orders("a")])
    assert table.ids() == ["a", "old"]
    with pytest.raises(SinkError, match="column amount: the table has BIGINT, the rows STRING"):
        table.driver(pa.schema([("id", pa.string()), ("amount", pa.string())]))


def test_a_column_that_is_gone_from_the_schema_is_refused(table: Table) -> None:
    table.driver(ORDERS.append(pa.field("country", pa.string())))
    with pytest.raises(SinkError, match="column country: the table has it"):
        table.driver()


def test_a_new_field_within_a_struct_is_fine_and_a_changed_one_is_not(table: Table) -> None:
    def schema(**parts: Any) -> pa.Schema:
        return pa.schema([("id", pa.string()), ("place", pa.struct(list(parts.items())))])

    table.driver(schema(city=pa.string()))
    put(table.driver(schema(city=pa.string(), zip=pa.int32())), 0, [])
    with pytest.raises(SinkError, match=r"column place\.zip: the table has INT, the rows STRING"):
        table.driver(schema(city=pa.string(), zip=pa.string()))


def test_columns_keep_the_order_they_had(table: Table, folder: Path) -> None:
    table.driver()
    turned = pa.schema([pa.field("amount", pa.int64()), pa.field("id", pa.string(), nullable=False)])
    put(table.driver(turned), 0, [orders("a", schema=turned)])
    assert pq.read_schema(folder / FIRST).names == ["id", "amount"]


def test_a_damaged_note_of_the_columns_is_an_error(table: Table, folder: Path) -> None:
    table.driver()
    (folder / "_semel" / "schema.json").write_text("{}")
    with pytest.raises(SinkError, match=r"schema\.json"):
        table.driver()


def test_a_disk_that_takes_nothing_is_said(table: Table, folder: Path) -> None:
    writer = table.driver().writer(batch(0))
    (folder / "_semel" / "writing").write_text("a file where the folder should be")
    with pytest.raises(SinkError, match="Parquet table"):
        run(writer, [orders("a")])


def test_the_compression_is_chosen_and_checked(folder: Path) -> None:
    sink = ParquetSink(str(folder), compression="snappy")
    sink.open(ORDERS)
    put(sink, 0, [orders("a")])
    assert pq.ParquetFile(folder / FIRST).metadata.row_group(0).column(0).compression == "SNAPPY"
    with pytest.raises(SinkError, match="'zip' is not known"):
        ParquetSink(str(folder), compression="zip")


def test_many_small_batches_of_rows_are_one_row_group(table: Table, folder: Path) -> None:
    put(table.driver(), 0, [orders(str(number)) for number in range(100)])
    assert pq.ParquetFile(folder / FIRST).metadata.num_row_groups == 1


# Outages, and checks before a run.


def test_an_attempt_that_fails_leaves_no_file_behind(table: Table, folder: Path) -> None:
    writer = table.driver().writer(batch(0))

    def broken() -> Iterator[pa.RecordBatch]:
        yield orders("a")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        writer.write(broken(), 0, "first")
    assert hidden_in(folder) == []


def test_a_full_disk_is_waited_for_and_the_text_says_what_to_do() -> None:
    with pytest.raises(OSError) as full, open("/dev/full", "wb", 0) as file:
        file.write(b"x")
    error = file_error("Parquet table /data/orders", full.value)
    assert isinstance(error, Unavailable)
    assert "the disk is full" in str(error)
    assert "Free some space" in str(error)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN])
def test_a_network_file_system_that_is_away_is_an_outage(number: int) -> None:
    assert isinstance(file_error("t", OSError(number, "…")), SinkUnavailable)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOTDIR])
def test_a_folder_that_refuses_is_no_outage(number: int) -> None:
    assert not isinstance(file_error("t", OSError(number, "…")), Unavailable)


@pytest.mark.parametrize("sink", [ParquetSink, DeltaSink, RejectTable])
def test_a_check_finds_a_folder_that_cannot_be_written_to_and_makes_nothing(sink: Any, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    sinks = [sink(str(path)) for path in (folder, folder / "orders")]
    sinks[1].check(ORDERS, None)  # imports what it needs: the environment may be closed to the user of read_only
    with read_only(folder):
        for each in sinks:
            with pytest.raises(SinkPermissionDenied, match=f"no permission to write to the folder {folder}"):
                each.check(ORDERS, None)
    sinks[1].check(ORDERS, None)
    assert list(folder.iterdir()) == []


def test_a_check_finds_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("")
    with pytest.raises(SinkError, match="it is a file"):
        ParquetSink(str(tmp_path / "orders")).check(ORDERS, None)
    with pytest.raises(SinkError, match="orders is a file"):
        ParquetSink(str(tmp_path / "orders" / "2024")).check(ORDERS, None)
