"""A lazy message gives the same answers as the complete message."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from semel.dlq.access.broker import LazyMessage
from semel.dlq.filter.parser import parse
from semel.dlq.messages import DeadLetterMessage
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs.client.messages import Attribute, wire_attributes

texts = st.sampled_from(["", "timeout", "rejected", "no such country", "7", "x", "²"])
values = st.one_of(texts.map(lambda text: Attribute("String", text)), st.just(Attribute("Binary", b"\x00")))
odd = st.dictionaries(
    st.sampled_from(
        [*own_attributes.PLAIN, own_attributes.PACKED, own_attributes.OWN, own_attributes.REDRIVES, "tenant"]
    ),
    values,
)
whole = st.builds(
    own_attributes.attributes,
    st.builds(
        own_attributes.DeadLetterDetails, texts, texts, texts, st.integers(0, 9), texts, texts, st.integers(0, 3)
    ),
    st.dictionaries(st.sampled_from([f"a{n}" for n in range(12)]), values, max_size=10),
    st.just(10),
)
FIELDS = [*DeadLetterMessage.__dataclass_fields__, "why"]


def message(attributes: dict[str, Attribute]) -> dict[str, Any]:
    system = {"SentTimestamp": "1800000000000", "ApproximateReceiveCount": "3", "MessageGroupId": "g"}
    wire_message = {"MessageId": "m-1", "Body": '{"n": 1}', "Attributes": system, "State": "visible", "Place": 1}
    return wire_message | ({"MessageAttributes": wire_attributes(attributes)} if attributes else {})


@given(st.one_of(odd, whole), st.permutations(FIELDS))
def test_whatever_is_asked_for_first(attributes: dict[str, Attribute], order: list[str]) -> None:
    wire_message = message(attributes)
    lazy, dead_letter = LazyMessage(wire_message, "dead"), DeadLetterMessage.peeked(wire_message, "dead")
    assert [(name, getattr(lazy, name)) for name in order] == [(name, getattr(dead_letter, name)) for name in order]


def test_a_filter_cannot_tell_them_apart() -> None:
    wire_message = message(
        own_attributes.attributes(
            own_attributes.DeadLetterDetails("k", "failed", "timeout after 3 s", 2, "m", "orders"), {}, 10
        )
    )
    lazy: Any = LazyMessage(wire_message, "dead")
    for text in (
        "error ~ timeout",
        "timeout",
        "$.n = 1",
        "key = k and receives = 3",
        "fingerprint exists",
        "queue = orders",
    ):
        assert parse(text).matches(lazy, 0.0), text
