"""Section 1.3: the exact error texts, which clients and test suites match on."""

from __future__ import annotations

import base64
import json
import uuid

import pytest

from .service import (
    ACCOUNT,
    BAD_ATTRIBUTE_NAME,
    BAD_ATTRIBUTE_VALUE,
    BAD_ENTRY_ID,
    BAD_HANDLE,
    DELETED_RECENTLY,
    EMPTY_BATCH,
    INVALID_VALUE,
    MIB,
    MISSING,
    NOT_DISTINCT,
    NOT_FOUND,
    PURGE_IN_PROGRESS,
    TOO_LONG,
    TOO_MANY_ENTRIES,
    Sqs,
    entries,
    refused,
)


@pytest.mark.parametrize("value", [11, 0, -1])
def test_text_for_a_wrong_number_of_messages(sqs: Sqs, value: int) -> None:
    """1.3: MaxNumberOfMessages 11."""
    text = f"Value {value} for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."
    with refused(INVALID_VALUE, text):
        sqs.receive(sqs.create(), value)


@pytest.mark.parametrize("value", [21, -1])
def test_text_for_a_wrong_wait(sqs: Sqs, value: int) -> None:
    """1.3: WaitTimeSeconds 21 / -1."""
    text = f"Value {value} for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."
    with refused(INVALID_VALUE, text):
        sqs.receive(sqs.create(), WaitTimeSeconds=value)


def test_text_for_a_message_that_is_too_big(sqs: Sqs) -> None:
    """1.3: too big."""
    text = "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes."
    with refused(INVALID_VALUE, text):
        sqs.send(sqs.create(), "x" * (MIB + 1))


def test_text_for_a_message_that_is_too_big_names_the_queues_own_limit(sqs: Sqs) -> None:
    """1.3: too big (uses the queue's limit)."""
    text = "One or more parameters are invalid. Reason: Message must be shorter than 2000 bytes."
    with refused(INVALID_VALUE, text):
        sqs.send(sqs.create(MaximumMessageSize=2000), "x" * 2001)


def test_text_for_a_batch_entry_that_is_too_big(sqs: Sqs) -> None:
    """1.3: too big, batch entry."""
    url = sqs.create(MaximumMessageSize=1024)
    (failed,) = sqs.send_message_batch(QueueUrl=url, Entries=entries("x" * 1025, "b"))["Failed"]
    assert failed == {
        "Id": "e0",
        "SenderFault": True,
        "Code": INVALID_VALUE,
        "Message": "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes.",
    }
    assert [message["Body"] for message in sqs.receive(url)] == ["b"]


def test_text_for_a_batch_that_is_too_big(sqs: Sqs) -> None:
    """1.3: batch too big."""
    url = sqs.create()
    half = MIB // 2
    with refused(TOO_LONG, "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."):
        sqs.send_message_batch(QueueUrl=url, Entries=entries("x" * half, "y" * (half + 1)))
    assert sqs.counts(url).visible == 0


@pytest.mark.parametrize("number", [11, 20])
def test_text_for_too_many_entries(sqs: Sqs, number: int) -> None:
    """1.3: batch count, on all three batches."""
    url = sqs.create()
    text = f"Maximum number of entries per request are 10. You have sent {number}."
    ids = [f"e{n}" for n in range(number)]
    with refused(TOO_MANY_ENTRIES, text):
        sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": i, "MessageBody": "x"} for i in ids])
    with refused(TOO_MANY_ENTRIES, text):
        sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": i, "ReceiptHandle": "x"} for i in ids])
    with refused(TOO_MANY_ENTRIES, text):
        sqs.change_message_visibility_batch(
            QueueUrl=url, Entries=[{"Id": i, "ReceiptHandle": "x", "VisibilityTimeout": 1} for i in ids]
        )


@pytest.mark.parametrize("entry_id", ["a b", "a.b", "é", "x" * 81, ""])
def test_text_for_a_wrong_batch_id(sqs: Sqs, entry_id: str) -> None:
    """1.3: batch id, on all three batches."""
    url = sqs.create()
    text = (
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long."
    )
    codes = {BAD_ENTRY_ID} if entry_id else {BAD_ENTRY_ID, MISSING}
    expected = text if entry_id else None
    with refused(codes, expected):
        sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": entry_id, "MessageBody": "x"}])
    with refused(codes, expected):
        sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": entry_id, "ReceiptHandle": "x"}])
    with refused(codes, expected):
        sqs.change_message_visibility_batch(
            QueueUrl=url, Entries=[{"Id": entry_id, "ReceiptHandle": "x", "VisibilityTimeout": 1}]
        )


