"""The section [sink] of a pipeline's file: one kind of sink each, with options of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from semel.spark.pipeline.config import (
    DeltaSpec,
    HandlerSpec,
    Mode,
    ParquetSpec,
    Pipeline,
    PostgresSpec,
    SinkSpec,
    SourceSpec,
    SqsSpec,
)
from semel.spark.pipeline.config_sections import Section, nearest

SINKS: Final[Mapping[str, tuple[str, ...]]] = {
    "parquet": ("path",),
    "delta": ("path",),
    "postgres": ("dsn", "table", "mode", "key"),
    "sqs": ("queue", "body", "group", "attributes", "endpoint_url", "region", "profile"),
    "handler": ("app",),
}
Elsewhere = Callable[[str], dict[str, tuple[str, ...]]]


def read_sink(section: Section, source: SourceSpec, elsewhere: Elsewhere) -> SinkSpec:
    """What cannot be read is noted; then some sink is given back, so that the rest of the file can be looked at."""
    if not section.table:
        return ParquetSpec("")
    kind = section.text("type", required=f"one of {', '.join(SINKS)}")
    if kind is None or kind not in SINKS:
        if kind is not None:
            section.wrong("type", f"it is not one of {', '.join(SINKS)}{nearest(kind, SINKS, '')}")
        return ParquetSpec("")
    others = {f'[sink] type = "{name}"': options for name, options in SINKS.items() if name != kind}
    section.only(("type", *SINKS[kind]), others | elsewhere("[sink]"))
    match kind:
        case "parquet":
            return ParquetSpec(_path(section))
        case "delta":
            return DeltaSpec(_path(section))
        case "postgres":
            return _postgres(section)
        case "sqs":
            return _sqs(section, source)
        case _:
            return _handler(section)


def _path(section: Section) -> str:
    return section.place("path", required="the table's folder, or its address such as s3://bucket/orders") or ""


def _postgres(section: Section) -> PostgresSpec:
    mode, key = section.choice("mode", Mode) or Mode.APPEND, section.texts("key")
    if mode is Mode.UPSERT and not key and "key" not in section.table:
        section.mistake('key is missing: mode = "upsert" needs the columns that tell rows apart, such as ["id"]')
    if mode is Mode.APPEND and "key" in section.table:
        section.mistake('key is given, but mode is "append": set mode = "upsert", or leave it out')
    return PostgresSpec(
        dsn=section.text("dsn", required='where the database is, such as "postgresql://${DB_USER}@host/shop"') or "",
        table=section.text("table", required='the table, such as "orders" or "sales.orders"') or "",
        mode=mode,
        key=key,
    )


def _sqs(section: Section, source: SourceSpec) -> SqsSpec:
    """Without an address of its own, the sink's queue is where the source's are."""
    address = [section.text(option) for option in ("endpoint_url", "region", "profile")]
    if not any(address):
        address = [source.endpoint_url, source.region, source.profile]
    endpoint_url, region, profile = address
    return SqsSpec(
        queue=section.text("queue", required="the name, URL or ARN of the queue to send to") or "",
        body=section.text("body"),
        group=section.text("group"),
        attributes=section.texts("attributes"),
        endpoint_url=endpoint_url,
        region=region,
        profile=profile,
    )


def _handler(section: Section) -> HandlerSpec:
    app = section.text("app", required='where the app is, such as "shop:app"') or ""
    module, _, name = app.partition(":")
    if app and not (module and name):
        section.wrong("app", 'write it as "module:app"')
    return HandlerSpec(app)


# What must fit the rest of the file.


def invalid_rows(pipeline: Pipeline) -> Iterator[str]:
    match pipeline.sink:
        case PostgresSpec(key=key):
            yield from _unknown_columns(pipeline, "key", key)
        case SqsSpec() as sink:
            yield from _sqs_misfits(pipeline, sink)
        case _:
            return


def _sqs_misfits(pipeline: Pipeline, sink: SqsSpec) -> Iterator[str]:
    for option, names in (("body", (sink.body,)), ("group", (sink.group,)), ("attributes", sink.attributes)):
        yield from _unknown_columns(pipeline, option, tuple(name for name in names if name is not None))
    body = _columns(pipeline).get(sink.body or "")
    if body is not None and body.type != pa.string():
        yield f'[sink] body = "{sink.body}": it is no STRING; leave it out to send the row as JSON'
    if sink.queue.rstrip("/").endswith(".fifo") and sink.group is None:
        yield f'[sink] group is missing: {sink.queue} is a FIFO queue, so say which field is the group, group = "…"'
    if sink.queue in pipeline.source.queues:
        yield f'[sink] queue = "{sink.queue}": it is read by this very pipeline, and would go round for ever'


def _unknown_columns(pipeline: Pipeline, option: str, names: tuple[str, ...]) -> Iterator[str]:
    columns = _columns(pipeline)
    for name in names:
        if name not in columns:
            yield f"[sink] {option}: the rows have no field {name!r}{nearest(name, columns, None)}"


def _columns(pipeline: Pipeline) -> dict[str, pa.Field]:
    from semel.spark.pipeline.body_sql import row_fields

    return {one.name: one for one in row_fields(pipeline)}
