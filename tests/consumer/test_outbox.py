"""From the outbox to SQS, in order. A message that SQS refuses is reported and kept, and does not block others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from driven import Place, logged, new_place
from semel import App, Transaction
from semel.consumer.app_loader import RunOptions, load_app
from semel.consumer.explain import explain, text
from semel.telemetry.attempt_log import AttemptLog


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq="dead")
        place.queue("receipts")
        yield place


def app_that_sends(*messages: dict[str, Any], **options: Any) -> App:
    app = App(**options)

    @app.handler("orders", key="$.id")
    def ship(order: dict[str, Any], tx: Transaction) -> None:
        for message in messages:
            tx.send(**message)

    return app


def outbox(place: Place) -> list[tuple[str, int, str]]:
    return [(it.queue, it.attempts, it.error) for it in place.ledger.outbox_status(10).examples]


def test_a_message_that_sqs_would_refuse_makes_its_handler_fail_before_anything_is_committed(place: Place) -> None:
    app = app_that_sends({"queue": "receipts", "body": "x" * 1_048_577}, max_attempts=1)
    place.send({"id": 1})
    place.worker(app).drain()
    assert place.ledger.count_outgoing() == 0
    (dead,) = place.messages("dead")
    assert "tx.send to receipts" in dead["MessageAttributes"]["semel-error"]["StringValue"]


def test_what_sqs_refuses_is_counted_kept_and_tried_again_after_ever_longer_waits(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_that_sends({"queue": "nowhere", "body": "a"}, {"queue": "receipts", "body": '"b"'})
    place.send({"id": 1})
    worker = place.worker(app)
    worker.drain()
    assert place.bodies("receipts") == ["b"]
    ((queue, attempts, error),) = outbox(place)
    assert (queue, attempts) == ("nowhere", 1)
    assert "nowhere" in error
    assert len(logged(caplog, "SQS refuses 1 messages of the outbox for nowhere")) == 1
    metrics = worker.worker.tools.metrics
    assert (metrics.queue("nowhere").outbox_refused.count, metrics.queue("receipts").outbox_sent.count) == (1, 1)
    tried: list[int] = []
    for second in range(0, 400, 10):
        place.clock.advance(10)
        worker.drain()
        if outbox(place)[0][1] > len(tried) + 1:
            tried.append(second + 10)
    assert tried == [30, 90, 210], "30, 60, 120 seconds; up to a quarter of an hour"
    place.queue("nowhere")
    place.clock.advance(900)
    worker.drain()
    assert len(place.messages("nowhere")) == 1
    assert place.ledger.count_outgoing() == 0


def test_none_of_a_fifo_group_is_sent_before_one_that_sqs_has_refused(place: Place) -> None:
    queue = place.queue("moves.fifo", MaximumMessageSize=1_024)
    app = app_that_sends(
        {"queue": "moves.fifo", "body": json.dumps("a1" + "x" * 2_000), "group": "a"},
        {"queue": "moves.fifo", "body": '"a2"', "group": "a"},
        {"queue": "moves.fifo", "body": '"b1"', "group": "b"},
        {"queue": "moves.fifo", "body": '"b2"', "group": "b"},
    )
    place.send({"id": 1})
    worker = place.worker(app)
    worker.drain()
    assert place.bodies("moves.fifo") == ["b1", "b2"], "a2 waits for a1, and no other group waits for either"
    assert [(attempts, "1024" in error.replace(",", "")) for _, attempts, error in outbox(place)] == [(1, True)]
    queue.call("SetQueueAttributes", {"Attributes": {"MaximumMessageSize": "4096"}})
    place.clock.advance(31)
    worker.drain()
    assert [body[:2] for body in place.bodies("moves.fifo")] == ["b1", "b2", "a1", "a2"]


def test_only_what_was_sent_is_sent_in_the_attempt_log(place: Place, tmp_path: Path) -> None:
    app = app_that_sends(
        {"queue": "receipts", "body": "b", "key": "taken"}, {"queue": "small", "body": "x" * 2_000, "key": "refused"}
    )
    place.queue("small", MaximumMessageSize=1_024)
    place.send({"id": 1})
    with closing(AttemptLog.open(str(tmp_path))) as log:
        place.worker(app, log=log).drain()
    events = [json.loads(line) for file in tmp_path.glob("**/*.jsonl") for line in file.read_text().splitlines()]
    assert [event["key"] for event in events if event["step"] == "sent"] == ["taken"]


SHOP = """
from semel import App, Transaction

app = App("sqlite:///{folder}/ledger.db")

@app.handler("orders", key="$.id")
def ship(order: dict, tx: Transaction) -> None:
    tx.send("nowhere", "a", key="k-1")
"""


def test_health_metrics_and_explain_show_what_is_stuck_in_the_outbox(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    (tmp_path / "stuck_shop.py").write_text(SHOP.format(folder=tmp_path))
    wanted = RunOptions("stuck_shop:app", endpoint_url=place.broker.url, region="us-east-1")
    assert "outbox" not in text(explain(wanted)), "nothing waits there"
    place.send({"id": 1})
    with ExitStack() as stack:
        runtime = load_app(wanted).start(stack, exit_when_empty=True)
        assert runtime.stopping.wait(60)
        runtime.outbox.read_status()
        shown = runtime.health().details["outbox"]
        page = runtime.tools.metrics.text()
        report = runtime.finish()
    assert report.outbox == 1
    assert (shown["waiting"], shown["refused"]) == (1, 1)
    assert [(it["queue"], it["key"], it["attempts"]) for it in shown["examples"]] == [("nowhere", "k-1", 1)]
    assert "semel_outbox_waiting 1.0\n" in page
    assert "semel_outbox_stuck 1.0\n" in page
    assert 'semel_outbox_refused_total{queue="nowhere"} 1.0\n' in page
    explained = text(explain(wanted))
    assert "1 messages to send, 1 refused by SQS" in explained
    assert "nowhere, key k-1, refused 1 times: " in explained
