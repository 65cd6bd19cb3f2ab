"""SQS as a source and a sink of Spark, exactly once, and the pipelines on top of it.

`format("sqs")` is there wherever Semel is installed. Names here are loaded when they are asked for. Importing this
package has Spark run the Python that runs this code, unless PYSPARK_PYTHON names another (see interpreter.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.spark.interpreter import use_this_python

if TYPE_CHECKING:
    from semel.spark.source.datasource import register
    from semel.spark.source.deduplication import once
    from semel.spark.spark_session import session

__all__ = ["once", "register", "session"]

_HOMES = {"once": "source.deduplication", "register": "source.datasource", "session": "spark_session"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"semel.spark.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


use_this_python()
