"""Secrets and bodies of messages are in nothing that the programs write, whatever fails: not in output, logs at level
debug, tracebacks, the state folder, the attempt log, /metrics, /health, or the list of processes.

What a handler raises is its own text: it is logged, and written to the attempt log and the dead-letter queue, with
passwords masked. A message's key is shown as well, and so is what the user asks to see (`semel dlq show`, an export).
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from intruders import marks
from intruders.marked_shop import app
from intruders.marks import BODY, PASSWORD
from semel import App, Ledger
from semel.broker import EmbeddedBroker, running
from semel.errors import SemelError
from semel.sqs import Client

RUN: Final = ("run", "intruders.marked_shop:app", "--log-level", "debug", "--create-dlq")


@pytest.fixture
def shop() -> Iterator[EmbeddedBroker]:
    """Queues of the app with messages that it accepts, rejects, cannot decode and fails on."""
    with running(cooldowns=False) as broker, Client(broker.url, "us-east-1", access_key="x", secret_key="y") as client:
        for name in app.handlers:
            queue = client.create_queue(name, {"VisibilityTimeout": "1"})
            queue.send(json.dumps({"id": 1, "note": BODY}))
            queue.send(json.dumps({"id": 2, "note": {"nested": [BODY]}}))
            queue.send(json.dumps([BODY]))
            queue.send(f"{{no JSON {BODY}")
            queue.send(json.dumps({"id": {"not": BODY}}), attributes={"note": BODY})
        yield broker


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_worker_on_which_everything_fails_writes_down_no_body_and_no_secret(
    shop: EmbeddedBroker, tmp_path: Path, form: str
) -> None:
    ran = marks.run(
        tmp_path,
        *(*RUN, "--endpoint-url", shop.url, "--exit-when-empty", "--log-format", form, "--attempt-log", "attempts"),
        SEMEL_LEDGER=f"sqlite:///{tmp_path}/ledger.db",
    )
    assert "the shop is closed" in ran.errors
    assert list((tmp_path / "attempts").rglob("*"))
    assert ran.leaks(tmp_path) == {}


ADDRESSES: Final = {
    "nobody listens": f"postgresql://shop:{PASSWORD}@127.0.0.1:1/db",
    "a slash in the password": f"postgresql://shop:x/{PASSWORD}@127.0.0.1:1/db",
    "a number and a slash in the password": f"postgresql://shop:1/{PASSWORD}@127.0.0.1:1/db",
    "a hash in the password": f"postgresql://shop:x#{PASSWORD}@127.0.0.1:1/db",
    "a question mark in the password": f"postgresql://shop:x?{PASSWORD}@127.0.0.1:1/db",
    "an @ at the end of the password": f"postgresql://shop:{PASSWORD}@x@127.0.0.1:1/db",
    "an @ at the start of the password": f"postgresql://shop:x@{PASSWORD}@127.0.0.1:1/db",
    "a bracket in the password": f"postgresql://shop:[{PASSWORD}@127.0.0.1:1/db",
    "a bad escape in the password": f"postgresql://shop:%zz{PASSWORD}@127.0.0.1:1/db",
    "the password as an option": f"postgresql://shop@127.0.0.1:1/db?password={PASSWORD}",
    "an option that does not exist": f"postgresql://shop:{PASSWORD}@127.0.0.1:1/db?nonsense=1",
    "a port that is no number": f"postgresql://shop:{PASSWORD}@127.0.0.1:port/db",
    "no Redis there": f"redis://:{PASSWORD}@127.0.0.1:1/0",
    "a slash in Redis's password": f"redis://:x/{PASSWORD}@127.0.0.1:1/0",
    "an @ in Redis's password": f"redis://:x@{PASSWORD}@127.0.0.1:1/0",
    "a question mark in Redis's password": f"redis://:x?{PASSWORD}@127.0.0.1:1/0",
    "a database of Redis that is no number": f"redis://:{PASSWORD}@127.0.0.1:1/none",
    "a port of Redis that is no number": f"redis://:{PASSWORD}@127.0.0.1:port/0",
    "an unknown store": f"mysql://shop:{PASSWORD}@127.0.0.1/db",
    "no colon": f"postgresql//shop:{PASSWORD}@127.0.0.1/db",
    "one slash": f"postgresql:/shop:{PASSWORD}@127.0.0.1/db",
    "a user of DynamoDB": f"dynamodb://user:{PASSWORD}@table",
    "an endpoint of DynamoDB": f"dynamodb://table?endpoint=http://user:{PASSWORD}@127.0.0.1:1&region=us-east-1",
    "an option that DynamoDB has not": f"dynamodb://table?endpoint=http://user:{PASSWORD}@127.0.0.1:1&x=1",
}


@pytest.mark.parametrize("what", ADDRESSES)
def test_no_password_of_a_ledger_is_shown_whatever_is_wrong_with_its_address(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the error nor its traceback shows it, nor does what --explain says of the ledger."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "x")
    caplog.set_level("DEBUG")
    with pytest.raises(SemelError) as refused:
        Ledger.connect(ADDRESSES[what], timeout=1.0)
    written = {
        "error": str(refused.value),
        "traceback": "".join(traceback.format_exception(refused.value)),
        "log": "".join(record.getMessage() for record in caplog.records if record.name.startswith("semel")),
        "name": App(ledger=ADDRESSES[what]).ledger_name,
    }
    assert marks.leaks(written) == {}
