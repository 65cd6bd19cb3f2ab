"""Section 1.5 and rules 48 and 51: message attributes, who gets them, and their digests."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest

from .service import INVALID_VALUE, Broker, Sqs, SqsError, entries, json_call, query_call, refused

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"


def text(value: str, kind: str = "String") -> dict[str, Any]:
    return {"DataType": kind, "StringValue": value}


def binary(value: bytes, kind: str = "Binary") -> dict[str, Any]:
    return {"DataType": kind, "BinaryValue": value}


def digest(attributes: dict[str, dict[str, Any]]) -> str:
    """Rule 48, word by word."""
    parts = bytearray()
    for name in sorted(attributes):
        value = attributes[name]
        is_binary = "BinaryValue" in value
        data = value["BinaryValue"] if is_binary else value["StringValue"].encode()
        for part in (name.encode(), value["DataType"].encode()):
            parts += struct.pack(">I", len(part)) + part
        parts += (b"\2" if is_binary else b"\1") + struct.pack(">I", len(data)) + data
    return hashlib.md5(bytes(parts)).hexdigest()


# ---- system attributes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["AttributeNames", "MessageSystemAttributeNames"])
def test_a_standard_message_tells_sender_times_and_count(sqs: Sqs, by: str) -> None:
    """1.5: receive-side enum, by either list of names; timestamps in milliseconds."""
    url = sqs.create()
    sqs.send(url)
    sent_at = sqs.now() * 1000
    sqs.advance(5)
    (message,) = sqs.receive(url, **{by: ["All"]})
    attributes = message["Attributes"]
    assert set(attributes) == {
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
    }
    assert attributes["SenderId"]
    assert abs(int(attributes["SentTimestamp"]) - sent_at) <= 1
    assert abs(int(attributes["ApproximateFirstReceiveTimestamp"]) - sqs.now() * 1000) <= 1
    assert attributes["ApproximateReceiveCount"] == "1"


@pytest.mark.parametrize("by", ["AttributeNames", "MessageSystemAttributeNames"])
def test_a_fifo_message_tells_group_deduplication_id_and_sequence_too(sqs: Sqs, by: str) -> None:
    """1.5: SequenceNumber, MessageDeduplicationId, MessageGroupId."""
    url = sqs.create_fifo()
    sent = sqs.send(url, MessageGroupId="g", MessageDeduplicationId="d")
    (message,) = sqs.receive(url, **{by: ["All"]})
    attributes = message["Attributes"]
    assert set(attributes) == {
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
    }
    assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == ("g", "d")
    assert attributes["SequenceNumber"] == sent["SequenceNumber"]


@pytest.mark.parametrize("by", ["AttributeNames", "MessageSystemAttributeNames"])
@pytest.mark.parametrize(
    "name",
    [
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
    ],
)
def test_each_name_brings_that_attribute_alone(sqs: Sqs, name: str, by: str) -> None:
    """1.5: receive-side enum."""
    url = sqs.create_fifo()
    sqs.send(url, MessageGroupId="g", MessageSystemAttributes={"AWSTraceHeader": text(TRACE)})
    (message,) = sqs.receive(url, **{by: [name]})
    assert set(message["Attributes"]) == {name}


def test_both_lists_of_names_are_joined(sqs: Sqs) -> None:
    """1.5: if both are given, our broker answers the union."""
    url = sqs.create()
    sqs.send(url)
    (message,) = sqs.receive(url, AttributeNames=["SenderId"], MessageSystemAttributeNames=["ApproximateReceiveCount"])
    assert set(message["Attributes"]) == {"SenderId", "ApproximateReceiveCount"}


def test_nothing_asked_for_is_nothing_told(sqs: Sqs) -> None:
    """1.5: nothing requested ⇒ no `Attributes` key."""
    url = sqs.create()
    sqs.send(url, MessageSystemAttributes={"AWSTraceHeader": text(TRACE)}, MessageAttributes={"a": text("b")})
    (message,) = sqs.receive(url)
    assert not {"Attributes", "MessageAttributes", "MD5OfMessageAttributes"} & set(message)


def test_a_name_that_does_not_apply_brings_nothing(sqs: Sqs) -> None:
    """1.5: a standard message without group or trace has neither."""
    url = sqs.create()
    sqs.send(url)
    (message,) = sqs.receive(url, AttributeNames=["AWSTraceHeader", "SequenceNumber", "DeadLetterQueueSourceArn"])
    assert "Attributes" not in message


def test_a_group_on_a_standard_queue_comes_back(sqs: Sqs) -> None:
    """1.5 and rule 40: MessageGroupId is optional on standard."""
    url = sqs.create()
    sqs.send(url, MessageGroupId="tenant")
    assert sqs.receive_one(url)["Attributes"]["MessageGroupId"] == "tenant"


def test_a_trace_header_goes_through_with_a_digest_of_its_own(sqs: Sqs) -> None:
    """1.5; rule 48: system attributes hashed alike, separately; they don't affect the attribute MD5."""
    url = sqs.create()
    system, user = {"AWSTraceHeader": text(TRACE)}, {"colour": text("red")}
    sent = sqs.send(url, MessageSystemAttributes=system, MessageAttributes=user)
    assert sent["MD5OfMessageSystemAttributes"] == digest(system)
    assert sent["MD5OfMessageAttributes"] == digest(user)
    message = sqs.receive_one(url)
    assert message["Attributes"]["AWSTraceHeader"] == TRACE
    assert message["MD5OfMessageAttributes"] == digest(user)


