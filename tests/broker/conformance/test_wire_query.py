"""Section 1.1 with Query/XML: form fields and XML with the older names."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
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


@pytest.mark.parametrize("path", ["/", f"/{ACCOUNT}/orders"])
@pytest.mark.parametrize("accept", ["*/*", "application/json"])
def test_a_get_without_an_action_is_an_unknown_operation(sqs_broker: Broker, path: str, accept: str) -> None:
    """Rule 60: 404, in XML for everybody, and without the form that other errors have."""
    answer = request(sqs_broker, "GET", path, headers={"Accept": accept})
    assert answer.status == 404
    assert answer.headers["Content-Type"] == "text/xml"
    assert answer.xml().tag == "UnknownOperationException"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
def test_what_is_not_about_a_queue_is_refused_at_a_queues_own_url(sqs_broker: Broker, action: str, method: str) -> None:
    """Rule 60: 400 InvalidAction."""
    path = path_of(a_queue(sqs_broker))
    answer = query_call(sqs_broker, action, {"QueueName": "others"}, path=path, method=method)
    assert answer.status == 400
    assert answer.xml().findtext("Error/Code") == "InvalidAction"
    assert answer.xml().findtext("Error/Message") == f"The action {action} is not valid for this endpoint."
    assert len(list(ok(query_call(sqs_broker, "ListQueues")).iter("QueueUrl"))) == 1


def test_get_queue_url_is_answered_at_another_queues_own_url(sqs_broker: Broker) -> None:
    """Rule 60: only what creates and lists queues is refused there."""
    path, other = path_of(a_queue(sqs_broker)), a_queue(sqs_broker, "others")
    root = ok(query_call(sqs_broker, "GetQueueUrl", {"QueueName": "others"}, path=path, method="GET"))
    assert root.findtext("GetQueueUrlResult/QueueUrl") == other


def test_the_queue_url_in_the_form_counts_and_not_the_path(sqs_broker: Broker) -> None:
    """1.1: the path is then merely where the request is sent to."""
    path, other = path_of(a_queue(sqs_broker)), a_queue(sqs_broker, "others")
    fields = {"QueueUrl": other, "AttributeName.1": "QueueArn"}
    root = ok(query_call(sqs_broker, "GetQueueAttributes", fields, path=path))
    assert str(pairs(root, "Attribute")["QueueArn"]).endswith(":others")


def test_a_number_that_is_none_is_refused(sqs_broker: Broker) -> None:
    """1.1: the client's mistake, never an internal failure."""
    url = a_queue(sqs_broker)
    for text in ("ten", "1.5", "9" * 400, "9" * 5000, "1_0", " 1", "٣", "0x1", ""):
        answer = query_call(sqs_broker, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": text})
        assert 400 <= answer.status < 500, text
        assert answer.xml().findtext("Error/Type") == "Sender"


@pytest.mark.parametrize("number", ["01", "007", "0", "٣", "9" * 5000, "-1", "x", ""])
def test_a_list_with_odd_numbers_is_no_internal_failure(sqs_broker: Broker, number: str) -> None:
    """1.1: N counts from 1; whatever else it is, the client may be told so, but the broker does not stumble."""
    fields = {"QueueUrl": a_queue(sqs_broker), f"AttributeName.{number}": "QueueArn", "AttributeName.1": "DelaySeconds"}
    answer = query_call(sqs_broker, "GetQueueAttributes", fields)
    assert answer.status == 200
    assert pairs(answer.xml(), "Attribute")["DelaySeconds"] == "0"


def test_a_name_of_a_million_dots_is_read_in_no_time(sqs_broker: Broker) -> None:
    """1.1: no name is that deep, and none may cost more than it is long."""
    form = f"Action=ListQueues&Version=2012-11-05&{'a.' * 1_000_000}=1"
    began = time.process_time()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert request(sqs_broker, "POST", "/", form, kind).status == 200
    assert time.process_time() - began < 0.5


def test_the_path_of_a_queue_may_end_in_a_slash(sqs_broker: Broker) -> None:
    """1.1, legacy protocol: at the queue-URL path."""
    path = path_of(a_queue(sqs_broker)) + "/"
    ok(query_call(sqs_broker, "SendMessage", {"MessageBody": "x"}, path=path))
    assert ok(query_call(sqs_broker, "ReceiveMessage", path=path)).findtext(".//Body") == "x"


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


def test_tags_may_also_go_in_as_tags_n(sqs_broker: Broker) -> None:
    """1.1: SDKs for Java write `Tags.N.Key` in TagQueue, which the service takes."""
    url = a_queue(sqs_broker)
    ok(query_call(sqs_broker, "TagQueue", {"QueueUrl": url, "Tags.1.Key": "team", "Tags.1.Value": "blue"}))
    assert pairs(ok(query_call(sqs_broker, "ListQueueTags", {"QueueUrl": url})), "Tag", "Key") == {"team": "blue"}


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
    attributes = {element.findtext("Name"): element.find("Value") for element in message.findall("MessageAttribute")}
    colour, icon = attributes["colour"], attributes["icon"]
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


def test_an_empty_result_is_written_as_one_tag(sqs_broker: Broker) -> None:
    """Rule 61: there are clients that look for it in the text."""
    assert b"<ListQueuesResult/><ResponseMetadata>" in query_call(sqs_broker, "ListQueues").body
    url = a_queue(sqs_broker)
    assert b"<ReceiveMessageResult/>" in query_call(sqs_broker, "ReceiveMessage", {"QueueUrl": url}).body
    assert b"<ListQueueTagsResult/>" in query_call(sqs_broker, "ListQueueTags", {"QueueUrl": url}).body


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


# ---- answers in JSON ------------------------------------------------------------------------------------------------


def in_json(broker: Broker, action: str, fields: Mapping[str, object] | None = None, method: str = "GET") -> Any:
    answer = query_call(broker, action, fields, method=method, headers={"Accept": "application/json"})
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "application/json"
    document = answer.json()
    assert list(document) == [f"{action}Response"]
    response = document[f"{action}Response"]
    assert response.pop("ResponseMetadata") == {"RequestId": answer.headers["x-amzn-RequestId"]}
    return response[f"{action}Result"] if response else None


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_whoever_accepts_json_gets_it(sqs_broker: Broker, method: str) -> None:
    """Rule 58: wrapped as the XML is, under the names that the live service uses there."""
    assert in_json(sqs_broker, "ListQueues", method=method) == {"NextToken": None, "queueUrls": None}
    url = in_json(sqs_broker, "CreateQueue", {"QueueName": "orders"}, method)["QueueUrl"]
    assert url == f"{sqs_broker.url}/{ACCOUNT}/orders"
    assert in_json(sqs_broker, "ListQueues", method=method)["queueUrls"] == [url]
    sent = in_json(sqs_broker, "SendMessage", {"QueueUrl": url, "MessageBody": "é <b>"}, method)
    assert set(sent) == {
        *("MD5OfMessageAttributes", "MD5OfMessageBody", "MD5OfMessageSystemAttributes", "MessageId", "SequenceNumber")
    }
    assert sent["SequenceNumber"] is None
    (message,) = in_json(sqs_broker, "ReceiveMessage", {"QueueUrl": url}, method)["messages"]
    assert message.pop("ReceiptHandle")
    assert message == {
        "Attributes": None,
        "Body": "é <b>",
        "MD5OfBody": sent["MD5OfMessageBody"],
        "MD5OfMessageAttributes": None,
        "MessageAttributes": None,
        "MessageId": sent["MessageId"],
    }
    assert in_json(sqs_broker, "ReceiveMessage", {"QueueUrl": url}, method) == {"messages": None}
    assert in_json(sqs_broker, "PurgeQueue", {"QueueUrl": url}, method) is None


def test_attributes_in_json_are_lists_of_names_and_values(sqs_broker: Broker) -> None:
    """Rule 58: of queues, of messages; tags have a key instead of a name."""
    url = a_queue(sqs_broker)
    fields = {"QueueUrl": url, "AttributeName.1": "VisibilityTimeout", "AttributeName.2": "DelaySeconds"}
    shown = in_json(sqs_broker, "GetQueueAttributes", fields)["Attributes"]
    expected = [{"Name": "DelaySeconds", "Value": "0"}, {"Name": "VisibilityTimeout", "Value": "30"}]
    assert sorted(shown, key=lambda entry: str(entry["Name"])) == expected
    ok(query_call(sqs_broker, "TagQueue", {"QueueUrl": url, "Tag.1.Key": "team", "Tag.1.Value": "blue"}))
    assert in_json(sqs_broker, "ListQueueTags", {"QueueUrl": url}) == {"Tags": [{"Key": "team", "Value": "blue"}]}
    attribute = {
        "MessageAttribute.1.Name": "colour",
        "MessageAttribute.1.Value.DataType": "String",
        "MessageAttribute.1.Value.StringValue": "red",
    }
    ok(query_call(sqs_broker, "SendMessage", {"QueueUrl": url, "MessageBody": "x", **attribute}))
    names = {"QueueUrl": url, "MessageAttributeName.1": "All", "AttributeName.1": "ApproximateReceiveCount"}
    (message,) = in_json(sqs_broker, "ReceiveMessage", names)["messages"]
    assert message["Attributes"] == [{"Name": "ApproximateReceiveCount", "Value": "1"}]
    (colour,) = message["MessageAttributes"]
    assert colour["Name"] == "colour"
    assert (colour["Value"]["DataType"], colour["Value"]["StringValue"]) == ("String", "red")


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/plain, */*"])
def test_an_error_is_json_for_whoever_accepts_json(sqs_broker: Broker, accept: str) -> None:
    """Rule 58: the codes and texts of this protocol, not of AWS JSON."""
    fields = {"QueueUrl": f"{sqs_broker.url}/{ACCOUNT}/absent"}
    answer = query_call(sqs_broker, "PurgeQueue", fields, headers={"Accept": accept})
    assert answer.status == 400
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == {
        "Error": {
            "Code": "AWS.SimpleQueueService.NonExistentQueue",
            "Message": "The specified queue does not exist for this wsdl version.",
            "Type": "Sender",
            "Detail": None,
        },
        "RequestId": answer.headers["x-amzn-RequestId"],
    }


def test_whoever_accepts_anything_gets_xml(sqs_broker: Broker) -> None:
    """Rule 58: JSON has to be asked for."""
    for accept in ("*/*", "text/xml", "application/xml, */*"):
        ok(query_call(sqs_broker, "ListQueues", headers={"Accept": accept}))
