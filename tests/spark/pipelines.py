"""Pipeline parts that several tests use."""

from __future__ import annotations

import pyarrow as pa

from semel.spark.pipeline.config import SchemaSpec

SCHEMA = SchemaSpec((pa.field("id", pa.string(), nullable=False), pa.field("amount", pa.int64())))
