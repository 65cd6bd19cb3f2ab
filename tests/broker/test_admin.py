"""The admin interface over plain HTTP: peek, queues, health, clock, metrics, and who may use it."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic, time
from typing import Any, Final
from urllib.parse import quote, urlsplit

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from serve_process import ACCOUNT, Answer, Connection, request

from semel import __version__
from semel.broker import EmbeddedBroker, running
from semel.broker.engine import Caller, Engine, Wanted
from semel.broker.engine.schema import open_database
from semel.errors import SemelError

SESSION: Final = boto3.session.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1")
KEY, SECRET = "AKIAEXAMPLE", "wJalrXUtnFEMI/K7MDENG"


class Service:
    """A broker, one client, and bare HTTP requests."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker, self.clock = broker, broker.clock
        once = Config(retries={"total_max_attempts": 1})
        self.client = SESSION.client("sqs", endpoint_url=broker.url, config=once)

    def connect(self) -> Connection:
        host = urlsplit(self.broker.url)
        assert host.hostname is not None
        assert host.port is not None
        return Connection(host.hostname, host.port)

    def ask(self, path: str, method: str = "GET", body: object = b"", **headers: str) -> Answer:
        """One request; `Content_Type="text/plain"` is the header Content-Type."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        with self.connect() as connection:
            connection.send(request(path, data, host=self.broker.url, method=method, headers=lines))
            return connection.answer()

    def create(self, name: str = "orders", **attributes: Any) -> str:
        if name.endswith(".fifo"):
            attributes |= {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        return self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]

    def send(self, url: str, body: str, **params: Any) -> str:
        return self.client.send_message(QueueUrl=url, MessageBody=body, **params)["MessageId"]

    def receive(self, url: str, most: int = 10, **params: Any) -> list[dict[str, Any]]:
        answer: Any = self.client.receive_message(QueueUrl=url, MaxNumberOfMessages=most, **params)
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def peek(self, filters: str = "", queue: str = "orders") -> list[str]:
        """The bodies that a peek finds."""
        answer = self.ask(f"/_semel/queues/{queue}/messages?{filters}")
        assert answer.status == 200, answer
        return [message["Body"] for message in answer.json["Messages"]]


@pytest.fixture
def start() -> Iterator[Callable[..., Service]]:
    with ExitStack() as stack:

        def begin(**options: Any) -> Service:
            service = Service(stack.enter_context(running(**{"clock": "manual"} | options)))
            stack.callback(service.client.close)
            return service

        yield begin


@pytest.fixture
def sqs(start: Callable[..., Service]) -> Service:
    return start()


def assert_refused(answer: Answer, status: int) -> str:
    """A JSON answer that says what is wrong."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json) == ["error"]
    text: str = answer.json["error"]
    assert len(text) > 10
    return text


# Peek.


def mixed(sqs: Service) -> str:
    """A queue with one message in flight, two visible, one delayed."""
    url = sqs.create()
    sqs.send(url, "taken")
    assert len(sqs.receive(url, VisibilityTimeout=30)) == 1
    sqs.send(url, "free")
    sqs.send(url, "later", DelaySeconds=60)
    sqs.send(url, "free too")
    return url


def test_messages_are_shown_in_the_order_in_which_they_came_whatever_they_do(sqs: Service) -> None:
    mixed(sqs)
    assert sqs.peek() == ["taken", "free", "later", "free too"]


def test_messages_are_found_by_what_they_do(sqs: Service) -> None:
    mixed(sqs)
    assert sqs.peek("state=visible") == ["free", "free too"]
    assert sqs.peek("state=in_flight") == ["taken"]
    assert sqs.peek("state=delayed") == ["later"]
    sqs.clock.advance(30)
    assert sqs.peek("state=in_flight") == []
    assert sqs.peek("state=visible") == ["taken", "free", "free too"]
    sqs.clock.advance(30)
    assert sqs.peek("state=visible") == ["taken", "free", "later", "free too"]


