"""AWS JSON requests are read by a compiled reader or by the exact check, with the same result."""

from __future__ import annotations

import json
from random import Random
from time import monotonic, sleep
from typing import Any, Final

import pytest

from semel.broker import running
from semel.broker.engine import Caller, Engine
from semel.broker.engine.schema import open_database
from semel.broker.protocol import Call, Protocol, parse
from semel.broker.protocol import json as aws_json
from semel.sqs.errors import ServiceError
from semel.sqs.service_model import Shape, operations

URL: Final = "http://127.0.0.1:9324/000000000000/orders"


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    aws_json.warm_up()


def whole(shape: Shape) -> Any:
    """A value with every member that a shape has, apart from binary."""
    match shape.type:
        case "structure":
            return {name: whole(member) for name, member in shape.members.items() if not is_binary(member)}
        case "list":
            assert shape.member is not None
            return [whole(shape.member), whole(shape.member)]
        case "map":
            assert shape.member is not None
            return {"é": whole(shape.member), "b": whole(shape.member)}
        case "boolean":
            return True
        case "integer" | "long":
            return -7
        case _:
            return 'é "\\ \u2028 😀'


def is_binary(shape: Shape) -> bool:
    return shape.type == "blob" or (shape.member is not None and is_binary(shape.member))


def read(operation: str, body: bytes) -> Call:
    return parse("POST", "/", {b"x-amz-target": f"AmazonSQS.{operation}".encode()}, body, "http://broker")


def outcome(operation: str, body: bytes) -> Any:
    try:
        return read(operation, body).params
    except ServiceError as error:
        return error.kind, error.message


def exact_outcome(operation: str, body: bytes) -> Any:
    try:
        return aws_json._exactly(operations()[operation], body)
    except ServiceError as error:
        return error.kind, error.message


@pytest.mark.parametrize("operation", operations())
def test_the_compiled_reader_takes_whatever_the_model_allows(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = whole(operations()[operation].input)
    bodies = [json.dumps(params).encode(), json.dumps(params, ensure_ascii=False, indent=1).encode()]
    expected = [exact_outcome(operation, body) for body in bodies]
    monkeypatch.setattr(aws_json, "_exactly", lambda *_: pytest.fail("the reader refused it"))
    assert [read(operation, body) for body in bodies] == [
        Call(operations()[operation], params, Protocol.JSON) for params in expected
    ]


MEMBERS: Final[list[Any]] = [
    *(None, True, False, 0, 1.0, 1e2, -1, "", "x", [], {}, [None], {"a": None}, [[]], [{}], {"a": {}}, ["x", 1]),
    *(1 << 63, 1 << 64, -(1 << 63), 10**30),
    {"a": {"DataType": "Binary", "BinaryValue": "AAH/"}},
    {"a": {"DataType": "Binary", "BinaryValue": "%"}},
    {"a": {"DataType": "String", "StringValue": "x", "BinaryValue": None}},
    [{"Id": "a", "MessageBody": "x"}, {"Id": "b"}],
    [{"Id": "a", "ReceiptHandle": "x", "VisibilityTimeout": "7", "More": 1}],
]


def test_requests_are_read_before_the_reader_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_json, "_readers", {})
    assert read("PurgeQueue", b'{"QueueUrl": "u", "More": 1}').params == {"QueueUrl": "u"}


def test_a_broker_compiles_the_reader_once_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_json, "_readers", {})
    ends = monotonic() + 30
    with running() as broker:
        assert broker.client().list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200
        while not aws_json.is_warm():
            assert monotonic() < ends
            sleep(0.005)
        assert broker.client().list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200


@pytest.mark.parametrize("operation", operations())
def test_both_readers_agree_on_every_odd_member(operation: str) -> None:
    shape = operations()[operation].input
    good = {name: value for name, value in whole(shape).items() if name in shape.required}
    for member in (*shape.members, "Unknown"):
        for value in MEMBERS:
            body = json.dumps({**good, member: value}).encode()
            assert outcome(operation, body) == exact_outcome(operation, body), body


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'"x"', b"7", b"{} x", b"\xef\xbb\xbf{}", b"[" * 5000, b'{"QueueUrl":NaN}'),
        *(b'{"QueueUrl":"\\ud800"}', b'{"QueueUrl":"\xff"}', b'{"QueueUrl":"\xed\xa0\x80"}', b'{"QueueUrl":"\x01"}'),
        *(b'{"QueueUrl":"a","QueueUrl":"b"}', b'{"QueueUrl":1,"QueueUrl":"b"}', b'{"QueueUrl":"a","QueueUrl":null}'),
        *(b'{"QueueUrl":"a","WaitTimeSeconds":1e400}', b'{"QueueUrl":"a","WaitTimeSeconds":-0}', b'{"queueUrl":"a"}'),
        *(b'{"QueueUrl":"a\\u0000\\ud83d\\ude00"}', b' {"QueueUrl" : "a" } ', b"'QueueUrl'", b"\x00", b"{}\x00"),
    ],
)
def test_both_readers_agree_on_every_odd_body(body: bytes) -> None:
    assert outcome("ReceiveMessage", body) == exact_outcome("ReceiveMessage", body)


def test_the_engine_leaves_parameters_as_they_are() -> None:
    """A call that must be repeated, because its batch failed or it waits, starts from the same ones."""
    engine = Engine(open_database(None), Random(1))
    caller = Caller(1_700_000_000_000, "http://127.0.0.1:9324", "anyone", None)

    def perform(operation: str, **params: Any) -> dict[str, Any]:
        before = json.dumps(params)
        answer = engine.perform(operation, params, caller)
        assert json.dumps(params) == before
        return answer

    engine.begin()
    perform("CreateQueue", QueueName="orders", Attributes={"SqsManagedSseEnabled": "False"}, tags={"a": "b"})
    perform("SetQueueAttributes", QueueUrl=URL, Attributes={"SqsManagedSseEnabled": "True", "DelaySeconds": "0"})
    perform("TagQueue", QueueUrl=URL, Tags={"c": "d"})
    attributes = {"a": {"DataType": "Number", "StringValue": " 7 "}}
    entries = [{"Id": "a", "MessageBody": "x", "MessageAttributes": attributes}, {"Id": "b", "MessageBody": "\x00"}]
    perform("SendMessageBatch", QueueUrl=URL, Entries=entries)
    perform("SendMessage", QueueUrl=URL, MessageBody="y", MessageAttributes=attributes)
    names = {"AttributeNames": ["SenderId"], "MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["a.*"]}
    received = perform("ReceiveMessage", QueueUrl=URL, MaxNumberOfMessages=10, **names)["Messages"]
    assert len(received) == 2
    handles = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(received)]
    perform(
        "ChangeMessageVisibilityBatch", QueueUrl=URL, Entries=[{**handle, "VisibilityTimeout": 9} for handle in handles]
    )
    perform("DeleteMessageBatch", QueueUrl=URL, Entries=handles)
    engine.close()


@pytest.mark.parametrize("path", ["//111122223333//orders", "/./111122223333/orders", "/111122223333/x/../orders"])
def test_what_a_signature_does_not_cover_in_a_path_does_not_change_which_queue_is_meant(path: str) -> None:
    call = parse("GET", f"{path}?Action=DeleteQueue", {}, b"", "http://broker")
    assert call.params == {"QueueUrl": "http://broker/111122223333/orders"}
