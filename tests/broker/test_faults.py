"""Faults, seen by a real client: each kind occurs as often as configured, depends on the seed, and is counted."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError
from serve_process import Answer, Connection, Starter, call, request

from semel import cli
from semel.broker import EmbeddedBroker, running
from semel.broker.faults import Fault, FaultError, Setting
from semel.errors import SemelError

KINDS: Final = [kind.value for kind in Fault]
ON_FIFO_NEVER: Final = ["duplicate", "lost-delete", "short-poll"]
# One for all tests: a session reads its files once, and then makes a client in milliseconds.
SESSION: Final = boto3.session.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1")


class Service:
    """A broker with a manual clock and one client."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker, self.faults, self.clock = broker, broker.faults, broker.clock
        once = Config(retries={"total_max_attempts": 1})
        self.client = SESSION.client("sqs", endpoint_url=broker.url, config=once)

    def create(self, name: str = "orders", **attributes: str) -> str:
        if name.endswith(".fifo"):
            attributes |= {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        return self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]

    def send(self, url: str, *bodies: str) -> None:
        group = {"MessageGroupId": "g"} if url.endswith(".fifo") else {}
        for start in range(0, len(bodies), 10):
            chunk = bodies[start : start + 10]
            entries: Any = [{"Id": str(n), "MessageBody": body, **group} for n, body in enumerate(chunk)]
            assert "Failed" not in self.client.send_message_batch(QueueUrl=url, Entries=entries)

    def receive(self, url: str, most: int = 10, **params: Any) -> list[dict[str, Any]]:
        params.setdefault("MessageSystemAttributeNames", ["ApproximateReceiveCount"])
        answer: Any = self.client.receive_message(QueueUrl=url, MaxNumberOfMessages=most, **params)
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def delete(self, url: str, *messages: dict[str, Any]) -> None:
        entries: Any = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
        answer = self.client.delete_message_batch(QueueUrl=url, Entries=entries)
        assert len(answer["Successful"]) == len(messages)

    def metric(self, kind: str, queue: str = "orders") -> int:
        """How often a fault was injected, as /metrics has it."""
        line = f'semel_faults_injected_total{{QueueName="{queue}",kind="{kind}"}} '
        lines = [text for text in self.broker.metrics().splitlines() if text.startswith(line)]
        return sum(int(float(text.removeprefix(line))) for text in lines)

    def put(self, body: bytes) -> Answer:
        host = urlsplit(self.broker.url)
        assert host.hostname is not None
        assert host.port is not None
        with Connection(host.hostname, host.port) as connection:
            connection.send(request("/_semel/faults", body, host=self.broker.url, method="PUT"))
            return connection.answer()