def test_a_trace_header_goes_through_in_a_batch(sqs: Sqs) -> None:
    """1.5; rule 48, SendMessageBatch."""
    url = sqs.create()
    system = {"AWSTraceHeader": text(TRACE)}
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries("a", MessageSystemAttributes=system))
    assert answer["Successful"][0]["MD5OfMessageSystemAttributes"] == digest(system)
    assert sqs.receive_one(url)["Attributes"]["AWSTraceHeader"] == TRACE


@pytest.mark.parametrize(
    "system",
    [
        {"SenderId": text("me")},
        {"AWSTraceHeader": text("7", "Number")},
        {"AWSTraceHeader": binary(b"x")},
        {"AWSTraceHeader": text("")},
    ],
    ids=["other-name", "number", "binary", "empty"],
)
def test_no_other_system_attribute_can_be_sent(sqs: Sqs, system: dict[str, Any]) -> None:
    """1.5: send-side enum: AWSTraceHeader only (String)."""
    url = sqs.create()
    with pytest.raises(SqsError) as caught:
        sqs.send(url, MessageSystemAttributes=system)
    assert caught.value.status == 400
    assert caught.value.type == "Sender"
    assert sqs.counts(url).visible == 0


def test_the_trace_header_of_the_request_becomes_the_messages(sqs_broker: Broker, json_sqs: Sqs) -> None:
    """Rule 51: HTTP header X-Amzn-Trace-Id on a send becomes AWSTraceHeader, on both protocols."""
    url = json_sqs.create()
    headers = {"X-Amzn-Trace-Id": TRACE}
    body = {"QueueUrl": url, "MessageBody": "x"}
    assert json_call(sqs_broker, "SendMessage", body, headers).status == 200
    assert json_sqs.receive_one(url)["Attributes"]["AWSTraceHeader"] == TRACE
    assert query_call(sqs_broker, "SendMessage", body, headers=headers).status == 200
    assert json_sqs.receive_one(url)["Attributes"]["AWSTraceHeader"] == TRACE


def test_the_trace_header_of_the_request_counts_for_every_entry_of_a_batch(sqs_broker: Broker, json_sqs: Sqs) -> None:
    """Rule 51, SendMessageBatch."""
    url = json_sqs.create()
    batch = {"QueueUrl": url, "Entries": entries("a", "b")}
    assert json_call(sqs_broker, "SendMessageBatch", batch, {"X-Amzn-Trace-Id": TRACE}).status == 200
    received = json_sqs.receive(url, AttributeNames=["AWSTraceHeader"])
    assert [message["Attributes"] for message in received] == [{"AWSTraceHeader": TRACE}] * 2


# ---- message attributes ---------------------------------------------------------------------------------------------

COLOURS = {
    "shade.red": text("ff0000"),
    "shade.blue": text("0000ff"),
    "size": text("7", "Number"),
    "icon": binary(b"\x00\x01\xff"),
}


def asked(sqs: Sqs, *names: str) -> dict[str, Any]:
    url = sqs.create()
    sqs.send(url, MessageAttributes=COLOURS)
    (message,) = sqs.receive(url, MessageAttributeNames=list(names))
    return message


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["All"], set(COLOURS)),
        ([".*"], set(COLOURS)),
        (["*"], set(COLOURS)),
        (["size", "*"], set(COLOURS)),
        (["size"], {"size"}),
        (["size", "icon", "absent"], {"size", "icon"}),
        (["shade.*"], {"shade.red", "shade.blue"}),
        (["shade.*", "icon"], {"shade.red", "shade.blue", "icon"}),
        (["size", "All"], set(COLOURS)),
    ],
)
def test_attributes_are_chosen_by_name_prefix_or_all(sqs: Sqs, names: list[str], expected: set[str]) -> None:
    """1.5: exact names, `All`, `.*`, or `prefix.*`; rule 57: `*`. The MD5 is over the returned (filtered) ones only."""
    message = asked(sqs, *names)
    chosen = {name: COLOURS[name] for name in expected}
    assert message["MessageAttributes"] == chosen
    assert message["MD5OfMessageAttributes"] == digest(chosen)


def test_a_name_that_is_not_there_brings_no_attributes_and_no_digest(sqs: Sqs) -> None:
    """1.5: nothing ⇒ no MessageAttributes and no MD5OfMessageAttributes."""
    message = asked(sqs, "absent", "nope.*")
    assert not {"MessageAttributes", "MD5OfMessageAttributes"} & set(message)


