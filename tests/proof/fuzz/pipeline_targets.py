"""Targets for the description of a pipeline: its file, and the schema of its messages."""

from __future__ import annotations

from typing import Final

from fuzz.scratch import FOLDER
from semel.spark.pipeline import body_schema, config_file, ddl, json_schema
from semel.spark.pipeline.body_schema import SchemaError
from semel.spark.pipeline.config import Pipeline, PipelineFileError

PASSWORD: Final = "hunter22"
_ENVIRONMENT: Final = {"PASSWORD": PASSWORD, "HOME": "/home/somebody", "EMPTY": ""}


def fuzz_pipeline_file(data: bytes) -> None:
    """A pipeline's file: it gives a pipeline, or a PipelineFileError that names the file and every mistake. The error
    never shows a password from the environment."""
    path = FOLDER / "pipeline.toml"
    path.write_bytes(data)
    try:
        pipeline = config_file.load(path, environment=_ENVIRONMENT)
    except PipelineFileError as error:
        assert str(path) in str(error)
        if PASSWORD.encode() not in data:
            assert PASSWORD not in str(error)
        return
    assert isinstance(pipeline, Pipeline)
    assert pipeline.source.queues


def fuzz_ddl(data: bytes) -> None:
    """Fields in Spark's DDL: they give fields that are the same when written as DDL and parsed again, or a
    SchemaError."""
    try:
        fields = ddl.parse(data.decode("utf-8", "replace"))
    except SchemaError as error:
        assert str(error)
        return
    assert fields
    again = ddl.parse(body_schema.ddl(fields))
    assert [(field.name, field.type, field.nullable) for field in again] == [
        (field.name, field.type, field.nullable) for field in fields
    ]
    assert body_schema.decode(body_schema.encode(fields)) == fields


def fuzz_json_schema(data: bytes) -> None:
    """A JSON Schema: it gives fields and constraints, or a SchemaError."""
    try:
        read = json_schema.parse(data.decode("utf-8", "replace"))
    except SchemaError as error:
        assert str(error)
        return
    assert read.fields
    assert all(constraint.name and constraint.check for constraint in read.constraints)
    assert ddl.parse(body_schema.ddl(read.fields))
