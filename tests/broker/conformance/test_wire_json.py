"""Section 1.1 with AWS JSON: the exact bytes on the wire, and what boto3 makes of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .service import ACCOUNT, ERRORS, MIB, NON_EXISTENT_QUEUE, Broker, Sqs, json_call, path_of, request

JSON = "application/x-amz-json-1.0"


def a_queue(broker: Broker, name: str = "orders") -> str:
    answer = json_call(broker, "CreateQueue", {"QueueName": name})
    assert answer.status == 200, answer.body
    url: str = answer.json()["QueueUrl"]
    return url


def absent(broker: Broker) -> str:
    return f"{broker.url}/{ACCOUNT}/absent"


def test_an_answer_is_aws_json_1_0_with_a_request_id(sqs_broker: Broker) -> None:
    """1.1, current protocol."""
    answer = json_call(sqs_broker, "CreateQueue", {"QueueName": "orders"})
    assert answer.status == 200
    assert answer.headers["Content-Type"] == JSON
    assert answer.headers["x-amzn-RequestId"]
    assert set(answer.json()) == {"QueueUrl"}


def test_every_request_gets_an_id_of_its_own_and_boto3_shows_it(json_sqs: Sqs) -> None:
    """1.1: x-amzn-RequestId."""
    request_ids = set()
    for _ in range(3):
        json_sqs.list_queues()
        request_ids.add(json_sqs.metadata["RequestId"])
    assert len(request_ids) == 3


@pytest.mark.parametrize("operation", ["DeleteMessage", "PurgeQueue", "TagQueue", "DeleteQueue"])
def test_an_operation_without_output_answers_200_and_nothing_to_read(sqs_broker: Broker, operation: str) -> None:
    """1.1, 1.2: operations whose output column is empty."""
    url = a_queue(sqs_broker)
    json_call(sqs_broker, "SendMessage", {"QueueUrl": url, "MessageBody": "hello"})
    received = json_call(sqs_broker, "ReceiveMessage", {"QueueUrl": url}).json()
    extra = {
        "DeleteMessage": {"ReceiptHandle": received["Messages"][0]["ReceiptHandle"]},
        "TagQueue": {"Tags": {"team": "blue"}},
    }
    answer = json_call(sqs_broker, operation, {"QueueUrl": url, **extra.get(operation, {})})
    assert answer.status == 200
    assert answer.body in (b"", b"{}")


def test_an_error_carries_status_request_id_query_error_and_type(sqs_broker: Broker) -> None:
    """1.1, JSON error: the exact form of both headers and of the body."""
    answer = json_call(sqs_broker, "ReceiveMessage", {"QueueUrl": absent(sqs_broker)})
    assert answer.status == 400
    assert answer.headers["Content-Type"] == JSON
    assert answer.headers["x-amzn-RequestId"]
    assert answer.headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert answer.json() == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }


def test_the_query_error_header_comes_also_to_a_client_that_did_not_ask(sqs_broker: Broker) -> None:
    """1.1, consequence: clients break on a missing header, so it is always there."""
    answer = request(
        sqs_broker,
        "POST",
        "/",
        json.dumps({"QueueUrl": absent(sqs_broker)}),
        {"Content-Type": JSON, "X-Amz-Target": "AmazonSQS.PurgeQueue"},
    )
    assert answer.headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"


def test_the_query_error_header_has_exactly_two_parts_on_every_error(sqs_broker: Broker) -> None:
    """1.1: botocore takes the code from the header only if it splits into two at the semicolon."""
    url = a_queue(sqs_broker)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 11}),
        ("SendMessage", {"QueueUrl": url}),
        ("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": "a;b;c"}),
        ("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["Colour"]}),
        ("ListMessageMoveTasks", {"SourceArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:absent"}),
        ("NoSuchOperation", {}),
    ]
    for operation, payload in calls:
        answer = json_call(sqs_broker, operation, payload)
        assert answer.status >= 400
        assert re.fullmatch(r"[^;]+;(Sender|Receiver)", answer.headers["x-amzn-query-error"]), operation
        assert answer.json()["__type"]


def test_boto3_reads_code_shape_and_type_from_an_error(sqs_broker: Broker) -> None:
    """1.1, what boto3 does with it."""
    client = sqs_broker.client()
    with pytest.raises(ClientError) as caught:
        client.receive_message(QueueUrl=absent(sqs_broker))
    error: dict[str, Any] = dict(caught.value.response["Error"])
    assert error["Code"] == NON_EXISTENT_QUEUE
    assert error["QueryErrorCode"] == "QueueDoesNotExist"
    assert error["Type"] == "Sender"
    assert error["Message"] == "The specified queue does not exist."
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert caught.value.response["ResponseMetadata"]["RequestId"]
    client.close()


def provoke(client: Any, url: str, shape: str) -> None:
    """Make the service answer with the error of this shape."""
    arn = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    entry = {"Id": "a", "MessageBody": "x"}
    match shape:
        case "QueueDoesNotExist":
            client.get_queue_url(QueueName="absent")
        case "QueueNameExists":
            client.create_queue(QueueName="orders", Attributes={"DelaySeconds": "7"})
        case "QueueDeletedRecently":
            client.delete_queue(QueueUrl=url)
            client.create_queue(QueueName="orders")
        case "PurgeQueueInProgress":
            client.purge_queue(QueueUrl=url)
            client.purge_queue(QueueUrl=url)
        case "BatchEntryIdsNotDistinct":
            client.send_message_batch(QueueUrl=url, Entries=[entry, entry])
        case "BatchRequestTooLong":
            big = "x" * (MIB // 2 + 1)
            client.send_message_batch(QueueUrl=url, Entries=[{"Id": i, "MessageBody": big} for i in "ab"])
        case "EmptyBatchRequest":
            client.send_message_batch(QueueUrl=url, Entries=[])
        case "InvalidBatchEntryId":
            client.send_message_batch(QueueUrl=url, Entries=[{"Id": "a b", "MessageBody": "x"}])
        case "TooManyEntriesInBatchRequest":
            many = [{"Id": str(number), "MessageBody": "x"} for number in range(11)]
            client.send_message_batch(QueueUrl=url, Entries=many)
        case "ReceiptHandleIsInvalid":
            client.delete_message(QueueUrl=url, ReceiptHandle="garbage")
        case "ResourceNotFoundException":
            client.list_message_move_tasks(SourceArn=f"{arn}-absent")
        case "InvalidAttributeName":
            client.get_queue_attributes(QueueUrl=url, AttributeNames=["Colour"])
        case "InvalidAttributeValue":
            client.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "43201"})
        case "InvalidMessageContents":
            client.send_message(QueueUrl=url, MessageBody="\x00")
        case "OverLimit":
            actions = ["SendMessage", "ReceiveMessage", "DeleteMessage", "PurgeQueue", "GetQueueUrl", "ListQueueTags"]
            actions += ["GetQueueAttributes", "ChangeMessageVisibility"]
            client.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["111122223333"], Actions=actions)


PROVOKED = [
    "QueueDoesNotExist",
    "QueueNameExists",
    "QueueDeletedRecently",
    "PurgeQueueInProgress",
    "BatchEntryIdsNotDistinct",
    "BatchRequestTooLong",
    "EmptyBatchRequest",
    "InvalidBatchEntryId",
    "TooManyEntriesInBatchRequest",
    "ReceiptHandleIsInvalid",
    "ResourceNotFoundException",
    "InvalidAttributeName",
    "InvalidAttributeValue",
    "InvalidMessageContents",
    "OverLimit",
]


@pytest.mark.parametrize("shape", PROVOKED)
def test_boto3_raises_the_class_of_the_shape_with_the_older_code(sqs_broker: Broker, shape: str) -> None:
    """1.1 and 1.3: the class comes from `__type`, the code from the header, the status from the table."""
    client = sqs_broker.client()
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    with pytest.raises(getattr(client.exceptions, shape)) as caught:
        provoke(client, url, shape)
    code, status = next((code, kind.status) for code, kind in ERRORS.items() if kind.shape == shape)
    assert caught.value.response["Error"]["Code"] == code
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    client.close()


@pytest.mark.parametrize(
    ("call", "code", "shape"),
    [
        ({"MaxNumberOfMessages": 11}, "InvalidParameterValue", "InvalidParameterValueException"),
        ({"QueueUrl": None}, "MissingParameter", "MissingRequiredParameterException"),
    ],
)
def test_errors_outside_the_model_have_their_own_shape(
    sqs_broker: Broker, call: dict[str, Any], code: str, shape: str
) -> None:
    """1.3, the two rows that are not in the model but sent by AWS."""
    answer = json_call(sqs_broker, "ReceiveMessage", {"QueueUrl": a_queue(sqs_broker), **call})
    assert answer.status == 400
    assert answer.headers["x-amzn-query-error"] == f"{code};Sender"
    assert answer.json()["__type"] == f"com.amazonaws.sqs#{shape}"


# ---- requests that are not well formed ------------------------------------------------------------------------------


def test_an_unknown_operation_is_refused(sqs_broker: Broker) -> None:
    """1.1: only the 23 operations of the model exist."""
    answer = json_call(sqs_broker, "MakeCoffee", {})
    assert 400 <= answer.status < 500
    assert "UnknownOperation" in answer.json()["__type"]


@pytest.mark.parametrize("target", [None, "", "AmazonSQS", "AmazonSQS.", "AmazonSNS.SendMessage"])
def test_a_target_that_names_no_operation_is_refused(sqs_broker: Broker, target: str | None) -> None:
    """1.1: X-Amz-Target is `AmazonSQS.<Op>`."""
    headers = {"Content-Type": JSON} | ({} if target is None else {"X-Amz-Target": target})
    answer = request(sqs_broker, "POST", "/", "{}", headers)
    assert 400 <= answer.status < 500


@pytest.mark.parametrize(
    "body", [b"{", b"{'QueueUrl': 1}", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"a": NaN}', b"[" * 5000]
)
def test_a_body_that_is_no_json_object_is_refused_as_such(sqs_broker: Broker, body: bytes) -> None:
    """1.1: the client's mistake, never an internal failure."""
    answer = json_call(sqs_broker, "CreateQueue", body)
    assert answer.status == 400
    assert answer.headers["Content-Type"] == JSON
    assert answer.headers["x-amzn-query-error"].endswith(";Sender")
    assert answer.json()["__type"]


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_no_body_is_an_empty_object(sqs_broker: Broker, body: bytes) -> None:
    """1.1: ListQueues has no required member."""
    answer = json_call(sqs_broker, "ListQueues", body)
    assert answer.status == 200


