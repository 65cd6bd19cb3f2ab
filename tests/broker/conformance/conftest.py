"""`sqs`: a new broker with a manual clock, once for each protocol. `alongside`: runs a call in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from .service import Broker, Sqs

Alongside = Callable[..., "Future[Any]"]


@pytest.fixture(params=["json", "query"])
def sqs(request: pytest.FixtureRequest, sqs_broker: Broker) -> Iterator[Sqs]:
    service = Sqs(sqs_broker, request.param)
    yield service
    service.client.close()


@pytest.fixture
def json_sqs(sqs_broker: Broker) -> Iterator[Sqs]:
    """For what only the JSON protocol has, and for tests that make so many calls that one protocol is enough."""
    service = Sqs(sqs_broker, "json")
    yield service
    service.client.close()


@pytest.fixture
def alongside() -> Iterator[Alongside]:
    pool = ThreadPoolExecutor(max_workers=4)
    yield pool.submit
    pool.shutdown(wait=False, cancel_futures=True)
