"""One interface to both protocols of SQS: today's AWS JSON, and the Query/XML that SDKs used until late 2023.

Both are real botocore clients. The older one uses today's service model, converted back to its older form: protocol,
result wrappers, names and error codes, which were removed from the model when SQS moved to JSON.
"""

from __future__ import annotations

import copy
import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.loaders import Loader

ACCOUNT = "000000000000"
REGION = "us-east-1"
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
MIB = 1_048_576

NON_EXISTENT_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"
PURGE_IN_PROGRESS = "AWS.SimpleQueueService.PurgeQueueInProgress"
DELETED_RECENTLY = "AWS.SimpleQueueService.QueueDeletedRecently"
NOT_DISTINCT = "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"
TOO_LONG = "AWS.SimpleQueueService.BatchRequestTooLong"
EMPTY_BATCH = "AWS.SimpleQueueService.EmptyBatchRequest"
BAD_ENTRY_ID = "AWS.SimpleQueueService.InvalidBatchEntryId"
TOO_MANY_ENTRIES = "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"
INVALID_VALUE = "InvalidParameterValue"
MISSING = "MissingParameter"
BAD_HANDLE = "ReceiptHandleIsInvalid"
NOT_FOUND = "ResourceNotFoundException"
BAD_ATTRIBUTE_NAME = "InvalidAttributeName"
BAD_ATTRIBUTE_VALUE = "InvalidAttributeValue"
ACCESS_DENIED = "AccessDenied"


class ErrorKind(NamedTuple):
    shape: str
    status: int = 400


# Section 1.3: the query code, the shape in JSON's `__type`, the HTTP status.
ERRORS: Mapping[str, ErrorKind] = {
    NON_EXISTENT_QUEUE: ErrorKind("QueueDoesNotExist"),
    "QueueAlreadyExists": ErrorKind("QueueNameExists"),
    DELETED_RECENTLY: ErrorKind("QueueDeletedRecently"),
    PURGE_IN_PROGRESS: ErrorKind("PurgeQueueInProgress", 403),
    NOT_DISTINCT: ErrorKind("BatchEntryIdsNotDistinct"),
    TOO_LONG: ErrorKind("BatchRequestTooLong"),
    EMPTY_BATCH: ErrorKind("EmptyBatchRequest"),
    BAD_ENTRY_ID: ErrorKind("InvalidBatchEntryId"),
    TOO_MANY_ENTRIES: ErrorKind("TooManyEntriesInBatchRequest"),
    "AWS.SimpleQueueService.MessageNotInflight": ErrorKind("MessageNotInflight"),
    "AWS.SimpleQueueService.UnsupportedOperation": ErrorKind("UnsupportedOperation"),
    "OverLimit": ErrorKind("OverLimit", 403),
    "RequestThrottled": ErrorKind("RequestThrottled", 403),
    "InvalidSecurity": ErrorKind("InvalidSecurity", 403),
    BAD_HANDLE: ErrorKind("ReceiptHandleIsInvalid", 404),
    "InvalidAddress": ErrorKind("InvalidAddress", 404),
    NOT_FOUND: ErrorKind("ResourceNotFoundException", 404),
    BAD_ATTRIBUTE_NAME: ErrorKind("InvalidAttributeName"),
    BAD_ATTRIBUTE_VALUE: ErrorKind("InvalidAttributeValue"),
    "InvalidMessageContents": ErrorKind("InvalidMessageContents"),
    INVALID_VALUE: ErrorKind("InvalidParameterValueException"),
    MISSING: ErrorKind("MissingRequiredParameterException"),
    ACCESS_DENIED: ErrorKind("AccessDeniedException", 403),
}


class Clock(Protocol):
    def now(self) -> float: ...
    def advance(self, seconds: float) -> object: ...


class Broker(Protocol):
    """The parts of a running broker that the suite uses."""

    @property
    def url(self) -> str: ...
    @property
    def clock(self) -> Clock: ...
    def client(self, **kwargs: Any) -> Any: ...
    def metrics(self) -> str: ...


# ---- errors ---------------------------------------------------------------------------------------------------------


class SqsError(Exception):
    """A refusal by the service, in the same form for both protocols; `shape` is known only with JSON."""

    def __init__(self, answer: dict[str, Any]) -> None:
        error = answer["Error"]
        self.code: str = error["Code"]
        self.message: str = error.get("Message", "")
        self.type: str = error.get("Type", "")
        self.shape: str | None = error.get("QueryErrorCode")
        self.status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
        super().__init__(f"{self.status} {self.code}: {self.message}")


