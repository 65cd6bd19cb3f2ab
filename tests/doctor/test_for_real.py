"""A real consumer with too short a timeout, the doctor's remedy, and the same consumer after it.

The consumer is a plain boto3 loop with its own log, as people have before they use Semel.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from semel import App
from semel.broker import EmbeddedBroker, running
from semel.cli import main
from semel.doctor.diagnosis import Request, diagnose
from semel.doctor.model import Cause, Diagnosis, Severity

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

ORDERS, WORKERS = 6, 12
TIMEOUT, WORK = 2, 3.0
MAP = "id=.msg.messageId,time=.ts,event=.event,worker=.thread"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def sqs(broker: EmbeddedBroker, credentials: None) -> SQSClient:
    client: SQSClient = boto3.client("sqs", endpoint_url=broker.url, region_name="us-east-1")
    return client


def consume(sqs: SQSClient, url: str, log: Path) -> None:
    """Work on ORDERS orders, each for WORK seconds, until the queue is empty."""
    lock = threading.Lock()
    for number in range(ORDERS):
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"order": number}))

    def log_event(event: str, message: dict[str, Any]) -> None:
        line = {"ts": time.time(), "event": event, "thread": threading.current_thread().name}
        with lock, log.open("a") as file:
            file.write(json.dumps(line | {"level": "info", "msg": {"messageId": message["MessageId"]}}) + "\n")

    def work(_: int) -> None:
        while is_busy(sqs, url):
            for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages", []):
                log_event("received", dict(message))
                log_event("started", dict(message))
                time.sleep(WORK)
                log_event("finished", dict(message))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                log_event("deleted", dict(message))

    with ThreadPoolExecutor(WORKERS) as threads:
        list(threads.map(work, range(WORKERS)))


def is_busy(sqs: SQSClient, url: str) -> bool:
    names: Any = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return any(int(count) for count in counts.values())


def diagnosed(broker: EmbeddedBroker, url: str, log: Path) -> Diagnosis:
    request = Request(logs=(str(log),), mapping=MAP, queues=(url,), endpoint_url=broker.url, region="us-east-1")
    return diagnose(request)


@pytest.mark.slow
def test_the_doctor_names_the_cause_and_the_cure_and_with_the_cure_there_is_nothing_left(
    broker: EmbeddedBroker, sqs: SQSClient, tmp_path: Path
) -> None:
    url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": str(TIMEOUT)})["QueueUrl"]
    consume(sqs, url, tmp_path / "before.jsonl")
    before = diagnosed(broker, url, tmp_path / "before.jsonl")
    (case,) = before.cases
    assert case.behaviour is not None
    assert case.behaviour.queue == "orders"
    assert case.behaviour.messages == ORDERS
    assert {caused.cause for caused in case.behaviour.causes} == {Cause.VISIBILITY}
    assert case.behaviour.duplicates >= ORDERS
    assert case.behaviour.doubled == ORDERS
    assert case.behaviour.work is not None
    assert case.behaviour.work.p50 == pytest.approx(WORK, abs=0.5)
    findings = {finding.rule: finding for finding in before.findings}
    assert findings["doubled-effects"].severity is Severity.CRITICAL
    remedy = findings["duplicates-visibility"].remedy

    for command in remedy.cli:  # as the report prints it, in a shell
        aws = Path(sys.executable).with_name("aws")
        subprocess.run([str(aws), *shlex.split(command)[1:]], check=True, capture_output=True, timeout=120)

    consume(sqs, url, tmp_path / "after.jsonl")
    after = diagnosed(broker, url, tmp_path / "after.jsonl")
    assert after.cases[0].behaviour is not None
    assert after.cases[0].behaviour.messages == ORDERS
    assert after.cases[0].behaviour.duplicates == 0
    assert after.cases[0].behaviour.doubled == 0
    assert not [
        finding.rule
        for finding in after.findings
        if finding.rule.startswith(("duplicates", "doubled", "visibility-short"))
    ]


@pytest.mark.slow
def test_semels_own_consumer_with_the_same_timeout_and_work_has_no_duplicates(
    broker: EmbeddedBroker, sqs: SQSClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": str(TIMEOUT)})["QueueUrl"]
    for number in range(ORDERS):
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"id": number}))
    app = App(f"sqlite:///{tmp_path}/ledger.db", endpoint_url=broker.url, region="us-east-1")
    app.log_to(str(tmp_path / "log"))

    @app.handler("orders", key="$.id", lease=TIMEOUT)
    def ship(order: dict[str, Any]) -> None:
        time.sleep(WORK)

    app.run(exit_when_empty=True)
    code = main(["doctor", "--log", str(tmp_path / "log"), "--output", "json", "--quiet", "--fail-on", "critical"])
    report = json.loads(capsys.readouterr().out)
    (behaviour,) = (queue["behaviour"] for queue in report["queues"])
    assert code == 0
    assert (behaviour["messages"], behaviour["duplicates"], behaviour["doubled"]) == (ORDERS, 0, 0)
    assert behaviour["heartbeats"] > 0
    assert [handler["handler"].rpartition(".")[2] for handler in behaviour["handlers"]] == ["ship"]
