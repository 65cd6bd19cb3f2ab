"""When the client retries: failures of SQS and the network, simulated by the broker's faults and by scripts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from clients import client_for, naps_of
from scripted_server import Request, answer, in_turn, refusal, scripted

import semel.broker
from semel.broker.embedded_broker import EmbeddedBroker
from semel.sqs import Entry, Failure, Queue, Sent
from semel.sqs.client.batches import parts
from semel.sqs.client.retries import CAP, pause_before_retry
from semel.sqs.errors import (
    AccessDenied,
    BadRequest,
    OverLimit,
    ReceiptInvalid,
    ServerFailed,
    SqsError,
    Throttled,
    TooSoon,
    Unreachable,
)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with semel.broker.running(clock="manual", fault_seed=7) as running:
        yield running


# The pauses.


def test_pauses_double_up_to_a_limit_and_are_spread_all_over_it() -> None:
    longest = [pause_before_retry(attempt, 1.0, throttled=False) for attempt in range(1, 12)]
    assert longest[:4] == [0.1, 0.2, 0.4, 0.8]
    assert longest[-1] == CAP
    assert pause_before_retry(10_000, 1.0, throttled=True) == CAP
    assert pause_before_retry(3, 0.0, throttled=False) == 0.0
    assert pause_before_retry(3, 0.25, throttled=False) == 0.1
    assert pause_before_retry(1, 1.0, throttled=True) > pause_before_retry(1, 1.0, throttled=False)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (refusal("RequestThrottled", status=403), Throttled),
        (refusal("ThrottlingException"), Throttled),
        (refusal("KmsThrottled"), Throttled),
        (answer(b"slow down", 429), Throttled),
        (refusal("InternalFailure", status=500), ServerFailed),
        (refusal("ServiceUnavailable", status=503), ServerFailed),
        (answer(b"<html>502 Bad Gateway</html>", 502), ServerFailed),
        (answer(b"this is not JSON"), ServerFailed),
        (answer(b"[]"), ServerFailed),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", Unreachable),
        (None, Unreachable),
    ],
)
def test_what_may_pass_is_tried_again_as_often_as_allowed(reply: bytes | None, error: type[SqsError]) -> None:
    with scripted(in_turn(reply)) as server, client_for(server.url, max_attempts=4) as client:
        with pytest.raises(error) as caught:
            client.queue(f"{server.url}/1/orders").receive(10, 0)
        assert len(server.requests) == caught.value.attempts == 4
        base = 0.5 if error is Throttled else 0.1
        assert naps_of(client) == pytest.approx([base / 2, base, base * 2])
        assert caught.value.retryable
        assert (caught.value.operation, caught.value.queue) == ("ReceiveMessage", "orders")
        assert str(caught.value).startswith("ReceiveMessage on queue orders: ")
        assert str(caught.value).endswith("Tried 4 times.")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (refusal("AccessDeniedException", status=403), AccessDenied),
        (refusal("InvalidParameterValueException"), BadRequest),
        (refusal("OverLimit", status=403), OverLimit),
        (refusal("ReceiptHandleIsInvalid", status=404), ReceiptInvalid),
        (refusal("PurgeQueueInProgress", status=403), TooSoon),
        (answer(b"<html>not here</html>", 404), BadRequest),
        (answer(b"", 301, "Location: http://127.0.0.1:1/\r\n"), BadRequest),
    ],
)
def test_what_will_not_pass_is_not_tried_again(reply: bytes, error: type[SqsError]) -> None:
    with scripted(in_turn(reply)) as server, client_for(server.url) as client:
        with pytest.raises(error) as caught:
            client.queue(f"{server.url}/1/orders").receive(10, 0)
        assert type(caught.value) is error
        assert (len(server.requests), naps_of(client)) == (1, [])
        assert not caught.value.retryable
        assert caught.value.status >= 300


def test_access_denied_names_the_permission_that_is_missing() -> None:
    reply = refusal("AccessDeniedException", "User x is not authorized", 403)
    with scripted(in_turn(reply)) as server, client_for(server.url) as client:
        with pytest.raises(AccessDenied, match="sqs:DeleteMessage on it"):
            client.queue(f"{server.url}/1/orders").delete(["r"])


def test_an_answer_from_something_that_is_not_sqs_names_its_address() -> None:
    with scripted(in_turn(answer(b"<html>It works!</html>", 405))) as server, client_for(server.url) as client:
        with pytest.raises(BadRequest, match=rf"It works!.*SQS endpoint answers at {server.url}"):
            client.call("ListQueues")


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("GetQueueUrl", lambda queue: queue.client.queue("orders").url),
        ("CreateQueue", lambda queue: queue.client.create_queue("orders")),
        ("GetQueueAttributes", lambda queue: queue.arn),
        ("SendMessage", lambda queue: queue.send("x")),
    ],
)
def test_a_success_without_its_content_is_an_error_too(operation: str, call: Any) -> None:
    with scripted(in_turn(answer({}))) as server, client_for(server.url) as client:
        with pytest.raises(ServerFailed, match=rf"{operation} on queue orders: .* misses"):
            call(client.queue(f"{server.url}/1/orders"))


@pytest.mark.parametrize(
    "body",
    [
        {"Messages": [{"MessageId": "1"}]},
        {"Messages": 7},
        {"Successful": [{"Id": "nonsense"}]},
        {"Successful": [{"Id": "1"}]},
        {"Failed": [{"Id": "0"}]},
        {"Failed": ["x"]},
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error_too(body: dict[str, Any]) -> None:
    with scripted(in_turn(answer(body))) as server, client_for(server.url) as client:
        queue = client.queue(f"{server.url}/1/orders")
        with pytest.raises(ServerFailed, match="misses"):
            _ = queue.receive(10, 0) if "Messages" in body else queue.delete(["r"])


# The faults of the broker.


@pytest.mark.parametrize("fault", ["throttle", "server-error", "lost-answer", "latency"])
def test_all_goes_well_in_the_end_whatever_the_broker_does(broker: EmbeddedBroker, fault: str) -> None:
    with client_for(broker.url, max_attempts=20) as client:
        queue = client.create_queue("orders")
        broker.faults.set(fault, 0.3, milliseconds=1 if fault == "latency" else None)
        sent = queue.send_many([Entry(str(number)) for number in range(50)])
        assert all(isinstance(each, Sent) for each in sent)
        bodies: set[str] = set()
        while len(bodies) < 50:
            messages = queue.receive(10, 0)
            bodies |= {message.body for message in messages}
            assert queue.delete([message.receipt for message in messages]) == [None] * len(messages)
            if not messages:
                broker.clock.advance(31)  # received by an attempt whose answer was lost
        assert broker.faults.counts()[fault] > 0
        broker.faults.clear()
        while messages := queue.receive(10, 0):  # what lost answers made us send twice
            queue.delete([message.receipt for message in messages])


def test_a_lost_answer_does_not_block_a_fifo_group(broker: EmbeddedBroker) -> None:
    with client_for(broker.url, max_attempts=20) as client:
        queue = client.create_queue("orders.fifo")
        for number in range(10):
            queue.send(str(number), group="g", dedup=str(number))
        broker.faults.set("lost-answer", 0.7)
        got = queue.receive(10, 0)
        assert broker.faults.counts()["lost-answer"] > 0
        assert [message.body for message in got] == [str(number) for number in range(10)]
        assert queue.delete([message.receipt for message in got]) == [None] * 10


def test_every_attempt_of_a_fifo_receive_has_the_same_attempt_id_and_every_receive_another() -> None:
    script = in_turn(refusal("InternalFailure", status=500), answer(), answer(), answer())
    with scripted(script) as server, client_for(server.url) as client:
        queue = client.queue(f"{server.url}/1/orders.fifo")
        queue.receive(10, 0)
        queue.receive(10, 0)
        queue.receive(10, 0, attempt_id="mine")
        first, again, other, mine = [request.params["ReceiveRequestAttemptId"] for request in server.requests]
        assert first == again
        assert first != other
        assert mine == "mine"
        client.queue(f"{server.url}/1/orders").receive(10, 0)
        assert "ReceiveRequestAttemptId" not in server.requests[-1].params


def test_purge_and_drop_are_done_also_if_only_the_first_answer_was_lost() -> None:
    for first in (None, answer(b"", 502)):
        script = in_turn(first, refusal("PurgeQueueInProgress", status=403), first, refusal("QueueDoesNotExist"))
        with scripted(script) as server, client_for(server.url) as client:
            queue = client.queue(f"{server.url}/1/orders")
            queue.purge()
            queue.drop()
            assert len(server.requests) == 4


# Batches.


def test_a_batch_is_cut_by_number_and_by_bytes_and_keeps_its_order() -> None:
    assert list(parts([])) == []
    assert list(parts([(place, 0) for place in range(21)])) == [[*range(10)], [*range(10, 20)], [20]]
    assert list(parts([(0, 6), (1, 4), (2, 1), (3, 11), (5, 2)], room=10)) == [[0, 1], [2], [3], [5]]


def picky(*failing: dict[str, Any]) -> Any:
    """Fails the given entries in the first call, by body or receipt; takes all that comes later."""
    calls: list[list[str]] = []

    def script(request: Request) -> bytes:
        entries = request.params["Entries"]
        names = {entry["Id"]: entry.get("MessageBody") or entry["ReceiptHandle"] for entry in entries}
        calls.append(list(names.values()))
        failed = [
            {"Id": number, **{key: value for key, value in failure.items() if key != "name"}}
            for number, name in names.items()
            for failure in failing
            if failure["name"] == name and (len(calls) == 1 or failure["SenderFault"])
        ]
        bad = {failure["Id"] for failure in failed}
        done = [{"Id": number, "MessageId": name} for number, name in names.items() if number not in bad]
        return answer({"Successful": done, "Failed": failed})

    return script, calls


def test_only_what_failed_in_passing_is_sent_again() -> None:
    script, calls = picky(
        {"name": "b", "Code": "InternalError", "SenderFault": False},
        {"name": "c", "Code": "InvalidMessageContents", "SenderFault": True, "Message": "odd"},
        {"name": "d", "Code": "RequestThrottled", "SenderFault": False},
    )
    with scripted(script) as server, client_for(server.url) as client:
        sent = client.queue(f"{server.url}/1/orders").send_many([Entry(name) for name in "abcde"])
        assert sent == [Sent("a"), Sent("b"), Failure("InvalidMessageContents", "odd"), Sent("d"), Sent("e")]
        assert calls == [["a", "b", "c", "d", "e"], ["b", "d"]]
        assert naps_of(client) == [0.25]


def test_an_entry_that_keeps_failing_is_given_up_after_all_attempts() -> None:
    def script(request: Request) -> bytes:
        return answer({"Failed": [{"Id": "0", "Code": "ServiceUnavailable", "SenderFault": False, "Message": "later"}]})

    with scripted(script) as server, client_for(server.url, max_attempts=3) as client:
        outcome = client.queue(f"{server.url}/1/orders").delete(["r"])
        assert outcome == [Failure("ServiceUnavailable", "later", sender_fault=False)]
        assert len(server.requests) == 3


def test_an_entry_of_which_the_answer_says_nothing_is_tried_again_and_never_taken_for_done() -> None:
    script = in_turn(answer({"Successful": [{"Id": "0"}]}), answer({}))
    with scripted(script) as server, client_for(server.url, max_attempts=3) as client:
        first, second = client.queue(f"{server.url}/1/orders").delete(["a", "b"])
        assert first is None
        assert isinstance(second, Failure)
        assert (second.code, second.sender_fault, len(server.requests)) == ("NoAnswer", False, 3)


def test_a_call_that_fails_as_a_whole_is_raised_if_nothing_was_done_yet() -> None:
    with scripted(in_turn(refusal("QueueDoesNotExist"))) as server, client_for(server.url) as client:
        with pytest.raises(BadRequest):
            client.queue(f"{server.url}/1/orders").send_many([Entry("x")] * 25)
        assert len(server.requests) == 1


def test_what_was_done_before_a_call_failed_as_a_whole_is_not_forgotten() -> None:
    done = answer({"Successful": [{"Id": str(place), "MessageId": str(place)} for place in range(10)]})
    script = in_turn(done, refusal("AccessDeniedException", "no more", 403))
    with scripted(script) as server, client_for(server.url) as client:
        sent = client.queue(f"{server.url}/1/orders").send_many([Entry("x")] * 25)
        assert sent[:10] == [Sent(str(place)) for place in range(10)]
        assert {each.code for each in sent[10:] if isinstance(each, Failure)} == {"AccessDeniedException"}
        assert all(isinstance(each, Failure) and "no more" in each.message for each in sent[10:])
        assert len(server.requests) == 2  # the third call would only have failed as well


@pytest.mark.parametrize(
    "reply",
    [
        refusal("ServiceUnavailable", status=503),
        answer({"Failed": [{"Id": "0", "Code": "ServiceUnavailable", "SenderFault": False}]}),
    ],
)
def test_a_change_of_visibility_with_a_timeout_is_tried_once(reply: bytes) -> None:
    with scripted(lambda _request: reply) as server, client_for(server.url) as client:
        queue = client.queue(f"{server.url}/1/orders")
        try:
            failed = queue.change_visibility([("r", 30)], timeout=5) != [None]
        except ServerFailed:
            failed = True
        assert failed
        assert len(server.requests) == 1


def test_the_timeout_of_a_change_of_visibility_is_for_all_of_its_calls() -> None:
    """One call hangs: it ends after the time that is left, and no other one is begun."""
    release = threading.Event()
    done = answer({"Successful": [{"Id": str(place)} for place in range(10)]})

    def script(_request: Request) -> bytes | None:
        if len(server.requests) == 1:
            return done
        release.wait()
        return None

    with scripted(script) as server, client_for(server.url) as client:
        try:
            outcomes = client.queue(f"{server.url}/1/orders").change_visibility([("r", 30)] * 100, timeout=0.2)
        finally:
            release.set()
        assert outcomes[:10] == [None] * 10
        assert all(isinstance(each, Failure) and not each.gone for each in outcomes[10:])
        assert len(server.requests) == 2


def test_an_endpoint_with_a_lower_limit_for_batches_gets_smaller_ones() -> None:
    def script(request: Request) -> bytes:
        entries = request.params["Entries"]
        if sum(len(entry["MessageBody"]) for entry in entries) > 250:
            return refusal("AWS.SimpleQueueService.BatchRequestTooLong")
        return answer({"Successful": [{"Id": entry["Id"], "MessageId": entry["MessageBody"]} for entry in entries]})

    with scripted(script) as server, client_for(server.url) as client:
        queue = client.queue(f"{server.url}/1/orders")
        assert queue.send_many([Entry("x" * 100)] * 10) == [Sent("x" * 100)] * 10
        with pytest.raises(BadRequest, match="BatchRequestTooLong"):
            queue.send_many([Entry("x" * 300)])


@pytest.mark.parametrize("fault", ["throttle", "server-error"])
def test_with_one_attempt_nothing_is_repeated(broker: EmbeddedBroker, fault: str) -> None:
    with client_for(broker.url, max_attempts=1) as client:
        queue: Queue = client.create_queue("orders")
        broker.faults.set(fault, 1.0)
        with pytest.raises((Throttled, ServerFailed)) as caught:
            queue.send("x")
        assert caught.value.attempts == 1
        assert broker.faults.counts() == {fault: 1}
