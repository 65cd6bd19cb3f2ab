"""Which Python Spark starts: the one that runs this code.

Spark starts a Python to look for data sources, and others to run them. Unless PYSPARK_PYTHON names it, that is the
`python3` on PATH: another one, without Semel, if the environment's Python was called by its path and not activated, as
cron, IDEs and notebooks do. `format("sqs")` is then unknown. The rule: a PYSPARK_PYTHON of the user's own is kept.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

SPARKS_CHOICE: Final = "python3"  # of PATH, if nobody has named one


def use_this_python() -> None:
    """Called when `semel.spark` is imported. A Spark that is running already is given the format `sqs` at once."""
    context = running_spark()
    if context is None:
        if sys.executable:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return
    if _is_other(context):
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            with suppress(ImportError):  # without pyarrow there is no source, but what else is here works
                from semel.spark.source.datasource import register

                register(session)


def use_in_running_spark() -> None:
    """For what is registered from now on. A cluster's machines have their own Python, which the user names."""
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
