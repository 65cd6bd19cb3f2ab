"""The broker's admin interface through the client: which endpoints are asked, what is shown, what is claimed by id."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driven import ACCESS, Place, place_of
from semel.broker import running
from semel.sqs import Client
from semel.sqs.client.admin import Admin, AdminError
from semel.sqs.client.connection import Answer
from semel.sqs.errors import CredentialsRefused, Unreachable


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running(clock="manual", cooldowns=False) as broker, place_of(broker) as place:
        yield place


@pytest.fixture
def admin(place: Place) -> Admin:
    for queue in place.client.queues():
        queue.drop()
    admin = Admin.of(place.client)
    assert admin is not None
    return admin


def bodies(messages: list[dict[str, str]]) -> list[str]:
    return [message["Body"] for message in messages]


# Who is asked.


def test_an_endpoint_of_aws_is_not_asked_and_one_of_another_is_not_taken_for_ours() -> None:
    with Client(region="eu-west-1", access_key="a", secret_key="b") as aws:
        assert Admin.of(aws) is None
    with Client("http://127.0.0.1:1", "us-east-1", access_key="a", secret_key="b") as nobody:
        with pytest.raises(Unreachable, match="cannot connect"):
            Admin.of(nobody)


def test_a_server_error_is_not_taken_for_the_answer_of_another_endpoint(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a proxy while the broker restarts: who remembers it would receive where it could peek."""
    options: dict[str, Any] = {"sleep": lambda _seconds: None} | ACCESS
    with Client(place.broker.url, place.broker.region, **options) as client:
        with monkeypatch.context() as patch:
            patch.setattr(client, "exchange", lambda *_, **__: Answer(503, b"HTTP/1.1 503 Unavailable", b"busy"))
            assert Admin.of(client) is None
        assert Admin.of(client) is not None
    with Client(place.broker.url, place.broker.region, **options) as client:
        real, left = client.exchange, [1]

        def exchange(*arguments: Any, **more: Any) -> Answer:
            if left:
                left.pop()
                return Answer(502, b"HTTP/1.1 502 Bad Gateway", b"")
            return real(*arguments, **more)

        monkeypatch.setattr(client, "exchange", exchange)
        assert Admin.of(client) is not None


