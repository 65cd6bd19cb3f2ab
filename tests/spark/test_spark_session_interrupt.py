"""Ctrl-C while Spark starts or works, in a separate process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

import interrupted

PROGRAM: Final = """
import sys
from semel.spark import spark_session
try:
    spark = spark_session.session("interrupted")
    spark.sparkContext.parallelize([1]).map(str).collect()  # a task in Python connects the server for accumulators
    print("started", flush=True)
    spark.range(10**12).selectExpr("sum(id % 7)").collect()
except KeyboardInterrupt:
    spark_session.end_java()
    sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while Java starts", "while a job runs"])
def test_an_interrupt_leaves_neither_java_nor_a_traceback_behind(moment: str, tmp_path: Path) -> None:
    when = interrupted.starts_java if moment == "while Java starts" else lambda output, _: "started" in output
    ended = interrupted.interrupt([sys.executable, "-c", PROGRAM], tmp_path, when)
    assert (ended.code, ended.left) == (130, ())
    assert "Traceback" not in ended.output
    assert ended.seconds < 10
