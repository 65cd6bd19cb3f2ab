"""A program that uses a broker through an older boto3, which speaks the Query protocol.

`python query_client.py URL SCENARIO` exits with 0 if the scenario succeeds.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError


def client(url: str) -> Any:
    made: Any = boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 1}),
    )
    assert made.meta.service_model.metadata["protocol"] == "query", botocore.__version__
    return made


def send_receive_delete(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="query-plain", tags={"team": "blue"})["QueueUrl"]
    body = "größer & <kleiner>\r\n\ttwo lines"
    attributes = {
        "text": {"DataType": "String", "StringValue": "ü & <x>"},
        "number": {"DataType": "Number.int", "StringValue": "12"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)
    wanted = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    (message,) = sqs.receive_message(QueueUrl=url, **wanted)["Messages"]
    assert message["Body"] == body
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    (message,) = sqs.receive_message(QueueUrl=url, **wanted)["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "2"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "blue"}


def queue_attributes(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="query-attributes", Attributes={"VisibilityTimeout": "5"})["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "3", "MaximumMessageSize": "2048"})
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert {name: attributes[name] for name in ("VisibilityTimeout", "DelaySeconds", "MaximumMessageSize")} == {
        "VisibilityTimeout": "5",
        "DelaySeconds": "3",
        "MaximumMessageSize": "2048",
    }
    assert sqs.get_queue_url(QueueName="query-attributes")["QueueUrl"] == url
    assert url in sqs.list_queues(QueueNamePrefix="query-attr")["QueueUrls"]
    sqs.add_permission(QueueUrl=url, Label="all", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    policy = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]
    assert json.loads(policy)["Statement"][0]["Sid"] == "all"
    sqs.delete_queue(QueueUrl=url)
    assert url not in sqs.list_queues().get("QueueUrls", [])


def batches(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="query-batches")["QueueUrl"]
    entries = [{"Id": f"e{n}", "MessageBody": f"body {n}"} for n in range(9)] + [{"Id": "bad", "MessageBody": "\x01"}]
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == [f"e{n}" for n in range(9)]
    (failed,) = answer["Failed"]
    assert (failed["Id"], failed["SenderFault"], failed["Code"]) == ("bad", True, "InvalidMessageContents")
    messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert sorted(message["Body"] for message in messages) == [f"body {n}" for n in range(9)]
    handles = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]
    hidden = sqs.change_message_visibility_batch(
        QueueUrl=url, Entries=[{**handle, "VisibilityTimeout": 60} for handle in handles]
    )
    assert len(hidden["Successful"]) == 9
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=[*handles, {"Id": "x", "ReceiptHandle": "garbage"}])
    assert len(deleted["Successful"]) == 9
    assert [entry["Code"] for entry in deleted["Failed"]] == ["ReceiptHandleIsInvalid"]


def errors(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="query-errors")["QueueUrl"]
    handle = "garbage"
    cases: list[tuple[str, int, Callable[[], Any]]] = [
        ("NonExistentQueue", 400, lambda: sqs.get_queue_url(QueueName="query-nowhere")),
        ("InvalidParameterValue", 400, lambda: sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=11)),
        ("EmptyBatchRequest", 400, lambda: sqs.send_message_batch(QueueUrl=url, Entries=[])),
        ("ReceiptHandleIsInvalid", 404, lambda: sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)),
        ("InvalidAttributeName", 400, lambda: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Colour"])),
        (
            "QueueAlreadyExists",
            400,
            lambda: sqs.create_queue(QueueName="query-errors", Attributes={"DelaySeconds": "9"}),
        ),
    ]
    for code, status, attempt in cases:
        error = refusal(attempt)
        assert error.response["Error"]["Code"].rpartition(".")[2] == code, error.response
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == status, error.response
    missing = refusal(cases[0][2])
    assert isinstance(missing, sqs.exceptions.QueueDoesNotExist)
    assert missing.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert missing.response["Error"]["Message"] == "The specified queue does not exist for this wsdl version."


def refusal(attempt: Callable[[], Any]) -> ClientError:
    try:
        attempt()
    except ClientError as error:
        return error
    raise AssertionError("it was not refused")


def fifo(sqs: Any) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = sqs.create_queue(QueueName="query-ordered.fifo", Attributes=attributes)["QueueUrl"]
    sent = [sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g") for body in ("1", "2", "1", "3")]
    assert sent[2]["MessageId"] == sent[0]["MessageId"]
    assert sent[2]["SequenceNumber"] == sent[0]["SequenceNumber"]
    assert int(sent[3]["SequenceNumber"]) > int(sent[1]["SequenceNumber"]) > int(sent[0]["SequenceNumber"])
    messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"])["Messages"]
    assert [message["Body"] for message in messages] == ["1", "2", "3"]
    assert messages[0]["Attributes"]["MessageGroupId"] == "g"
    assert messages[0]["Attributes"]["SequenceNumber"] == sent[0]["SequenceNumber"]


def redrive(sqs: Any) -> None:
    dead = sqs.create_queue(QueueName="query-dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = sqs.create_queue(QueueName="query-work", Attributes={"RedrivePolicy": policy})["QueueUrl"]
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    handle = sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]
    assert handle
    end = time.monotonic() + 10
    while time.monotonic() < end:
        (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
        if task["Status"] == "COMPLETED":
            break
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)
    assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1


def presigned_urls(sqs: Any) -> None:
    """A URL that any program can fetch. Only the Query protocol allows presigned URLs."""
    url = sqs.create_queue(QueueName="query-presigned")["QueueUrl"]
    for operation, parameters, answer in (
        ("send_message", {"MessageBody": "a b&c"}, b"<MessageId>"),
        ("receive_message", {"MaxNumberOfMessages": 1}, b"<Body>a b&amp;c</Body>"),
        ("get_queue_attributes", {"AttributeNames": ["QueueArn"]}, b"<Name>QueueArn</Name>"),
    ):
        signed = sqs.generate_presigned_url(operation, {"QueueUrl": url, **parameters}, 60, "GET")
        with urllib.request.urlopen(signed) as fetched:
            assert answer in fetched.read(), operation


SCENARIOS = [send_receive_delete, queue_attributes, batches, errors, fifo, redrive, presigned_urls]


if __name__ == "__main__":
    next(scenario for scenario in SCENARIOS if scenario.__name__ == sys.argv[2])(client(sys.argv[1]))
