"""The client works unchanged with an SQS other than Semel's: moto's server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clients import client_for

from semel.sqs import Client, Entry, Failure, Sent
from semel.sqs.errors import QueueNotFound
from servers import moto

pytest.importorskip("moto.server")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with moto.running() as url, client_for(url) as made:
        yield made


def test_the_whole_life_of_messages_works_on_moto(client: Client) -> None:
    queue = client.create_queue("orders", {"VisibilityTimeout": 60}, {"team": "blue"})
    queue.send("one", attributes={"kind": "a", "raw": b"\x00"}, delay=0)
    sent = queue.send_many([Entry(f"é{number}", attributes={"n": number}) for number in range(14)])
    assert all(isinstance(each, Sent) for each in sent)
    got = []
    while messages := queue.receive(10, 0):
        got += messages
    assert sorted(message.body for message in got) == sorted(["one", *(f"é{number}" for number in range(14))])
    (single,) = [message for message in got if message.body == "one"]
    assert single.attributes == {"kind": ("String", "a"), "raw": ("Binary", b"\x00")}
    assert (single.receive_count, single.sent_at is not None) == (1, True)
    assert queue.change_visibility([(single.receipt, 0)]) == [None]
    (again,) = queue.receive(10, 0)
    assert again.receive_count == 2
    outcomes = queue.delete([message.receipt for message in [*got, again]] + ["garbage"])
    assert outcomes[-2] is None
    assert isinstance(outcomes[-1], Failure)
    assert outcomes[-1].gone
    queue.drop()
    with pytest.raises(QueueNotFound):
        client.queue("orders").receive(10, 0)


def test_fifo_queues_work_on_moto(client: Client) -> None:
    queue = client.create_queue("orders.fifo")
    sent = queue.send("a", group="g", dedup="d")
    (got,) = queue.receive(10, 0)
    assert (got.group, got.dedup, got.sequence) == ("g", "d", sent.sequence)
    assert queue.arn.endswith(":orders.fifo")
    assert [each.name for each in client.queues("orders")] == ["orders.fifo"]
