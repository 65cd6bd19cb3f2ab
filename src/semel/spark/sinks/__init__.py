"""Where a pipeline's rows end up: one module or package a sink, all of them with the contract of `contract`.

A sink is loaded when it is asked for, as each may need a library that is an extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.spark.sinks.delta.sink import DeltaSink
    from semel.spark.sinks.parquet.sink import ParquetSink
    from semel.spark.sinks.postgres.sink import PostgresSink
    from semel.spark.sinks.rejects import RejectQueue, RejectTable

__all__ = ["DeltaSink", "ParquetSink", "PostgresSink", "RejectQueue", "RejectTable"]

# name: (module, the extra that brings its library)
_WHERE: Final = {
    "DeltaSink": ("delta.sink", "delta"),
    "ParquetSink": ("parquet.sink", "spark"),
    "PostgresSink": ("postgres.sink", "postgres"),
    "RejectQueue": ("rejects", "spark"),
    "RejectTable": ("rejects", "spark"),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _WHERE[name]
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("semel"):
            raise
        raise SemelError(f"{name} needs the package {error.name}: pip install 'semel[{extra}]'") from None
