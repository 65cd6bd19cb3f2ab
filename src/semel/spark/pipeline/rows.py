"""What a pipeline's rows look like to its sink, and the columns of the source that they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.spark.pipeline import ddl
from semel.spark.pipeline.config import HandlerSpec, Pipeline
from semel.spark.pipeline.schema import Field, Kind, Plain, arrow_schema
from semel.spark.source import column_types

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE: Final = ddl.parse(column_types.ddl(column_types.MESSAGE))
BODY: Final = Field("body", Plain(Kind.STRING))


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