Start = Callable[..., Service]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts brokers that misbehave as told; `start(duplicate=1)`, `start(seed=7, lost_delete=0.3)`."""
    with ExitStack() as stack:

        def begin(seed: int = 0, **rates: float | Setting) -> Service:
            faults = {name.replace("_", "-"): rate for name, rate in rates.items()}
            service = Service(stack.enter_context(running(clock="manual", faults=faults, fault_seed=seed)))
            stack.callback(service.client.close)
            return service

        yield begin


def outcome(action: Callable[[], object]) -> int:
    """The HTTP status of a call; 0 if it got no answer."""
    try:
        action()
    except ClientError as error:
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    except HTTPClientError:
        return 0
    return 200


# Trials: so many chances for one kind of fault, and what a client saw of each. Truth in the list is a fault.


def duplicates(sqs: Service, url: str, chances: int) -> list[bool]:
    duplicate_per_send = []
    for number in range(chances):
        sqs.send(url, str(number))
        sqs.receive(url, 1, VisibilityTimeout=30)
        again = sqs.broker.peek("orders", state="visible")
        duplicate_per_send.append(bool(again))
        sqs.client.purge_queue(QueueUrl=url)
        sqs.clock.advance(60)
    return duplicate_per_send


def lost_deletes(sqs: Service, url: str, chances: int) -> list[bool]:
    sqs.send(url, *map(str, range(chances)))
    while messages := sqs.receive(url, VisibilityTimeout=100):
        sqs.delete(url, *messages)
    left = {message["Body"] for message in sqs.broker.peek("orders", limit=chances)}
    return [str(number) in left for number in range(chances)]


def lost_answers(sqs: Service, url: str, chances: int) -> list[bool]:
    return [not outcome(lambda: sqs.client.get_queue_url(QueueName="orders")) for _ in range(chances)]


def missed_polls(sqs: Service, url: str, chances: int) -> list[bool]:
    sqs.send(url, "one", "two")
    return [not sqs.receive(url, 1, VisibilityTimeout=0) for _ in range(chances)]


def latencies(sqs: Service, url: str, chances: int) -> list[bool]:
    # A slow machine holds up calls as well, so a client cannot tell; the broker says which it held up.
    counts = [0]
    for _ in range(chances):
        sqs.client.get_queue_url(QueueName="orders")
        counts.append(sqs.faults.counts().get("latency", 0))
    return [after > before for before, after in pairwise(counts)]


def refusals(sqs: Service, url: str, chances: int) -> list[bool]:
    return [outcome(lambda: sqs.client.get_queue_url(QueueName="orders")) != 200 for _ in range(chances)]


def early_ends(sqs: Service, url: str, chances: int) -> list[bool]:
    sqs.send(url, *map(str, range(chances)))
    while sqs.receive(url, VisibilityTimeout=40_000):
        pass
    due = sqs.clock.now() + 40_000
    shown = {message["Body"]: message.get("VisibleAt", 0) for message in sqs.broker.peek("orders", limit=chances)}
    return [shown[str(number)] < due - 0.0005 for number in range(chances)]


TRIALS: Final[dict[str, Callable[[Service, str, int], list[bool]]]] = {
    "duplicate": duplicates,
    "lost-delete": lost_deletes,
    "lost-answer": lost_answers,
    "short-poll": missed_polls,
    "latency": latencies,
    "throttle": refusals,
    "server-error": refusals,
    "early-visibility": early_ends,
}


def trial(sqs: Service, kind: str, rate: float, chances: int) -> list[bool]:
    """Creates a queue in peace, then sets one fault for it and looks on."""
    url = sqs.create()
    sqs.faults.set(kind, rate, queue="orders", milliseconds=1 if kind == "latency" else None)
    return TRIALS[kind](sqs, url, chances)


# How often.


def test_there_is_a_trial_for_each_of_the_eight_kinds() -> None:
    assert sorted(TRIALS) == sorted(KINDS)
    assert len(KINDS) == 8


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_of_1_is_always_and_every_time_is_counted(start: Start, kind: str) -> None:
    sqs = start()
    chances = 5
    assert trial(sqs, kind, 1.0, chances) == [True] * chances
    assert sqs.faults.counts() == {kind: chances}
    assert sqs.metric(kind) == chances


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_of_0_is_never(start: Start, kind: str) -> None:
    sqs = start()
    assert trial(sqs, kind, 0.0, 10) == [False] * 10
    assert sqs.faults.counts() == {}
    assert sqs.metric(kind) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_between_is_about_as_often_as_it_says(start: Start, kind: str) -> None:
    sqs = start(seed=1)
    chances = 150
    happened = trial(sqs, kind, 0.3, chances)
    assert sum(happened) / chances == pytest.approx(0.3, abs=0.1)
    assert sqs.faults.counts() == {kind: sum(happened)}
    assert sqs.metric(kind) == sum(happened)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_does_the_same_and_another_does_not(start: Start, kind: str) -> None:
    first, again, other = (trial(start(seed=seed), kind, 0.5, 24) for seed in (7, 7, 8))
    assert first == again
    assert first != other
    assert True in first
    assert False in first


def test_a_fault_that_is_switched_on_does_not_change_what_the_others_do(start: Start) -> None:
    alone, beside = start(seed=3, throttle=0.5), start(seed=3, throttle=0.5, latency=Setting(0.5, 1), lost_answer=0.3)
    first, second = ([outcome(sqs.client.list_queues) == 403 for _ in range(40)] for sqs in (alone, beside))
    assert first == second
    assert beside.faults.counts().keys() == {"throttle", "latency", "lost-answer"}


def test_nothing_happens_unless_it_is_asked_for(start: Start) -> None:
    sqs = start()
    assert sqs.broker.admin("GET", "faults")["faults"] == []
    assert [happened for kind in ("short-poll", "throttle") for happened in trial(sqs, kind, 0, 5) if happened] == []


# Switching.


def test_faults_are_switched_on_and_off_while_the_broker_runs(start: Start) -> None:
    sqs = start()

    def statuses() -> list[int]:
        return [outcome(sqs.client.list_queues) for _ in range(3)]

    assert statuses() == [200, 200, 200]
    sqs.faults.set("throttle", 1.0)
    assert statuses() == [403, 403, 403]
    sqs.faults.set("throttle", 0.0)
    assert statuses() == [200, 200, 200]
    sqs.faults.set("throttle", 1.0)
    sqs.faults.clear()
    assert statuses() == [200, 200, 200]
    assert sqs.faults.counts() == {"throttle": 3}


def test_one_kind_can_be_switched_off_alone(start: Start) -> None:
    sqs = start(throttle=1.0, short_poll=1.0)
    sqs.faults.set("throttle", 1.0, queue="orders")
    sqs.faults.clear("throttle")
    url = sqs.create()
    sqs.send(url, "a")
    assert sqs.receive(url, 1) == []
    assert [entry["kind"] for entry in sqs.broker.admin("GET", "faults")["faults"]] == ["short-poll"]


def test_a_setting_for_a_queue_comes_before_the_one_for_all(start: Start) -> None:
    sqs = start(throttle=1.0)
    sqs.faults.set("throttle", 0.0, queue="calm")
    assert outcome(lambda: sqs.create("calm")) == 200
    assert outcome(lambda: sqs.create("other")) == 403
    sqs.faults.set("throttle", 0.0)
    sqs.faults.set("throttle", 1.0, queue="calm")
    assert outcome(lambda: sqs.client.get_queue_url(QueueName="calm")) == 403
    assert outcome(lambda: sqs.create("other")) == 200
    assert (sqs.metric("throttle", ""), sqs.metric("throttle", "calm")) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_one_queue_leaves_the_others_alone(start: Start, kind: str) -> None:
    sqs = start()
    url = sqs.create("orders")
    sqs.faults.set(kind, 1.0, queue="other", milliseconds=1)
    assert TRIALS[kind](sqs, url, 3) == [False] * 3
    assert sqs.faults.counts() == {}


def test_what_is_on_can_be_looked_up_with_what_each_kind_means(start: Start) -> None:
    sqs = start(seed=42, duplicate=0.25, latency=Setting(0.5, 7))
    sqs.faults.set("lost-delete", 1.0, queue="orders")
    shown = sqs.broker.admin("GET", "faults")
    assert shown["seed"] == 42
    assert shown["faults"] == [
        {"kind": "duplicate", "queue": None, "rate": 0.25},
        {"kind": "latency", "queue": None, "rate": 0.5, "milliseconds": 7},
        {"kind": "lost-delete", "queue": "orders", "rate": 1.0},
    ]
    assert sorted(shown["kinds"]) == sorted(KINDS)
    assert all(shown["kinds"].values())


def test_a_setting_can_still_be_changed_after_faults_have_been_injected(start: Start) -> None:
    sqs = start(throttle=1.0)
    assert outcome(sqs.client.list_queues) == 403
    changed = sqs.broker.admin("PUT", "faults", {"kind": "throttle", "rate": 0})
    assert changed["injected"] == {"throttle": 1}
    assert sqs.broker.admin("DELETE", "faults") == {"seed": 0, "faults": [], "injected": {"throttle": 1}}


def test_faults_are_set_on_the_command_line(serve: Starter) -> None:
    broker = serve("--ephemeral", "--fault", "throttle=1", "--fault", "latency=0.5:3", "--fault-seed", "7")
    with broker.connect() as connection:
        refused = connection.call("ListQueues")
        assert (refused.status, refused.headers["x-amzn-query-error"]) == (403, "RequestThrottled;Sender")
        connection.send(request("/_semel/faults", host=broker.url, method="GET"))
        shown = connection.answer().json
    assert shown["seed"] == 7
    assert shown["injected"] == {"throttle": 1}
    assert [(entry["kind"], entry["rate"], entry.get("milliseconds")) for entry in shown["faults"]] == [
        ("throttle", 1.0, None),
        ("latency", 0.5, 3.0),
    ]


# What each means.


def test_a_duplicate_is_the_same_message_again_with_another_handle_and_a_higher_count(start: Start) -> None:
    sqs = start(duplicate=1.0)
    url = sqs.create()
    sqs.send(url, "once")
    first, second = (sqs.receive(url, 1, VisibilityTimeout=30)[0] for _ in range(2))
    assert first["MessageId"] == second["MessageId"]
    assert first["Body"] == second["Body"] == "once"
    assert first["ReceiptHandle"] != second["ReceiptHandle"]
    assert [m["Attributes"]["ApproximateReceiveCount"] for m in (first, second)] == ["1", "2"]
    sqs.faults.clear()
    sqs.delete(url, first)
    assert sqs.broker.peek("orders") == []


def test_each_message_of_a_receive_has_its_own_chance_to_be_duplicated(start: Start) -> None:
    sqs = start(seed=5, duplicate=0.5)
    url = sqs.create()
    sqs.send(url, *"abcdefghij")
    assert len(sqs.receive(url)) == 10
    left = len(sqs.broker.peek("orders", state="visible"))
    assert 0 < left < 10
    assert sqs.faults.counts() == {"duplicate": left}


def test_duplicates_count_towards_the_dead_letter_queue(start: Start) -> None:
    sqs = start(duplicate=1.0)
    dead = sqs.create("dead")
    arn = sqs.client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    url = sqs.create(RedrivePolicy=f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 2}}')
    sqs.send(url, "poison")
    assert [len(sqs.receive(url)) for _ in range(3)] == [1, 1, 0]
    assert [message["Body"] for message in sqs.broker.peek("dead")] == ["poison"]


def test_a_lost_delete_is_answered_with_success_and_the_message_comes_back_after_its_timeout(start: Start) -> None:
    sqs = start(lost_delete=1.0)
    url = sqs.create()
    sqs.send(url, "zombie")
    (message,) = sqs.receive(url, VisibilityTimeout=30)
    assert outcome(lambda: sqs.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])) == 200
    assert sqs.receive(url) == []
    sqs.clock.advance(30)
    (again,) = sqs.receive(url)
    assert again["MessageId"] == message["MessageId"]
    sqs.faults.clear()
    sqs.delete(url, again)
    assert sqs.broker.peek("orders") == []


def test_an_answer_is_lost_after_the_message_was_sent(start: Start) -> None:
    sqs = start()
    url = sqs.create()
    sqs.faults.set("lost-answer", 1.0)
    with pytest.raises(HTTPClientError):
        sqs.client.send_message(QueueUrl=url, MessageBody="sent all the same")
    assert [message["Body"] for message in sqs.broker.peek("orders")] == ["sent all the same"]


def test_an_answer_is_lost_after_the_message_was_deleted(start: Start) -> None:
    sqs = start()
    url = sqs.create()
    sqs.send(url, "gone")
    (message,) = sqs.receive(url)
    sqs.faults.set("lost-answer", 1.0)
    with pytest.raises(HTTPClientError):
        sqs.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert sqs.broker.peek("orders") == []


def test_an_answer_is_lost_after_the_message_was_hidden(start: Start) -> None:
    sqs = start()
    url = sqs.create()
    sqs.send(url, "hidden")
    sqs.faults.set("lost-answer", 1.0)
    with pytest.raises(HTTPClientError):
        sqs.receive(url)
    (shown,) = sqs.broker.peek("orders")
    assert (shown["State"], shown["ReceivesInThisQueue"]) == ("in_flight", 1)


def test_a_lost_answer_is_a_connection_that_ends_without_a_byte(start: Start) -> None:
    sqs = start(lost_answer=1.0)
    host = urlsplit(sqs.broker.url)
    with socket.create_connection((host.hostname, host.port), 10) as connection:
        connection.sendall(call("CreateQueue", host=host.netloc, QueueName="orders"))
        try:
            got = connection.recv(100)
        except ConnectionResetError:
            got = b""
        assert got == b""
    assert [queue["name"] for queue in sqs.broker.admin("GET", "queues")["queues"]] == ["orders"]


def test_a_short_poll_misses_messages_although_they_are_there(start: Start) -> None:
    sqs = start(short_poll=1.0)
    url = sqs.create()
    sqs.send(url, *"abcdefghij")
    got = sqs.receive(url, 10)
    assert len(got) < 10
    assert len(sqs.broker.peek("orders", state="visible")) == 10 - len(got)
    assert sqs.receive(url, 1) == []


def test_a_long_poll_misses_nothing(start: Start) -> None:
    sqs = start(short_poll=1.0)
    url = sqs.create()
    sqs.send(url, *"abcdefghij")
    assert len(sqs.receive(url, 10, WaitTimeSeconds=1)) == 10
    patient = sqs.create("patient", ReceiveMessageWaitTimeSeconds="1")
    sqs.send(patient, "a")
    assert len(sqs.receive(patient, 1)) == 1
    sqs.send(patient, "b")
    assert sqs.receive(patient, 1, WaitTimeSeconds=0) == []
    assert sqs.faults.counts() == {"short-poll": 1}


def test_latency_holds_an_answer_up(start: Start) -> None:
    sqs = start(latency=Setting(1.0, 60))
    before = monotonic()
    url = sqs.create()
    assert monotonic() - before >= 0.06
    sqs.faults.set("latency", 1.0, milliseconds=30)
    before = monotonic()
    sqs.client.get_queue_attributes(QueueUrl=url)
    assert monotonic() - before >= 0.03


def test_the_admin_interface_is_never_disturbed(start: Start) -> None:
    sqs = start(throttle=1.0, lost_answer=1.0, server_error=1.0, latency=Setting(1.0, 60_000))
    assert sqs.broker.admin("GET", "health")["status"] == "ok"
    assert sqs.faults.counts() == {}


def test_throttling_is_a_403_with_the_exception_of_its_own(start: Start) -> None:
    sqs = start()
    url = sqs.create()
    sqs.faults.set("throttle", 1.0)
    with pytest.raises(sqs.client.exceptions.RequestThrottled) as caught:
        sqs.client.send_message(QueueUrl=url, MessageBody="x")
    error = caught.value.response
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert error["Error"]["Code"] == "RequestThrottled"
    assert sqs.broker.peek("orders") == []


def test_a_server_error_is_a_500_or_a_503_and_not_the_callers_fault(start: Start) -> None:
    sqs = start()
    url = sqs.create()
    sqs.faults.set("server-error", 1.0)
    errors = set()
    for _ in range(20):
        with pytest.raises(ClientError) as caught:
            sqs.client.send_message(QueueUrl=url, MessageBody="x")
        error: Any = caught.value.response
        errors.add((error["ResponseMetadata"]["HTTPStatusCode"], error["Error"]["Code"], error["Error"]["Type"]))
    assert errors == {(500, "InternalFailure", "Receiver"), (503, "ServiceUnavailable", "Receiver")}
    assert sqs.broker.peek("orders") == []


def test_a_message_is_visible_before_its_timeout_has_ended(start: Start) -> None:
    sqs = start(early_visibility=1.0)
    url = sqs.create()
    sqs.send(url, *"abcdefghij")
    assert len(sqs.receive(url, VisibilityTimeout=1000)) == 10
    sqs.clock.advance(999.999)
    assert {message["State"] for message in sqs.broker.peek("orders")} == {"visible"}
    again = sqs.receive(url)
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in again} == {"2"}


def test_a_timeout_of_0_cannot_end_early(start: Start) -> None:
    sqs = start(early_visibility=1.0, duplicate=1.0)
    url = sqs.create()
    sqs.send(url, "a")
    assert len(sqs.receive(url, VisibilityTimeout=0)) == 1
    assert sqs.faults.counts() == {}


# FIFO queues keep what SQS promises for them.


@pytest.mark.parametrize("kind", ON_FIFO_NEVER)
def test_a_fifo_queue_knows_no_such_fault(start: Start, kind: str) -> None:
    sqs = start(**{kind.replace("-", "_"): 1.0})
    url = sqs.create("orders.fifo")
    sqs.send(url, "a", "b")
    messages = sqs.receive(url, 10, VisibilityTimeout=30)
    assert [message["Body"] for message in messages] == ["a", "b"]
    assert sqs.receive(url) == []
    sqs.client.delete_message(QueueUrl=url, ReceiptHandle=messages[0]["ReceiptHandle"])
    sqs.delete(url, messages[1])
    sqs.clock.advance(31)
    assert sqs.receive(url) == []
    assert sqs.broker.peek("orders.fifo") == []
    assert sqs.faults.counts() == {}


def test_a_timeout_that_ends_early_on_a_fifo_queue_makes_its_handle_expire(start: Start) -> None:
    sqs = start(early_visibility=1.0)
    url = sqs.create("orders.fifo")
    sqs.send(url, "a")
    (message,) = sqs.receive(url, VisibilityTimeout=1000)
    sqs.clock.advance(999.999)
    with pytest.raises(ClientError, match="The receipt handle has expired"):
        sqs.client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert sqs.metric("early-visibility", "orders.fifo") == 1


@pytest.mark.parametrize("kind", ["lost-answer", "throttle", "server-error"])
def test_a_fifo_queue_knows_what_any_service_may_do(start: Start, kind: str) -> None:
    sqs = start()
    url = sqs.create("orders.fifo")
    sqs.faults.set(kind, 1.0)
    assert outcome(lambda: sqs.client.purge_queue(QueueUrl=url)) != 200
    assert sqs.metric(kind, "orders.fifo") == 1


# Settings that make no sense.

BAD: Final[dict[str, tuple[str, Any, str]]] = {
    "unknown": ("zap", 0.5, "there is no fault 'zap'; choose from duplicate, "),
    "too high": ("duplicate", 2, "between 0 and 1"),
    "a little too high": ("duplicate", 1.0001, "between 0 and 1"),
    "negative": ("duplicate", -0.1, "between 0 and 1"),
    "text": ("duplicate", "often", "rate"),
}


@pytest.mark.parametrize(("kind", "rate", "says"), BAD.values(), ids=BAD)
def test_the_command_line_refuses_a_bad_setting_in_one_line(
    capsys: pytest.CaptureFixture[str], kind: str, rate: Any, says: str
) -> None:
    assert cli.main(["serve", "--ephemeral", "--port", "0", "--fault", f"{kind}={rate}"]) in (1, 2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"semel: --fault {kind}={rate}: ")
    assert says.lower() in said.err.lower()
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(("kind", "rate", "says"), BAD.values(), ids=BAD)
def test_running_refuses_a_bad_setting(kind: str, rate: Any, says: str) -> None:
    with pytest.raises(FaultError, match=re.escape(says)), running(faults={kind: rate}):
        pytest.fail("it runs")


@pytest.mark.parametrize(("kind", "rate", "says"), BAD.values(), ids=BAD)
def test_the_admin_interface_refuses_a_bad_setting(start: Start, kind: str, rate: Any, says: str) -> None:
    sqs = start(duplicate=0.5)
    with pytest.raises(SemelError, match=re.escape(says)):
        sqs.faults.set(kind, rate)
    assert sqs.broker.admin("GET", "faults")["faults"] == [{"kind": "duplicate", "queue": None, "rate": 0.5}]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"duplicate=1",
        b"[]",
        b"null",
        b"{}",
        b'{"kind": "duplicate"}',
        b'{"rate": 1}',
        b'{"kind": 1, "rate": 1}',
        b'{"kind": "zap", "rate": 1}',
        b'{"kind": "duplicate", "rate": "1"}',
        b'{"kind": "duplicate", "rate": null}',
        b'{"kind": "duplicate", "rate": true}',
        b'{"kind": "duplicate", "rate": 1e400}',
        b'{"kind": "duplicate", "rate": NaN}',
        b'{"kind": "duplicate", "rate": 1, "queue": 7}',
        b'{"kind": "latency", "rate": 1, "milliseconds": "soon"}',
        b'{"kind": "latency", "rate": 1, "milliseconds": -1}',
        b'{"kind": "latency", "rate": 1, "milliseconds": true}',
        b'{"kind": "latency", "rate": 1, "milliseconds": 60001}',
    ],
)
def test_a_bad_request_for_a_fault_is_a_400_that_says_why_and_changes_nothing(start: Start, body: bytes) -> None:
    sqs = start()
    answer = sqs.put(body)
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.json["error"]) > 10
    assert sqs.broker.admin("GET", "faults")["faults"] == []


def test_a_kind_that_does_not_exist_cannot_be_switched_off_either(start: Start) -> None:
    sqs = start(duplicate=0.5)
    with pytest.raises(SemelError, match="there is no fault 'zap'"):
        sqs.faults.clear("zap")
    assert len(sqs.broker.admin("GET", "faults")["faults"]) == 1
