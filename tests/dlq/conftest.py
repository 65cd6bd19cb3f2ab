"""Dead-letter messages of the queue `orders`, and the service that acts on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlq.dead_letters import DLQ
from driven import Place, new_place
from semel.dlq.access.sqs import SqsAccess
from semel.dlq.service import DeadLetterService
from semel.sqs.client.admin import Admin


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq=DLQ, receives=2)
        yield place


@pytest.fixture
def service(place: Place, tmp_path: Path) -> DeadLetterService:
    return DeadLetterService(place.client, ledger=place.ledger, state=tmp_path, who="tester", clock=place.clock.now)


@pytest.fixture(params=["broker", "sqs"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same endpoint, recognised as Semel's broker or treated as any SQS."""
    kind: str = request.param
    if kind == "sqs":
        monkeypatch.setattr(Admin, "of", lambda _client: None)
        monkeypatch.setitem(SqsAccess.__init__.__kwdefaults__, "wait", 0)  # type: ignore[arg-type]
    return kind
