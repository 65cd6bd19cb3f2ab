"""What a dead letter says about itself survives the way there and back, whatever the message had."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from semel.messages import dead_letter_attributes as letters
from semel.messages.dead_letter_attributes import CARRIED_KEY, OWN, PACKED, PLAIN, DeadLetterDetails
from semel.sqs import Entry
from semel.sqs.client.messages import Attribute, Received
from semel.sqs.limits import MAX_MESSAGE_ATTRIBUTES, MAX_MESSAGE_BYTES

LETTER = DeadLetterDetails("order-7", "rejected", "ValueError: no such country", 3, "9b1d", "orders")

sendable = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn"), exclude_characters="￾￿"), min_size=1)
names = st.text(string.ascii_letters, min_size=1, max_size=20)
owns = st.dictionaries(
    names,
    st.one_of(
        st.builds(Attribute, st.just("String"), sendable),
        st.builds(Attribute, st.just("Number"), st.integers().map(str)),
        st.builds(Attribute, st.just("Binary.png"), st.binary(min_size=1)),
    ),
    max_size=10,
)
some_letters = st.builds(DeadLetterDetails, sendable, sendable, sendable, st.integers(1, 99), names, names)


def many(count: int) -> dict[str, Attribute]:
    return {f"a{n}": Attribute("String", f"value {n}") for n in range(count)}


def size(found: dict[str, Attribute], body_bytes: int) -> int:
    return Entry("x" * body_bytes, found).size


def test_a_message_with_room_gets_six_attributes_that_anyone_can_read() -> None:
    found = letters.attributes(LETTER, many(4), 100)
    assert set(found) == {*PLAIN, "a0", "a1", "a2", "a3"}
    assert found["semel-reason"].value == "rejected"
    assert found["semel-attempts"].value == "3"


def test_where_six_do_not_fit_they_become_two() -> None:
    found = letters.attributes(LETTER, many(8), 100)
    assert set(found) == {CARRIED_KEY, PACKED, *many(8)}


def test_a_message_that_is_full_of_attributes_has_them_packed_too() -> None:
    found = letters.attributes(LETTER, many(10), 100)
    assert set(found) == {CARRIED_KEY, PACKED, OWN}


@given(some_letters, owns)
def test_what_is_written_is_read_back(letter: DeadLetterDetails, own: dict[str, Attribute]) -> None:
    found = letters.attributes(letter, own, 100)
    assert len(found) <= MAX_MESSAGE_ATTRIBUTES
    assert letters.read(found) == (letter, own)


@given(some_letters, owns)
def test_a_message_that_comes_back_has_its_own_attributes_again(
    letter: DeadLetterDetails, own: dict[str, Attribute]
) -> None:
    back = Received("new-id", "handle", "body", {}, letters.attributes(letter, own, 100))
    restored = letters.restored(back)
    assert own.items() <= restored.attributes.items()
    assert restored.attributes[CARRIED_KEY].value == letter.key
    assert (restored.message_id, restored.receipt, restored.body) == ("new-id", "handle", "body")


def test_a_message_that_was_never_packed_is_left_alone() -> None:
    plain = Received("id", "handle", "body", {}, many(3))
    assert letters.restored(plain) is plain


def test_a_second_letter_replaces_the_first() -> None:
    again = DeadLetterDetails("order-7", "out of attempts", "TimeoutError", 5, "77aa", "orders")
    first = letters.attributes(LETTER, many(10), 100)
    _, own = letters.read(first)
    second = letters.attributes(again, own, 100)
    assert letters.read(second) == (again, many(10))


def test_a_long_error_keeps_its_two_ends() -> None:
    found = letters.attributes(DeadLetterDetails("k", "r", "begin" + "x" * 100_000 + "end", 1, "id", "q"), {}, 100)
    error = str(found["semel-error"].value)
    assert error.startswith("begin")
    assert error.endswith("end")
    assert len(error) < 5_000


def test_whatever_the_body_leaves_of_a_message_its_letter_fits_in() -> None:
    letter = DeadLetterDetails("k" * 900, "r" * 5_000, "é" * 100_000, 7, "id", "orders")
    for own in ({}, many(5), many(8), many(10)):
        taken = size(own, 0)
        for left in (0, 1, 500, 1_500, 3_000, 5_000, 12_000):
            body = MAX_MESSAGE_BYTES - taken - left
            found = letters.attributes(letter, own, body)
            if left == 0 and len(own) < 10:
                assert found == own
            assert size(found, body) <= MAX_MESSAGE_BYTES
            if left >= 3_000:
                assert found[CARRIED_KEY].value == letter.key


def test_a_letter_without_a_key_says_in_any_case_which_message_it_was() -> None:
    letter = DeadLetterDetails("", "no key", "é" * 100_000, 1, "m-1", "orders")
    for own in ({}, many(8), many(10)):
        for left in (2_000, 20_000):
            body = MAX_MESSAGE_BYTES - size(own, 0) - left
            found = letters.attributes(letter, own, body)
            assert CARRIED_KEY not in found
            assert found["semel-message-id"].value == "m-1"
            assert size(found, body) <= MAX_MESSAGE_BYTES


def test_what_sqs_does_not_carry_is_replaced() -> None:
    for own in ({}, many(8)):
        found = letters.attributes(DeadLetterDetails("k", "r", "a\x00b\ud800c", 1, "id", "q"), own, 100)
        letter, _ = letters.read(found)
        assert letter is not None
        assert letter.error == "a�b�c"


def test_attributes_of_somebody_else_with_our_names_are_no_letter() -> None:
    strange: list[Any] = ["not JSON", "[1]", '{"key": 1}', "{}"]
    for text in strange:
        assert letters.read({PACKED: Attribute("String", text)})[0] is None
    assert (
        letters.read({"semel-reason": Attribute("String", "x"), "semel-attempts": Attribute("String", "y")})[0] is None
    )
    assert letters.read(many(2)) == (None, many(2))


# Sent back.


@given(owns, st.one_of(st.just(""), sendable), st.integers(0, 20))
def test_what_is_sent_back_has_its_own_attributes_and_one_name_by_which_the_ledger_knows_it(
    own: dict[str, Attribute], key: str, times: int
) -> None:
    found = letters.sent_back(own, 100, key=key, message_id="m-0", times=times)
    assert found is not None
    assert len(found) <= MAX_MESSAGE_ATTRIBUTES
    back = letters.restored(Received("new-id", "handle", "body", {}, found))
    assert own.items() <= back.attributes.items()
    assert letters.carried_key(found) == key
    assert letters.original_id(found, "new-id") == ("new-id" if key else "m-0")
    assert letters.redrives(found) == times
    assert letters.read(found) == (None, own), "it is no dead letter any more"


def test_a_message_too_large_to_say_how_often_still_says_who_it_is() -> None:
    room = MAX_MESSAGE_BYTES - size({CARRIED_KEY: Attribute("String", "k")}, 0)
    found = letters.sent_back({}, room, key="k", times=3)
    assert found == {CARRIED_KEY: Attribute("String", "k")}


def test_a_message_too_large_for_its_key_cannot_be_sent_back() -> None:
    assert letters.sent_back({}, MAX_MESSAGE_BYTES - 5, key="k") is None


def test_how_often_a_letter_was_sent_back_survives_its_next_burial() -> None:
    for count in (0, 4, 8, 10):
        letter = DeadLetterDetails("k", "rejected", "again", 3, "9b1d", "orders", 2)
        read, own = letters.read(letters.attributes(letter, many(count), 100))
        assert (read, own) == (letter, many(count))


def test_what_others_write_into_the_count_is_not_believed() -> None:
    for text in ("", "x", "-1", "9" * 40, "²"):
        assert letters.redrives({letters.REDRIVES: Attribute("String", text)}) == 0