def test_a_message_is_shown_with_all_that_is_known_of_it(sqs: Service) -> None:
    url = sqs.create(MessageRetentionPeriod="600")
    now = sqs.clock.now()
    colour = {"colour": {"DataType": "String", "StringValue": "red"}}
    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
    sent: Any = sqs.client.send_message(
        QueueUrl=url,
        MessageBody="hello",
        MessageAttributes=colour,  # type: ignore[arg-type]
        MessageSystemAttributes=system,  # type: ignore[arg-type]
        MessageGroupId="tenant",
    )
    sqs.clock.advance(5)
    sqs.receive(url, VisibilityTimeout=40)
    (shown,) = sqs.broker.peek("orders")
    assert shown == {
        "MessageId": sent["MessageId"],
        "State": "in_flight",
        "Body": "hello",
        "MD5OfBody": sent["MD5OfMessageBody"],
        "Attributes": {
            "SenderId": "000000000000",
            "SentTimestamp": str(round(now * 1000)),
            "ApproximateReceiveCount": "1",
            "ApproximateFirstReceiveTimestamp": str(round(now * 1000) + 5000),
            "MessageGroupId": "tenant",
            "AWSTraceHeader": "Root=1",
        },
        "ReceivesInThisQueue": 1,
        "Place": 1,
        "ExpiresAt": pytest.approx(now + 600),
        "VisibleAt": pytest.approx(now + 45),
        "MessageAttributes": colour,
    }


def test_a_fifo_message_is_shown_with_its_group_its_number_and_its_deduplication_id(sqs: Service) -> None:
    url = sqs.create("orders.fifo")
    sent = sqs.client.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g", MessageDeduplicationId="d")
    (shown,) = sqs.broker.peek("orders.fifo")
    assert shown["Attributes"]["SequenceNumber"] == sent["SequenceNumber"]
    assert shown["Attributes"]["MessageGroupId"] == "g"
    assert shown["Attributes"]["MessageDeduplicationId"] == "d"


def test_a_dead_letter_is_shown_with_where_it_came_from_and_both_counts(sqs: Service) -> None:
    _, url = pair(sqs, most=1)
    sqs.send(url, "poison")
    assert [len(sqs.receive(url, VisibilityTimeout=0)) for _ in range(2)] == [1, 0]
    (shown,) = sqs.broker.peek("dead")
    assert shown["Attributes"]["DeadLetterQueueSourceArn"] == f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders"
    assert (shown["Attributes"]["ApproximateReceiveCount"], shown["ReceivesInThisQueue"]) == ("1", 0)


def test_messages_are_found_by_id_body_group_attributes_and_receives(sqs: Service) -> None:
    url = sqs.create()

    def text(value: str) -> dict[str, str]:
        return {"DataType": "String", "StringValue": value}

    sqs.send(url, "red apple", MessageAttributes={"colour": text("red"), "size": text("a=b & c")})
    sqs.send(url, "red car", MessageAttributes={"colour": text("red")}, MessageGroupId="cars")
    last = sqs.send(url, "green apple", MessageAttributes={"colour": text("green")})
    assert sqs.peek(f"id={last}") == ["green apple"]
    assert sqs.peek("body=apple") == ["red apple", "green apple"]
    assert sqs.peek("body=Apple") == []
    assert sqs.peek("group=cars") == ["red car"]
    assert sqs.peek("attribute=colour%3Dred") == ["red apple", "red car"]
    assert sqs.peek(f"attribute=colour=red&attribute={quote('size=a=b & c')}") == ["red apple"]
    assert sqs.peek("attribute=colour=blue") == []
    assert sqs.peek("body=apple&attribute=colour=red&state=visible") == ["red apple"]
    assert sqs.peek("body=apple&attribute=colour=red&state=delayed") == []
    sqs.receive(url, 1, VisibilityTimeout=0)
    assert sqs.peek("min_receives=1") == ["red apple"]
    assert sqs.peek("min_receives=0") == ["red apple", "red car", "green apple"]


