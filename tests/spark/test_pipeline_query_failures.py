"""Errors of a query are recognised in the form that Spark gives them, wherever they were raised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from semel.errors import SemelError
from semel.ledger.contract import LedgerUnavailable
from semel.spark.pipeline.query_failures import PipelineFailed, explained, kind_of
from semel.spark.segments.storage import StoragePermissionDenied, StorageUnavailable
from semel.spark.sinks.contract import SinkError, SinkPermissionDenied, SinkUnavailable
from semel.spark.writer.sender import SendPermissionDenied
from semel.sqs.errors import AccessDenied, CredentialsRefused, NoCredentials, QueueNotFound, Unreachable

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

DOWN = "PostgreSQL on db:5432 does not answer; it is tried again"


def raised_in_a_task(spark: SparkSession, error: SemelError) -> BaseException:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            raise error
        yield from ()

    with pytest.raises(Exception, match="Traceback") as caught:
        spark.range(1).mapInArrow(work, "id BIGINT").collect()
    return caught.value


def raised_by_a_query(spark: SparkSession, folder: Path, work: Any, source: str = "rate", **options: Any) -> Any:
    rows = spark.readStream.format(source).options(**options).load()
    writer = rows.writeStream.option("checkpointLocation", str(folder / "query")).foreachBatch(work)
    query = writer.trigger(once=True).start()
    with pytest.raises(Exception, match="Traceback") as caught:
        query.awaitTermination(60)
    return caught.value


@pytest.mark.parametrize("kind", [SinkUnavailable, Unreachable])
def test_an_outage_that_a_task_meets_is_known_in_the_driver(spark: SparkSession, kind: type[SemelError]) -> None:
    error = raised_in_a_task(spark, kind(DOWN))
    assert kind_of(error) == kind_of(explained(error)) == "outage"
    assert str(explained(error)) == DOWN


def test_missing_permissions_of_a_task_are_known_in_the_driver(spark: SparkSession) -> None:
    error = raised_in_a_task(spark, CredentialsRefused("the token has expired; log in again"))
    assert kind_of(error) == kind_of(explained(error)) == "permission"


def test_an_outage_in_foreach_batch_is_known(spark: SparkSession, tmp_path: Path) -> None:
    def work(_: DataFrame, __: int) -> None:
        raise SinkUnavailable(DOWN)

    error = raised_by_a_query(spark, tmp_path, work)
    assert kind_of(error) == "outage"
    assert str(explained(error)) == DOWN


def test_an_outage_of_a_task_under_foreach_batch_is_known(spark: SparkSession, tmp_path: Path) -> None:
    def work(df: DataFrame, _: int) -> None:
        raise raised_in_a_task(df.sparkSession, SinkUnavailable(DOWN))

    error = raised_by_a_query(spark, tmp_path, work)
    assert kind_of(error) == "outage"
    assert str(explained(error)) == DOWN


def test_an_sqs_that_does_not_answer_the_source_is_an_outage(spark: SparkSession, tmp_path: Path) -> None:
    from semel.spark import register

    register(spark)
    options = {"queue": "orders", "endpointUrl": "http://127.0.0.1:9", "region": "eu-west-1"}
    error = raised_by_a_query(
        spark, tmp_path, lambda df, _: df.collect(), "sqs", segments=str(tmp_path / "segments"), **options
    )
    assert kind_of(error) == "outage"
    assert "127.0.0.1:9" in str(explained(error))


def test_an_error_of_the_driver_itself_stays_what_it_is() -> None:
    error = StorageUnavailable("s3://lake does not answer")
    assert explained(error) is error
    assert kind_of(error) == "outage"
    assert [kind_of(AccessDenied("no")), kind_of(NoCredentials("no"))] == ["permission", "permission"]
    assert [kind_of(SinkError("no")), kind_of(QueueNotFound("no")), kind_of(ValueError("no"))] == ["other"] * 3


@pytest.mark.parametrize("kind", [LedgerUnavailable, StorageUnavailable, SinkUnavailable, Unreachable])
def test_every_error_that_waiting_may_fix_is_found_in_a_text(kind: type[SemelError]) -> None:
    error = RuntimeError(f"Traceback\n{kind.__module__}.{kind.__qualname__}: {DOWN}\n\tat java.lang.Thread")
    assert (kind_of(error), str(explained(error))) == ("outage", DOWN)


@pytest.mark.parametrize(
    "kind", [SinkPermissionDenied, StoragePermissionDenied, SendPermissionDenied, AccessDenied, NoCredentials]
)
def test_every_missing_permission_is_found_in_a_text(kind: type[SemelError]) -> None:
    error = RuntimeError(f"Traceback\n{kind.__module__}.{kind.__qualname__}: ask for it\n\tat java.lang.Thread")
    assert (kind_of(error), str(explained(error))) == ("permission", "ask for it")


@pytest.mark.parametrize(
    "text",
    [
        "semel.sqs.errors.Unreachable: no answer\nsemel.spark.sinks.contract.SinkError: a column is missing",
        "semel.no_such_module.Unavailable: what is that",
        "semel.errors.NoSuchName: what is that",
        "semel.durations.text: is a function",
        "os.errors.Unavailable: not ours",
        "in a text, semel.errors.Unavailable: means nothing",
    ],
)
def test_only_the_last_semel_error_counts_and_only_if_it_is_one_that_exists(text: str) -> None:
    assert kind_of(RuntimeError(text)) == "other"


def test_an_outage_is_told_without_secrets() -> None:
    failure = explained(RuntimeError("semel.errors.Unavailable: postgresql://me:hunter2@db/x does not answer"))
    assert isinstance(failure, PipelineFailed)
    assert kind_of(failure) == "outage"
    assert "hunter2" not in str(failure)
