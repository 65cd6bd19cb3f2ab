"""Makes Spark start the Python that runs this code.

Spark starts one Python to look for data sources and others to run them. Unless PYSPARK_PYTHON is set, it starts the
`python3` on PATH. Cron, IDEs and notebooks call the Python of a virtual environment by its path, without activating it:
`python3` is then another Python, without Semel, and `format("sqs")` is unknown. The rule: a PYSPARK_PYTHON that is set
already is kept.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

SPARKS_CHOICE: Final = "python3"  # on PATH: Spark's default


def use_this_python() -> None:
    """Called when `semel.spark` is imported. If Spark already runs, with another Python, registers the format `sqs`."""
    context = running_spark()
    if context is None:
        if sys.executable:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return
    if _is_other(context):
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            with suppress(ImportError):  # without pyarrow there is no source, but the rest of the package works
                from semel.spark.source.datasource import register

                register(session)


def use_in_running_spark() -> None:
    """Makes a running local Spark use this Python for data sources that are registered from now on. The machines of a
    cluster have their own Python, which the user names."""
    context = running_spark()
    if context is not None and _is_other(context):
        context.pythonExec = sys.executable


def running_spark() -> SparkContext | None:
    """The Spark of this process, if it has one."""
    if sys.modules.get("pyspark") is None:
        return None
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def _is_other(context: SparkContext) -> bool:
    if not (context.master or "").startswith("local") or context.pythonExec != SPARKS_CHOICE:
        return False
    return shutil.which(SPARKS_CHOICE) != sys.executable
