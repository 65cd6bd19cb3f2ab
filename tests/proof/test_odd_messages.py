"""Messages with any content: whatever a sender puts into a message, the app continues, the message is handled or
dead-lettered, and the message beside it is handled.

Hypothesis makes up the messages: bodies, attributes of all types under all names that mean something to Semel, and ids
for FIFO queues. They are sent to a real broker, which refuses what SQS refuses, and read by everything in Semel that
reads messages. SEMEL_PROOF_EXAMPLES=5000 makes it a long search with new random numbers each time.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

import suite
from driven import Place, new_place
from semel import App, Batch, Message
from semel.broker.engine.validation import checked_attributes
from semel.dlq.access.broker import LazyMessage
from semel.dlq.messages import DeadLetterMessage
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.messages import dead_letter_attributes as own_attributes
from semel.messages.keys import key_rule
from semel.spark.sinks.handlers import row_messages
from semel.spark.source import columns
from semel.sqs import Attribute, Received, limits
from semel.sqs.client.messages import wire_attributes
from semel.sqs.errors import SqsError

GOOD = "a-good-order-3b1f"
EXAMPLES = os.environ.get("SEMEL_PROOF_EXAMPLES")
PROOF = settings(
    max_examples=int(EXAMPLES) if EXAMPLES else suite.effort(fast=30, full=600),
    derandomize=EXAMPLES is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

# The possible messages.

NAMES = [
    *(
        own_attributes.CARRIED_KEY,
        own_attributes.REASON,
        own_attributes.ERROR,
        own_attributes.ATTEMPTS,
        own_attributes.MESSAGE_ID,
        own_attributes.QUEUE,
    ),
    *(own_attributes.REDRIVES, own_attributes.PACKED, own_attributes.OWN, "idempotency-key", "order", "other"),
]
sendable = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
texts = st.text(sendable, min_size=1, max_size=40)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts
nested = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
# Values that look like a packed attribute, valid or not.
parts = (
    st.tuples(st.sampled_from(["String", "Number", "Binary", "String.x", "Strings", ""]), texts).map(list)
    | st.tuples(st.just("Binary"), st.just(""), st.binary(max_size=5).map(lambda b: base64.b64encode(b).decode())).map(
        list
    )
    | nested
)
packed_own = st.dictionaries(st.sampled_from([*NAMES, "", "AWS.x", "a..b", "a b"]) | texts, parts, max_size=12)
packed_details = st.dictionaries(
    st.sampled_from(own_attributes.DeadLetterDetails.__slots__) | texts, leaves | nested, max_size=8
)
odd_texts = st.sampled_from(
    [
        "{",
        "[]",
        "null",
        "NaN",
        "1e999",
        '{"a": []}',
        '{"a": {}}',
        "[" * 2_000,
        "9" * 5_000,
        "-1",
        "0",
        "٣",
        "k" * 2_000,
        "\x85é",
    ]
)
values = (
    st.tuples(st.sampled_from(["String", "String.json", "Number", "Number.int"]), st.integers().map(str))
    | st.tuples(st.sampled_from(["String", "String.json"]), texts | odd_texts)
    | st.tuples(st.just("String"), (nested | packed_own | packed_details).map(lambda value: json.dumps(value)[:20_000]))
    | st.tuples(st.sampled_from(["Binary", "Binary.gzip"]), st.binary(min_size=1, max_size=40))
).map(lambda pair: Attribute(*pair))
attributes = st.dictionaries(
    st.sampled_from(NAMES) | st.sampled_from("abcdef"), values, max_size=10
) | st.fixed_dictionaries(
    {},
    optional={
        own_attributes.OWN: values,
        own_attributes.PACKED: values,
        own_attributes.REASON: values,
        own_attributes.ATTEMPTS: values,
    },
)
orders = st.fixed_dictionaries({}, optional={"id": leaves | nested, "a": nested, "cents": leaves})
bodies = orders.map(json.dumps) | nested.map(json.dumps) | texts | odd_texts
tokens = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=128)


# The apps that read them.


@dataclass
class Order:
    id: str
    cents: int = 0


App_ = Callable[[list[str]], App]


def by_field(done: list[str]) -> App:
    app = App()

    @app.handler("orders", key="$.id")
    def handle(order: dict[str, Any], message: Message) -> None:
        done.append(message.message_id)

    return app


def by_default(done: list[str]) -> App:
    app = App()

    @app.handler("orders")
    def handle(message: Message) -> None:
        done.append(message.message_id)

    return app


def by_attribute(done: list[str]) -> App:
    app = App()

    @app.handler("orders", key="attribute:order", missing_key="message-id", payload=["$.a[0].b", "$.cents"])
    def handle(body: str, message: Message) -> None:
        done.append(message.message_id)

    return app


def by_function(done: list[str]) -> App:
    app = App()

    @app.handler("orders", key=[lambda order: (order.id, order.cents), "$.id"], payload=lambda order: order.cents)
    def handle(order: Order, message: Message) -> None:
        done.append(message.message_id)

    return app


def by_batch(done: list[str]) -> App:
    app = App()

    @app.batch_handler("orders", key="$['id']")
    def handle(batch: Batch[Any]) -> None:
        done.extend(item.message.message_id for item in batch)

    return app


def in_order(done: list[str]) -> App:
    app = App()

    @app.handler("orders.fifo", key="dedup-id")
    def handle(order: Any, message: Message) -> None:
        done.append(message.message_id)

    return app


APPS: list[App_] = [by_field, by_default, by_attribute, by_function, by_batch, in_order]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq="dead")
        place.queue("orders.fifo", dlq="dead.fifo")
        yield place


def dead_letters(place: Place, queue: str) -> list[str]:
    """The original MessageIds of all dead-letter messages, read as the dead-letter tools do. Empties the queue."""
    ids = []
    for message in place.messages(queue):
        lazy = LazyMessage(message, queue)
        dead_letter = lazy.whole
        assert (lazy.reason, lazy.error) == (dead_letter.reason, dead_letter.error)
        assert dead_letter.by_semel
        ids.append(dead_letter.original_id)
    source = place.client.queue(queue)
    while received := source.receive(10, 0):
        for delivery in received:
            checked_attributes(_sent_back(delivery))
        assert not any(source.delete([delivery.receipt for delivery in received]))
    return ids


def _sent_back(received: Received) -> dict[str, Any]:
    message = DeadLetterMessage.of(received, "dead")
    attributes_back = own_attributes.sent_back(
        message.attributes, message.body_bytes, key=message.key, message_id=message.id, times=1
    )
    return wire_attributes(attributes_back or {})


@pytest.mark.parametrize("make", APPS)
@PROOF
@given(body=bodies, attributes=attributes, group=tokens, dedup=tokens)
@example(body='{"id": 1}', attributes={own_attributes.OWN: Attribute("String", '{"a": []}')}, group="g", dedup="d")
@example(body="x", attributes={own_attributes.MESSAGE_ID: Attribute("String", "i" * 2_000)}, group="g", dedup="d")
@example(
    body='{"id": []}', attributes={own_attributes.PACKED: Attribute("String", '{"key": []}')}, group="g", dedup="d"
)
def test_whatever_a_message_says_it_is_handled_or_dead_lettered_and_so_is_the_one_beside_it(
    place: Place, make: App_, body: str, attributes: dict[str, Attribute], group: str, dedup: str
) -> None:
    done: list[str] = []
    app = make(done)
    (name,) = app.handlers
    queue = place.client.queue(name)
    fifo: dict[str, Any] = {"group": group, "dedup": f"{place.clock.now()}{dedup}"[:128]} if queue.fifo else {}
    try:
        odd = queue.send(body, attributes=attributes, **fifo).message_id
    except SqsError:
        event("refused by SQS")
        return
    beside: dict[str, Any] = {"group": "good", "dedup": GOOD} if queue.fifo else {}
    good = queue.send(json.dumps({"id": GOOD}), attributes={"order": GOOD}, **beside)
    with SqliteLedger(":memory:", clock=place.clock) as ledger:
        worker = place.worker(app, ledger=ledger)
        worker.drain()
    assert place.is_empty(name)
    assert good.message_id in done
    dead = dead_letters(place, "dead.fifo" if queue.fifo else "dead")
    assert (odd in done) != (odd in dead)
    assert sorted([*done, *dead]) == sorted([odd, good.message_id])
    place.clock.advance(limits.DEDUP_WINDOW + 1)


@PROOF
@given(attributes=attributes)
@example(attributes={own_attributes.OWN: Attribute("String", '{"a": []}')})
@example(attributes={own_attributes.OWN: Attribute("String", '{"a b": ["Number", "x"]}')})
@example(
    attributes={own_attributes.PACKED: Attribute("String", '{"key": [], "reason": "r", "error": "", "attempts": "x"}')}
)
def test_whatever_attributes_say_they_can_be_read_and_what_is_made_of_them_can_be_sent(
    attributes: dict[str, Attribute],
) -> None:
    message, own = own_attributes.read(attributes)
    for value in (own, own_attributes.restored(Received("id", "r", "body", {}, attributes)).attributes):
        assert all(isinstance(attribute, Attribute) for attribute in value.values())
    if message is not None:
        assert all(
            isinstance(getattr(message, name), str) for name in ("key", "reason", "error", "message_id", "queue")
        )
        assert isinstance(message.attempts, int)
        assert isinstance(message.redrives, int)
    valid = {name: value for name, value in own.items() if limits.ATTRIBUTE_NAME.match(name)}
    again = own_attributes.attributes(
        message or own_attributes.DeadLetterDetails("k", "r", "e", 1, "id", "q"), valid, 100
    )
    checked_attributes(wire_attributes(again))
    checked_attributes(wire_attributes(own_attributes.sent_back(valid, 100, key="k") or {}))


RULES = [key_rule(None), key_rule("$.id"), key_rule("attribute:order"), key_rule(["$.a[0]", "$.id"])]


@PROOF
@given(body=bodies, attributes=attributes)
def test_whatever_a_message_says_spark_can_read_it_and_seal_it(body: str, attributes: dict[str, Attribute]) -> None:
    system = {"SentTimestamp": "1700000000000", "ApproximateReceiveCount": "1"}
    message = Received("11111111-2222-3333-4444-555555555555", "receipt", body, system, attributes)
    for rule in RULES:
        key = columns.key_of(message, rule)
        assert key is None or len(key.encode()) <= 900
    table = columns.table([columns.SourceMessage(message, 0.0, 0.0, None)], "orders", None)
    (batch,) = table.to_batches()
    ((queue, read),) = row_messages.messages(batch)
    assert queue == "orders"
    assert (read.message_id, read.body) == (message.message_id, body)
