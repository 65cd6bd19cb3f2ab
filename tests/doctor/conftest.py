"""The doctor's engines, each shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from semel.doctor.engine.contract import Engine
from semel.doctor.engine.duckdb import DuckDBEngine
from suite import slow


@pytest.fixture(scope="session", params=["duckdb", *slow("spark")])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn. An engine is started only if a test uses it."""
    engine: Engine = request.getfixturevalue(f"{request.param}_engine")
    return engine


@pytest.fixture(scope="session")
def duckdb_engine() -> Iterator[Engine]:
    with closing(DuckDBEngine(threads=2)) as engine:
        yield engine


@pytest.fixture(scope="session")
def spark_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    from semel.doctor.engine.spark import SparkEngine

    request.getfixturevalue("spark")
    with closing(SparkEngine()) as engine:
        yield engine
