"""The service with an SQS other than Semel's, moto's server: it reads by receiving, and releases everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.dlq.jobs import Job, State
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.service import DeadLetterService
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Client, Entry
from semel.sqs.client.messages import Attribute
from servers import moto

pytest.importorskip("moto.server")
DLQ = "orders-dlq"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with moto.running() as url, Client(url, moto.REGION, access_key="test", secret_key="test") as made:
        target = made.create_queue(DLQ)
        policy = {"deadLetterTargetArn": target.arn, "maxReceiveCount": 5}
        made.create_queue("orders", {"RedrivePolicy": json.dumps(policy)})
        yield made


def dead_letter(client: Client, count: int) -> None:
    entries = []
    for n in range(count):
        about = own_attributes.DeadLetterDetails(
            f"o-{n}", "TimeoutError", f"no answer after {n} s", 3, f"m-{n}", "orders"
        )
        body = json.dumps({"n": n})
        own = {"tenant": Attribute("String", "acme" if n % 2 else "umbrella")}
        entries.append(Entry(body, attributes=own_attributes.attributes(about, own, len(body))))
    client.queue(DLQ).send_many(entries)


def waiting(client: Client, queue: str = DLQ) -> tuple[str, str]:
    counts = client.queue(queue).attributes("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    return counts["ApproximateNumberOfMessages"], counts["ApproximateNumberOfMessagesNotVisible"]


def ended(job: Job) -> Job:
    assert job.wait(60)
    assert job.state is State.DONE, job.to_json()
    return job


@pytest.mark.slow
def test_everything_works_where_reading_means_receiving(client: Client, tmp_path: Path) -> None:
    dead_letter(client, 14)
    service = DeadLetterService(client, state=tmp_path, who="tester")
    (info,) = service.queues()
    assert (info.name, info.depth, info.sources, info.first_expires) == (DLQ, 14, ("orders",), None)
    page = service.messages(DLQ, "attr.tenant = acme", bodies=True)
    assert sorted(message.key for message in page.messages) == sorted(f"o-{n}" for n in range(1, 14, 2))
    assert "the receive count of 14 messages went up by 1" in str(page.cost)
    assert waiting(client) == ("14", "0")
    assert [group.count for group in service.groups(DLQ).groups] == [14]

    dropped = ended(service.delete(DLQ, "$.n < 4"))
    assert (dropped.counts.deleted, waiting(client)) == (4, ("10", "0"))
    assert ended(service.restore(Path(dropped.result["snapshot"]))).counts.sent == 4

    redrive = ended(service.redrive(RedrivePlan(queue=DLQ, canary=0, where="attr.tenant = umbrella")))
    assert (redrive.counts.sent, waiting(client), waiting(client, "orders")) == (7, ("7", "0"), ("7", "0"))

    (message,) = [message for message in service.messages(DLQ).messages if message.key == "o-13"]
    assert service.impact(DLQ, ids=[message.id]).count == 1
    assert service.resend(DLQ, message.id, body="{}").key == "o-13"
    assert (waiting(client), waiting(client, "orders")) == (("6", "0"), ("8", "0"))
