"""Keys: where they come from, that different messages have different ones, and that none is guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import SemelError
from semel.messages.dead_letter_attributes import CARRIED_KEY
from semel.messages.json_path import MISSING, JsonPath
from semel.messages.keys import Body, Key, KeySpec, NoKey, PayloadSpec, key_rule, payload_rule, scoped


@dataclass(frozen=True)
class Attribute:
    value: str | bytes
    type: str = "String"


@dataclass(frozen=True)
class Message:
    body: str = '{"order": {"id": "o-7", "lines": [{"sku": "a"}, {"sku": "b"}]}, "total": 19.9, "number": 7}'
    message_id: str = "m-1"
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    dedup: str | None = None


def with_attributes(**values: str | bytes) -> Message:
    return Message(attributes={name.replace("_", "-"): Attribute(value) for name, value in values.items()})


def resolve(spec: KeySpec, message: Message, value: Any = None) -> Key:
    return key_rule(spec).resolve(message, value)


def text_of(function_result: Any) -> str:
    return resolve(lambda _value: function_result, Message()).text


def test_without_a_rule_the_message_id_is_the_key() -> None:
    assert resolve(None, Message()) == Key("m-1", "message-id")


def test_without_a_rule_a_producers_own_key_comes_before_the_message_id() -> None:
    assert resolve(None, with_attributes(idempotency_key="p-1")) == Key("p-1", "idempotency-key")


def test_a_declared_rule_comes_before_a_producers_attribute() -> None:
    assert resolve("$.order.id", with_attributes(idempotency_key="p-1")) == Key("o-7", "$.order.id")
    assert resolve("message-id", with_attributes(idempotency_key="p-1")) == Key("m-1", "message-id")


@pytest.mark.parametrize("spec", [None, "$.order.id", "message-id", "dedup-id", lambda _value: 1, ["$.missing"]])
def test_a_carried_key_comes_before_every_rule(spec: KeySpec) -> None:
    message = with_attributes(semel_key="first", idempotency_key="p-1")
    assert CARRIED_KEY in message.attributes
    assert resolve(spec, message) == Key("first", "carried")


def test_a_message_that_was_sent_back_counts_under_the_id_that_it_had_before() -> None:
    back = with_attributes(semel_message_id="m-0")
    assert resolve(None, back) == resolve("message-id", back) == Key("m-0", "message-id")
    assert resolve(["message-id"], back).text == "m-0"
    assert resolve("$.order.id", back) == Key("o-7", "$.order.id"), "another rule is not touched by it"
    assert resolve(None, with_attributes(semel_message_id="m-0", idempotency_key="p-1")).text == "p-1"
    with pytest.raises(NoKey, match="replaced its deduplication id"):
        resolve("dedup-id", back)


def test_an_empty_attribute_is_as_good_as_none() -> None:
    assert resolve(None, with_attributes(semel_key="", idempotency_key="")).origin == "message-id"


def test_a_dedup_id_is_used_only_when_asked_for() -> None:
    message = Message(dedup="d-1")
    assert resolve(None, message).text == "m-1"
    assert resolve("dedup-id", message) == Key("d-1", "dedup-id")
    with pytest.raises(NoKey, match="FIFO"):
        resolve("dedup-id", Message())


def test_an_attribute_can_be_the_key_and_a_binary_one_is_written_in_hex() -> None:
    assert resolve("attribute:order", with_attributes(order="o-9")) == Key("o-9", "attribute:order")
    assert resolve("attribute:order", with_attributes(order=b"\x00\xff")).text == "00ff"
    with pytest.raises(NoKey, match="attribute 'order'"):
        resolve("attribute:order", Message())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$.order.id", "o-7"), ("$['order']['id']", "o-7"), ('$["order"].id', "o-7"), ("$.order.lines[0].sku", "a"),
        ("$.order.lines[-1].sku", "b"), ("$.number", "7"),
    ],
)  # fmt: skip
def test_a_json_path_names_a_field_of_the_body(path: str, expected: str) -> None:
    assert resolve(path, Message()) == Key(expected, path)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{}", "missing"), ("[]", "missing"), ('{"id": null}', "empty"), ('{"id": ""}', "empty"),
        ('{"id": {}}', "dict"), ('{"id": [1]}', "list"), ('{"id": true}', "bool"), ('{"id": 1.5}', "whole number"),
        ("not json", "not JSON"), ("", "not JSON"),
    ],
)  # fmt: skip
def test_a_path_that_finds_no_key_is_an_error_that_says_why(body: str, reason: str) -> None:
    with pytest.raises(NoKey, match=reason):
        resolve("$.id", Message(body))


def test_a_number_that_would_be_rounded_is_no_key() -> None:
    assert resolve("$.id", Message('{"id": 18446744073709551615}')).text == "18446744073709551615"
    with pytest.raises(NoKey, match="64 bits"):
        resolve("$.id", Message('{"id": 18446744073709551616}'))


def test_a_reason_never_holds_what_the_message_said() -> None:
    with pytest.raises(NoKey) as caught:
        resolve(lambda value: int(value), Message(), "my secret")
    assert "secret" not in str(caught.value)
    assert "ValueError" in caught.value.reason


def test_a_function_gets_the_decoded_message_and_its_name_is_the_origin() -> None:
    def by_order(value: dict[str, str]) -> str:
        return value["order"]

    key = resolve(by_order, Message(), {"order": "o-3"})
    assert key.text == "o-3"
    assert "by_order" in key.origin
    with pytest.raises(NoKey, match="KeyError: 'order'"):
        resolve(by_order, Message(), {})


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("a", "a"), (7, "7"), (0, "0"), (("a", 1), "a:1"), ((("a", "b"), "c"), "a\\:b:c"),
        (UUID("12345678-1234-5678-1234-567812345678"), "12345678-1234-5678-1234-567812345678"),
    ],
)  # fmt: skip
def test_texts_whole_numbers_uuids_and_tuples_are_keys(result: Any, expected: str) -> None:
    assert text_of(result) == expected


@pytest.mark.parametrize(
    "result", [None, "", (), ("a", ""), ("a", None), True, 1.0, b"bytes", ["a"], {"a": 1}, object()]
)
def test_anything_else_is_no_key(result: Any) -> None:
    with pytest.raises(NoKey):
        text_of(result)


def test_parts_from_several_places_are_joined() -> None:
    rule = ["$.order.id", "attribute:tenant", ("message-id",)]
    key = resolve(rule, with_attributes(tenant="t:1"))
    assert key == Key("o-7:t\\:1:m-1", "($.order.id, attribute:tenant, (message-id))")
    with pytest.raises(NoKey, match="tenant"):
        resolve(rule, Message())


@given(st.lists(st.text(alphabet="a:\\b", min_size=1), min_size=2, max_size=3), st.data())
def test_different_parts_never_join_to_the_same_key(parts: list[str], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.text(alphabet="a:\\b", min_size=1), min_size=2, max_size=3))
    assert (text_of(tuple(parts)) == text_of(tuple(other))) == (parts == other)


def test_a_backslash_before_a_colon_does_not_undo_the_parting() -> None:
    assert text_of(("a\\", "b", "c")) != text_of(("a:b", "c"))


def test_a_long_key_becomes_a_readable_beginning_and_a_digest() -> None:
    long, other = "é" * 600, "é" * 599 + "x"
    key = text_of(long)
    assert key.startswith("é" * 50 + "~")
    assert len(key.encode()) < 200
    assert key != text_of(other)
    assert key == text_of(long)
    assert text_of("x" * 900) == "x" * 900


@pytest.mark.parametrize("text", ["a\x00b", "a\x1bb", "a\ud800b", "a\uffffb"])
def test_a_key_that_no_attribute_could_carry_becomes_a_digest(text: str) -> None:
    key = text_of(text)
    assert key.startswith(("a?b~", "ab~"))
    assert key != text_of("a?b")
    key.encode()  # and every store can keep it


def test_a_shortened_key_that_is_carried_stays_what_it_is() -> None:
    key = text_of("x" * 5_000)
    assert resolve(None, with_attributes(semel_key=key)).text == key


def test_the_body_is_parsed_once_and_only_if_a_part_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = orjson.loads

    def loads(text: str) -> Any:
        calls.append(text)
        return real(text)

    monkeypatch.setattr(orjson, "loads", loads)
    resolve(None, Message())
    resolve(["message-id"], Message())
    assert not calls
    resolve(["$.order.id", "$.number", "$.order.lines[0].sku"], Message())
    assert len(calls) == 1


@pytest.mark.parametrize("spec", ["order.id", "", "attribute:", "id", 7, [], str, b"$.a"])
def test_what_is_no_rule_is_refused_when_the_handler_is_made(spec: Any) -> None:
    with pytest.raises(SemelError, match="is not a rule for a key"):
        key_rule(spec)


def test_an_async_function_is_no_rule_for_a_key() -> None:
    async def later(value: Any) -> str:
        return str(value)

    with pytest.raises(SemelError, match="plain function"):
        key_rule(later)


@pytest.mark.parametrize(
    "path", ["$", "$.", "$..id", "$.*", "$.a[*]", "$.a[1:2]", "$.a[?(@.b)]", "$.a b", "$a", "$.a[x]", "$.a]"]
)
def test_a_path_that_could_name_several_values_or_none_is_refused(path: str) -> None:
    with pytest.raises(SemelError, match=r"written as \$\.order\.id"):
        key_rule(path)


def test_a_path_can_name_what_has_quotes_and_dots_in_its_name() -> None:
    parsed = {"a.b": {"it's": 1, 'say "x"': 2, "ключ-1": 3}}
    assert JsonPath.parse(r"$['a.b']['it\'s']").find(parsed) == 1
    assert JsonPath.parse(r"""$['a.b']['say "x"']""").find(parsed) == 2
    assert JsonPath.parse("$['a.b'].ключ-1").find(parsed) == 3
    assert JsonPath.parse("$['a.b'].x").find(parsed) is MISSING


@pytest.mark.parametrize("path", ["$.lines[2]", "$.lines[-3]", "$.lines.sku", "$.name[0]", "$.name.x", "$[0]"])
def test_a_path_past_the_end_or_through_the_wrong_kind_finds_nothing(path: str) -> None:
    assert JsonPath.parse(path).find({"lines": [1, 2], "name": "text"}) is MISSING


def test_the_ledger_tells_the_keys_of_two_queues_apart() -> None:
    assert scoped("us-east-1:1:orders", "a/b") == "us-east-1:1:orders/a/b"
    assert scoped("orders.fifo", "x") != scoped("orders", "x")


def digest(spec: PayloadSpec, body: str, value: Any = None) -> str:
    return payload_rule(spec)(Body(body), value)


def test_spacing_and_order_of_names_make_no_difference_to_a_payload() -> None:
    assert digest(True, '{"a": 1, "b": [1, 2]}') == digest(True, '{"b":[1,2],\n"a":1}')
    assert digest(True, '{"a": 1}') != digest(True, '{"a": 2}')
    assert digest(True, '{"a": [1, 2]}') != digest(True, '{"a": [2, 1]}')


def test_a_body_that_is_not_json_is_compared_as_it_is() -> None:
    assert digest(True, "a text") == digest(True, "a text")
    assert digest(True, "a text") != digest(True, "a  text")


def test_long_numbers_are_not_rounded_into_the_same_payload() -> None:
    assert digest(True, '{"n": 123456789012345678901}') != digest(True, '{"n": 123456789012345678902}')


def test_no_payload_rule_compares_nothing() -> None:
    assert digest(False, "anything") == ""


def test_a_payload_of_fields_compares_only_those() -> None:
    assert digest("$.a", '{"a": 1, "b": 2}') == digest("$.a", '{"b": 3, "a": 1}')
    assert digest(["$.a", "$.b"], '{"a": 1, "b": 2}') != digest(["$.a", "$.b"], '{"a": 1, "b": 3}')
    assert digest("$.a", '{"a": null}') != digest("$.a", "{}")
    assert digest(["$.a", "$.b"], '{"a": 1}') != digest(["$.a", "$.b"], '{"b": 1}')


def test_a_payload_function_decides_what_is_compared() -> None:
    assert digest(lambda value: value["a"], "", {"a": 1, "b": 2}) == digest(lambda value: value["a"], "", {"a": 1})
    assert digest(lambda value: value, "", b"x") != digest(lambda value: value, "", b"y")
    assert digest(lambda value: None, "", 1) == ""
    with pytest.raises(SemelError, match="neither bytes nor JSON"):
        digest(lambda value: object(), "")


@pytest.mark.parametrize("spec", [None, 7, [], ["$.a", 1], dict, "total"])
def test_what_is_no_payload_rule_is_refused_when_the_handler_is_made(spec: Any) -> None:
    with pytest.raises(SemelError):
        payload_rule(spec)


def test_an_index_with_more_digits_than_a_number_can_have_is_no_path() -> None:
    with pytest.raises(SemelError, match="is not a path"):
        JsonPath.parse(f"$.lines[{'9' * 5_000}]")