def test_names_of_attributes_are_told_apart_by_case(sqs: Sqs) -> None:
    """1.5: exact names."""
    url = sqs.create()
    sqs.send(url, MessageAttributes={"a": text("1"), "A": text("2")})
    (message,) = sqs.receive(url, MessageAttributeNames=["A"])
    assert message["MessageAttributes"] == {"A": text("2")}


# ---- digests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["hello", "é 😀 ∆", "a\r\nb\tc", '{"a": "<b>&"}'])
def test_the_digest_of_the_body_is_the_md5_of_its_utf_8(sqs: Sqs, body: str) -> None:
    """1.1, client-side MD5 checks: MD5OfMessageBody on send and batch, MD5OfBody on receive."""
    url = sqs.create()
    expected = hashlib.md5(body.encode()).hexdigest()
    assert sqs.send(url, body)["MD5OfMessageBody"] == expected
    batch = sqs.send_message_batch(QueueUrl=url, Entries=entries(body))
    assert batch["Successful"][0]["MD5OfMessageBody"] == expected
    received = sqs.receive(url)
    assert [(message["MD5OfBody"], message["Body"]) for message in received] == [(expected, body)] * 2


@pytest.mark.parametrize(
    "attributes",
    [
        {"a": text("b")},
        {"b": text("1"), "a": text("2"), "B": text("3"), "a.b": text("4"), "a-b": text("5"), "a_b": text("6")},
        {"n": text("42", "Number")},
        {"n": text("42", "Number.int"), "s": text("x", "String.uuid"), "p": binary(b"\x89PNG", "Binary.png")},
        {"e": text("é 😀"), "white": text(" \t\r\n ")},
        {"bytes": binary(bytes(range(256)))},
    ],
    ids=["one", "sorted-by-name", "number", "custom-types", "unicode", "all-bytes"],
)
def test_the_digest_of_the_attributes_is_as_the_sdks_compute_it(sqs: Sqs, attributes: dict[str, Any]) -> None:
    """Rule 48: on send, on batch, on receive; a custom type keeps its suffix."""
    url = sqs.create()
    expected = digest(attributes)
    assert sqs.send(url, MessageAttributes=attributes)["MD5OfMessageAttributes"] == expected
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries("x", MessageAttributes=attributes))
    assert answer["Successful"][0]["MD5OfMessageAttributes"] == expected
    for message in sqs.receive(url, MessageAttributeNames=["All"]):
        assert message["MessageAttributes"] == attributes
        assert message["MD5OfMessageAttributes"] == expected


def test_the_digest_of_the_attributes_is_a_known_one(sqs: Sqs) -> None:
    """Rule 48, spelled out byte by byte for one attribute."""
    raw = b"\0\0\0\x04name" + b"\0\0\0\x06String" + b"\1" + b"\0\0\0\x05value"
    sent = sqs.send(sqs.create(), MessageAttributes={"name": text("value")})
    assert sent["MD5OfMessageAttributes"] == hashlib.md5(raw).hexdigest()


# ---- what an attribute may be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["String", "Number", "Binary", "String.a", "Number.int.32", "Binary.png", "String." + "x" * 249]
)
def test_three_types_and_their_custom_suffixes_are_accepted(sqs: Sqs, kind: str) -> None:
    """1.6: type ≤ 256; rule 48: custom suffix."""
    value = binary(b"7", kind) if kind.startswith("Binary") else text("7", kind)
    url = sqs.create()
    sqs.send(url, MessageAttributes={"a": value})
    assert sqs.receive_one(url)["MessageAttributes"] == {"a": value}


@pytest.mark.parametrize(
    "value",
    [
        text("x", "Colour"),
        text("x", "string"),
        text("x", ""),
        text("x", "String." + "x" * 250),
        {"DataType": "String"},
        {"DataType": "Binary"},
        {"DataType": "Binary", "StringValue": "x"},
        {"DataType": "String", "BinaryValue": b"x"},
        {"StringValue": "x"},
        binary(b""),
        text("", "Number"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_refused(sqs: Sqs, value: dict[str, Any]) -> None:
    """1.6 and 1.2: DataType is required, one of three kinds, ≤ 256, with a non-empty value that fits."""
    url = sqs.create()
    with refused({INVALID_VALUE, "MissingParameter"}):
        sqs.send(url, MessageAttributes={"a": value})
    assert sqs.counts(url).visible == 0


def test_a_bad_attribute_fails_its_own_entry_of_a_batch(sqs: Sqs) -> None:
    """1.2: Failed[]: the others go through."""
    url = sqs.create()
    batch = entries("a", "b")
    batch[0]["MessageAttributes"] = {"n": text("abc", "Number")}
    answer = sqs.send_message_batch(QueueUrl=url, Entries=batch)
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]] == [
        ("e0", INVALID_VALUE, True)
    ]
    assert [entry["Id"] for entry in answer["Successful"]] == ["e1"]
