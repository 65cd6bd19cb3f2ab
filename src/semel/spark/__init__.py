"""SQS as a source and a sink of Spark, exactly once, and the pipelines on top of it.

`format("sqs")` is there wherever Semel is installed. Names here are loaded when they are asked for. Importing this
package has Spark run the Python that runs this code, unless PYSPARK_PYTHON names another (see interpreter.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.spark.interpreter import use_this_python

if TYPE_CHECKING:
    from semel.spark.segments.codec import decode as decode_segment
    from semel.spark.source.datasource import register
    from semel.spark.source.deduplication import once
    from semel.spark.spark_session import session

__all__ = ["decode_segment", "once", "register", "session"]

_HOMES = {
    "decode_segment": ("segments.codec", "decode"),
    "once": ("source.deduplication", "once"),
    "register": ("source.datasource", "register"),
    "session": ("spark_session", "session"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        module, attribute = _HOMES[name]
        return getattr(import_module(f"semel.spark.{module}"), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


use_this_python()
