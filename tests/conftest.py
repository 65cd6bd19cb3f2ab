"""Servers that many tests share: each is a real one, started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from servers import dynamodb, postgres, redis


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