def test_looking_changes_nothing(sqs: Service) -> None:
    url = mixed(sqs)
    before = sqs.broker.peek("orders")
    for _ in range(5):
        assert sqs.broker.peek("orders") == before
    counts: dict[str, str] = sqs.client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]  # type: ignore[assignment]
    names = ("", "NotVisible", "Delayed")
    assert [counts[f"ApproximateNumberOfMessages{name}"] for name in names] == ["2", "1", "1"]
    assert metrics(sqs)["sqs_NumberOfMessagesReceived_total", "orders"] == 1
    received = sqs.receive(url, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    assert [m["Attributes"]["ApproximateReceiveCount"] for m in received] == ["1", "1"]


def test_a_timeout_that_has_ended_is_seen_before_anybody_receives() -> None:
    """By the system's clock a timeout ends while nobody touches the queue; here the engine is asked alone."""
    engine = Engine(open_database(None), Random(1))
    engine.begin()
    start = Caller(1_000_000, "http://sqs", "test", None)
    url = engine.perform("CreateQueue", {"QueueName": "orders"}, start)["QueueUrl"]
    engine.perform("SendMessage", {"QueueUrl": url, "MessageBody": "a"}, start)
    engine.perform("ReceiveMessage", {"QueueUrl": url, "VisibilityTimeout": 30}, start)
    moments = [1_029_999, 1_030_000]
    message_states = [engine.peek("orders", Wanted(), now=now)["Messages"][0]["State"] for now in moments]
    engine.close()
    assert message_states == ["in_flight", "visible"]


@pytest.mark.parametrize("limit", [1, 7, 10, 25, 1000])
def test_pages_show_every_message_once_and_end(sqs: Service, limit: int) -> None:
    url = sqs.create()
    for start in range(0, 20, 10):
        entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(start, start + 10)]
        sqs.client.send_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
    bodies, after, pages = [], 0, 0
    while True:
        page = sqs.ask(f"/_semel/queues/orders/messages?limit={limit}&after={after}").json
        assert len(page["Messages"]) <= limit
        bodies += [message["Body"] for message in page["Messages"]]
        pages += 1
        if "Next" not in page:
            break
        assert page["Next"] > after
        after = page["Next"]
    assert bodies == [str(n) for n in range(20)]
    assert pages <= 20 // limit + 1


def test_a_page_of_what_was_filtered_is_full(sqs: Service) -> None:
    url = sqs.create()
    for number in range(12):
        sqs.send(url, f"{'even' if number % 2 == 0 else 'odd'} {number}")
    page = sqs.ask("/_semel/queues/orders/messages?limit=3&body=odd").json
    assert [message["Body"] for message in page["Messages"]] == ["odd 1", "odd 3", "odd 5"]
    rest = sqs.ask(f"/_semel/queues/orders/messages?limit=3&body=odd&after={page['Next']}").json
    assert [message["Body"] for message in rest["Messages"]] == ["odd 7", "odd 9", "odd 11"]


def test_an_empty_queue_shows_nothing(sqs: Service) -> None:
    sqs.create()
    assert sqs.ask("/_semel/queues/orders/messages").json == {"Messages": [], "End": 0}


def test_what_was_deleted_purged_or_has_expired_is_not_shown(sqs: Service) -> None:
    url = sqs.create(MessageRetentionPeriod="60")
    sqs.send(url, "deleted")
    (message,) = sqs.receive(url)
    sqs.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.send(url, "purged")
    sqs.client.purge_queue(QueueUrl=url)
    sqs.send(url, "expires")
    assert sqs.peek() == ["expires"]
    sqs.clock.advance(60)
    assert sqs.peek() == []


def test_a_queue_that_is_not_there_is_a_404(sqs: Service) -> None:
    assert "does not exist" in assert_refused(sqs.ask("/_semel/queues/nowhere/messages"), 404)
    with pytest.raises(SemelError, match="does not exist"):
        sqs.broker.peek("nowhere")


@pytest.mark.parametrize(
    "query",
    [
        "state=gone",
        "state=VISIBLE",
        "limit=0",
        "limit=-1",
        "limit=1001",
        "limit=ten",
        "limit=1.5",
        "limit=%C2%B2",
        "after=-1",
        "after=soon",
        "after=99999999999999999999",
        "min_receives=-1",
        "min_receives=often",
        "stat=delayed",
        "attribute=colour",
    ],
)
def test_a_bad_parameter_is_a_400_that_names_it(sqs: Service, query: str) -> None:
    sqs.send(sqs.create(), "a")
    text = assert_refused(sqs.ask(f"/_semel/queues/orders/messages?{query}"), 400)
    assert query.partition("=")[0] in text


# Health and queues.


def test_health_tells_the_version_and_the_time(sqs: Service) -> None:
    answer = sqs.ask("/_semel/health")
    assert answer.json == {"status": "ok", "version": __version__, "now": pytest.approx(sqs.clock.now())}


def test_queues_are_listed_with_what_they_hold(sqs: Service) -> None:
    assert sqs.ask("/_semel/queues").json == {"queues": []}
    mixed(sqs)
    fifo = sqs.create("jobs.fifo", VisibilityTimeout="7")
    sqs.send(fifo, "a", MessageGroupId="g")
    sqs.receive(fifo)
    sqs.clock.advance(3)
    first, second = sqs.ask("/_semel/queues").json["queues"]
    assert first["attributes"]["VisibilityTimeout"] == "7"
    assert {name: value for name, value in first.items() if name != "attributes"} == {
        "name": "jobs.fifo",
        "arn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:jobs.fifo",
        "fifo": True,
        "visible": 0,
        "in_flight": 1,
        "delayed": 0,
        "oldest_age": 3,
        "busy_groups": 1,
    }
    counts = {name: second[name] for name in ("name", "fifo", "visible", "in_flight", "delayed")}
    assert counts == {"name": "orders", "fifo": False, "visible": 2, "in_flight": 1, "delayed": 1}


