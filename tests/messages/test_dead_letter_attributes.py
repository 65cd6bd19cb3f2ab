"""The attributes that describe a dead-letter message survive the way there and back, whatever the message had."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from semel.messages import dead_letter_attributes as own_attributes
from semel.messages.dead_letter_attributes import CARRIED_KEY, OWN, PACKED, PLAIN, DeadLetterDetails
from semel.sqs import Entry
from semel.sqs.client.messages import Attribute, Received
from semel.sqs.limits import MAX_MESSAGE_ATTRIBUTES, MAX_MESSAGE_BYTES

DETAILS = DeadLetterDetails("order-7", "rejected", "ValueError: no such country", 3, "9b1d", "orders")

sendable = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn"), exclude_characters="￾￿"), min_size=1)
names = st.text(string.ascii_letters, min_size=1, max_size=20)
owns = st.dictionaries(
    names,
    st.one_of(
        st.builds(Attribute, st.just("String"), sendable),
        st.builds(Attribute, st.just("Number"), st.integers(1 - 10**38, 10**38 - 1).map(str)),
        st.builds(Attribute, st.just("Binary.png"), st.binary(min_size=1)),
    ),
    max_size=10,
)
any_details = st.builds(DeadLetterDetails, sendable, sendable, sendable, st.integers(1, 99), names, names)


def many(count: int) -> dict[str, Attribute]:
    return {f"a{n}": Attribute("String", f"value {n}") for n in range(count)}


def size(attributes: dict[str, Attribute], body_bytes: int) -> int:
    return Entry("x" * body_bytes, attributes).size


def test_a_message_with_room_gets_six_attributes_that_anyone_can_read() -> None:
    attributes = own_attributes.attributes(DETAILS, many(4), 100)
    assert set(attributes) == {*PLAIN, "a0", "a1", "a2", "a3"}
    assert attributes["semel-reason"].value == "rejected"
    assert attributes["semel-attempts"].value == "3"


def test_where_six_do_not_fit_they_become_two() -> None:
    attributes = own_attributes.attributes(DETAILS, many(8), 100)
    assert set(attributes) == {CARRIED_KEY, PACKED, *many(8)}


def test_a_message_that_is_full_of_attributes_has_them_packed_too() -> None:
    attributes = own_attributes.attributes(DETAILS, many(10), 100)
    assert set(attributes) == {CARRIED_KEY, PACKED, OWN}


@given(any_details, owns)
def test_what_is_written_is_read_back(details: DeadLetterDetails, own: dict[str, Attribute]) -> None:
    attributes = own_attributes.attributes(details, own, 100)
    assert len(attributes) <= MAX_MESSAGE_ATTRIBUTES
    assert own_attributes.read(attributes) == (details, own)


@given(any_details, owns)
def test_a_message_that_comes_back_has_its_own_attributes_again(
    details: DeadLetterDetails, own: dict[str, Attribute]
) -> None:
    back = Received("new-id", "handle", "body", {}, own_attributes.attributes(details, own, 100))
    restored = own_attributes.restored(back)
    assert own.items() <= restored.attributes.items()
    assert restored.attributes[CARRIED_KEY].value == details.key
    assert (restored.message_id, restored.receipt, restored.body) == ("new-id", "handle", "body")


def test_a_message_that_was_never_packed_is_left_alone() -> None:
    plain = Received("id", "handle", "body", {}, many(3))
    assert own_attributes.restored(plain) is plain


def test_a_second_dead_lettering_replaces_the_first() -> None:
    again = DeadLetterDetails("order-7", "out of attempts", "TimeoutError", 5, "77aa", "orders")
    first = own_attributes.attributes(DETAILS, many(10), 100)
    _, own = own_attributes.read(first)
    second = own_attributes.attributes(again, own, 100)
    assert own_attributes.read(second) == (again, many(10))


def test_a_long_error_keeps_its_two_ends() -> None:
    attributes = own_attributes.attributes(
        DeadLetterDetails("k", "r", "begin" + "x" * 100_000 + "end", 1, "id", "q"), {}, 100
    )
    error = str(attributes["semel-error"].value)
    assert error.startswith("begin")
    assert error.endswith("end")
    assert len(error) < 5_000


def test_whatever_the_body_leaves_of_a_message_its_details_fit_in() -> None:
    details = DeadLetterDetails("k" * 900, "r" * 5_000, "é" * 100_000, 7, "id", "orders")
    for own in ({}, many(5), many(8), many(10)):
        own_size = size(own, 0)
        for left in (0, 1, 500, 1_500, 3_000, 5_000, 12_000):
            body = MAX_MESSAGE_BYTES - own_size - left
            attributes = own_attributes.attributes(details, own, body)
            if left == 0 and len(own) < 10:
                assert attributes == own
            assert size(attributes, body) <= MAX_MESSAGE_BYTES
            if left >= 3_000:
                assert attributes[CARRIED_KEY].value == details.key


def test_details_without_a_key_say_in_any_case_which_message_it_was() -> None:
    details = DeadLetterDetails("", "no key", "é" * 100_000, 1, "m-1", "orders")
    for own in ({}, many(8), many(10)):
        for left in (2_000, 20_000):
            body = MAX_MESSAGE_BYTES - size(own, 0) - left
            attributes = own_attributes.attributes(details, own, body)
            assert CARRIED_KEY not in attributes
            assert attributes["semel-message-id"].value == "m-1"
            assert size(attributes, body) <= MAX_MESSAGE_BYTES


def test_what_sqs_does_not_carry_is_replaced() -> None:
    for own in ({}, many(8)):
        attributes = own_attributes.attributes(DeadLetterDetails("k", "r", "a\x00b\ud800c", 1, "id", "q"), own, 100)
        details, _ = own_attributes.read(attributes)
        assert details is not None
        assert details.error == "a�b�c"


def test_attributes_of_somebody_else_with_our_names_are_no_dead_letter_details() -> None:
    strange: list[Any] = ["not JSON", "[1]", '{"key": 1}', "{}"]
    for text in strange:
        assert own_attributes.read({PACKED: Attribute("String", text)})[0] is None
    assert (
        own_attributes.read({"semel-reason": Attribute("String", "x"), "semel-attempts": Attribute("String", "y")})[0]
        is None
    )
    assert own_attributes.read(many(2)) == (None, many(2))


# Sent back.


@given(owns, st.one_of(st.just(""), sendable), st.integers(0, 20))
def test_what_is_sent_back_has_its_own_attributes_and_one_name_by_which_the_ledger_knows_it(
    own: dict[str, Attribute], key: str, times: int
) -> None:
    attributes = own_attributes.sent_back(own, 100, key=key, message_id="m-0", times=times)
    assert attributes is not None
    assert len(attributes) <= MAX_MESSAGE_ATTRIBUTES
    back = own_attributes.restored(Received("new-id", "handle", "body", {}, attributes))
    assert own.items() <= back.attributes.items()
    assert own_attributes.carried_key(attributes) == key
    assert own_attributes.original_id(attributes, "new-id") == ("new-id" if key else "m-0")
    assert own_attributes.redrives(attributes) == times
    assert own_attributes.read(attributes) == (None, own), "it is no dead letter any more"


def test_a_message_too_large_to_say_how_often_still_says_who_it_is() -> None:
    room = MAX_MESSAGE_BYTES - size({CARRIED_KEY: Attribute("String", "k")}, 0)
    attributes = own_attributes.sent_back({}, room, key="k", times=3)
    assert attributes == {CARRIED_KEY: Attribute("String", "k")}


def test_a_message_too_large_for_its_key_cannot_be_sent_back() -> None:
    assert own_attributes.sent_back({}, MAX_MESSAGE_BYTES - 5, key="k") is None


def test_how_often_a_message_was_sent_back_survives_its_next_dead_lettering() -> None:
    for count in (0, 4, 8, 10):
        details = DeadLetterDetails("k", "rejected", "again", 3, "9b1d", "orders", 2)
        read, own = own_attributes.read(own_attributes.attributes(details, many(count), 100))
        assert (read, own) == (details, many(count))


def test_what_others_write_into_the_count_is_not_believed() -> None:
    for text in ("", "x", "-1", "9" * 40, "²"):
        assert own_attributes.redrives({own_attributes.REDRIVES: Attribute("String", text)}) == 0
