"""The compiled service model: every operation and shape as botocore has it, and what a request may and must contain."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest
from botocore.loaders import Loader

from semel.sqs.errors import MISSING_PARAMETER, SERIALIZATION, ServiceError
from semel.sqs.service_model import (
    Operation,
    Shape,
    enum_values,
    operations,
    query_map_fields,
    query_members,
    query_name,
)

MODEL: Final[dict[str, Any]] = Loader().load_service_model("sqs", "service-2", "2012-11-05")

OPERATIONS: Final = """
AddPermission CancelMessageMoveTask ChangeMessageVisibility ChangeMessageVisibilityBatch CreateQueue DeleteMessage
DeleteMessageBatch DeleteQueue GetQueueAttributes GetQueueUrl ListDeadLetterSourceQueues ListMessageMoveTasks
ListQueueTags ListQueues PurgeQueue ReceiveMessage RemovePermission SendMessage SendMessageBatch SetQueueAttributes
StartMessageMoveTask TagQueue UntagQueue
"""

# What the specification marks as required, operation by operation.
REQUIRED: Final = {
    "AddPermission": "QueueUrl Label AWSAccountIds Actions",
    "CancelMessageMoveTask": "TaskHandle",
    "ChangeMessageVisibility": "QueueUrl ReceiptHandle VisibilityTimeout",
    "ChangeMessageVisibilityBatch": "QueueUrl Entries",
    "CreateQueue": "QueueName",
    "DeleteMessage": "QueueUrl ReceiptHandle",
    "DeleteMessageBatch": "QueueUrl Entries",
    "DeleteQueue": "QueueUrl",
    "GetQueueAttributes": "QueueUrl",
    "GetQueueUrl": "QueueName",
    "ListDeadLetterSourceQueues": "QueueUrl",
    "ListMessageMoveTasks": "SourceArn",
    "ListQueueTags": "QueueUrl",
    "ListQueues": "",
    "PurgeQueue": "QueueUrl",
    "ReceiveMessage": "QueueUrl",
    "RemovePermission": "QueueUrl Label",
    "SendMessage": "QueueUrl MessageBody",
    "SendMessageBatch": "QueueUrl Entries",
    "SetQueueAttributes": "QueueUrl Attributes",
    "StartMessageMoveTask": "SourceArn",
    "TagQueue": "QueueUrl Tags",
    "UntagQueue": "QueueUrl TagKeys",
}

# Structure and member: its name in the Query protocol, as the last service model that spoke it had them.
QUERY_NAMES: Final = {
    "AddPermissionRequest.AWSAccountIds": "AWSAccountId",
    "AddPermissionRequest.Actions": "ActionName",
    "ChangeMessageVisibilityBatchRequest.Entries": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResult.Successful": "ChangeMessageVisibilityBatchResultEntry",
    "ChangeMessageVisibilityBatchResult.Failed": "BatchResultErrorEntry",
    "CreateQueueRequest.Attributes": "Attribute",
    "CreateQueueRequest.tags": "Tag",
    "DeleteMessageBatchRequest.Entries": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResult.Successful": "DeleteMessageBatchResultEntry",
    "DeleteMessageBatchResult.Failed": "BatchResultErrorEntry",
    "GetQueueAttributesRequest.AttributeNames": "AttributeName",
    "GetQueueAttributesResult.Attributes": "Attribute",
    "ListDeadLetterSourceQueuesResult.queueUrls": "QueueUrl",
    "ListMessageMoveTasksResult.Results": "ListMessageMoveTasksResultEntry",
    "ListQueueTagsResult.Tags": "Tag",
    "ListQueuesResult.QueueUrls": "QueueUrl",
    "Message.Attributes": "Attribute",
    "Message.MessageAttributes": "MessageAttribute",
    "MessageAttributeValue.BinaryListValues": "BinaryListValue",
    "MessageAttributeValue.StringListValues": "StringListValue",
    "MessageSystemAttributeValue.BinaryListValues": "BinaryListValue",
    "MessageSystemAttributeValue.StringListValues": "StringListValue",
    "ReceiveMessageRequest.AttributeNames": "AttributeName",
    "ReceiveMessageRequest.MessageAttributeNames": "MessageAttributeName",
    "ReceiveMessageRequest.MessageSystemAttributeNames": "MessageSystemAttributeName",
    "ReceiveMessageResult.Messages": "Message",
    "SendMessageBatchRequest.Entries": "SendMessageBatchRequestEntry",
    "SendMessageBatchRequestEntry.MessageAttributes": "MessageAttribute",
    "SendMessageBatchRequestEntry.MessageSystemAttributes": "MessageSystemAttribute",
    "SendMessageBatchResult.Failed": "BatchResultErrorEntry",
    "SendMessageBatchResult.Successful": "SendMessageBatchResultEntry",
    "SendMessageRequest.MessageAttributes": "MessageAttribute",
    "SendMessageRequest.MessageSystemAttributes": "MessageSystemAttribute",
    "SetQueueAttributesRequest.Attributes": "Attribute",
    "TagQueueRequest.Tags": "Tag",
    "UntagQueueRequest.TagKeys": "TagKey",
}


def shapes() -> dict[str, Shape]:
    """Every shape that an operation can reach, by name."""
    shapes_by_name: dict[str, Shape] = {}

    def visit(shape: Shape) -> None:
        if shapes_by_name.setdefault(shape.name, shape) is shape:
            for inner in (*shape.members.values(), *([shape.member] if shape.member else [])):
                if inner.name not in shapes_by_name:
                    visit(inner)

    for operation in operations().values():
        visit(operation.input)
        visit(operation.output)
    return shapes_by_name


def example(shape: Shape) -> Any:
    """The smallest value that a shape allows."""
    match shape.type:
        case "structure":
            return {name: example(shape.members[name]) for name in shape.required}
        case "list":
            assert shape.member is not None
            return [example(shape.member)]
        case "map":
            assert shape.member is not None
            return {"key": example(shape.member)}
        case "blob":
            return "AAEC"
        case "boolean":
            return True
        case "integer" | "long":
            return 1
        case _:
            return "text"


def refused(operation: str, request: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        operations()[operation].input.check(request, "request")
    return caught.value


def accepted(operation: str, request: Any) -> Any:
    return operations()[operation].input.check(request, "request")


# The operations.


def test_all_23_operations_are_there() -> None:
    assert len(operations()) == 23
    assert set(operations()) == set(OPERATIONS.split())


def test_every_shape_is_as_botocore_has_it() -> None:
    known = shapes()
    for name, shape in known.items():
        if name == "Nothing":
            continue
        spec = MODEL["shapes"][name]
        assert shape.type == spec["type"], name
        assert {member: inner.name for member, inner in shape.members.items()} == {
            member: ref["shape"] for member, ref in spec.get("members", {}).items()
        }
        assert list(shape.required) == spec.get("required", []), name
        inner = spec.get("member") or spec.get("value")
        assert (shape.member.name if shape.member else None) == (inner["shape"] if inner else None), name
    used = {ref["shape"] for op in MODEL["operations"].values() for ref in (op["input"], op.get("output")) if ref}
    assert used <= set(known)


def test_an_operation_without_output_answers_nothing() -> None:
    without = {name for name, spec in MODEL["operations"].items() if "output" not in spec}
    assert without == {name for name, operation in operations().items() if not operation.output.members}
    assert {"DeleteMessage", "PurgeQueue", "TagQueue"} <= without


def test_enumerated_values_are_known() -> None:
    assert {"All", "SentTimestamp", "DeadLetterQueueSourceArn"} <= enum_values("MessageSystemAttributeName")
    assert {"All", "VisibilityTimeout", "RedriveAllowPolicy"} <= enum_values("QueueAttributeName")
    assert enum_values("MessageSystemAttributeNameForSends") == {"AWSTraceHeader"}


def test_reading_the_model_does_not_load_botocore() -> None:
    code = "import sys, semel.sqs.service_model as m; m.operations(); print('botocore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# What a request must contain.


def test_the_required_members_are_those_of_the_specification() -> None:
    assert {name: set(operation.input.required) for name, operation in operations().items()} == {
        name: set(members.split()) for name, members in REQUIRED.items()
    }


@pytest.mark.parametrize("operation", operations().values(), ids=lambda operation: operation.name)
def test_a_request_with_the_required_members_alone_is_accepted_and_without_any_of_them_refused(
    operation: Operation,
) -> None:
    whole = example(operation.input)
    assert operation.input.check(whole, "request") == whole
    for member in operation.input.required:
        for lacking in ({k: v for k, v in whole.items() if k != member}, whole | {member: None}):
            error = refused(operation.name, lacking)
            assert error.kind is MISSING_PARAMETER
            assert error.message == f"The request must contain the parameter {member}."


@pytest.mark.parametrize(
    ("operation", "member"),
    [
        ("SendMessageBatch", "Id"),
        ("SendMessageBatch", "MessageBody"),
        ("DeleteMessageBatch", "Id"),
        ("DeleteMessageBatch", "ReceiptHandle"),
        ("ChangeMessageVisibilityBatch", "Id"),
        ("ChangeMessageVisibilityBatch", "ReceiptHandle"),
    ],
)
def test_a_required_member_is_also_missed_inside_an_entry(operation: str, member: str) -> None:
    request = example(operations()[operation].input)
    del request["Entries"][0][member]
    assert refused(operation, request).message == f"The request must contain the parameter {member}."


def test_a_message_attribute_must_say_its_type() -> None:
    request = {"QueueUrl": "u", "MessageBody": "b", "MessageAttributes": {"a": {"StringValue": "x"}}}
    assert refused("SendMessage", request).message == "The request must contain the parameter DataType."


# What a request may contain.


def test_unknown_members_are_ignored_at_every_depth() -> None:
    request = {
        "QueueUrl": "u",
        "Colour": "red",
        "Entries": [{"Id": "1", "MessageBody": "b", "Priority": 7}],
    }
    assert accepted("SendMessageBatch", request) == {"QueueUrl": "u", "Entries": [{"Id": "1", "MessageBody": "b"}]}


def test_names_of_members_are_told_apart_by_case() -> None:
    assert accepted("CreateQueue", {"QueueName": "q", "Tags": {"a": "b"}}) == {"QueueName": "q"}
    assert accepted("CreateQueue", {"QueueName": "q", "tags": {"a": "b"}}) == {"QueueName": "q", "tags": {"a": "b"}}


def test_null_is_the_same_as_absent() -> None:
    request = {"QueueUrl": "u", "MessageBody": "b", "DelaySeconds": None, "MessageAttributes": None}
    assert accepted("SendMessage", request) == {"QueueUrl": "u", "MessageBody": "b"}
    assert accepted("CreateQueue", {"QueueName": "q", "Attributes": {"a": None, "b": "c"}})["Attributes"] == {"b": "c"}
    nulls = {"a": {"DataType": "String", "StringValue": "x", "BinaryValue": None}}
    params = accepted("SendMessage", {"QueueUrl": "u", "MessageBody": "b", "MessageAttributes": nulls})
    assert params["MessageAttributes"] == {"a": {"DataType": "String", "StringValue": "x"}}


def test_a_null_in_a_list_is_refused() -> None:
    assert refused("UntagQueue", {"QueueUrl": "u", "TagKeys": ["a", None]}).kind is SERIALIZATION


def test_empty_values_are_values() -> None:
    request = {"QueueUrl": "", "MessageBody": "", "DelaySeconds": 0, "MessageAttributes": {}}
    assert accepted("SendMessage", request) == request
    assert accepted("UntagQueue", {"QueueUrl": "u", "TagKeys": []}) == {"QueueUrl": "u", "TagKeys": []}


def test_the_request_that_was_given_is_left_as_it_was() -> None:
    request = {"QueueUrl": "u", "TagKeys": ["a"], "Colour": "red", "More": None}
    before = json.dumps(request)
    accepted("UntagQueue", request)
    assert json.dumps(request) == before


JSON_VALUES: Final[dict[str, Any]] = {
    "STRING_VALUE": "text",
    "NUMBER_VALUE": 7,
    "BOOLEAN_VALUE": True,
    "START_ARRAY": ["text"],
    "START_OBJECT": {"key": "text"},
}
FITS: Final = {
    "string": "STRING_VALUE",
    "blob": "STRING_VALUE",
    "integer": "NUMBER_VALUE",
    "long": "NUMBER_VALUE",
    "boolean": "BOOLEAN_VALUE",
    "list": "START_ARRAY",
    "map": "START_OBJECT",
    "structure": "START_OBJECT",
}


def input_members() -> Iterator[tuple[str, str, Shape]]:
    for operation in operations().values():
        for member, shape in operation.input.members.items():
            yield operation.name, member, shape


def test_a_value_of_another_type_is_refused_for_every_member_of_every_request() -> None:
    for operation, member, shape in input_members():
        whole = example(operations()[operation].input)
        for json_type, value in JSON_VALUES.items():
            if json_type != FITS[shape.type]:
                error = refused(operation, whole | {member: value})
                assert error.kind is SERIALIZATION, (operation, member, value)
                assert error.message.startswith(f"{json_type} can not be converted to a "), (operation, member)
                assert member in error.message


@pytest.mark.parametrize("value", [1.5, 1.0, True, "1"])
def test_only_a_whole_number_is_a_number(value: Any) -> None:
    assert refused("SendMessage", {"QueueUrl": "u", "MessageBody": "b", "DelaySeconds": value}).kind is SERIALIZATION


@pytest.mark.parametrize("value", [None, [], "text", 1, True, 0.5])
def test_a_request_that_is_no_object_is_refused(value: Any) -> None:
    assert refused("ListQueues", value).kind is SERIALIZATION


@pytest.mark.parametrize("value", ["AA=", "A", "A A=", "AAE*", "größe=", "AAE=\n"])
def test_binary_must_be_base64(value: str) -> None:
    attributes = {"a": {"DataType": "Binary", "BinaryValue": value}}
    error = refused("SendMessage", {"QueueUrl": "u", "MessageBody": "b", "MessageAttributes": attributes})
    assert error.kind is SERIALIZATION
    assert "BinaryValue" in error.message


@pytest.mark.parametrize("value", ["", "AA==", "AAE=", "AAEC", "+/+/"])
def test_binary_is_kept_in_base64(value: str) -> None:
    attributes = {"a": {"DataType": "Binary", "BinaryValue": value}}
    request = {"QueueUrl": "u", "MessageBody": "b", "MessageAttributes": attributes}
    assert accepted("SendMessage", request) == request


def test_a_mistyped_value_deep_inside_says_where_it_is() -> None:
    attributes = {"colour": "red"}
    error = refused("SendMessage", {"QueueUrl": "u", "MessageBody": "b", "MessageAttributes": attributes})
    assert "MessageAttributes.colour" in error.message


# The older protocol.


def test_every_list_and_map_has_its_older_name() -> None:
    names = {
        f"{shape.name}.{member}": name
        for shape in shapes().values()
        for member, name, inner in query_members(shape)
        if inner.type in ("list", "map")
    }
    assert names == QUERY_NAMES


def test_what_is_neither_list_nor_map_keeps_its_name() -> None:
    for shape in shapes().values():
        for member, name, inner in query_members(shape):
            if inner.type not in ("list", "map"):
                assert name == member


def test_tags_are_keys_and_values_and_all_other_maps_names_and_values() -> None:
    maps = {member for shape in shapes().values() for member, inner in shape.members.items() if inner.type == "map"}
    assert {member: query_map_fields(member) for member in maps} == {
        "Attributes": ("Name", "Value"),
        "MessageAttributes": ("Name", "Value"),
        "MessageSystemAttributes": ("Name", "Value"),
        "Tags": ("Key", "Value"),
        "tags": ("Key", "Value"),
    }


def test_a_list_of_structures_is_named_after_them() -> None:
    entry = Shape("SomeEntry", "structure")
    assert query_name("Entries", Shape("SomeList", "list", member=entry)) == "SomeEntry"
