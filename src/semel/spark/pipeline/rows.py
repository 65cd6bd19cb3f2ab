"""What a pipeline's rows look like to its sink, and the columns of the source that they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.spark.pipeline.config import HandlerSpec, Pipeline
from semel.spark.pipeline.schema import Field, Kind, Map, Plain, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT, _TIME = Plain(Kind.STRING), Plain(Kind.TIMESTAMP)
SOURCE: Final = (
    Field("message_id", _TEXT),
    Field("body", _TEXT),
    Field("key", _TEXT),
    Field("group_id", _TEXT),
    Field("dedup_id", _TEXT),
    Field("sequence_number", _TEXT),
    Field("sent_at", _TIME),
    Field("first_received_at", _TIME),
    Field("received_at", _TIME),
    Field("receive_count", Plain(Kind.INT)),
    Field("attributes", Map(_TEXT)),
    Field("queue", _TEXT),
)
BODY: Final = Field("body", _TEXT)


def row_fields(pipeline: Pipeline) -> tuple[Field, ...]:
    """The body's fields, or the body itself, and the chosen metadata; a handler gets the source's rows as they are."""
    if isinstance(pipeline.sink, HandlerSpec):
        return SOURCE
    kinds = {one.name: one.type for one in SOURCE}
    return (*body_fields(pipeline), *(Field(f"_{name}", kinds[name]) for name in pipeline.schema.metadata))


def body_fields(pipeline: Pipeline) -> tuple[Field, ...]:
    return (BODY,) if pipeline.schema.raw else pipeline.schema.fields


def row_schema(pipeline: Pipeline) -> pa.Schema:
    return arrow_schema(row_fields(pipeline))