# The clock.


def test_a_manual_clock_stands_still_until_it_is_moved(sqs: Service) -> None:
    begin = sqs.ask("/_semel/clock").json
    assert begin == {"now": pytest.approx(time(), abs=60), "manual": True}
    assert sqs.ask("/_semel/clock").json == begin
    moved = sqs.ask("/_semel/clock/advance", "POST", {"seconds": 5}).json
    assert moved == {"now": pytest.approx(begin["now"] + 5, abs=0.0001), "manual": True}
    assert sqs.ask("/_semel/clock").json == moved
    sqs.clock.advance(0.25)
    assert sqs.clock.now() == pytest.approx(begin["now"] + 5.25, abs=0.0001)
    sqs.clock.advance(0)
    assert sqs.clock.now() == pytest.approx(begin["now"] + 5.25, abs=0.0001)


def test_the_system_clock_cannot_be_moved(start: Callable[..., Service]) -> None:
    sqs = start(clock="system")
    assert sqs.ask("/_semel/clock").json == {"now": pytest.approx(time(), abs=60), "manual": False}
    assert "--clock manual" in assert_refused(sqs.ask("/_semel/clock/advance", "POST", {"seconds": 5}), 409)
    with pytest.raises(SemelError, match="--clock manual"):
        sqs.clock.advance(5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"5",
        b"[5]",
        b"seconds=5",
        b"{}",
        b'{"minutes": 5}',
        b'{"seconds": null}',
        b'{"seconds": "5"}',
        b'{"seconds": [5]}',
        b'{"seconds": true}',
        b'{"seconds": -1}',
        b'{"seconds": 1e9}',
        b'{"seconds": 1e400}',
    ],
)
def test_a_clock_is_not_moved_by_anything_but_a_number_of_seconds(sqs: Service, body: bytes) -> None:
    before = sqs.clock.now()
    assert_refused(sqs.ask("/_semel/clock/advance", "POST", body), 400)
    assert sqs.clock.now() == before


def parked(sqs: Service, stack: ExitStack, queue: str, **params: Any) -> Connection:
    """A poll that waits at the broker."""
    poll = stack.enter_context(sqs.connect())
    poll.ask("ReceiveMessage", queue, WaitTimeSeconds=20, **params)
    # Two requests later it has been read and carried out: it was there first.
    for _ in range(2):
        sqs.ask("/_semel/health")
    poll.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        poll.socket.recv(1)
    poll.socket.settimeout(10)
    return poll


def test_moving_the_clock_wakes_polls_whose_message_becomes_visible(sqs: Service) -> None:
    delayed, hidden = sqs.create("delayed"), sqs.create("hidden")
    sqs.send(delayed, "after a delay", DelaySeconds=10)
    sqs.send(hidden, "after a timeout")
    sqs.receive(hidden, VisibilityTimeout=10)
    with ExitStack() as stack:
        polls = [parked(sqs, stack, queue) for queue in ("delayed", "hidden")]
        begin = monotonic()
        sqs.clock.advance(9)
        assert {message["state"] for message in states(sqs, "delayed", "hidden")} == {"delayed", "in_flight"}
        sqs.clock.advance(1)
        bodies = [poll.answer().json["Messages"][0]["Body"] for poll in polls]
        assert bodies == ["after a delay", "after a timeout"]
        assert monotonic() - begin < 8


def states(sqs: Service, *queues: str) -> list[dict[str, str]]:
    return [{"body": m["Body"], "state": m["State"]} for queue in queues for m in sqs.broker.peek(queue)]


def test_moving_the_clock_ends_polls_whose_wait_is_over(sqs: Service) -> None:
    sqs.create()
    with ExitStack() as stack:
        poll = parked(sqs, stack, "orders")
        begin = monotonic()
        sqs.clock.advance(20)
        answer = poll.answer()
        assert (answer.status, answer.json) == (200, {})
        assert monotonic() - begin < 8


