"""What a pipeline needs on this machine besides Semel itself: packages of extras, and Java.

None of them is imported here, so that a missing one is found before any work starts, and reported in one sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from semel.errors import SemelError
from semel.extras import MissingExtra, require
from semel.spark import java
from semel.spark.interpreter import running_spark
from semel.spark.pipeline.config import DeltaSpec, Pipeline, PostgresSpec


def check(pipeline: Pipeline) -> None:
    """Raises the error for the first requirement that is missing."""
    for error in missing(pipeline):
        raise error


def missing(pipeline: Pipeline) -> Iterator[SemelError]:
    """An error for each missing requirement, which says how to get it."""
    complete = True
    for what, packages, extra in _packages(pipeline):
        try:
            require(what, *packages, extra=extra)
        except MissingExtra as error:
            complete = False
            yield error
    if complete and running_spark() is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # else Spark has its Java
        try:
            java.find()
        except java.JavaError as error:
            yield error


def _packages(pipeline: Pipeline) -> Iterator[tuple[str, tuple[str, ...], str]]:
    yield "a pipeline", ("pyspark", "pyarrow", "pandas"), "spark"
    if isinstance(pipeline.sink, DeltaSpec):
        yield "a Delta table", ("deltalake",), "delta"
    if isinstance(pipeline.sink, PostgresSpec):
        yield "a PostgreSQL table", ("psycopg",), "postgres"
    if pipeline.source.ledger is not None:
        yield from _ledger(pipeline.source.ledger.partition("://")[0])


def _ledger(scheme: str) -> Iterator[tuple[str, tuple[str, ...], str]]:
    match scheme:
        case "postgresql" | "postgres":
            yield "a ledger at postgresql://", ("psycopg", "psycopg_pool"), "postgres"
        case "redis" | "rediss" | "valkey":
            yield f"a ledger at {scheme}://", ("redis",), "redis"
        case _:
            return
