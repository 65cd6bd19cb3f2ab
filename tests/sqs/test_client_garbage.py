"""A malformed answer with status 200 raises an SqsError at once, and not somewhere later."""

from __future__ import annotations

from typing import Any

import pytest
from clients import client_for
from scripted_server import answer, in_turn, scripted

from semel.sqs import Queue
from semel.sqs.client.messages import Entry
from semel.sqs.errors import BadRequest, ServerFailed

MESSAGE = {"MessageId": "m", "ReceiptHandle": "r", "Body": "one"}


def receive(answered: dict[str, Any]) -> None:
    with scripted(in_turn(answer(answered))) as server, client_for(server.url, max_attempts=1) as client:
        client.queue(f"{server.url}/000000000000/orders").receive(wait=0)


@pytest.mark.parametrize(
    "odd",
    [
        {"Body": 5},
        {"MessageId": None},
        {"Attributes": {"SentTimestamp": "soon"}},
        {"Attributes": {"ApproximateReceiveCount": 1}},
        {"Attributes": []},
        {"MessageAttributes": {"a": {"StringValue": "x"}}},
        {"MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "A"}}},
        {"MessageAttributes": ["a"]},
    ],
)
def test_a_message_that_is_none_is_an_error_of_the_receive(odd: dict[str, Any]) -> None:
    with pytest.raises(ServerFailed, match="ReceiveMessage on queue orders"):
        receive({"Messages": [MESSAGE | odd]})


@pytest.mark.parametrize(
    ("call", "answered"),
    [
        (lambda queue: queue.send("x"), {"MessageId": 5}),
        (lambda queue: queue.send_many([Entry("x")]), {"Successful": [{"Id": "0", "MessageId": None}]}),
        (lambda queue: queue.delete(["r"]), {"Failed": [{"Id": "0", "Code": 5}]}),
        (lambda queue: queue.attributes(), {"Attributes": {"QueueArn": 5}}),
        (lambda queue: queue.attributes(), {"Attributes": []}),
        (lambda queue: queue.client.create_queue("new"), {"QueueUrl": 5}),
    ],
)
def test_an_answer_of_other_types_is_an_error_of_its_call(call: Any, answered: dict[str, Any]) -> None:
    with scripted(in_turn(answer(answered))) as server, client_for(server.url, max_attempts=1) as client:
        queue: Queue = client.queue(f"{server.url}/000000000000/orders")
        with pytest.raises(ServerFailed):
            call(queue)


def test_a_queue_url_that_is_no_url_is_refused_with_the_way_out() -> None:
    with client_for("http://127.0.0.1:9") as client, pytest.raises(BadRequest, match="does not end in a queue's name"):
        client.queue("http://[half/000000000000/orders")