@pytest.mark.parametrize(
    ("operation", "wrong"),
    [
        ("ReceiveMessage", {"MaxNumberOfMessages": "ten"}),
        ("ReceiveMessage", {"MaxNumberOfMessages": [1]}),
        ("ReceiveMessage", {"AttributeNames": "All"}),
        ("ReceiveMessage", {"AttributeNames": [{"All": 1}]}),
        ("SendMessage", {"MessageBody": {"a": 1}}),
        ("SendMessage", {"MessageBody": ["a"]}),
        ("SendMessage", {"MessageBody": "x", "MessageAttributes": ["n"]}),
        ("SendMessage", {"MessageBody": "x", "MessageAttributes": {"n": "v"}}),
        ("SendMessage", {"MessageBody": "x", "MessageAttributes": {"n": {"DataType": 7, "StringValue": "v"}}}),
        ("SendMessage", {"MessageBody": "x", "MessageAttributes": {"n": {"DataType": "Binary", "BinaryValue": "%"}}}),
        ("SendMessageBatch", {"Entries": {"Id": "a", "MessageBody": "x"}}),
        ("SendMessageBatch", {"Entries": ["a"]}),
        ("SetQueueAttributes", {"Attributes": ["VisibilityTimeout"]}),
        ("SetQueueAttributes", {"Attributes": {"VisibilityTimeout": {"a": "b"}}}),
        ("TagQueue", {"Tags": [["a", "b"]]}),
        ("PurgeQueue", {"QueueUrl": 7}),
        ("PurgeQueue", {"QueueUrl": ["x"]}),
    ],
)
def test_a_member_of_the_wrong_type_is_refused(sqs_broker: Broker, operation: str, wrong: dict[str, Any]) -> None:
    """1.1: types come from the service model; the client's mistake, never an internal failure."""
    answer = json_call(sqs_broker, operation, {"QueueUrl": a_queue(sqs_broker), **wrong})
    assert 400 <= answer.status < 500, answer.body
    assert answer.headers["x-amzn-query-error"].endswith(";Sender")
    assert answer.json()["__type"]