def test_batches_must_have_entries_and_distinct_ids(sqs: Sqs) -> None:
    """1.2 and 1.3: EmptyBatchRequest, BatchEntryIdsNotDistinct, on all three batches."""
    url = sqs.create()
    twins = [{"Id": "a", "ReceiptHandle": "x", "VisibilityTimeout": 1}] * 2
    for call, twin in (
        (sqs.send_message_batch, [{"Id": "a", "MessageBody": "x"}] * 2),
        (sqs.delete_message_batch, [{"Id": "a", "ReceiptHandle": "x"}] * 2),
        (sqs.change_message_visibility_batch, twins),
    ):
        with refused(EMPTY_BATCH):
            call(QueueUrl=url, Entries=[])
        with refused(NOT_DISTINCT):
            call(QueueUrl=url, Entries=twin)
    assert sqs.counts(url).visible == 0


def test_text_for_an_empty_body(sqs: Sqs) -> None:
    """1.3: empty body."""
    with refused(MISSING, "The request must contain the parameter MessageBody."):
        sqs.send(sqs.create(), "")


def test_text_for_a_fifo_message_without_a_group(sqs: Sqs) -> None:
    """1.3: FIFO, no group: MissingParameter alone, InvalidParameterValue in a batch, which fails as a whole."""
    url = sqs.create_fifo()
    text = "The request must contain the parameter MessageGroupId."
    with refused(MISSING, text):
        sqs.send(url)
    mixed = [{"Id": "a", "MessageBody": "a", "MessageGroupId": "g"}, {"Id": "b", "MessageBody": "b"}]
    with refused(INVALID_VALUE, text):
        sqs.send_message_batch(QueueUrl=url, Entries=mixed)
    assert sqs.counts(url).visible == 0


def test_text_for_a_fifo_message_without_a_deduplication_id(sqs: Sqs) -> None:
    """1.3: FIFO, no dedup id."""
    url = sqs.create_fifo(ContentBasedDeduplication=False)
    text = (
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
    )
    with refused(INVALID_VALUE, text):
        sqs.send(url, MessageGroupId="g")


def test_a_fifo_batch_with_an_entry_that_has_no_deduplication_id_is_refused_as_a_whole(sqs: Sqs) -> None:
    """Rule 56: nothing is sent, whatever the other entries have."""
    url = sqs.create_fifo(ContentBasedDeduplication=False)
    batch = entries("a", "b", "c", MessageGroupId="g")
    batch[0]["MessageDeduplicationId"] = batch[2]["MessageDeduplicationId"] = "one"
    text = (
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
    )
    with refused(INVALID_VALUE, text):
        sqs.send_message_batch(QueueUrl=url, Entries=batch)
    assert sqs.receive(url) == []
    sqs.set(url, ContentBasedDeduplication=True)
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=batch)["Successful"]) == 3


def test_text_for_a_delay_on_a_fifo_message(sqs: Sqs) -> None:
    """1.3: FIFO, DelaySeconds 2."""
    text = (
        "Value 2 for parameter DelaySeconds is invalid. "
        "Reason: The request include parameter that is not valid for this queue type."
    )
    with refused(INVALID_VALUE, text):
        sqs.send(sqs.create_fifo(), MessageGroupId="g", DelaySeconds=2)


@pytest.mark.parametrize("parameter", ["MessageGroupId", "MessageDeduplicationId"])
@pytest.mark.parametrize("value", ["a b", "é", "x" * 129, "tab\there"])
def test_text_for_a_wrong_group_or_deduplication_id(sqs: Sqs, parameter: str, value: str) -> None:
    """1.3: bad group / dedup id."""
    text = (
        f"Value {value} for parameter {parameter} is invalid. "
        f"Reason: {parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
    )
    with refused(INVALID_VALUE, text):
        sqs.send(sqs.create_fifo(), **{"MessageGroupId": "g", parameter: value})


def test_text_for_an_empty_string_attribute(sqs: Sqs) -> None:
    """1.3: empty string attr."""
    with refused(INVALID_VALUE, "Message (user) attribute 'colour' must contain a non-empty value of type 'String'."):
        sqs.send(sqs.create(), MessageAttributes={"colour": {"DataType": "String", "StringValue": ""}})


def test_text_for_creating_a_queue_again_with_another_attribute(sqs: Sqs) -> None:
    """1.3: create, other attrs."""
    sqs.create("orders")
    text = "A queue already exists with the same name and a different value for attribute DelaySeconds"
    with refused("QueueAlreadyExists", text):
        sqs.create("orders", DelaySeconds=5)