def test_moving_the_clock_ends_visibility_and_delay(sqs: Service) -> None:
    url = sqs.create(VisibilityTimeout="30")
    sqs.send(url, "taken")
    sqs.receive(url)
    sqs.send(url, "later", DelaySeconds=30)
    sqs.clock.advance(29.999)
    assert sqs.receive(url) == []
    sqs.clock.advance(0.001)
    assert sorted(message["Body"] for message in sqs.receive(url)) == ["later", "taken"]


def test_moving_the_clock_ends_the_deduplication_window(sqs: Service) -> None:
    url = sqs.create("orders.fifo")
    first = sqs.send(url, "same", MessageGroupId="g")
    sqs.clock.advance(299.999)
    assert sqs.send(url, "same", MessageGroupId="g") == first
    sqs.clock.advance(0.001)
    assert sqs.send(url, "same", MessageGroupId="g") != first
    assert sqs.peek(queue="orders.fifo") == ["same", "same"]


def test_moving_the_clock_ends_the_pause_after_a_purge(sqs: Service) -> None:
    url = sqs.create()
    sqs.client.purge_queue(QueueUrl=url)
    with pytest.raises(sqs.client.exceptions.PurgeQueueInProgress):
        sqs.client.purge_queue(QueueUrl=url)
    sqs.clock.advance(60)
    sqs.client.purge_queue(QueueUrl=url)


def test_moving_the_clock_far_does_all_that_fell_due_on_the_way(sqs: Service) -> None:
    url = sqs.create(MessageRetentionPeriod="1209600")
    for number in range(3):
        sqs.send(url, str(number), DelaySeconds=number * 100)
    sqs.clock.advance(1_209_599)
    assert sqs.peek("state=visible") == ["0", "1", "2"]
    sqs.clock.advance(1)
    assert sqs.peek() == []


# Metrics.