def test_a_member_that_is_null_counts_as_absent(sqs_broker: Broker) -> None:
    """1.1: SDKs in some languages write null for what was not set."""
    url = a_queue(sqs_broker)
    sent = json_call(
        sqs_broker,
        "SendMessage",
        {
            "QueueUrl": url,
            "MessageBody": "x",
            "DelaySeconds": None,
            "MessageAttributes": None,
            "MessageGroupId": None,
            "MessageDeduplicationId": None,
        },
    )
    assert sent.status == 200, sent.body
    nothing = dict.fromkeys(
        ["AttributeNames", "MessageAttributeNames", "MaxNumberOfMessages", "VisibilityTimeout", "WaitTimeSeconds"]
    )
    received = json_call(sqs_broker, "ReceiveMessage", {"QueueUrl": url, **nothing})
    assert received.status == 200, received.body
    assert [message["Body"] for message in received.json()["Messages"]] == ["x"]


def test_a_required_member_that_is_null_is_missing(sqs_broker: Broker) -> None:
    """1.1 and 1.3: MissingParameter."""
    answer = json_call(sqs_broker, "SendMessage", {"QueueUrl": a_queue(sqs_broker), "MessageBody": None})
    assert answer.headers["x-amzn-query-error"] == "MissingParameter;Sender"
    assert answer.json()["message"] == "The request must contain the parameter MessageBody."


