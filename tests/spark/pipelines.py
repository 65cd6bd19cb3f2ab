"""Parts of pipelines that several tests use."""

from __future__ import annotations

from semel.spark.pipeline.config import SchemaSpec
from semel.spark.pipeline.schema import Field, Kind, Plain

SCHEMA = SchemaSpec((Field("id", Plain(Kind.STRING), nullable=False), Field("amount", Plain(Kind.LONG))))