@contextmanager
def refused(code: str | set[str], message: str | None = None) -> Iterator[pytest.ExceptionInfo[SqsError]]:
    """Expect that the block is refused with `code`, its shape and status, and `message` if it is given."""
    with pytest.raises(SqsError) as caught:
        yield caught
    error = caught.value
    assert error.code in ({code} if isinstance(code, str) else code), str(error)
    kind = ERRORS[error.code]
    assert error.status == kind.status
    assert error.type == "Sender"
    assert error.shape in (kind.shape, None)
    if message is not None:
        assert error.message == message


def refusal(call: Callable[[], object]) -> SqsError | None:
    """The refusal of the call, or None. For cases that the specification leaves open."""
    try:
        call()
    except SqsError as error:
        return error
    return None


# ---- the older service model ----------------------------------------------------------------------------------------

_ELEMENT_NAMES = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "QueueUrlList": "QueueUrl",
    "StringList": "StringListValue",
    "BinaryList": "BinaryListValue",
}
_MAP_NAMES = {
    "QueueAttributeMap": "Attribute",
    "MessageSystemAttributeMap": "Attribute",
    "MessageBodyAttributeMap": "MessageAttribute",
    "MessageBodySystemAttributeMap": "MessageSystemAttribute",
    "TagMap": "Tag",
}


def query_era(model: Mapping[str, Any]) -> dict[str, Any]:
    """Today's service model of SQS, in the form that it had while SQS used Query/XML."""
    old: dict[str, Any] = copy.deepcopy(dict(model))
    metadata = old["metadata"]
    for name in ("awsQueryCompatible", "jsonVersion", "targetPrefix"):
        metadata.pop(name, None)
    metadata.update(protocol="query", protocols=["query"], xmlNamespace=NAMESPACE)
    for name, operation in old["operations"].items():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{name}Result"
    for name, shape in old["shapes"].items():
        if shape["type"] == "list":
            shape["member"]["locationName"] = _ELEMENT_NAMES.get(name, shape["member"]["shape"])
        elif shape["type"] == "map":
            shape["key"]["locationName"] = "Key" if name == "TagMap" else "Name"
            shape["value"]["locationName"] = "Value"
        elif shape["type"] == "structure":
            for member in shape["members"].values():
                if member["shape"] in _MAP_NAMES:
                    member["locationName"] = _MAP_NAMES[member["shape"]]
    for code, kind in ERRORS.items():
        if kind.shape in old["shapes"]:
            old["shapes"][kind.shape]["error"] = {"code": code, "httpStatusCode": kind.status, "senderFault": True}
    return old


class _QueryEraLoader(Loader):
    @cache  # noqa: B019 (there is one loader, for the whole run)
    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        model = super().load_service_model(service_name, type_name, api_version)
        return query_era(model) if (service_name, type_name) == ("sqs", "service-2") else model


@cache
def _session(protocol: str) -> Any:
    session = botocore.session.Session()
    if protocol == "query":
        session.register_component("data_loader", _QueryEraLoader())
    return session


def connect(
    url: str,
    protocol: str,
    *,
    validate: bool = False,
    region: str = REGION,
    access_key: str = "anyone",
    secret: str = "anything",
) -> Any:
    """A botocore client for `protocol`. Unless `validate` is set, it sends invalid parameters to the server."""
    return _session(protocol).create_client(
        "sqs",
        endpoint_url=url,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret,
        config=Config(
            parameter_validation=validate, retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=30
        ),
    )


# ---- the call surface -----------------------------------------------------------------------------------------------

Message = dict[str, Any]


class Counts(NamedTuple):
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0


