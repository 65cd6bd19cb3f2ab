"""DuckDB and Spark make the same of the same logs, to the last figure: behaviours, examples, timelines and quality."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Final

import pytest
from pyspark.sql import SparkSession

from doctor.random_logs import SECOND, random_log
from doctor.stories import Event, read
from semel.doctor.analysis import Analysis
from semel.doctor.engine.engine import Engine
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
            one, other = getattr(ours, field.name), getattr(theirs, field.name)
            assert one == other, f"{ours.queue}: {field.name}"
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
@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
@pytest.mark.parametrize("seed", [2, 3])
def test_both_engines_make_the_same_of_any_log(
    duckdb_engine: Engine, spark: SparkSession, spark_engine: Engine, tmp_path: Path, mapping: LogMapping, seed: int
) -> None:
    write_files(tmp_path, Random(seed), 100)
    compare((duckdb_engine, spark_engine), tmp_path, mapping)
