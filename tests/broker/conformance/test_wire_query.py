"""Section 1.1 on Query/XML: form fields by their older names in, XML by its older names out."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from botocore.exceptions import ClientError

from .service import (
    ACCOUNT,
    NAMESPACE,
    Answer,
    Broker,
    Sqs,
    connect,
    path_of,
    query_call,
    request,
)
from .test_wire_json import PROVOKED, provoke


def ok(answer: Answer) -> ElementTree.Element:
    assert answer.status == 200, answer.body
    return answer.xml()


def a_queue(broker: Broker, name: str = "orders") -> str:
    url = ok(query_call(broker, "CreateQueue", {"QueueName": name})).findtext("CreateQueueResult/QueueUrl")
    assert url is not None
    return url


def pairs(parent: ElementTree.Element, tag: str, key: str = "Name") -> dict[str | None, str | None]:
    return {element.findtext(key): element.findtext("Value") for element in parent.iter(tag)}


def test_an_answer_is_xml_in_the_namespace_of_the_service(sqs_broker: Broker) -> None:
    """1.1, legacy protocol: `<OpResponse xmlns><OpResult>…</OpResult><ResponseMetadata><RequestId/>`."""
    answer = query_call(sqs_broker, "CreateQueue", {"QueueName": "orders"})
    assert answer.status == 200
    assert "xml" in answer.headers["Content-Type"]
    root = ElementTree.fromstring(answer.body)
    assert root.tag == f"{{{NAMESPACE}}}CreateQueueResponse"
    assert root.findtext(f"{{{NAMESPACE}}}CreateQueueResult/{{{NAMESPACE}}}QueueUrl") is not None
    assert root.findtext(f"{{{NAMESPACE}}}ResponseMetadata/{{{NAMESPACE}}}RequestId")


def test_an_operation_without_output_answers_with_metadata_alone(sqs_broker: Broker) -> None:
    """1.1, legacy protocol."""
    root = ok(query_call(sqs_broker, "PurgeQueue", {"QueueUrl": a_queue(sqs_broker)}))
    assert root.tag == "PurgeQueueResponse"
    assert root.findtext("ResponseMetadata/RequestId")


def test_an_error_is_xml_with_type_code_message_detail_and_request_id(sqs_broker: Broker) -> None:
    """1.1, legacy protocol: `<ErrorResponse><Error>…</Error><RequestId/>`."""
    answer = query_call(sqs_broker, "ReceiveMessage", {"QueueUrl": a_queue(sqs_broker), "MaxNumberOfMessages": 11})
    assert answer.status == 400
    assert "xml" in answer.headers["Content-Type"]
    root = answer.xml()
    assert root.tag == "ErrorResponse"
    assert root.findtext("Error/Type") == "Sender"
    assert root.findtext("Error/Code") == "InvalidParameterValue"
    assert root.findtext("Error/Message") == (
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."
    )
    assert root.find("Error/Detail") is not None
    assert root.findtext("RequestId")


def test_an_absent_queue_has_a_text_of_its_own_on_this_protocol(sqs_broker: Broker) -> None:
    """1.1, NonExistentQueue text."""
    answer = query_call(
        sqs_broker, "SendMessage", {"QueueUrl": f"{sqs_broker.url}/{ACCOUNT}/absent", "MessageBody": "x"}
    )
    assert answer.status == 400
    assert answer.xml().findtext("Error/Code") == "AWS.SimpleQueueService.NonExistentQueue"
    assert answer.xml().findtext("Error/Message") == "The specified queue does not exist for this wsdl version."


@pytest.mark.parametrize("shape", PROVOKED)
def test_an_older_sdk_raises_the_class_of_the_error(sqs_broker: Broker, shape: str) -> None:
    """1.3: older SDKs choose the class by the XML code."""
    client = connect(sqs_broker.url, "query")
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    with pytest.raises(getattr(client.exceptions, shape)):
        provoke(client, url, shape)
    client.close()


def test_get_is_accepted_at_the_root(sqs_broker: Broker) -> None:
    """1.1, legacy protocol: GET accepted as well."""
    url = a_queue(sqs_broker)
    root = ok(query_call(sqs_broker, "ListQueues", {"QueueNamePrefix": "ord"}, method="GET"))
    assert [element.text for element in root.iter("QueueUrl")] == [url]


def test_get_is_accepted_at_the_path_of_the_queue(sqs_broker: Broker) -> None:
    """1.1, legacy protocol: at the queue-URL path."""
    path = path_of(a_queue(sqs_broker))
    ok(query_call(sqs_broker, "SendMessage", {"MessageBody": "by & get"}, path=path, method="GET"))
    root = ok(query_call(sqs_broker, "ReceiveMessage", path=path, method="GET"))
    assert root.findtext("ReceiveMessageResult/Message/Body") == "by & get"


def test_post_at_the_path_of_the_queue_needs_no_queue_url(sqs_broker: Broker) -> None:
    """1.1, legacy protocol: at the queue-URL path."""
    path = path_of(a_queue(sqs_broker))
    sent = ok(query_call(sqs_broker, "SendMessage", {"MessageBody": "x"}, path=path))
    received = ok(query_call(sqs_broker, "ReceiveMessage", path=path))
    assert received.findtext("ReceiveMessageResult/Message/MessageId") == sent.findtext("SendMessageResult/MessageId")


def test_post_at_the_path_of_an_absent_queue_is_refused(sqs_broker: Broker) -> None:
    """1.1, 1.3."""
    answer = query_call(sqs_broker, "ReceiveMessage", path=f"/{ACCOUNT}/absent")
    assert answer.xml().findtext("Error/Code") == "AWS.SimpleQueueService.NonExistentQueue"


def test_the_queue_url_in_the_form_and_the_path_may_both_be_given(sqs_broker: Broker) -> None:
    """1.1: older SDKs send both."""
    url = a_queue(sqs_broker)
    ok(query_call(sqs_broker, "SendMessage", {"QueueUrl": url, "MessageBody": "x"}, path=path_of(url)))


def test_a_presigned_get_of_an_older_sdk_is_answered(sqs_broker: Broker) -> None:
    """1.1, still needed: presigned GETs."""
    client = connect(sqs_broker.url, "query")
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="x")
    signed = client.generate_presigned_url("receive_message", {"QueueUrl": url}, HttpMethod="GET")
    client.close()
    parts = urlsplit(signed)
    root = ok(request(sqs_broker, "GET", f"{parts.path}?{parts.query}"))
    assert root.findtext("ReceiveMessageResult/Message/Body") == "x"


def test_queue_urls_echo_the_host_that_the_client_used(sqs_broker: Broker) -> None:
    """1.1, queue URL."""
    answer = query_call(sqs_broker, "CreateQueue", {"QueueName": "orders"}, headers={"Host": "sqs.example.test:4711"})
    assert ok(answer).findtext("CreateQueueResult/QueueUrl") == f"http://sqs.example.test:4711/{ACCOUNT}/orders"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_action_is_refused(sqs_broker: Broker, method: str) -> None:
    """1.1: only the 23 operations exist."""
    answer = query_call(sqs_broker, "MakeCoffee", method=method)
    assert answer.status == 400
    assert answer.xml().findtext("Error/Code") == "InvalidAction"
    assert answer.xml().findtext("Error/Type") == "Sender"


def test_a_form_without_an_action_is_refused(sqs_broker: Broker) -> None:
    """1.1: `Action=…`."""
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = request(sqs_broker, "POST", "/", "Version=2012-11-05", kind)
    assert 400 <= answer.status < 500


def test_a_number_that_is_none_is_refused(sqs_broker: Broker) -> None:
    """1.1: the client's mistake, never an internal failure."""
    url = a_queue(sqs_broker)
    for text in ("ten", "1.5", "9" * 400):
        answer = query_call(sqs_broker, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": text})
        assert 400 <= answer.status < 500, text
        assert answer.xml().findtext("Error/Type") == "Sender"


def test_binary_that_is_not_base64_is_refused(sqs_broker: Broker) -> None:
    """1.1: the client's mistake, never an internal failure."""
    fields = {
        "QueueUrl": a_queue(sqs_broker),
        "MessageBody": "x",
        "MessageAttribute.1.Name": "n",
        "MessageAttribute.1.Value.DataType": "Binary",
        "MessageAttribute.1.Value.BinaryValue": "%%%",
    }
    assert 400 <= query_call(sqs_broker, "SendMessage", fields).status < 500


def test_bytes_that_are_no_utf_8_are_refused(sqs_broker: Broker) -> None:
    """1.1: the client's mistake, never an internal failure."""
    form = f"Action=SendMessage&Version=2012-11-05&QueueUrl={a_queue(sqs_broker)}&MessageBody=%FF%FE"
    answer = request(sqs_broker, "POST", "/", form, {"Content-Type": "application/x-www-form-urlencoded"})
    assert 400 <= answer.status < 500


# ---- flattened names, in and out ------------------------------------------------------------------------------------


def test_attributes_go_in_as_attribute_n_and_come_out_as_attribute(sqs_broker: Broker) -> None:
    """1.1: `Attribute.N.Name/.Value`, `AttributeName.N`, `<Attribute><Name/><Value/>`."""
    fields = {
        "QueueName": "orders",
        "Attribute.1.Name": "VisibilityTimeout",
        "Attribute.1.Value": "7",
        "Attribute.2.Name": "DelaySeconds",
        "Attribute.2.Value": "3",
    }
    url = ok(query_call(sqs_broker, "CreateQueue", fields)).findtext("CreateQueueResult/QueueUrl")
    names = {"QueueUrl": url, "AttributeName.1": "VisibilityTimeout", "AttributeName.2": "DelaySeconds"}
    root = ok(query_call(sqs_broker, "GetQueueAttributes", names))
    result = root.find("GetQueueAttributesResult")
    assert result is not None
    assert pairs(result, "Attribute") == {"VisibilityTimeout": "7", "DelaySeconds": "3"}


def test_tags_go_in_as_tag_n_and_come_out_as_tag(sqs_broker: Broker) -> None:
    """1.1: `Tag.N.Key/.Value`, `TagKey.N`."""
    fields = {"QueueName": "orders", "Tag.1.Key": "team", "Tag.1.Value": "blue"}
    url = ok(query_call(sqs_broker, "CreateQueue", fields)).findtext("CreateQueueResult/QueueUrl")
    ok(query_call(sqs_broker, "TagQueue", {"QueueUrl": url, "Tag.1.Key": "cost", "Tag.1.Value": "7"}))
    listed = ok(query_call(sqs_broker, "ListQueueTags", {"QueueUrl": url}))
    assert pairs(listed, "Tag", "Key") == {"team": "blue", "cost": "7"}
    ok(query_call(sqs_broker, "UntagQueue", {"QueueUrl": url, "TagKey.1": "team"}))
    listed = ok(query_call(sqs_broker, "ListQueueTags", {"QueueUrl": url}))
    assert pairs(listed, "Tag", "Key") == {"cost": "7"}


def test_message_attributes_go_in_and_out_by_their_older_names(sqs_broker: Broker) -> None:
    """1.1: `MessageAttribute.N.Name`, `.Value.DataType/.StringValue/.BinaryValue`, `MessageAttributeName.N`."""
    url = a_queue(sqs_broker)
    fields = {
        "QueueUrl": url,
        "MessageBody": "x",
        "MessageAttribute.1.Name": "colour",
        "MessageAttribute.1.Value.DataType": "String",
        "MessageAttribute.1.Value.StringValue": "red",
        "MessageAttribute.2.Name": "icon",
        "MessageAttribute.2.Value.DataType": "Binary.png",
        "MessageAttribute.2.Value.BinaryValue": "AAH/",
        "MessageSystemAttribute.1.Name": "AWSTraceHeader",
        "MessageSystemAttribute.1.Value.DataType": "String",
        "MessageSystemAttribute.1.Value.StringValue": "Root=1-a-b",
    }
    sent = ok(query_call(sqs_broker, "SendMessage", fields))
    for digest in ("MD5OfMessageBody", "MD5OfMessageAttributes", "MD5OfMessageSystemAttributes"):
        assert sent.findtext(f"SendMessageResult/{digest}")
    names = {"QueueUrl": url, "MessageAttributeName.1": "icon", "MessageAttributeName.2": "colour"}
    received = ok(query_call(sqs_broker, "ReceiveMessage", {**names, "AttributeName.1": "AWSTraceHeader"}))
    message = received.find("ReceiveMessageResult/Message")
    assert message is not None
    found = {element.findtext("Name"): element.find("Value") for element in message.findall("MessageAttribute")}
    colour, icon = found["colour"], found["icon"]
    assert colour is not None
    assert icon is not None
    assert (colour.findtext("DataType"), colour.findtext("StringValue")) == ("String", "red")
    assert (icon.findtext("DataType"), icon.findtext("BinaryValue")) == ("Binary.png", "AAH/")
    assert pairs(message, "Attribute") == {"AWSTraceHeader": "Root=1-a-b"}


def test_system_attributes_may_also_be_asked_for_by_their_newer_name(sqs_broker: Broker) -> None:
    """1.5 on Query: `MessageSystemAttributeName.N`, as newer clients of the older protocol send it."""
    url = a_queue(sqs_broker)
    ok(query_call(sqs_broker, "SendMessage", {"QueueUrl": url, "MessageBody": "x"}))
    fields = {"QueueUrl": url, "MessageSystemAttributeName.1": "ApproximateReceiveCount"}
    received = ok(query_call(sqs_broker, "ReceiveMessage", fields))
    assert pairs(received, "Attribute") == {"ApproximateReceiveCount": "1"}


def test_batch_entries_go_in_and_out_by_their_older_names(sqs_broker: Broker) -> None:
    """1.1: `<Op>RequestEntry.N.<field>`, `<SendMessageBatchResultEntry>`, `<BatchResultErrorEntry>`."""
    url = a_queue(sqs_broker)
    entry = "SendMessageBatchRequestEntry"
    fields = {
        "QueueUrl": url,
        f"{entry}.1.Id": "good",
        f"{entry}.1.MessageBody": "x",
        f"{entry}.1.MessageAttribute.1.Name": "n",
        f"{entry}.1.MessageAttribute.1.Value.DataType": "Number",
        f"{entry}.1.MessageAttribute.1.Value.StringValue": "7",
        f"{entry}.2.Id": "bad",
        f"{entry}.2.MessageBody": "\x01",
    }
    result = ok(query_call(sqs_broker, "SendMessageBatch", fields)).find("SendMessageBatchResult")
    assert result is not None
    assert [e.findtext("Id") for e in result.findall("SendMessageBatchResultEntry")] == ["good"]
    assert result.findtext("SendMessageBatchResultEntry/MD5OfMessageAttributes")
    failed = result.findall("BatchResultErrorEntry")
    assert [(e.findtext("Id"), e.findtext("Code"), e.findtext("SenderFault")) for e in failed] == [
        ("bad", "InvalidMessageContents", "true")
    ]
    handle = ok(query_call(sqs_broker, "ReceiveMessage", {"QueueUrl": url})).findtext(".//ReceiptHandle")
    entry = "ChangeMessageVisibilityBatchRequestEntry"
    fields = {"QueueUrl": url, f"{entry}.1.Id": "a", f"{entry}.1.ReceiptHandle": str(handle)}
    changed = ok(query_call(sqs_broker, "ChangeMessageVisibilityBatch", {**fields, f"{entry}.1.VisibilityTimeout": 5}))
    path = "ChangeMessageVisibilityBatchResult/ChangeMessageVisibilityBatchResultEntry/Id"
    assert changed.findtext(path) == "a"
    entry = "DeleteMessageBatchRequestEntry"
    fields = {"QueueUrl": url, f"{entry}.1.Id": "a", f"{entry}.1.ReceiptHandle": str(handle)}
    deleted = ok(query_call(sqs_broker, "DeleteMessageBatch", fields))
    assert deleted.findtext("DeleteMessageBatchResult/DeleteMessageBatchResultEntry/Id") == "a"


def test_entries_keep_the_order_of_their_numbers_past_nine(sqs_broker: Broker) -> None:
    """1.1: N is a number: entry 10 follows entry 9, not entry 1."""
    url = a_queue(sqs_broker)
    fields: dict[str, object] = {"QueueUrl": url}
    for number in range(10, 0, -1):
        fields[f"SendMessageBatchRequestEntry.{number}.Id"] = f"e{number}"
        fields[f"SendMessageBatchRequestEntry.{number}.MessageBody"] = f"m{number}"
    sent = ok(query_call(sqs_broker, "SendMessageBatch", fields))
    expected = [f"e{number}" for number in range(1, 11)]
    assert [element.findtext("Id") for element in sent.iter("SendMessageBatchResultEntry")] == expected


def test_permissions_go_in_by_their_older_names(sqs_broker: Broker) -> None:
    """1.1: `AWSAccountId.N`, `ActionName.N`."""
    url = a_queue(sqs_broker)
    fields = {"QueueUrl": url, "Label": "l", "AWSAccountId.1": "111122223333", "ActionName.1": "SendMessage"}
    ok(query_call(sqs_broker, "AddPermission", fields))
    root = ok(query_call(sqs_broker, "GetQueueAttributes", {"QueueUrl": url, "AttributeName.1": "Policy"}))
    assert "SQS:SendMessage" in str(pairs(root, "Attribute")["Policy"])


def test_lists_of_queues_come_out_as_queue_url(sqs_broker: Broker) -> None:
    """1.1: results `<QueueUrl>`."""
    urls = {a_queue(sqs_broker, name) for name in ("a", "b")}
    root = ok(query_call(sqs_broker, "ListQueues"))
    assert {element.text for element in root.findall("ListQueuesResult/QueueUrl")} == urls


def test_an_empty_receive_is_an_empty_result(sqs_broker: Broker) -> None:
    """1.1; rule 14."""
    root = ok(query_call(sqs_broker, "ReceiveMessage", {"QueueUrl": a_queue(sqs_broker)}))
    result = root.find("ReceiveMessageResult")
    assert result is not None
    assert list(result) == []


def test_markup_and_every_kind_of_white_space_survive(sqs_broker: Broker) -> None:
    """Rule 49: CR must survive the XML round trip."""
    url = a_queue(sqs_broker)
    text = "a\rb\r\nc\nd\te <b>&amp;</b> ]]> \"'  é 😀 "
    ok(query_call(sqs_broker, "SendMessage", {"QueueUrl": url, "MessageBody": text}))
    root = ok(query_call(sqs_broker, "ReceiveMessage", {"QueueUrl": url}))
    assert root.findtext("ReceiveMessageResult/Message/Body") == text


def test_an_error_text_with_markup_in_it_is_still_xml(sqs_broker: Broker) -> None:
    """1.1: the texts echo what the client sent."""
    url = a_queue(sqs_broker)
    answer = query_call(sqs_broker, "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": "<a>&</a>"})
    assert answer.status == 404
    expected = 'The input receipt handle "<a>&</a>" is not a valid receipt handle.'
    assert answer.xml().findtext("Error/Message") == expected


def test_both_protocols_share_one_connection_and_the_same_queues(sqs_broker: Broker) -> None:
    """1.1: both are spoken at the same address."""
    url = a_queue(sqs_broker)
    connection = http.client.HTTPConnection(urlsplit(sqs_broker.url).netloc, timeout=10)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", path_of(url), "Action=SendMessage&MessageBody=x&Version=2012-11-05", form)
    assert connection.getresponse().read().startswith(b"<")
    target = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ReceiveMessage"}
    connection.request("POST", "/", json.dumps({"QueueUrl": url}), target)
    assert b'"Body":"x"' in connection.getresponse().read().replace(b" ", b"")
    connection.close()


def test_the_older_client_reads_errors_the_way_the_newer_does(sqs: Sqs) -> None:
    """1.1: one code on both protocols."""
    with pytest.raises(ClientError) as caught:
        sqs.client.get_queue_url(QueueName="absent")
    response = caught.value.response
    assert response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert response["ResponseMetadata"]["RequestId"]
    suffix = "" if sqs.protocol == "json" else " for this wsdl version"
    assert response["Error"]["Message"] == f"The specified queue does not exist{suffix}."
