"""`sqs`: a fresh broker with a manual clock, once through each protocol. `alongside`: a call that runs in a thread."""

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
    """For what only one protocol can say, and for tests whose cost is in the number of calls."""
    service = Sqs(sqs_broker, "json")
    yield service
    service.client.close()


@pytest.fixture
def alongside() -> Iterator[Alongside]:
    pool = ThreadPoolExecutor(max_workers=4)
    yield pool.submit
    pool.shutdown(wait=False, cancel_futures=True)
