"""DuckDB and Spark give identical results for the same logs: behaviours, examples, timelines and quality."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from doctor.random_logs import SECOND, random_log
from doctor.stories import START, Event, load, read
from semel.doctor.analysis import Analysis
from semel.doctor.engine.choice import choose
from semel.doctor.engine.contract import Engine
from semel.doctor.engine.spark import SparkEngine
from semel.doctor.errors import DoctorError
from semel.doctor.events import LineProblem
from semel.doctor.logs.discovery import LogFile, kind_of
from semel.doctor.logs.mapping import LogMapping, parse

BASE: Final = "id=.message_id,time=.at,event=.step,queue=.queue"
MAPPINGS: Final = {
    "attempt log": None,
    "without receive counts": parse(f"{BASE},worker=.worker,key=.key,seconds=.seconds,error=.error"),
    "without workers and keys": parse(f"{BASE},receives=.receive_count,seconds=.seconds,sent=.sent_at,group=.group"),
    "without anything": parse(BASE),
}
TIMEOUTS: Final = {"": 20.0, "queue-1": 2.0}


def write_files(folder: Path, random: Random, queues: int) -> None:
    """Lines of all queues, spread over files in any order, with some that cannot be used in between."""
    files: dict[str, list[str]] = defaultdict(list)
    for number in range(queues):
        for event in random_log(random, f"queue-{number}", grid=random.choice((1, SECOND // 10, SECOND))):
            files[f"{random.randrange(4)}.jsonl"].append(json.dumps(_known(event)))
    for lines in files.values():
        unknown = [json.dumps({"at": 1.7e9, "step": word, "message_id": "m"}) for word in ("hummed", "sang")]
        for odd in (*unknown, "no JSON", '{"at": 1', '{"level": "info"}', ""):
            lines.insert(random.randrange(len(lines)), odd)
    files["0.jsonl"].append(json.dumps({"at": 1.7e9, "step": "dropped", "worker": "w1", "count": 17}))
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines))
    (folder / "5.jsonl.gz").write_bytes(gzip.compress((folder / "1.jsonl").read_bytes())[:-20])


def _known(event: Event) -> Event:
    return {name: value for name, value in event.items() if value is not None}


def assert_equal(duckdb: Analysis, spark: Analysis) -> None:
    """Field by field, so that a difference is easy to see."""
    assert duckdb.quality == spark.quality
    assert [behaviour.queue for behaviour in duckdb.behaviours] == [behaviour.queue for behaviour in spark.behaviours]
    for ours, theirs in zip(duckdb.behaviours, spark.behaviours, strict=True):
        for field in fields(ours):
            our_value, their_value = getattr(ours, field.name), getattr(theirs, field.name)
            assert our_value == their_value, f"{ours.queue}: {field.name}"
    assert duckdb == spark


def compare(engines: Sequence[Engine], folder: Path, mapping: LogMapping | None) -> None:
    duckdb, spark = (read(engine, folder, mapping=mapping, visibility=TIMEOUTS) for engine in engines)
    assert sum(behaviour.duplicates for behaviour in duckdb.behaviours) > 100
    assert all(behaviour.errors for behaviour in duckdb.behaviours) or mapping is not None
    assert_equal(duckdb, spark)


def test_both_engines_make_the_same_of_an_attempt_log(
    duckdb_engine: Engine, spark: SparkSession, spark_engine: Engine, tmp_path: Path
) -> None:
    write_files(tmp_path, Random(1), 10)
    compare((duckdb_engine, spark_engine), tmp_path, None)


@pytest.mark.slow
def test_tasks_that_share_no_disk_make_the_same_of_a_log(
    duckdb_engine: Engine, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster rows are handed on as Arrow, and tables are kept by the executors."""
    monkeypatch.setattr(SparkEngine, "_is_one_machine", lambda _: False)
    write_files(tmp_path, Random(7), 20)
    with closing(SparkEngine()) as cluster:
        compare((duckdb_engine, cluster), tmp_path, None)
        compare((duckdb_engine, cluster), tmp_path, MAPPINGS["without receive counts"])


def test_both_engines_read_the_same_lines_of_files_of_all_kinds(
    duckdb_engine: Engine, spark: SparkSession, spark_engine: Engine, tmp_path: Path
) -> None:
    write_files(tmp_path, Random(4), 2)
    events = [_known(event) for event in random_log(Random(5), "orders")]
    parquet.write_table(pa.Table.from_pylist(events), tmp_path / "6.parquet")
    (tmp_path / "7.csv").write_text("message_id,at,step\nm1,1700000000,received\n,,\n")
    (tmp_path / "8.jsonl").write_bytes(b"\xff\x00\n" + json.dumps(events[0]).encode())
    (tmp_path / "9.parquet").write_bytes(b"PAR1" + bytes(100) + (60).to_bytes(4, "little") + b"PAR1")
    duckdb, on_spark = (
        load(engine, tmp_path, since=START + 10, until=START + 90) for engine in (duckdb_engine, spark_engine)
    )
    assert duckdb == on_spark
    assert [Path(problem.partition(": ")[0]).name for problem in duckdb.unreadable] == ["5.jsonl.gz", "9.parquet"]
    ours, theirs = (engine.rows("SELECT * FROM log_lines") for engine in (duckdb_engine, spark_engine))
    assert sorted(map(repr, ours)) == sorted(map(repr, theirs))
    assert {line["problem"] for line in ours} == {*LineProblem}


@pytest.mark.slow
@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
@pytest.mark.parametrize("seed", [2, 3])
def test_both_engines_make_the_same_of_any_log(
    duckdb_engine: Engine, spark: SparkSession, spark_engine: Engine, tmp_path: Path, mapping: LogMapping, seed: int
) -> None:
    write_files(tmp_path, Random(seed), 100)
    compare((duckdb_engine, spark_engine), tmp_path, mapping)


# Which engine it is.


def files(*sizes: int, name: str = "a.jsonl") -> list[LogFile]:
    kind = kind_of(name, any_name=False)
    assert kind is not None
    return [LogFile(f"/log/{number}/{name}", kind, size, name) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("logs", "free_disk", "choice"),
    [
        (files(96_000_000), 10**12, "DuckDB (96 MB of logs)"),
        (files(10**11, 10**10), 10**12, "DuckDB (110 GB of logs)"),
        (files(10**11, 10**11), 10**12, "Spark (200 GB of logs, more than 500 million events)"),
        (files(2 * 10**10, name="a.jsonl.gz"), 10**12, "Spark (20 GB of logs, more than 500 million events)"),
        (files(10**10, name="a.parquet"), 10**12, "Spark (10 GB of logs, more than 500 million events)"),
        (files(10**10), 10**9, "Spark (10 GB of logs, and only 1 GB free in "),
    ],
)
def test_duckdb_reads_what_one_machine_can_and_spark_the_rest(logs: list[LogFile], free_disk: int, choice: str) -> None:
    assert str(choose(None, None, logs, free_disk=free_disk)).startswith(choice)


def test_an_engine_that_is_asked_for_is_the_one() -> None:
    large, small = files(10**12), files(1)
    assert str(choose("duckdb", None, large)) == "DuckDB (--engine duckdb; 1 TB of logs)"
    assert str(choose("spark", None, small)) == "Spark (--engine spark; 1 bytes of logs)"
    assert str(choose(None, "local[2]", small)) == "Spark (--master is given; 1 bytes of logs)"
    for requested, message in (("flink", "there are duckdb and spark"), ("duckdb", "--master is for --engine spark")):
        with pytest.raises(DoctorError, match=message):
            choose(requested, "local[2]", small)
