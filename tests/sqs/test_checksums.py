"""The digests of bodies and attributes, compared with answers of the live service and with the rule written out."""

from __future__ import annotations

from base64 import b64encode
from hashlib import md5
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.sqs.checksums import md5_of_attributes, md5_of_body

Attribute = dict[str, Any]


def text(value: str, kind: str = "String") -> Attribute:
    return {"DataType": kind, "StringValue": value}


def binary(value: bytes, kind: str = "Binary") -> Attribute:
    return {"DataType": kind, "BinaryValue": b64encode(value).decode()}


@pytest.mark.parametrize(
    ("body", "digest"),
    [
        ("This is a test message", "fafb00f5732ab283681e124bf8747ed1"),
        ("This is a test", "ce114e4501d2f4e2dcea3e17b546f339"),
        ("derp", "58fd9edd83341c29f1aebba81c31e257"),
    ],
)
def test_the_digest_of_a_body_is_what_the_service_answered(body: str, digest: str) -> None:
    assert md5_of_body(body) == digest


@pytest.mark.parametrize("body", ["grüße", "日本語", "😀", "\t\r\n", "x" * 1_048_576])
def test_the_digest_of_a_body_is_that_of_its_utf_8(body: str) -> None:
    assert md5_of_body(body) == md5(body.encode()).hexdigest()


def test_a_lone_surrogate_is_left_to_the_rules_to_refuse() -> None:
    assert len(md5_of_body("\ud800")) == 32


@pytest.mark.parametrize(
    ("attributes", "digest"),
    [
        ({"Count": text("1", "Number"), "Foo": text("Bar")}, "324758f82d026ac6ec5b31a3b192d1e3"),
        ({"timestamp": text("1493147359900", "Number")}, "235c5c510d26fb653d073faed50ae77c"),
        ({"timestamp": text("1493147359901", "Number")}, "994258b45346a2cc3f9cbb611aa7af30"),
        ({"SOME_Valid.attribute-Name": text("1493147359900", "Number")}, "36655e7e9d7c0e8479fa3f3f42247ae7"),
        ({"timestamp": text("1493147359900", "Number.java.lang.Long")}, "2e2e4876d8e0bd6b8c2c8f556831c349"),
        ({"timestamp": text("1493147359901", "Number.java.lang.Long")}, "cfa7c73063c6e2dbf9be34232a1978cf"),
        ({"somevalue": text("somevalue", "String.custom")}, "9e05cca738e70ff6c6041e82d5e77ef1"),
    ],
)
def test_the_digest_of_attributes_is_the_one_that_the_field_recorded(
    attributes: dict[str, Attribute], digest: str
) -> None:
    assert md5_of_attributes(attributes) == digest


def test_a_binary_value_is_hashed_as_bytes_and_marked_as_such() -> None:
    """Rule 48, byte by byte."""
    spelled = bytes.fromhex("00000004") + b"blob" + bytes.fromhex("00000006") + b"Binary"
    spelled += bytes.fromhex("02") + bytes.fromhex("00000003") + b"\x00\xff\x10"
    assert md5_of_attributes({"blob": binary(b"\x00\xff\x10")}) == md5(spelled).hexdigest()


def test_the_order_in_which_attributes_come_does_not_matter() -> None:
    attributes = {"a": text("1"), "B": text("2"), "b": binary(b"3"), "a.b": text("4", "Number"), "a-b": text("5")}
    assert md5_of_attributes(attributes) == md5_of_attributes(dict(reversed(attributes.items())))


@pytest.mark.parametrize(
    "other",
    [
        {"name": text("other")},
        {"other": text("value")},
        {"name": text("value", "String.custom")},
        {"name": binary(b"value", "String")},
        {"name": text("value"), "more": text("value")},
        {"nam": text("value", "eString")},
        {},
    ],
)
def test_whatever_changes_changes_the_digest(other: dict[str, Attribute]) -> None:
    assert md5_of_attributes({"name": text("value")}) != md5_of_attributes(other)


def spelled_out(attributes: dict[str, tuple[str, str | bytes]]) -> str:
    """The rule once more, written in another way: one long string of bytes."""

    def counted(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    whole = b"".join(
        counted(name.encode())
        + counted(kind.encode())
        + (b"\2" + counted(value) if isinstance(value, bytes) else b"\1" + counted(value.encode()))
        for name, (kind, value) in sorted(attributes.items())
    )
    return md5(whole).hexdigest()


names = st.text("abcXYZ019_.-", min_size=1, max_size=12)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
strings = st.tuples(st.sampled_from(["String", "Number", "String.a", "Number.int"]), texts)
binaries = st.tuples(st.sampled_from(["Binary", "Binary.png"]), st.binary(max_size=20))


@given(st.dictionaries(names, strings | binaries, max_size=10))
def test_any_attributes_are_hashed_as_the_rule_says(given_attributes: dict[str, tuple[str, str | bytes]]) -> None:
    attributes = {
        name: binary(value, kind) if isinstance(value, bytes) else text(value, kind)
        for name, (kind, value) in given_attributes.items()
    }
    assert md5_of_attributes(attributes) == spelled_out(given_attributes)
