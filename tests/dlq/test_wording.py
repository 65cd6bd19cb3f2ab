"""Searching for a word of an error finds the same messages with and without help from the broker."""

from __future__ import annotations

import base64

import pytest

from semel.broker import EmbeddedBroker
from semel.dlq.filter.parser import parse
from semel.dlq.messages import DeadLetterMessage
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Attribute, Client, Entry
from semel.sqs.client.admin import Admin

ERRORS = (
    "TimeoutError: read timeout after 30 s",
    "READ TIMEOUT",
    'it said: "timeout"\nand more',
    "KeyError: 'country'",
    "zu spät: timeout",
    "\N{KELVIN SIGN}eyError is written oddly",
    "time out",
)


@pytest.fixture
def admin(sqs_broker: EmbeddedBroker) -> Admin:
    client = Client(sqs_broker.url, sqs_broker.region, access_key="test", secret_key="test")
    queue = client.create_queue("dead")
    entries = [Entry("{}", own_attributes.attributes(message(error), own(n), 2)) for n, error in enumerate(ERRORS)]
    queue.send_many([Entry("timeout, but only in the body"), *entries])
    admin = Admin.of(client)
    assert admin is not None
    return admin


def message(error: str) -> own_attributes.DeadLetterDetails:
    return own_attributes.DeadLetterDetails("k", "out of attempts", error, 3, "m", "orders")


def own(n: int) -> dict[str, Attribute]:
    """Some with room for plain attributes, some where they have to be packed."""
    return {f"a{place}": Attribute("String", "x") for place in range(9 if n % 2 else 1)}


@pytest.mark.parametrize("text", ["error ~ timeout", "error ~ keyerror", "reason = 'out of attempts'", "error ~ spät"])
@pytest.mark.parametrize("bodies", [True, False])
def test_the_same_messages_match(admin: Admin, text: str, bodies: bool) -> None:
    where = parse(text)
    helped = admin.peek("dead", word=where.word, bodies=bodies)
    whole = admin.peek("dead", bodies=bodies)
    assert helped.scanned == len(whole.messages) == len(ERRORS) + 1
    assert [m["MessageId"] for m in helped.messages if where.matches(DeadLetterMessage.peeked(m, "dead"), 0)] == [
        m["MessageId"] for m in whole.messages if where.matches(DeadLetterMessage.peeked(m, "dead"), 0)
    ]
    assert len(helped.messages) <= len(whole.messages)


def test_what_cannot_match_is_not_even_shown(admin: Admin) -> None:
    shown = {own_attributes.read(
                 {n: Attribute(a["DataType"], a["StringValue"]) for n, a in m["MessageAttributes"].items()}
             )[0]
             for m in admin.peek("dead", word="timeout").messages}  # fmt: skip
    assert {details.error for details in shown if details} == {
        error for error in ERRORS if "timeout" in error.lower() or not error.isascii()
    }


def test_pages_go_on_where_they_ended_and_count_what_was_passed(sqs_broker: EmbeddedBroker) -> None:
    client = Client(sqs_broker.url, sqs_broker.region, access_key="test", secret_key="test")
    queue = client.create_queue("many")
    attribute_sets = [
        own_attributes.attributes(message("timeout" if n % 100 == 0 else "other"), {}, 1) for n in range(4_500)
    ]
    queue.send_many([Entry(str(n), attributes) for n, attributes in enumerate(attribute_sets)])
    admin = Admin.of(client)
    assert admin is not None
    bodies, scanned = list[int](), 0
    place: int | None = 0
    while place is not None:
        page = admin.peek("many", after=place, limit=7, word="timeout")
        bodies += [int(message["Body"]) for message in page.messages]
        scanned += page.scanned
        place = page.next
    assert bodies == list(range(0, 4_500, 100))
    assert scanned == 4_500


def test_binary_attributes_are_checked_by_the_caller(sqs_broker: EmbeddedBroker) -> None:
    client = Client(sqs_broker.url, sqs_broker.region, access_key="test", secret_key="test")
    client.create_queue("dead").send("x", attributes={"semel-error": Attribute("Binary", b"timeout")})
    admin = Admin.of(client)
    assert admin is not None
    (shown,) = admin.peek("dead", word="timeout").messages
    assert base64.b64decode(shown["MessageAttributes"]["semel-error"]["BinaryValue"]) == b"timeout"
    assert admin.peek("dead", word="timeout", ids=[shown["MessageId"]]).messages