class Sqs:
    """Every operation as a method (`sqs.send_message(QueueUrl=…)`), and shortcuts for what most tests do."""

    def __init__(self, broker: Broker, protocol: str, **caller: str) -> None:
        self.broker = broker
        self.protocol = protocol
        self.client: Any = connect(broker.url, protocol, **caller)  # type: ignore[arg-type]
        self.metadata: dict[str, Any] = {}

    def beside(self, **caller: str) -> Sqs:
        """The same service for another caller: `region`, `access_key`, `secret`."""
        return Sqs(self.broker, self.protocol, **caller)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        method = getattr(self.client, operation)

        def call(**parameters: Any) -> dict[str, Any]:
            try:
                answer: dict[str, Any] = method(**parameters)
            except ClientError as error:
                raise SqsError(dict(error.response)) from None
            self.metadata = answer.pop("ResponseMetadata")
            return answer

        return call

    def now(self) -> float:
        return self.broker.clock.now()

    def advance(self, seconds: float) -> None:
        self.broker.clock.advance(seconds)

    # queues

    def create(self, name: str = "orders", /, **attributes: object) -> str:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in attributes.items()}
        url: str = self.create_queue(QueueName=name, **({"Attributes": texts} if texts else {}))["QueueUrl"]
        return url

    def create_fifo(self, name: str = "orders.fifo", /, **attributes: object) -> str:
        return self.create(name, **{"FifoQueue": True, "ContentBasedDeduplication": True, **attributes})

    def create_pair(self, *, max_receives: int = 1, fifo: bool = False, **attributes: object) -> tuple[str, str]:
        """A source queue and its dead-letter queue, both with `attributes`."""
        make, suffix = (self.create_fifo, ".fifo") if fifo else (self.create, "")
        dead = make(f"dead{suffix}", **attributes)
        source = make(f"source{suffix}", RedrivePolicy=self.redrive_policy(dead, max_receives), **attributes)
        return source, dead

    def redrive_policy(self, dead: str, max_receives: object = 1) -> str:
        return json.dumps({"deadLetterTargetArn": self.arn(dead), "maxReceiveCount": max_receives})

    def set(self, url: str, **attributes: object) -> None:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in attributes.items()}
        self.set_queue_attributes(QueueUrl=url, Attributes=texts)

    def attributes(self, url: str, *names: str) -> dict[str, str]:
        answer = self.get_queue_attributes(QueueUrl=url, AttributeNames=list(names or ("All",)))
        attributes: dict[str, str] = answer.get("Attributes", {})
        return attributes

    def arn(self, url: str) -> str:
        return self.attributes(url, "QueueArn")["QueueArn"]

    def counts(self, url: str) -> Counts:
        prefix = "ApproximateNumberOfMessages"
        names = (prefix, f"{prefix}NotVisible", f"{prefix}Delayed")
        attributes = self.attributes(url, *names)
        return Counts(*(int(attributes[name]) for name in names))

    # messages

    def send(self, url: str, body: str = "hello", **parameters: Any) -> dict[str, Any]:
        sent: dict[str, Any] = self.send_message(QueueUrl=url, MessageBody=body, **parameters)
        return sent

    def send_all(self, url: str, *bodies: str, **parameters: Any) -> list[dict[str, Any]]:
        return [self.send(url, body, **parameters) for body in bodies]

    def receive(self, url: str, most: int = 10, /, **parameters: Any) -> list[Message]:
        answer = self.receive_message(QueueUrl=url, MaxNumberOfMessages=most, **parameters)
        messages: list[Message] = answer.get("Messages", [])
        return messages

    def receive_one(self, url: str, **parameters: Any) -> Message:
        """Exactly one message, with all its attributes."""
        parameters = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"], **parameters}
        messages = self.receive(url, 1, **parameters)
        assert len(messages) == 1, messages
        return messages[0]

    def delete(self, url: str, message: Message) -> None:
        self.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def change(self, url: str, message: Message, seconds: int) -> None:
        handle = message["ReceiptHandle"]
        self.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds)


def bodies(messages: list[Message]) -> list[str]:
    return [message["Body"] for message in messages]


def entries(*texts: str, **parameters: Any) -> list[dict[str, Any]]:
    """Entries of a SendMessageBatch with ids e0, e1, …"""
    return [{"Id": f"e{number}", "MessageBody": text, **parameters} for number, text in enumerate(texts)]


# ---- bare HTTP ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def xml(self) -> ElementTree.Element:
        """The document without its namespace."""
        root = ElementTree.fromstring(self.body)
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root


def request(
    broker: Broker,
    method: str,
    path: str = "/",
    body: bytes | str = b"",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    connection = http.client.HTTPConnection(urlsplit(broker.url).netloc, timeout=30)
    try:
        connection.request(
            method, path, body=body.encode() if isinstance(body, str) else body, headers=dict(headers or {})
        )
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def json_request(operation: str, body: Any) -> bytes:
    """One AWS JSON call as bytes, for tests that use a socket directly."""
    data = json.dumps(body).encode()
    head = (
        "POST / HTTP/1.1\r\nHost: broker\r\nContent-Type: application/x-amz-json-1.0\r\n"
        f"X-Amz-Target: AmazonSQS.{operation}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def dial(broker: Broker) -> socket.socket:
    where = urlsplit(broker.url)
    return socket.create_connection((where.hostname or "", where.port or 0), timeout=10)


def json_call(broker: Broker, operation: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """One AWS JSON call. A `body` of type str or bytes is sent unchanged."""
    return request(
        broker,
        "POST",
        "/",
        body if isinstance(body, (str, bytes)) else json.dumps(body),
        {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"AmazonSQS.{operation}",
            "x-amzn-query-mode": "true",
            **(headers or {}),
        },
    )


def query_call(
    broker: Broker,
    action: str,
    fields: Mapping[str, object] | None = None,
    *,
    path: str = "/",
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One Query call. With GET the fields are in the URL."""
    form = urlencode({"Action": action, "Version": "2012-11-05", **(fields or {})})
    if method == "GET":
        return request(broker, "GET", f"{path}?{form}", headers=headers)
    kind = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    return request(broker, method, path, form, {**kind, **(headers or {})})


def path_of(url: str) -> str:
    return urlsplit(url).path
