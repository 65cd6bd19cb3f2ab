"""Section 1.2: all 23 operations, what they require and what they return."""

from __future__ import annotations

from typing import Any

import botocore.session
import pytest

from .service import (
    ACCOUNT,
    EMPTY_BATCH,
    ERRORS,
    MISSING,
    NON_EXISTENT_QUEUE,
    NOT_FOUND,
    Sqs,
    SqsError,
    entries,
    refused,
)

MODEL = botocore.session.Session().get_service_model("sqs")
OPERATIONS = list(MODEL.operation_names)


def members(operation: str) -> list[str]:
    shape = MODEL.operation_model(operation).input_shape
    return list(shape.members) if shape else []


def required(operation: str) -> list[str]:
    shape = MODEL.operation_model(operation).input_shape
    return list(shape.required_members) if shape else []


def snake(operation: str) -> str:
    return "".join(f"_{character.lower()}" if character.isupper() else character for character in operation).lstrip("_")


class World:
    """A source queue and its dead-letter queue; `fill` puts a message in flight and dead letters beside it."""

    def __init__(self, sqs: Sqs) -> None:
        self.sqs = sqs
        self.source, self.dead = sqs.create_pair(max_receives=5)
        self.handle = "garbage"
        self.task = "garbage"

    def fill(self) -> None:
        self.sqs.send(self.source)
        self.handle = self.sqs.receive_one(self.source)["ReceiptHandle"]
        self.sqs.send_all(self.dead, "c", "d")
        self.sqs.add_permission(QueueUrl=self.source, Label="old", AWSAccountIds=["111122223333"], Actions=["*"])

    def start_a_task(self) -> None:
        arn, to = self.sqs.arn(self.dead), self.sqs.arn(self.source)
        started = self.sqs.start_message_move_task(SourceArn=arn, DestinationArn=to, MaxNumberOfMessagesPerSecond=1)
        self.task = started["TaskHandle"]

    def parameters(self, operation: str) -> dict[str, Any]:
        """Good values for every required member of the operation."""
        url, handle = self.source, self.handle
        batch: list[dict[str, Any]] = [{"Id": "a", "ReceiptHandle": handle}]
        good: dict[str, dict[str, Any]] = {
            "AddPermission": {"Label": "l", "AWSAccountIds": ["111122223333"], "Actions": ["SendMessage"]},
            "CancelMessageMoveTask": {"TaskHandle": self.task},
            "ChangeMessageVisibility": {"ReceiptHandle": handle, "VisibilityTimeout": 10},
            "ChangeMessageVisibilityBatch": {"Entries": [{**batch[0], "VisibilityTimeout": 10}]},
            "CreateQueue": {"QueueName": "third"},
            "DeleteMessage": {"ReceiptHandle": handle},
            "DeleteMessageBatch": {"Entries": batch},
            "GetQueueUrl": {"QueueName": "source"},
            "ListMessageMoveTasks": {"SourceArn": self.sqs.arn(self.dead)},
            "ListQueues": {},
            "RemovePermission": {"Label": "old"},
            "SendMessage": {"MessageBody": "x"},
            "SendMessageBatch": {"Entries": entries("x")},
            "SetQueueAttributes": {"Attributes": {"DelaySeconds": "1"}},
            "StartMessageMoveTask": {"SourceArn": self.sqs.arn(self.dead), "DestinationArn": self.sqs.arn(url)},
            "TagQueue": {"Tags": {"team": "blue"}},
            "UntagQueue": {"TagKeys": ["team"]},
        }
        return good.get(operation, {}) | ({"QueueUrl": url} if "QueueUrl" in members(operation) else {})


@pytest.fixture
def world(sqs: Sqs) -> World:
    return World(sqs)