SAMPLE: Final = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL: Final = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\\n]|\\["\\n])*)"(?:,|\Z)')
ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def labels_of(text: str) -> dict[str, str]:
    labels, place = {}, 0
    while place < len(text):
        match = LABEL.match(text, place)
        assert match, text
        assert match["name"] not in labels, text
        labels[match["name"]] = re.sub(r'\\["\\n]', lambda escape: ESCAPES[escape[0]], match["value"])
        place = match.end()
    return labels


def parse(text: str) -> dict[tuple[str, ...], float]:
    """Prometheus' text format, strictly: name and label values to value."""
    assert text.endswith("\n")
    samples: dict[tuple[str, ...], float] = {}
    described: dict[str, str] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in described, f"{family} comes twice"
            assert line.split(" ", 3)[3]
            described[family] = "untyped"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family
            assert kind in ("counter", "gauge", "summary")
            assert kind != "counter" or name.endswith("_total")
            described[family] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            suffixes = ("_sum", "_count") if described[family] == "summary" else ("",)
            assert match["name"] in [family + suffix for suffix in suffixes], line
            key = (match["name"], *labels_of(match["labels"] or "").values())
            assert key not in samples, line
            samples[key] = float(match["value"])
            assert samples[key] >= 0
    return samples


def metrics(sqs: Service) -> dict[tuple[str, ...], float]:
    return parse(sqs.broker.metrics())


def of_queue(sqs: Service, queue: str) -> dict[str, float]:
    """All metrics of a queue but those that are 0, by the names that CloudWatch has for them."""
    samples = {key[0]: value for key, value in metrics(sqs).items() if key[1:] == (queue,)}
    assert all(name.startswith("sqs_") for name in samples)
    plain = {name.removeprefix("sqs_").removesuffix("_total"): value for name, value in samples.items()}
    assert set(plain) == set(CLOUDWATCH.split())
    return {name: value for name, value in plain.items() if value}


CLOUDWATCH: Final = """
NumberOfMessagesSent NumberOfMessagesReceived NumberOfMessagesDeleted NumberOfEmptyReceives
NumberOfDeduplicatedSentMessages NumberOfMessagesDeadLettered
ApproximateNumberOfMessagesVisible ApproximateNumberOfMessagesNotVisible ApproximateNumberOfMessagesDelayed
ApproximateAgeOfOldestMessage ApproximateNumberOfGroupsWithInflightMessages SentMessageSize_sum SentMessageSize_count
"""


def pair(sqs: Service, most: int, suffix: str = "") -> tuple[str, str]:
    """A dead-letter queue and a queue that uses it."""
    dead = sqs.create(f"dead{suffix}")
    policy = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead{suffix}", "maxReceiveCount": most}
    return dead, sqs.create(f"orders{suffix}", RedrivePolicy=json.dumps(policy))


def test_metrics_are_prometheus_text(sqs: Service) -> None:
    answer = sqs.ask("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert parse(answer.body.decode()) == {}
    sqs.create()
    assert set(of_queue(sqs, "orders")) == set()


def test_every_metric_of_a_standard_queue_is_right_after_a_known_day(sqs: Service) -> None:
    _, url = pair(sqs, most=2)
    sqs.send(url, "poison")
    for _ in range(2):
        sqs.receive(url, VisibilityTimeout=0)
    assert sqs.receive(url) == []  # moved to the dead-letter queue
    assert sqs.receive(url) == []
    sqs.clock.advance(40)
    entries = [{"Id": str(n), "MessageBody": "é" * 5} for n in range(4)]
    sqs.client.send_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
    first, _second = sqs.receive(url, 2, VisibilityTimeout=100)
    for _ in range(2):
        sqs.client.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    colour: Any = {"colour": {"DataType": "String", "StringValue": "red"}}
    sqs.send(url, "later", DelaySeconds=900, MessageAttributes=colour)
    sqs.clock.advance(2.5)
    assert of_queue(sqs, "orders") == {
        "NumberOfMessagesSent": 6,
        "NumberOfMessagesReceived": 4,
        "NumberOfMessagesDeleted": 2,
        "NumberOfEmptyReceives": 2,
        "NumberOfMessagesDeadLettered": 1,
        "ApproximateNumberOfMessagesVisible": 2,
        "ApproximateNumberOfMessagesNotVisible": 1,
        "ApproximateNumberOfMessagesDelayed": 1,
        "ApproximateAgeOfOldestMessage": 2.5,
        "SentMessageSize_sum": len("poison") + 4 * 10 + len("later") + len("colour" + "String" + "red"),
        "SentMessageSize_count": 6,
    }
    assert of_queue(sqs, "dead") == {"ApproximateNumberOfMessagesVisible": 1, "ApproximateAgeOfOldestMessage": 42.5}


def test_every_metric_of_a_fifo_queue_is_right_after_a_known_day(sqs: Service) -> None:
    _, url = pair(sqs, most=1, suffix=".fifo")
    for group in ("g1", "g2", "g3"):
        sqs.send(url, f"of {group}", MessageGroupId=group)
    for _ in range(3):
        sqs.send(url, "of g1", MessageGroupId="g1")
    sqs.clock.advance(7)
    assert len(sqs.receive(url, 2, VisibilityTimeout=30)) == 2
    assert of_queue(sqs, "orders.fifo") == {
        "NumberOfMessagesSent": 6,
        "NumberOfMessagesReceived": 2,
        "NumberOfDeduplicatedSentMessages": 3,
        "ApproximateNumberOfMessagesVisible": 1,
        "ApproximateNumberOfMessagesNotVisible": 2,
        "ApproximateAgeOfOldestMessage": 7,
        "ApproximateNumberOfGroupsWithInflightMessages": 2,
        "SentMessageSize_sum": 6 * 5,
        "SentMessageSize_count": 6,
    }
    sqs.clock.advance(30)
    assert [message["Body"] for message in sqs.receive(url)] == ["of g3"]
    sqs.clock.advance(1)
    moved = of_queue(sqs, "orders.fifo")
    assert moved["NumberOfMessagesDeadLettered"] == 2
    assert moved["ApproximateNumberOfGroupsWithInflightMessages"] == 1
    assert of_queue(sqs, "dead.fifo") == {"ApproximateNumberOfMessagesVisible": 2, "ApproximateAgeOfOldestMessage": 1}


def test_the_age_skips_messages_that_were_received_three_times(sqs: Service) -> None:
    url = sqs.create()
    sqs.send(url, "troubled")
    for _ in range(2):
        sqs.receive(url, VisibilityTimeout=0)
    sqs.clock.advance(50)
    sqs.send(url, "fresh", DelaySeconds=900)
    sqs.clock.advance(10)
    assert of_queue(sqs, "orders")["ApproximateAgeOfOldestMessage"] == 60
    sqs.receive(url, VisibilityTimeout=0)
    assert of_queue(sqs, "orders")["ApproximateAgeOfOldestMessage"] == 10


def test_the_age_is_0_if_every_message_was_received_three_times(sqs: Service) -> None:
    url = sqs.create()
    sqs.send(url, "troubled")
    sqs.clock.advance(50)
    for _ in range(3):
        sqs.receive(url, VisibilityTimeout=0)
    assert "ApproximateAgeOfOldestMessage" not in of_queue(sqs, "orders")


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_the_age_restarts_with_a_move_to_the_dead_letter_queue(sqs: Service, suffix: str) -> None:
    _, url = pair(sqs, most=1, suffix=suffix)
    sqs.send(url, "poison", **({"MessageGroupId": "g"} if suffix else {}))
    sqs.clock.advance(500)
    sqs.receive(url, VisibilityTimeout=0)
    assert of_queue(sqs, f"orders{suffix}")["ApproximateAgeOfOldestMessage"] == 500
    assert sqs.receive(url) == []
    assert "ApproximateAgeOfOldestMessage" not in of_queue(sqs, f"dead{suffix}")
    sqs.clock.advance(20)
    assert of_queue(sqs, f"dead{suffix}")["ApproximateAgeOfOldestMessage"] == 20


def test_an_old_message_is_as_old_to_the_second_as_it_is(sqs: Service) -> None:
    url = sqs.create(MessageRetentionPeriod="1209600")
    sqs.send(url, "old")
    sqs.clock.advance(1_209_000.5)
    assert of_queue(sqs, "orders")["ApproximateAgeOfOldestMessage"] == pytest.approx(1_209_000.5, abs=1)


def test_a_long_poll_that_ends_without_a_message_is_an_empty_receive(sqs: Service) -> None:
    sqs.create()
    with ExitStack() as stack:
        poll = parked(sqs, stack, "orders")
        assert "NumberOfEmptyReceives" not in of_queue(sqs, "orders")
        sqs.clock.advance(20)
        assert poll.answer().json == {}
    assert of_queue(sqs, "orders")["NumberOfEmptyReceives"] == 1


def test_a_name_that_a_client_made_up_cannot_break_the_format(sqs: Service) -> None:
    name = 'x"} 1\nsqs_forged{a="\\'
    sqs.broker.faults.set("throttle", 1.0)
    with pytest.raises(sqs.client.exceptions.RequestThrottled):
        sqs.client.get_queue_url(QueueName=name)
    assert metrics(sqs) == {("semel_faults_injected_total", "", "throttle"): 1}


def test_the_metrics_of_a_queue_that_was_deleted_are_gone(sqs: Service) -> None:
    url = sqs.create()
    sqs.send(url, "a")
    sqs.client.delete_queue(QueueUrl=url)
    assert metrics(sqs) == {}
    sqs.clock.advance(60)
    sqs.create()
    assert of_queue(sqs, "orders") == {}


# Who is let in.

CHANGES: Final = [
    ("/_semel/faults", "PUT", {"kind": "throttle", "rate": 1}),
    ("/_semel/faults", "DELETE", b""),
    ("/_semel/clock/advance", "POST", {"seconds": 5}),
]


@pytest.mark.parametrize(("path", "method", "body"), CHANGES)
@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "http://127.0.0.1", "null", "file://"])
def test_a_page_of_another_site_changes_nothing(sqs: Service, path: str, method: str, body: Any, origin: str) -> None:
    sqs.broker.faults.set("short-poll", 1.0)
    before = sqs.broker.admin("GET", "faults"), sqs.clock.now()
    answer = sqs.ask(path, method, body, Origin=origin, Content_Type="text/plain")
    assert origin in assert_refused(answer, 403)
    assert (sqs.broker.admin("GET", "faults"), sqs.clock.now()) == before