def test_a_member_that_the_model_does_not_know_is_ignored(sqs_broker: Broker) -> None:
    """1.1: a newer SDK may send more than we know."""
    answer = json_call(
        sqs_broker, "SendMessage", {"QueueUrl": a_queue(sqs_broker), "MessageBody": "x", "Colour": "red"}
    )
    assert answer.status == 200


def test_members_are_told_apart_by_case(sqs_broker: Broker, json_sqs: Sqs) -> None:
    """1.2: `tags` of CreateQueue has a lower-case t, and `queueUrls` of ListDeadLetterSourceQueues a lower-case q."""
    url = json_call(sqs_broker, "CreateQueue", {"QueueName": "orders", "tags": {"team": "blue"}}).json()["QueueUrl"]
    assert json_call(sqs_broker, "ListQueueTags", {"QueueUrl": url}).json() == {"Tags": {"team": "blue"}}
    source, dead = json_sqs.create_pair()
    assert json_call(sqs_broker, "ListDeadLetterSourceQueues", {"QueueUrl": dead}).json() == {"queueUrls": [source]}


def test_numbers_in_answers_are_numbers_and_flags_are_booleans(sqs_broker: Broker) -> None:
    """1.1: types come from the service model."""
    url = a_queue(sqs_broker)
    answer = json_call(
        sqs_broker, "DeleteMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "a", "ReceiptHandle": "garbage"}]}
    )
    assert answer.status == 200
    assert answer.json()["Failed"][0]["SenderFault"] is True


# ---- queue URLs -----------------------------------------------------------------------------------------------------


def test_queue_urls_echo_the_host_that_the_client_used(sqs_broker: Broker) -> None:
    """1.1, queue URL."""
    host = {"Host": "sqs.example.test:4711"}
    expected = f"http://sqs.example.test:4711/{ACCOUNT}/orders"
    assert json_call(sqs_broker, "CreateQueue", {"QueueName": "orders"}, host).json()["QueueUrl"] == expected
    assert json_call(sqs_broker, "GetQueueUrl", {"QueueName": "orders"}, host).json()["QueueUrl"] == expected
    assert json_call(sqs_broker, "ListQueues", {}, host).json()["QueueUrls"] == [expected]


def test_dead_letter_source_urls_echo_the_host_as_well(sqs_broker: Broker, json_sqs: Sqs) -> None:
    """1.1, queue URL; rule 27."""
    _, dead = json_sqs.create_pair()
    answer = json_call(sqs_broker, "ListDeadLetterSourceQueues", {"QueueUrl": dead}, {"Host": "elsewhere.test"})
    assert answer.json()["queueUrls"] == [f"http://elsewhere.test/{ACCOUNT}/source"]


def test_a_queue_url_works_whatever_host_it_names(sqs_broker: Broker) -> None:
    """1.1: the same queue is reached by several names (a container's, the host's, AWS's own)."""
    path = path_of(a_queue(sqs_broker))
    for origin in ("http://localhost:1", "https://sqs.us-east-1.amazonaws.com", "http://broker"):
        assert json_call(sqs_broker, "SendMessage", {"QueueUrl": origin + path, "MessageBody": "x"}).status == 200


def test_a_queue_url_ends_in_account_and_name(json_sqs: Sqs) -> None:
    """1.1, queue URL."""
    assert json_sqs.create("orders") == f"{json_sqs.broker.url}/{ACCOUNT}/orders"


@pytest.mark.parametrize("url", ["not a url", "", "http://", "http://127.0.0.1/", "/", "http://127.0.0.1/1/2/3/4"])
def test_a_queue_url_that_is_none_is_the_clients_mistake(json_sqs: Sqs, url: str) -> None:
    """1.3: InvalidAddress or NonExistentQueue, and for the empty one MissingParameter; never an internal failure."""
    answer = json_call(json_sqs.broker, "PurgeQueue", {"QueueUrl": url})
    assert answer.headers["x-amzn-query-error"].split(";")[0] in {
        "InvalidAddress",
        NON_EXISTENT_QUEUE,
        "MissingParameter",
        "InvalidParameterValue",
    }
    assert answer.status in (400, 404)


def test_calls_work_without_a_signature(sqs_broker: Broker) -> None:
    """1.1, signing: not asked for unless the broker was given credentials."""
    assert json_call(sqs_broker, "ListQueues", {}).status == 200
