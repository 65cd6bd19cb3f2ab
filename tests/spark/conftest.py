"""One real Spark for all tests, started when the first test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS: Final = Path(__file__).parents[1]
# Every Spark that a test starts lives for seconds: Java's second compiler would take more of them than it gives back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session", autouse=True)
def credentials() -> Iterator[None]:
    """For the broker in the box any will do. Spark's workers have the environment that Spark was started in."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
            if f"AWS_{name}" not in os.environ:
                patch.setenv(f"AWS_{name}", value)
        yield


@pytest.fixture(scope="session")
def spark(credentials: None) -> Iterator[SparkSession]:
    from semel.spark.sessions import session

    # Workers must find what the tests define: a function that Spark calls is pickled by its module's name.
    settings: dict[str, Any] = {"spark.executorEnv.PYTHONPATH": str(TESTS)}
    started = session("tests", master="local[2]", **settings)
    yield started
    started.stop()
