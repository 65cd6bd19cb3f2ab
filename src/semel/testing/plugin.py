"""pytest plugin: the fixture `sqs_broker` gives each test a fresh SQS broker with a manual clock and faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from semel.broker import EmbeddedBroker


@pytest.fixture
def sqs_broker() -> Iterator[EmbeddedBroker]:
    """An empty broker in memory, ready in milliseconds; its clock stands still until `clock.advance(seconds)`.

    `sqs_broker.client()` is a boto3 client, and needs `pip install 'semel[testing]'`."""
    # Imported here so that test runs that don't use it don't pay for it.
    from semel.broker import running

    with running(clock="manual") as broker:
        yield broker
