"""Servers and a Spark session that many tests share. All are real, and start when a test first needs them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import browsing
    from servers import dynamodb, postgres, redis

pytest_plugins = ("suite",)
TESTS: Final = Path(__file__).parent
# Every Spark that a test starts lives for seconds, so Java's second compiler would cost more time than it saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session", autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test writes to the worker registry or the audit log of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMEL_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_service_model() -> Iterator[None]:
    """Each botocore session would parse megabytes of JSON; this lets all sessions of a test process share one parse."""
    import botocore.session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        yield


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    """A command configures the logging of its process, which here is shared with other tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    from servers import postgres

    with postgres.running() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[redis.Server]:
    from servers import redis

    with redis.running() as server:
        yield server


@pytest.fixture(scope="session")
def dynamodb_server() -> Iterator[dynamodb.Server]:
    from servers import dynamodb

    with dynamodb.running() as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[browsing.Browser]:
    import browsing
    import suite

    if browsing.installed() is None:
        pytest.skip(suite.NO_BROWSER)
    with browsing.running() as browser:
        yield browser


@pytest.fixture(scope="session")
def credentials() -> Iterator[None]:
    """Dummy credentials: Semel's broker accepts any. Spark's workers inherit the environment in which Spark started."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
            if f"AWS_{name}" not in os.environ:
                patch.setenv(f"AWS_{name}", value)
        yield


@pytest.fixture(scope="session")
def spark(credentials: None) -> Iterator[SparkSession]:
    from semel.spark.spark_session import session

    # Workers must be able to import the tests: functions that Spark calls are pickled by module name.
    settings: dict[str, Any] = {"spark.executorEnv.PYTHONPATH": str(TESTS)}
    started = session("tests", master="local[2]", **settings)
    yield started
    started.stop()