def test_a_broker_that_checks_signatures_lets_the_client_in(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[one]\naws_access_key_id = AKIA1\naws_secret_access_key = s/e+cret\n")
    with running(credentials=file) as broker:
        with Client(broker.url, broker.region, access_key="AKIA1", secret_key="s/e+cret") as client:
            client.create_queue("orders").send("hello")
            admin = Admin.of(client)
            assert admin is not None
            assert [queue["name"] for queue in admin.queues()] == ["orders"]
            assert bodies(admin.peek("orders").messages) == ["hello"]
            assert admin.history(["orders", "a&b=c d/ü"], since=1.5)["period"] == 10
            assert "injected" in admin.clear_faults("throttle")
        with Client(broker.url, broker.region, access_key="AKIA1", secret_key="other") as stranger:
            closed = Admin.of(stranger)
            assert closed is not None, "health is open to all"
            with pytest.raises(CredentialsRefused):
                closed.queues()


def test_a_client_whose_clock_is_wrong_gets_in_once_that_was_noticed(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[one]\naws_access_key_id = AKIA1\naws_secret_access_key = secret\n")
    with running(credentials=file) as broker:
        with Client(
            broker.url, broker.region, access_key="AKIA1", secret_key="secret", clock=lambda: 1_700_000_000.0
        ) as client:
            admin = Admin.of(client)
            assert admin is not None
            assert admin.queues() == []


def test_what_is_refused_says_why(admin: Admin) -> None:
    with pytest.raises(AdminError, match=r"POST /_semel/queues/nowhere/messages .*does not exist"):
        admin.peek("nowhere")


# Looking.


def test_pages_follow_one_another_and_the_end_is_where_later_ones_begin(place: Place, admin: Admin) -> None:
    place.queue()
    for n in range(5):
        place.send(str(n))
    first = admin.peek("orders", limit=2)
    assert bodies(first.messages) == ["0", "1"]
    assert first.next is not None
    assert bodies(admin.peek("orders", after=first.next).messages) == ["2", "3", "4"]
    assert bodies(list(admin.messages("orders", limit=2))) == ["0", "1", "2", "3", "4"]
    end = admin.peek("orders").end
    assert admin.peek("orders", after=end).messages == []
    place.send("later")
    assert bodies(admin.peek("orders", after=end).messages) == ["later"]


def test_bodies_are_cut_where_they_are_not_wanted(place: Place, admin: Admin) -> None:
    place.queue()
    place.send("é" * 1_000)
    place.send("short")
    long, short = admin.peek("orders", bodies=False).messages
    assert (long["Body"], long["BodyBytes"]) == ("é" * 200, 2_000)
    assert (short["Body"], short["BodyBytes"]) == ("short", 5)
    assert "BodyBytes" not in admin.peek("orders").messages[0]


def test_messages_are_found_by_their_ids(place: Place, admin: Admin) -> None:
    place.queue()
    ids = [place.send(str(n)) for n in range(30)]
    page = admin.peek("orders", ids=[ids[20], ids[3], "unknown"])
    assert (bodies(page.messages), page.next) == (["3", "20"], None)
    assert bodies(place.broker.peek("orders", ids=f"{ids[4]},{ids[2]}")) == ["2", "4"]
    assert bodies(place.broker.peek("orders", ids=f"{ids[4]},{ids[2]}", id=ids[2])) == ["2"]


# Taking.


def test_exactly_those_that_are_named_are_received_in_that_order(place: Place, admin: Admin) -> None:
    queue = place.queue()
    ids = [place.send(str(n)) for n in range(6)]
    messages = admin.receive_ids("orders", [ids[4], ids[1], "unknown", ids[4]], visibility=40)
    assert [message.body for message in messages] == ["4", "1"]
    assert [message.receive_count for message in messages] == [1, 1]
    assert messages[0].sent_at == pytest.approx(place.clock.now())
    assert place.bodies(state="in_flight") == [1, 4]
    assert admin.receive_ids("orders", [ids[4]]) == [], "it is in flight"
    assert queue.delete([messages[0].receipt]) == [None]
    place.clock.advance(40)
    assert place.bodies(state="visible") == [0, 1, 2, 3, 5]
    assert {key: value for key, value in queue.attributes().items() if "NumberOf" in key} == {
        "ApproximateNumberOfMessages": "5",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
    }


def test_a_place_counts_only_for_the_message_that_was_seen_there(place: Place, admin: Admin) -> None:
    place.queue()
    place.send("0")
    place.send("1")
    first, second = admin.peek("orders").messages
    wrong = [second["Place"], first["Place"]]
    assert admin.receive_ids("orders", [first["MessageId"], second["MessageId"]], places=wrong) == []
    (message,) = admin.receive_ids("orders", [second["MessageId"]], places=[second["Place"]])
    assert message.body == "1"


def test_what_stands_behind_a_taken_message_of_its_group_waits_and_what_stands_before_does_not(
    place: Place, admin: Admin
) -> None:
    queue = place.queue("orders.fifo")
    ids = [place.send(str(n), "orders.fifo") for n in range(4)]
    (third,) = admin.receive_ids("orders.fifo", [ids[2]])
    assert [message.body for message in queue.receive(wait=0)] == ["0", "1"]
    assert queue.receive(wait=0) == []
    assert queue.delete([third.receipt]) == [None]
    place.clock.advance(30)
    assert [message.body for message in queue.receive(wait=0)] == ["0", "1", "3"]


def test_a_message_asked_for_by_name_is_not_moved_on_for_having_been_received_too_often(
    place: Place, admin: Admin
) -> None:
    queue = place.queue(dlq="dead", receives=1)
    id = place.send("0")
    assert len(queue.receive(wait=0, visibility=0)) == 1
    assert [message.body for message in admin.receive_ids("orders", [id])] == ["0"]
    assert place.is_empty("dead")


def test_expired_messages_are_not_there(place: Place, admin: Admin) -> None:
    place.queue(MessageRetentionPeriod=60)
    id = place.send("0")
    place.clock.advance(61)
    assert admin.receive_ids("orders", [id]) == []


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "ids is a list of 1 to 1000"),
        ({"ids": ["a"] * 1_001}, "ids is a list"),
        ({"ids": ["a"], "visibility": 0}, "visibility is in whole seconds from 1"),
        ({"ids": ["a"], "visibility": 43_201}, "visibility"),
        ({"ids": ["a"], "places": [1, 2]}, "places are as many"),
        ({"ids": ["a"], "places": [-1]}, "places are as many"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_so(
    place: Place, admin: Admin, body: dict[str, object], complaint: str
) -> None:
    place.queue()
    with pytest.raises(Exception, match=re.escape(complaint)):
        place.broker.admin("POST", "queues/orders/receive", body)