@pytest.mark.parametrize("name", ["FifoQueue", "ContentBasedDeduplication"])
@pytest.mark.parametrize("value", ["true", "false"])
def test_text_for_a_fifo_attribute_on_a_standard_queue(sqs: Sqs, name: str, value: str) -> None:
    """1.3: FifoQueue on a standard queue (same for ContentBasedDeduplication)."""
    with refused(BAD_ATTRIBUTE_NAME, f"Unknown Attribute {name}."):
        sqs.set(sqs.create(), **{name: value})


@pytest.mark.parametrize(("name", "value"), [("FifoQueue", "false"), ("ContentBasedDeduplication", "true")])
def test_text_for_creating_a_standard_queue_with_a_fifo_attribute(sqs: Sqs, name: str, value: str) -> None:
    """1.3: FifoQueue on a standard queue. (FifoQueue=true is about the name: rule 43.)"""
    with refused(BAD_ATTRIBUTE_NAME, f"Unknown Attribute {name}."):
        sqs.create("orders", **{name: value})


def test_text_for_a_deduplication_scope_on_a_standard_queue(sqs: Sqs) -> None:
    """1.3: DeduplicationScope on standard."""
    text = "You can specify the DeduplicationScope only when FifoQueue is set to true."
    with refused(BAD_ATTRIBUTE_NAME, text):
        sqs.create("orders", DeduplicationScope="queue")
    with refused(BAD_ATTRIBUTE_NAME, text):
        sqs.set(sqs.create("others"), DeduplicationScope="messageGroup")


def test_text_for_turning_a_fifo_queue_into_a_standard_one(sqs: Sqs) -> None:
    """1.3: set FifoQueue=false on FIFO."""
    text = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    with refused(BAD_ATTRIBUTE_VALUE, text):
        sqs.set(sqs.create_fifo(), FifoQueue=False)


def test_text_for_two_kinds_of_encryption(sqs: Sqs) -> None:
    """1.3: KMS and SQS SSE both."""
    text = "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."
    with refused(BAD_ATTRIBUTE_NAME, text):
        sqs.create("orders", KmsMasterKeyId="alias/aws/sqs", SqsManagedSseEnabled=True)
    with refused(BAD_ATTRIBUTE_NAME, text):
        sqs.set(sqs.create("others"), KmsMasterKeyId="alias/aws/sqs", SqsManagedSseEnabled=True)


def test_text_for_purging_twice(sqs: Sqs) -> None:
    """1.3: purge twice (403)."""
    url = sqs.create("orders")
    sqs.purge_queue(QueueUrl=url)
    with refused(PURGE_IN_PROGRESS, "Only one PurgeQueue operation on orders is allowed every 60 seconds."):
        sqs.purge_queue(QueueUrl=url)


def test_creating_a_queue_too_soon_after_its_end_is_refused(sqs: Sqs) -> None:
    """1.3: QueueDeletedRecently."""
    sqs.delete_queue(QueueUrl=sqs.create("orders"))
    with refused(DELETED_RECENTLY):
        sqs.create("orders")


@pytest.mark.parametrize("handle", ["garbage", "QUJD", "=", "é", "x" * 2000])
def test_text_for_a_garbage_handle(sqs: Sqs, handle: str) -> None:
    """1.3: garbage handle, for delete and for change of visibility."""
    url = sqs.create()
    text = f'The input receipt handle "{handle}" is not a valid receipt handle.'
    with refused(BAD_HANDLE, text):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
    with refused(BAD_HANDLE, text):
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=1)


def test_text_for_a_handle_of_another_queue(sqs: Sqs) -> None:
    """1.3: handle of another queue."""
    url, other = sqs.create("orders"), sqs.create("others")
    sqs.send(url)
    message = sqs.receive_one(url)
    text = f'The receipt handle "{message["ReceiptHandle"]}" is not valid for this queue.'
    with refused(BAD_HANDLE, text):
        sqs.delete(other, message)
    with refused(BAD_HANDLE, text):
        sqs.change(other, message, 1)


def test_text_for_an_expired_fifo_handle(sqs: Sqs) -> None:
    """1.3: FIFO handle expired."""
    url = sqs.create_fifo()
    sqs.send(url, MessageGroupId="g")
    message = sqs.receive_one(url, VisibilityTimeout=10)
    sqs.advance(11)
    handle = message["ReceiptHandle"]
    text = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    with refused(INVALID_VALUE, text):
        sqs.delete(url, message)