@pytest.mark.parametrize(("path", "method", "body"), CHANGES)
def test_a_page_of_the_broker_itself_is_let_in(sqs: Service, path: str, method: str, body: Any) -> None:
    assert sqs.ask(path, method, body, Origin=sqs.broker.url).status == 200


@pytest.mark.parametrize("path", ["/_semel/health", "/_semel/queues", "/_semel/faults", "/_semel/clock", "/metrics"])
def test_no_browser_is_told_to_show_an_answer_to_another_site(sqs: Service, path: str) -> None:
    answer = sqs.ask(path, Origin="http://evil.example")
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/_semel/"),
        ("GET", "/_semel/nothing"),
        ("GET", "/_semel/queues/orders"),
        ("GET", "/_semel/queues/orders/messages/1"),
        ("GET", "/_semel/clock/advance"),
        ("POST", "/_semel/health"),
        ("POST", "/_semel/clock"),
        ("DELETE", "/_semel/queues/orders/messages"),
        ("PUT", "/metrics"),
        ("GET", "/metrics/more"),
        ("GET", "/metricsandmore"),
    ],
)
def test_what_is_not_there_is_a_404(sqs: Service, method: str, path: str) -> None:
    text = assert_refused(sqs.ask(path, method), 404)
    assert path in text


@pytest.fixture
def guarded(start: Callable[..., Service], tmp_path: Path) -> Service:
    """A broker that wants to know who is calling."""
    file = tmp_path / "credentials"
    file.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    return start(credentials=file)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


