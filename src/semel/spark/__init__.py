"""SQS as a source and a sink of Spark, exactly once, and the pipelines on top of it.

Spark finds `format("sqs")` wherever Semel is installed. The names of this package are loaded on first use. Importing it
makes Spark start the Python that runs this code, unless PYSPARK_PYTHON names another one (see interpreter.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.lazy_imports import lazy_names
from semel.spark.interpreter import use_this_python

if TYPE_CHECKING:
    from semel.spark.segments.codec import decode as decode_segment
    from semel.spark.source.datasource import register
    from semel.spark.source.deduplication import once
    from semel.spark.spark_session import session

_WHERE: Final = {
    "decode_segment": "semel.spark.segments.codec:decode",
    "once": "semel.spark.source.deduplication",
    "register": "semel.spark.source.datasource",
    "session": "semel.spark.spark_session",
}
__all__ = ["decode_segment", "once", "register", "session"]
__getattr__, __dir__ = lazy_names(__name__, _WHERE)

use_this_python()
