"""Endpoints other than Semel's broker, here moto's: reading means receiving, so it is done only on request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dashboard.serving import serving
from semel.dashboard.sources.cloudwatch import CloudWatch
from semel.dashboard.sources.sqs import SqsSource
from semel.dashboard.views import DashboardError, QueueInspector, Settings
from semel.dashboard.views.model import Level, ReceiveRequired
from semel.dlq.access import PeekRisk
from semel.dlq.remote_service import RemoteDeadLetterService
from semel.sqs import Client
from servers import moto
from waiting import until


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto.running() as url:
        yield url


@pytest.fixture
def client(endpoint: str) -> Iterator[Client]:
    with Client(endpoint, "us-east-1", access_key="test", secret_key="test") as client:
        for queue in client.queues():
            queue.drop()
        yield client


@pytest.fixture
def inspector(client: Client, tmp_path: Path) -> Iterator[QueueInspector]:
    inspector = QueueInspector(Settings(endpoint_url=client.endpoint, state=tmp_path), client=client)
    yield inspector
    inspector.close()


def count_of(client: Client, queue: str) -> str:
    return client.queue(queue).attributes()["ApproximateNumberOfMessages"]


def test_queues_are_shown_from_their_attributes_alone(client: Client, inspector: QueueInspector) -> None:
    dead = client.create_queue("orders-dlq")
    policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 3}
    orders = client.create_queue("orders", {"RedrivePolicy": policy})
    orders.send("x")
    page = inspector.queues()
    assert not page.is_ours
    rows = {row.name: row for row in page.rows}
    assert rows["orders"].visible == 1
    assert rows["orders"].dead_letter_queue == "orders-dlq"
    assert rows["orders"].rates.sent is None
    known = {alarm.name: alarm.level for alarm in rows["orders"].alarms}
    assert known["age"] is known["not-deleted"] is Level.UNKNOWN  # nobody knows, so nobody says it is well
    assert known["dead-letters"] is Level.OK
    assert inspector.queue("orders").faults is None
    with pytest.raises(DashboardError, match="semel broker"):
        inspector.broker.faults()


def test_receives_that_may_move_messages_need_consent(client: Client, tmp_path: Path) -> None:
    last = client.create_queue("last-dlq")
    policy = {"deadLetterTargetArn": last.arn, "maxReceiveCount": 2}
    dead = client.create_queue("orders-dlq", {"RedrivePolicy": json.dumps(policy)})
    policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 3}
    client.create_queue("orders", {"RedrivePolicy": json.dumps(policy)})
    id = dead.send("{}").message_id
    settings = Settings(endpoint_url=client.endpoint, region="us-east-1", port=0, state=tmp_path)
    with serving(settings, client=client) as site:
        assert "after 2 receives" in site.get("/dead-letters/orders-dlq").text
        paths = ("messages", f"messages/{id}", "groups", "impact?all=1", "export?all=1")
        for path in paths:
            refused = site.get(f"/api/v1/dead-letters/orders-dlq/{path}")
            assert refused.status == 409, (path, refused.text)
            assert "to its own dead-letter queue after 2 receives" in refused.json()["error"]
            assert "receive=1" in refused.json()["what_to_do"]
        for path, content in (("redrive", {"all": True}), ("delete", {"ids": [id]}), (f"messages/{id}/resend", {})):
            refused = site.post(f"/api/v1/dead-letters/orders-dlq/{path}", content)
            assert refused.status == 409, (path, refused.text)
            assert "receive=1" in refused.json()["what_to_do"]
        refused = site.get("/dead-letters/orders-dlq/export", all=1)
        assert (refused.status, "after 2 receives" in refused.text) == (409, True)
        accepted = site.post("/api/v1/dead-letters/orders-dlq/redrive?receive=1", {"all": True, "dry_run": True})
        assert accepted.status == 202, accepted.text
        assert site.services.jobs.get(accepted.json()["id"]).wait(60)
        until(lambda: count_of(client, "orders-dlq") == "1", "its release")
        remote = RemoteDeadLetterService(site.url)
        with pytest.raises(PeekRisk, match="after 2 receives"):
            remote.messages("orders-dlq")
        assert count_of(client, "orders-dlq") == "1"
        (message,) = RemoteDeadLetterService(site.url).messages("orders-dlq", receive=True).messages
        assert (message.id, message.receives) == (id, 2)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["", "$.n >= 4"])
def test_page_and_api_list_the_same_messages(client: Client, tmp_path: Path, where: str) -> None:
    dead = client.create_queue("orders-dlq")
    ids = [dead.send(json.dumps({"n": number})).message_id for number in range(12)]
    expected = sorted(ids[4:] if where else ids)
    settings = Settings(endpoint_url=client.endpoint, region="us-east-1", port=0, state=tmp_path)
    with serving(settings, client=client) as site:

        def listed() -> list[str]:
            page = site.get("/dead-letters/orders-dlq", where=where, receive=1)
            return sorted(re.findall(r'<tr data-key="([0-9a-f-]{36})"', page.text))

        answer = site.api("dead-letters/orders-dlq/messages", where=where, receive=1)
        assert sorted(message["id"] for message in answer["messages"]) == expected
        assert until(lambda: listed() == expected, "the same list")
        assert site.api("dead-letters/orders-dlq/groups", where=where, receive=1)["matched"] == len(expected)


def test_nothing_is_received_unless_somebody_says_so(client: Client, inspector: QueueInspector) -> None:
    queue = client.create_queue("orders")
    id = queue.send(json.dumps({"n": 1})).message_id
    with pytest.raises(ReceiveRequired, match="receive=1"):
        inspector.messages("orders")
    with pytest.raises(ReceiveRequired, match="receive=1"):
        inspector.message("orders", id)
    page = inspector.messages("orders", "$.n = 1", receive=True)
    assert [message.id for message in page.messages] == [id]
    assert "receive count of 1 message went up" in str(page.cost)
    until(lambda: count_of(client, "orders") == "1", "its release")
    assert inspector.message("orders", id, receive=True).message.body == '{"n": 1}'


@pytest.mark.slow
def test_a_page_that_refreshes_itself_does_not_look_again_and_again(client: Client, inspector: QueueInspector) -> None:
    queue = client.create_queue("orders-dlq")
    id = queue.send("x").message_id
    for _ in range(5):
        assert inspector.messages("orders-dlq", receive=True).messages
        assert inspector.message("orders-dlq", id, receive=True).message.id == id
        assert until(lambda: inspector.dead_letters("orders-dlq", receive=True).complete, "the search")
    (received,) = queue.receive(1, 0)
    assert received.receive_count == 4  # once for each of the three, and now


@pytest.mark.slow
def test_dead_letters_are_looked_at_once_and_then_remembered(client: Client, inspector: QueueInspector) -> None:
    dead = client.create_queue("orders-dlq")
    for number in range(12):
        dead.send(json.dumps({"n": number}))
    assert inspector.dead_letters("orders-dlq").needs_receive
    page = until(lambda: (now := inspector.dead_letters("orders-dlq", receive=True)).complete and now, "the search")
    assert page.matched == 12
    assert "receive" in page.cost
    assert page.queue.estimated
    assert page.queue.first_expires == min(row.sent for row in page.messages) + page.queue.retention
    (row,) = inspector.dead_letter_queues()
    assert (row.name, row.visible, row.first_expires) == ("orders-dlq", 12, None)  # nobody has looked for the list
    again = inspector.dead_letters("orders-dlq")
    assert (again.matched, again.needs_receive) == (12, False)
    (received,) = dead.receive(1, 0)
    assert received.receive_count == 2  # once by the look, and now; the second page took nothing


def test_the_past_is_sampled_and_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.dashboard.sources import sqs as sampling

    monkeypatch.setattr(sampling, "MAX_SAMPLES", 8)
    now = [1_000.0]
    queue = client.create_queue("orders")
    source = SqsSource(client, clock=lambda: now[0])
    for number in range(30):
        source.sample()
        now[0] += 60
        if number % 10 == 0:
            queue.send("x")
    (series,) = source.series(("orders",), 0).values()
    assert len(series.at) <= 9
    assert series.visible[-1] == 3
    assert series.sent == (None,) * len(series.at)
    assert len(source.series(("orders",), now[0] - 150)["orders"].at) == 2
    queue.drop()
    source.forget()
    source.close()


def test_a_queue_that_may_not_be_looked_at_is_shown_with_the_reason(client: Client) -> None:
    from semel.sqs import Queue
    from semel.sqs.errors import AccessDenied

    client.create_queue("open")
    client.create_queue("secret")
    source = SqsSource(client)
    look = Queue.attributes

    def refused(queue: Queue, *names: str) -> dict[str, str]:
        if queue.name == "secret":
            raise AccessDenied("not allowed to look at secret")
        return look(queue, *names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Queue, "attributes", refused)
        errors = {facts.name: facts.error for facts in source.facts()}
    source.close()
    assert errors == {"open": None, "secret": "not allowed to look at secret"}


# CloudWatch.


@pytest.fixture
def cloudwatch(endpoint: str) -> Any:
    import boto3

    return boto3.client(
        "cloudwatch",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def test_rates_and_ages_come_from_cloudwatch(cloudwatch: Any, client: Client) -> None:
    now = 1_800_000_000.0
    for minute in range(3):
        at = datetime.fromtimestamp(now - 60 * (minute + 2), UTC)
        for metric, value in (("NumberOfMessagesSent", 120), ("ApproximateAgeOfOldestMessage", 30 + minute)):
            dimensions = [{"Name": "QueueName", "Value": "orders"}]
            data = [{"MetricName": metric, "Dimensions": dimensions, "Timestamp": at, "Value": value}]
            cloudwatch.put_metric_data(Namespace="AWS/SQS", MetricData=data)
    client.create_queue("orders")
    watch = CloudWatch("us-east-1", client=cloudwatch, clock=lambda: now)
    source = SqsSource(client, clock=lambda: now, metrics=watch)
    series = source.series(("orders",), now - 900)["orders"]
    assert series.source == "cloudwatch"
    assert [rate for rate in series.sent if rate is not None] == [2.0, 2.0, 2.0]
    (facts,) = source.facts()
    assert facts.oldest_age == 30
    source.close()


def test_cloudwatch_which_is_billed_is_read_only_for_requests(client: Client) -> None:
    class Counting:
        reads = 0

        def get_metric_data(self, **_wanted: Any) -> Any:
            self.reads += 1
            return {"MetricDataResults": []}

    counting, now = Counting(), 1_000.0
    client.create_queue("orders")
    source = SqsSource(client, clock=lambda: now, metrics=CloudWatch("us-east-1", client=counting, clock=lambda: now))
    source.sample()  # as the history does once a minute
    assert counting.reads == 0
    source.facts()
    assert counting.reads == 1
    source.close()


def test_a_cloudwatch_that_refuses_is_a_note() -> None:
    from botocore.exceptions import ClientError

    class Refusing:
        def get_metric_data(self, **_wanted: Any) -> Any:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetMetricData")

    watch = CloudWatch("us-east-1", client=Refusing(), clock=lambda: 1_000.0)
    assert watch.series(("orders",), 0) == {}
    assert "cloudwatch:GetMetricData" in watch.notes()[0]