GUARDED: Final[list[tuple[str, str, Any]]] = [
    ("/_semel/queues", "GET", b""),
    ("/_semel/queues/orders/messages", "GET", b""),
    ("/_semel/faults", "GET", b""),
    ("/_semel/clock", "GET", b""),
    ("/metrics", "GET", b""),
    ("/_semel/nothing", "GET", b""),
    ("/_semel/health?x=1", "GET", b""),
    ("/_semel/health/../faults", "GET", b""),
    *CHANGES,
]
REFUSED: Final = {
    "nobody": "",
    "a wrong password": basic(KEY, "wrong"),
    "no password": basic(KEY, ""),
    "an unknown user": basic("AKIAOTHER", SECRET),
    "no user": basic("", ""),
    "no base64": "Basic !!!",
    "another scheme": basic(KEY, SECRET).replace("Basic", "Bearer"),
    "the key alone": f"Basic {KEY}:{SECRET}",
}


def test_health_is_for_everybody(guarded: Service) -> None:
    assert guarded.ask("/_semel/health").json["status"] == "ok"


@pytest.mark.parametrize("authorization", REFUSED.values(), ids=REFUSED)
def test_all_the_rest_is_not(guarded: Service, authorization: str) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    for path, method, body in GUARDED:
        assert guarded.ask(path, method, body, **headers).status in (400, 403), (path, method)


def test_a_key_pair_as_user_and_password_is_let_in(guarded: Service) -> None:
    known = {"Authorization": basic(KEY, SECRET)}
    assert guarded.ask("/metrics", **known).status == 200
    assert guarded.ask("/_semel/queues", **known).json == {"queues": []}
    assert guarded.ask("/_semel/faults", "PUT", {"kind": "throttle", "rate": 0}, **known).status == 200
    before = guarded.ask("/_semel/clock", **known).json["now"]
    assert guarded.ask("/_semel/clock/advance", "POST", {"seconds": 5}, **known).status == 200
    assert guarded.ask("/_semel/clock", **known).json["now"] == pytest.approx(before + 5, abs=0.001)


def test_user_and_password_do_not_open_the_queues(guarded: Service) -> None:
    answer = guarded.ask(f"/{ACCOUNT}/orders?Action=ListQueues", Authorization=basic(KEY, SECRET))
    assert answer.status in (400, 403)


@pytest.mark.parametrize(("secret", "status"), [(SECRET, 200), ("wrong", 403)])
def test_a_signature_is_let_in_if_it_is_right(guarded: Service, secret: str, status: int) -> None:
    signed = AWSRequest("GET", f"{guarded.broker.url}/metrics")
    SigV4Auth(Credentials(KEY, secret), "sqs", "us-east-1").add_auth(signed)
    headers = {name.replace("-", "_"): str(value) for name, value in signed.headers.items()}
    assert guarded.ask("/metrics", **headers).status == status


def test_the_one_who_started_a_guarded_broker_can_still_use_its_handle(guarded: Service) -> None:
    before = guarded.broker.clock.now()
    guarded.broker.clock.advance(5)
    assert guarded.broker.clock.now() == pytest.approx(before + 5, abs=0.001)
    assert guarded.broker.faults.counts() == {}
    assert parse(guarded.broker.metrics()) == {}


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_page_of_another_site_cannot_call_sqs_either(sqs: Service, origin: str) -> None:
    form = b"Action=CreateQueue&QueueName=forged"
    answer = sqs.ask("/", "POST", form, Origin=origin, Content_Type="application/x-www-form-urlencoded")
    assert (answer.status, b"AccessDenied" in answer.body) == (403, True)
    assert sqs.broker.admin("GET", "queues") == {"queues": []}


def test_a_head_request_is_answered_without_a_body_and_the_connection_goes_on(sqs: Service) -> None:
    head = b"HEAD /_semel/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    get = b"GET /_semel/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    host = urlsplit(sqs.broker.url)
    with socket.create_connection((host.hostname, host.port), timeout=10) as client:
        client.sendall(head + get)
        received = b""
        while part := client.recv(65536):
            received += part
    first, second, body = received.split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200")
    assert second.startswith(b"HTTP/1.1 200")
    assert json.loads(body)["status"] == "ok"
