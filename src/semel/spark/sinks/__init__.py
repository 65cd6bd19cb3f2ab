"""Where a pipeline's rows end up: one module or package for each sink. All follow the contract in contract.py.

A sink is loaded on first use, because it may need a library that is an extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.lazy_imports import lazy_names

if TYPE_CHECKING:
    from semel.spark.sinks.delta.sink import DeltaSink
    from semel.spark.sinks.parquet.sink import ParquetSink
    from semel.spark.sinks.postgres.sink import PostgresSink
    from semel.spark.sinks.rejects import RejectQueue, RejectTable

_WHERE: Final = {
    "DeltaSink": "semel.spark.sinks.delta.sink",
    "ParquetSink": "semel.spark.sinks.parquet.sink",
    "PostgresSink": "semel.spark.sinks.postgres.sink",
    "RejectQueue": "semel.spark.sinks.rejects",
    "RejectTable": "semel.spark.sinks.rejects",
}
_EXTRAS: Final = {
    "DeltaSink": "delta",
    "ParquetSink": "spark",
    "PostgresSink": "postgres",
    "RejectQueue": "spark",
    "RejectTable": "spark",
}
__all__ = ["DeltaSink", "ParquetSink", "PostgresSink", "RejectQueue", "RejectTable"]
__getattr__, __dir__ = lazy_names(__name__, _WHERE, _EXTRAS)
