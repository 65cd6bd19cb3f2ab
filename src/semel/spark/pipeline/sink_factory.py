"""Creates the sinks of a pipeline. Each kind is imported when it is used: their libraries are extras."""

from __future__ import annotations

from typing import Final, assert_never

from semel.spark.pipeline.config import (
    DeltaSpec,
    HandlerSpec,
    ParquetSpec,
    Pipeline,
    PostgresSpec,
    RejectTo,
    SqsSpec,
)
from semel.spark.sinks.contract import Sink

PROGRESS: Final = "sink"  # in the checkpoint: what a sink without transactions records of the current batch


def sink_of(pipeline: Pipeline) -> Sink:
    match pipeline.sink:
        case ParquetSpec(path=path):
            from semel.spark.sinks.parquet.sink import ParquetSink

            return ParquetSink(path)
        case DeltaSpec(path=path):
            from semel.spark.sinks.delta.sink import DeltaSink

            return DeltaSink(path)
        case PostgresSpec() as spec:
            from semel.spark.sinks.postgres.sink import PostgresSink

            return PostgresSink(spec.dsn, spec.table, spec.mode, spec.key)
        case SqsSpec() as spec:
            from semel.spark.sinks.sqs import QueueSink

            return QueueSink(
                spec.queue,
                f"{pipeline.checkpoint.rstrip('/')}/{PROGRESS}",
                body=spec.body,
                group=spec.group,
                attributes=spec.attributes,
                endpoint_url=spec.endpoint_url,
                region=spec.region,
                profile=spec.profile,
            )
        case HandlerSpec() as spec:
            from semel.spark.sinks.handlers.executor_app import AppReference
            from semel.spark.sinks.handlers.sink import HandlerSink

            source = pipeline.source
            app = AppReference.here(
                spec.app,
                endpoint_url=source.endpoint_url,
                region=source.region,
                profile=source.profile,
                attempt_log=pipeline.log.attempt_log,
            )
            return HandlerSink(app, f"{pipeline.checkpoint.rstrip('/')}/{PROGRESS}")
        case other:
            assert_never(other)


def needs_validation(pipeline: Pipeline) -> bool:
    """Whether its sink may refuse single parsed rows (`RowValidator`): then good rows need their message, too."""
    return isinstance(pipeline.sink, PostgresSpec | SqsSpec)


def traces(pipeline: Pipeline) -> str | None:
    """The folder of the attempt log that the pipeline writes to. Handlers write their own."""
    return None if isinstance(pipeline.sink, HandlerSpec) else pipeline.log.attempt_log


def rejects_of(pipeline: Pipeline) -> Sink:
    from semel.spark.sinks.rejects import RejectQueue, RejectTable

    rejects, source = pipeline.rejects, pipeline.source
    if rejects.to is RejectTo.TABLE:
        assert rejects.target is not None
        return RejectTable(rejects.target)
    return RejectQueue(
        pipeline.checkpoint,
        rejects.target,
        source.queues,
        endpoint_url=source.endpoint_url,
        region=source.region,
        profile=source.profile,
    )