def test_text_for_changing_the_visibility_of_a_deleted_message(sqs: Sqs) -> None:
    """1.3: ChangeVisibility on deleted msg."""
    url = sqs.create()
    sqs.send(url)
    message = sqs.receive_one(url)
    sqs.delete(url, message)
    text = (
        f"Value {message['ReceiptHandle']} for parameter ReceiptHandle is invalid. "
        "Reason: Message does not exist or is not available for visibility timeout change."
    )
    with refused(INVALID_VALUE, text):
        sqs.change(url, message, 5)


def test_texts_for_labels(sqs: Sqs) -> None:
    """1.3: label exists / missing."""
    url = sqs.create()
    grant = {"QueueUrl": url, "Label": "L", "AWSAccountIds": ["111122223333"], "Actions": ["SendMessage"]}
    sqs.add_permission(**grant)
    with refused(INVALID_VALUE, "Value L for parameter Label is invalid. Reason: Already exists."):
        sqs.add_permission(**grant)
    with refused(INVALID_VALUE, "Value M for parameter Label is invalid. Reason: can't find label."):
        sqs.remove_permission(QueueUrl=url, Label="M")


def test_text_for_moving_from_a_queue_that_is_no_dead_letter_queue(sqs: Sqs) -> None:
    """1.3: move task: not a DLQ."""
    with refused(INVALID_VALUE, "Source queue must be configured as a Dead Letter Queue."):
        sqs.start_message_move_task(SourceArn=sqs.arn(sqs.create()))


def test_text_for_a_second_move_task(sqs: Sqs) -> None:
    """1.3: move task: 2nd."""
    source, dead = sqs.create_pair()
    sqs.send_all(dead, "a", "b", "c")
    task = {"SourceArn": sqs.arn(dead), "DestinationArn": sqs.arn(source), "MaxNumberOfMessagesPerSecond": 1}
    sqs.start_message_move_task(**task)
    text = "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
    with refused(INVALID_VALUE, text):
        sqs.start_message_move_task(**task)


def test_texts_for_absent_ends_of_a_move_task(sqs: Sqs) -> None:
    """1.3: move task: bad dest / src."""
    _, dead = sqs.create_pair()
    absent = f"arn:aws:sqs:us-east-1:{ACCOUNT}:absent"
    with refused(NOT_FOUND, "The resource that you specified for the DestinationArn parameter doesn't exist."):
        sqs.start_message_move_task(SourceArn=sqs.arn(dead), DestinationArn=absent)
    with refused(NOT_FOUND, "The resource that you specified for the SourceArn parameter doesn't exist."):
        sqs.start_message_move_task(SourceArn=absent)
    with refused(NOT_FOUND, "The resource that you specified for the SourceArn parameter doesn't exist."):
        sqs.list_message_move_tasks(SourceArn=absent)


def test_text_for_a_garbage_task_handle(sqs: Sqs) -> None:
    """1.3: move task: bad handle."""
    with refused(INVALID_VALUE, "Value for parameter TaskHandle is invalid."):
        sqs.cancel_message_move_task(TaskHandle="garbage")


def test_text_for_a_task_that_does_not_exist(sqs: Sqs) -> None:
    """1.3: move task: bad id. Rule 29: handle = base64 JSON {taskId, sourceArn}."""
    _, dead = sqs.create_pair()
    text = json.dumps({"taskId": str(uuid.uuid4()), "sourceArn": sqs.arn(dead)})
    with refused(NOT_FOUND, "Task does not exist."):
        sqs.cancel_message_move_task(TaskHandle=base64.b64encode(text.encode()).decode())


def test_text_for_a_task_whose_source_does_not_exist(sqs: Sqs) -> None:
    """Rule 59."""
    text = json.dumps({"taskId": str(uuid.uuid4()), "sourceArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:absent"})
    with refused(NOT_FOUND, "The resource that you specified for the SourceArn parameter doesn't exist."):
        sqs.cancel_message_move_task(TaskHandle=base64.b64encode(text.encode()).decode())


def test_text_for_a_task_handle_without_a_source(sqs: Sqs) -> None:
    """Rule 59; rule 29: a handle names both."""
    text = json.dumps({"taskId": str(uuid.uuid4())})
    with refused(INVALID_VALUE, "Value for parameter TaskHandle is invalid."):
        sqs.cancel_message_move_task(TaskHandle=base64.b64encode(text.encode()).decode())


def test_going_past_the_twelve_hours_names_the_value(sqs: Sqs) -> None:
    """1.3: 12 h cap; only the sure part of the text."""
    url = sqs.create()
    sqs.send(url)
    message = sqs.receive_one(url)
    sqs.advance(20)
    with refused(INVALID_VALUE) as caught:
        sqs.change(url, message, 43199)
    assert caught.value.message.startswith("Value 43199 for parameter VisibilityTimeout is invalid.")