def test_the_model_has_23_operations() -> None:
    """1.1: API version 2012-11-05; 23 operations."""
    assert len(OPERATIONS) == 23


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_succeeds_with_its_required_members(world: World, operation: str) -> None:
    """1.2, columns `in` and `out`: nothing comes back that the model does not name."""
    world.fill()
    if operation in ("CancelMessageMoveTask", "ListMessageMoveTasks"):
        world.start_a_task()
    answer = getattr(world.sqs, snake(operation))(**world.parameters(operation))
    output = MODEL.operation_model(operation).output_shape
    assert set(answer) <= (set(output.members) if output else set())


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if required(name)])
def test_the_required_members_must_be_there(world: World, operation: str) -> None:
    """1.2, `*`; 1.3, MissingParameter. (A batch without entries may count as empty.)"""
    for member in required(operation):
        parameters = world.parameters(operation)
        parameters.pop(member)
        codes = {MISSING, EMPTY_BATCH} if member == "Entries" else {MISSING}
        with refused(codes) as caught:
            getattr(world.sqs, snake(operation))(**parameters)
        if caught.value.code == MISSING and world.sqs.protocol == "json":
            assert caught.value.message == f"The request must contain the parameter {member}."


BATCHES = ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"]


@pytest.mark.parametrize("operation", BATCHES)
def test_an_entry_must_have_an_id(world: World, operation: str) -> None:
    """1.2: Id is required in each entry; whichever code says so, it is the client's mistake."""
    parameters = world.parameters(operation)
    parameters["Entries"] = [{key: value for key, value in parameters["Entries"][0].items() if key != "Id"}]
    with pytest.raises(SqsError) as caught:
        getattr(world.sqs, snake(operation))(**parameters)
    assert caught.value.status == 400
    assert caught.value.type == "Sender"


ON_A_QUEUE = [name for name in OPERATIONS if "QueueUrl" in members(name)]


@pytest.mark.parametrize("operation", ON_A_QUEUE)
def test_every_operation_on_an_absent_queue_says_so(world: World, operation: str) -> None:
    """1.2, QueueDoesNotExist in the last column, on every operation that takes a QueueUrl."""
    parameters = {**world.parameters(operation), "QueueUrl": f"{world.sqs.broker.url}/{ACCOUNT}/absent"}
    text = {"json": "The specified queue does not exist.", "query": None}[world.sqs.protocol]
    with refused(NON_EXISTENT_QUEUE, text) as caught:
        getattr(world.sqs, snake(operation))(**parameters)
    if world.sqs.protocol == "query":
        assert caught.value.message == "The specified queue does not exist for this wsdl version."


@pytest.mark.parametrize("operation", ["StartMessageMoveTask", "ListMessageMoveTasks"])
def test_a_move_task_of_an_absent_queue_is_not_found(sqs: Sqs, operation: str) -> None:
    """1.2, ResourceNotFoundException; 1.3: it really is 404 on the wire."""
    with refused(NOT_FOUND, "The resource that you specified for the SourceArn parameter doesn't exist."):
        getattr(sqs, snake(operation))(SourceArn=f"arn:aws:sqs:us-east-1:{ACCOUNT}:absent")


def test_get_queue_url_finds_a_queue_by_name_and_owner(sqs: Sqs) -> None:
    """1.2, GetQueueUrl: QueueOwnerAWSAccountId is optional."""
    url = sqs.create("orders")
    assert sqs.get_queue_url(QueueName="orders") == {"QueueUrl": url}
    assert sqs.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId=ACCOUNT) == {"QueueUrl": url}
    with refused(NON_EXISTENT_QUEUE):
        sqs.get_queue_url(QueueName="absent")
    with refused(NON_EXISTENT_QUEUE):
        sqs.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId="999999999999")


def test_send_gives_back_id_and_digests(sqs: Sqs) -> None:
    """1.2, SendMessage: nothing that does not apply (no attributes, no sequence on a standard queue)."""
    sent = sqs.send(sqs.create(), "hello")
    assert set(sent) == {"MessageId", "MD5OfMessageBody"}


