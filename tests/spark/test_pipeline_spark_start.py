"""Spark starts in a thread while the pipeline is still being checked."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from semel.spark.pipeline.spark_start import SparkStart
from semel.spark.spark_session import SparkError, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABANDONED: Final = """
import sys, time, psutil
from semel.spark.pipeline.spark_start import SparkStart
from semel.spark.spark_session import session

def javas():
    children = [each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]
    return [each for each in children if "-version" not in each.cmdline()]  # a Java that is probed ends by itself

try:
    with SparkStart(lambda: session("abandoned")):
        if sys.argv[1] == "java":
            while not javas():
                time.sleep(0.01)
        raise ValueError("the queue does not exist")
except ValueError as error:
    print(error, len(javas()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["at once", "java"])
def test_a_start_that_is_abandoned_leaves_no_java_behind(moment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABANDONED, moment], capture_output=True, text=True, timeout=200, check=True
    )
    assert (done.stdout, done.stderr) == ("the queue does not exist 0\n", "")


def test_what_went_wrong_is_raised_where_the_session_is_asked_for() -> None:
    def fails() -> SparkSession:
        raise SparkError("no cluster answers there")

    with SparkStart(fails) as start, pytest.raises(SparkError, match="no cluster answers there"):
        start.session()


def test_the_spark_of_others_goes_on_when_a_start_is_abandoned(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="refused"), SparkStart(lambda: session("beside")) as start:
        raise ValueError("refused")
    assert not start.owns_spark
    with SparkStart(lambda: session("beside")) as start:
        beside = start.session()
    assert (beside.range(3).count(), spark.range(3).count()) == (3, 3)
