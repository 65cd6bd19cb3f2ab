"""The client on a real broker: every operation that the rest of Semel uses."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from clients import client_for
from scripted_server import answer, in_turn, scripted

import semel.broker
from semel.broker.embedded_broker import EmbeddedBroker
from semel.sqs import Attribute, AttributeValue, Client, Entry, Failure, Queue, Received, Sent
from semel.sqs.checksums import md5_of_body
from semel.sqs.errors import BadRequest, QueueExists, QueueNotFound, SqsError, TooSoon
from semel.sqs.limits import MAX_MESSAGE_BYTES


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with semel.broker.running(clock="manual", account="123456789012") as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with client_for(broker.url) as made:
        yield made


@pytest.fixture
def queue(client: Client) -> Queue:
    return client.create_queue("orders")


# Messages.


def test_a_message_comes_back_with_all_that_was_sent_and_all_that_sqs_adds(
    broker: EmbeddedBroker, queue: Queue
) -> None:
    attributes: dict[str, AttributeValue] = {
        "text": "ü",
        "count": 7,
        "ratio": 0.5,
        "raw": b"\x00\xff",
        "own": Attribute("Number.int", "3"),
    }
    sent = queue.send("hällo\r\n\t☃", attributes=attributes, trace="Root=1-2-3")
    (got,) = queue.receive(10, 0)
    assert (got.message_id, got.body) == (sent.message_id, "hällo\r\n\t☃")
    assert got.attributes == {
        "text": ("String", "ü"),
        "count": ("Number", "7"),
        "ratio": ("Number", "0.5"),
        "raw": ("Binary", b"\x00\xff"),
        "own": ("Number.int", "3"),
    }
    assert got.attributes is got.attributes
    assert got.receive_count == 1
    assert got.trace == "Root=1-2-3"
    assert got.sent_at == got.first_received_at == pytest.approx(broker.clock.now(), abs=1)
    assert (got.group, got.dedup, got.sequence, got.source_queue) == (None, None, None, None)


def test_a_fifo_message_has_its_group_its_dedup_id_and_its_sequence_number(client: Client) -> None:
    queue = client.create_queue("orders.fifo")
    sent = queue.send("a", group="g", dedup="d")
    (got,) = queue.receive(1, 0)
    assert queue.fifo
    assert (got.group, got.dedup, got.sequence) == ("g", "d", sent.sequence)
    assert sent.sequence is not None


def test_a_dead_letter_names_the_queue_that_it_comes_from(broker: EmbeddedBroker, client: Client) -> None:
    dead = client.create_queue("dead")
    queue = client.create_queue("alive", {"RedrivePolicy": {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 1}})
    queue.send("x")
    assert queue.receive(10, 0)
    broker.clock.advance(31)
    assert queue.receive(10, 0) == []
    (got,) = dead.receive(10, 0)
    assert got.source_queue == queue.arn
    assert got.receive_count == 2


def test_a_received_message_can_be_made_by_hand_for_a_users_tests() -> None:
    made = Received("id", "receipt", "body", {"ApproximateReceiveCount": "3"}, {"a": 1, "b": b"x"})
    assert (made.receive_count, made.attributes) == (3, {"a": ("Number", "1"), "b": ("Binary", b"x")})
    assert Received("id", "receipt", "body").attributes == {}
    assert "3" in repr(made)
    assert "body" not in repr(made)


def test_receive_takes_its_limit_and_its_visibility(broker: EmbeddedBroker, queue: Queue) -> None:
    queue.send_many([Entry(str(number)) for number in range(5)])
    assert len(queue.receive(2, 0, visibility=100)) == 2
    assert len(queue.receive(wait=0)) == 3
    broker.clock.advance(31)
    assert len(queue.receive(wait=0)) == 3
    broker.clock.advance(70)
    assert len(queue.receive(wait=0, visibility=0)) == 5
    assert len(queue.receive(wait=0)) == 5


def test_a_long_poll_ends_with_the_first_message(queue: Queue) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.receive, 10, 20)
        queue.send("here")
        assert [message.body for message in waiting.result()] == ["here"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("limit", 0), ("limit", 11), ("wait", -1), ("wait", 21), ("wait", 1.5), ("visibility", -1), ("visibility", 43201)],
)
def test_receive_says_which_option_is_wrong(queue: Queue, option: str, value: int) -> None:
    with pytest.raises(BadRequest, match=rf"ReceiveMessage on queue orders: {option}={value}"):
        queue.receive(**{option: value})  # type: ignore[arg-type]


# Batches.


def test_any_number_of_messages_is_sent_hidden_and_deleted_in_order(queue: Queue) -> None:
    sent = queue.send_many([Entry(str(number), attributes={"n": number}) for number in range(37)])
    ids = [each.message_id for each in sent if isinstance(each, Sent)]
    assert len(set(ids)) == 37
    got: list[Received] = []
    while messages := queue.receive(10, 0):
        got += messages
    assert [message.body for message in got] == [str(number) for number in range(37)]
    assert [message.message_id for message in got] == ids
    assert queue.change_visibility([(message.receipt, 0) for message in got[:12]]) == [None] * 12
    assert queue.attributes("ApproximateNumberOfMessages")["ApproximateNumberOfMessages"] == "12"
    outcomes = queue.delete(
        [*(message.receipt for message in got[:25]), "garbage", *(message.receipt for message in got[25:])]
    )
    assert outcomes[:25] + outcomes[26:] == [None] * 37
    assert isinstance(outcomes[25], Failure)
    assert (outcomes[25].code, outcomes[25].gone) == ("ReceiptHandleIsInvalid", True)
    assert queue.attributes("ApproximateNumberOfMessagesNotVisible")["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_nothing_is_asked_for_an_empty_batch(client: Client) -> None:
    nowhere = client.queue("not-there")
    assert nowhere.delete([]) == nowhere.change_visibility([]) == nowhere.send_many([]) == []


def test_large_messages_are_sent_in_as_many_batches_as_they_need(queue: Queue) -> None:
    sizes = [500_000, 500_000, 100_000, 1_048_576, 1, 1_000_000, 48_576, 1]
    sent = queue.send_many([Entry("x" * size) for size in sizes])
    assert all(isinstance(each, Sent) for each in sent), sent
    assert queue.attributes("ApproximateNumberOfMessages")["ApproximateNumberOfMessages"] == "8"


def test_attributes_count_towards_the_size_of_a_batch(queue: Queue) -> None:
    entry = Entry("é" * 200_000, attributes={"a": "b" * 200_000, "c": b"d" * 200_000})
    assert entry.size == 400_000 + 1 + 6 + 200_000 + 1 + 6 + 200_000
    assert all(isinstance(each, Sent) for each in queue.send_many([entry, entry, entry]))


def test_a_message_that_no_queue_takes_fails_alone(queue: Queue) -> None:
    large, odd = Entry("x" * (MAX_MESSAGE_BYTES + 1)), Entry("a\ud800")
    sent = queue.send_many([Entry("1"), large, odd, Entry("\x00"), Entry("2")])
    failures = [each for each in sent if isinstance(each, Failure)]
    assert [each.code for each in failures] == [
        "InvalidParameterValue",
        "InvalidMessageContents",
        "InvalidMessageContents",
    ]
    assert "1048577 bytes" in failures[0].message
    assert sorted(message.body for message in queue.receive(10, 0)) == ["1", "2"]


def test_a_failure_says_whether_the_message_is_out_of_reach(broker: EmbeddedBroker, client: Client) -> None:
    queue = client.create_queue("orders.fifo")
    queue.send("a", group="g", dedup="d")
    (got,) = queue.receive(1, 0)
    broker.clock.advance(31)
    (late,) = queue.delete([got.receipt])
    assert isinstance(late, Failure)
    assert (late.gone, late.sender_fault) == (True, True)
    (again,) = queue.receive(1, 0)
    (beyond,) = queue.change_visibility([(again.receipt, 50_000)])
    assert isinstance(beyond, Failure)
    assert not beyond.gone


@pytest.mark.parametrize("body", [b"bytes", 7, None])
def test_a_body_that_is_no_text_is_refused_before_it_is_sent(queue: Queue, body: str) -> None:
    with pytest.raises(BadRequest, match="body of a message is a str"):
        queue.send(body)
    with pytest.raises(BadRequest, match="body of a message is a str"):
        queue.send_many([Entry(body)])


def test_a_lone_surrogate_is_refused_with_the_queues_name(queue: Queue) -> None:
    with pytest.raises(BadRequest, match=r"SendMessage on queue orders: .*surrogates"):
        queue.send("a\ud800")


@pytest.mark.parametrize("value", [True, None, [1]])
def test_an_attribute_of_no_known_type_is_refused(queue: Queue, value: str) -> None:
    with pytest.raises(BadRequest, match="a message attribute is a str"):
        queue.send("x", attributes={"a": value})


def test_a_body_that_was_damaged_on_the_way_stays_in_the_queue(caplog: pytest.LogCaptureFixture) -> None:
    good = {"MessageId": "1", "ReceiptHandle": "r1", "Body": "good", "MD5OfBody": md5_of_body("good")}
    bad = {"MessageId": "2", "ReceiptHandle": "r2", "Body": "bad", "MD5OfBody": md5_of_body("was good")}
    unknown = {"MessageId": "3", "ReceiptHandle": "r3", "Body": "who knows"}
    with (
        scripted(in_turn(answer({"Messages": [good, bad, unknown]}))) as server,
        client_for(server.url) as client,
    ):
        got = client.queue(f"{server.url}/1/orders").receive(10, 0)
    assert [message.message_id for message in got] == ["1", "3"]
    assert "message 2 does not match its checksum" in caplog.text


# Queues.


def test_a_queue_is_found_by_name_url_and_arn(client: Client, queue: Queue) -> None:
    arn = "arn:aws:sqs:us-east-1:123456789012:orders"
    assert queue.arn == arn
    for reference in ("orders", queue.url, arn):
        by_reference = client.queue(reference)
        assert (by_reference.name, by_reference.url, by_reference.arn, by_reference.fifo) == (
            "orders",
            queue.url,
            arn,
            False,
        )
        assert client.queue(reference) is by_reference
    assert client.queue(queue) is queue


def test_a_queue_is_looked_up_once_and_only_when_it_is_used() -> None:
    url_answer = answer({"QueueUrl": "http://elsewhere:1/123456789012/orders"})
    with scripted(in_turn(url_answer, answer())) as server, client_for(server.url) as client:
        queue = client.queue("arn:aws:sqs:eu-west-1:123456789012:orders")
        assert server.requests == []
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda _: queue.receive(10, 0), range(8)))
        first, *rest = server.requests
    assert first.params == {"QueueName": "orders", "QueueOwnerAWSAccountId": "123456789012"}
    assert [request.operation for request in rest] == ["ReceiveMessage"] * 8
    # The endpoint stays the client's own, whatever host the URL names.
    assert {request.params["QueueUrl"] for request in rest} == {"http://elsewhere:1/123456789012/orders"}


@pytest.mark.parametrize(
    "reference", ["", "a b", "x" * 81, "arn:aws:sns:eu-west-1:1:topic", "arn:aws:sqs:eu-west-1:1:a/b", "http://host/"]
)
def test_what_cannot_be_a_queue_is_refused_at_once(client: Client, reference: str) -> None:
    with pytest.raises(BadRequest, match="queue"):
        client.queue(reference)


def test_a_queue_that_is_not_there_is_named_with_the_way_out(client: Client) -> None:
    with pytest.raises(QueueNotFound) as caught:
        client.queue("nowhere").receive(10, 0)
    error = caught.value
    assert (error.operation, error.queue, error.status, error.retryable) == ("GetQueueUrl", "nowhere", 400, False)
    assert error.code == "AWS.SimpleQueueService.NonExistentQueue"
    assert error.request_id
    command = f"semel queues create nowhere --region us-east-1 --endpoint-url {client.endpoint}"
    for words in (command, "create_queue()"):
        assert words in str(error)


def test_queues_are_made_with_attributes_and_tags_of_plain_python(client: Client) -> None:
    attributes = {"VisibilityTimeout": 7, "ContentBasedDeduplication": True, "DelaySeconds": "3"}
    queue = client.create_queue("made.fifo", attributes, {"team": "blue"})
    queue_attributes = queue.attributes()
    assert (queue_attributes["VisibilityTimeout"], queue_attributes["ContentBasedDeduplication"]) == ("7", "true")
    assert (queue_attributes["DelaySeconds"], queue_attributes["FifoQueue"]) == ("3", "true")
    assert client.call("ListQueueTags", {"QueueUrl": queue.url}) == {"Tags": {"team": "blue"}}
    assert client.create_queue("made.fifo", attributes) is queue
    with pytest.raises(QueueExists, match="VisibilityTimeout"):
        client.create_queue("made.fifo", {"VisibilityTimeout": 8})


def test_all_queues_are_listed_page_by_page() -> None:
    pages = [{"QueueUrls": ["http://h/1/a", "http://h/1/b"], "NextToken": "t"}, {"QueueUrls": ["http://h/1/c"]}]
    with scripted(in_turn(*map(answer, pages))) as server, client_for(server.url) as client:
        assert [queue.name for queue in client.queues("x")] == ["a", "b", "c"]
        assert [request.params.get("NextToken") for request in server.requests] == [None, "t"]
        assert {request.params["QueueNamePrefix"] for request in server.requests} == {"x"}


def test_queues_are_listed_by_prefix(client: Client) -> None:
    for name in ("a-1", "a-2", "b"):
        client.create_queue(name)
    assert [queue.name for queue in client.queues("a-")] == ["a-1", "a-2"]
    assert len(client.queues()) == 3


def test_purge_and_drop_do_what_they_say(client: Client, queue: Queue) -> None:
    queue.send("x")
    queue.purge()
    assert queue.receive(10, 0) == []
    with pytest.raises(TooSoon):
        queue.purge()
    queue.drop()
    assert client.queues() == []
    with pytest.raises(QueueNotFound):
        client.queue("orders").receive(10, 0)


def test_any_other_operation_can_be_called_by_name(client: Client, queue: Queue) -> None:
    client.call("TagQueue", {"QueueUrl": queue.url, "Tags": {"a": "b"}})
    assert queue.call("ListQueueTags", {}) == {"Tags": {"a": "b"}}
    with pytest.raises(SqsError):
        client.call("FlyToTheMoon")
    with pytest.raises(BadRequest, match="not an operation"):
        client.call("ListQueues\r\nX: y")


def test_one_client_serves_many_threads(queue: Queue) -> None:
    bodies: list[str] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        queue.send_many([Entry(f"{number}-{place}") for place in range(20)])
        for _ in range(4):
            messages = queue.receive(10, 0)
            assert queue.delete([message.receipt for message in messages]) == [None] * len(messages)
            with lock:
                bodies.extend(message.body for message in messages)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    while messages := queue.receive(10, 0):
        bodies += [message.body for message in messages]
    assert sorted(bodies) == sorted(f"{number}-{place}" for number in range(16) for place in range(20))


# What importing costs.


@pytest.mark.parametrize(
    ("statement", "absent"),
    [("import semel.broker", "semel.sqs.client"), ("from semel.sqs import Client", "botocore")],
)
def test_nobody_loads_more_than_is_needed(statement: str, absent: str) -> None:
    code = f"import sys; {statement}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_there_is_no_name_that_is_not_there() -> None:
    import semel.sqs

    with pytest.raises(AttributeError, match="nonsense"):
        semel.sqs.nonsense  # noqa: B018