def test_receive_gives_back_id_handle_digest_and_body(sqs: Sqs) -> None:
    """1.2, ReceiveMessage: without any names asked for."""
    url = sqs.create()
    sent = sqs.send(url, "hello")
    (message,) = sqs.receive(url)
    assert set(message) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}
    assert message["MessageId"] == sent["MessageId"]
    assert message["Body"] == "hello"


def test_a_batch_send_answers_entry_by_entry(sqs: Sqs) -> None:
    """1.2, SendMessageBatch; BatchResultErrorEntry = Id*, SenderFault*, Code*, Message."""
    url = sqs.create(MaximumMessageSize=1024)
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries("a", "x" * 1025, "c"))
    assert [set(entry) for entry in answer["Successful"]] == [{"Id", "MessageId", "MD5OfMessageBody"}] * 2
    assert [entry["Id"] for entry in answer["Successful"]] == ["e0", "e2"]
    (failed,) = answer["Failed"]
    assert {"Id", "SenderFault", "Code"} <= set(failed) <= {"Id", "SenderFault", "Code", "Message"}
    assert failed["Id"] == "e1"
    assert failed["SenderFault"] is True


def test_batch_delete_and_batch_change_answer_entry_by_entry(sqs: Sqs) -> None:
    """1.2, DeleteMessageBatch and ChangeMessageVisibilityBatch: Successful[Id], Failed[]."""
    url = sqs.create()
    sqs.send_all(url, "a", "b")
    first, second = sqs.receive(url)
    good = {"Id": "good", "ReceiptHandle": first["ReceiptHandle"]}
    bad = {"Id": "bad", "ReceiptHandle": "garbage"}
    answer = sqs.change_message_visibility_batch(
        QueueUrl=url, Entries=[{**good, "VisibilityTimeout": 0}, {**bad, "VisibilityTimeout": 0}]
    )
    assert answer["Successful"] == [{"Id": "good"}]
    assert [(e["Id"], e["Code"], e["SenderFault"]) for e in answer["Failed"]] == [
        ("bad", "ReceiptHandleIsInvalid", True)
    ]
    good["ReceiptHandle"] = second["ReceiptHandle"]
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=[good, bad])
    assert answer["Successful"] == [{"Id": "good"}]
    assert [(e["Id"], e["Code"], e["SenderFault"]) for e in answer["Failed"]] == [
        ("bad", "ReceiptHandleIsInvalid", True)
    ]
    assert [message["Body"] for message in sqs.receive(url)] == [first["Body"]]


def test_boto3s_paginators_walk_through_all_queues(sqs: Sqs) -> None:
    """1.2: paginators exist for ListQueues and ListDeadLetterSourceQueues."""
    dead = sqs.create("dead")
    sources = {sqs.create(f"q{number}", RedrivePolicy=sqs.redrive_policy(dead)) for number in range(7)}
    pages = list(sqs.client.get_paginator("list_queues").paginate(PaginationConfig={"PageSize": 3}))
    assert [len(page["QueueUrls"]) for page in pages] == [3, 3, 2]
    assert {url for page in pages for url in page["QueueUrls"]} == sources | {dead}
    paginator = sqs.client.get_paginator("list_dead_letter_source_queues")
    pages = list(paginator.paginate(QueueUrl=dead, PaginationConfig={"PageSize": 3}))
    assert {url for page in pages for url in page["queueUrls"]} == sources


def test_every_code_of_the_table_is_known_to_the_suite() -> None:
    """1.3: each error shape of the model that the broker can send has a query code here."""
    unsent = {"InvalidIdFormat"} | {name for name in MODEL.shape_names if name.startswith("Kms")}
    model = {shape.name for shape in MODEL.error_shapes} - unsent
    outside = {"InvalidParameterValueException", "MissingRequiredParameterException", "AccessDeniedException"}
    assert {kind.shape for kind in ERRORS.values()} == model | outside
