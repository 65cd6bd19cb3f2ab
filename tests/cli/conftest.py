"""A broker with a queue and its dead-letter queue, and a command line that uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.shell import DLQ, Shell
from semel.broker import EmbeddedBroker, running
from semel.dlq.access.sqs import SqsAccess
from semel.sqs import Client
from semel.sqs.client.admin import Admin


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with running(cooldowns=False) as broker:
        yield broker


@pytest.fixture
def shell(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    for name, value in {
        "AWS_ENDPOINT_URL_SQS": broker.url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "SEMEL_STATE": str(tmp_path / "state"),
        "COLUMNS": "80",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("SEMEL_DASHBOARD", "SEMEL_TOKEN", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    with Client() as client:
        target = client.create_queue(DLQ)
        policy = json.dumps({"deadLetterTargetArn": target.arn, "maxReceiveCount": 3})
        client.create_queue("orders", {"RedrivePolicy": policy})
        yield Shell(broker, client, capsys)
        for queue in client.queues():
            queue.drop()


@pytest.fixture
def plain_sqs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the broker as if it were SQS: messages are read by receiving them."""
    monkeypatch.setattr(Admin, "of", lambda _client: None)
    monkeypatch.setitem(SqsAccess.__init__.__kwdefaults__, "wait", 0)  # type: ignore[arg-type]
