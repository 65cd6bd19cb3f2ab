"""`semel pipeline run`, with the time of each phase of its start: `python -m spark_bench.start_driver FILE ARGUMENTS`.

The time of each phase is written to FILE when it is reached, in seconds since 1970. PySpark's functions are wrapped to
measure it, so that Semel needs no code for this benchmark.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import IO, Any


def main() -> int:
    with open(sys.argv[1], "w", buffering=1) as file:
        return _main(file)


def _main(file: IO[str]) -> int:
    moments: set[str] = set()

    def passed(name: str) -> None:
        if name not in moments:
            moments.add(name)
            file.write(f"{name} {time.time()}\n")

    passed("python")
    from semel.cli import main as semel
    from semel.spark import spark_session

    real = spark_session.session

    def session(*arguments: Any, **conf: Any) -> Any:
        _watch(passed)
        spark = real(*arguments, **conf)
        passed("session")
        return spark

    spark_session.session = session
    return semel(["pipeline", "run", *sys.argv[2:]])


def _watch(passed: Callable[[str], None]) -> None:
    """Call this only when PySpark is imported anyway."""
    from pyspark import context
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    passed("java asked for")
    context.launch_gateway = _after(context.launch_gateway, "java up", passed)  # type: ignore[attr-defined]
    DataStreamReader.load = _before(DataStreamReader.load, "source", passed)  # type: ignore[method-assign]
    DataStreamWriter.start = _after(DataStreamWriter.start, "query", passed)  # type: ignore[method-assign]
    DataFrame.collect = _after(DataFrame.collect, "tasks", passed)  # type: ignore[method-assign]
    real = DataStreamWriter.foreachBatch

    def for_each_batch(writer: DataStreamWriter, batch: Callable[[Any, int], None]) -> DataStreamWriter:
        return real(writer, _before(_after(batch, "commit", passed), "planned", passed))

    DataStreamWriter.foreachBatch = for_each_batch  # type: ignore[method-assign,assignment]


def _before(function: Callable[..., Any], name: str, passed: Callable[[str], None]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        passed(name)
        return function(*arguments, **options)

    return call


def _after(function: Callable[..., Any], name: str, passed: Callable[[str], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        passed(name)
        return result

    return call


if __name__ == "__main__":
    sys.exit(main())
