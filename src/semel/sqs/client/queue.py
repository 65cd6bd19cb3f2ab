"""One queue: its name, URL and ARN, and what can be done with its messages."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import orjson

from semel.sqs import limits
from semel.sqs.client.batches import Batch, parts
from semel.sqs.client.cancellation import Cancel
from semel.sqs.client.messages import AttributeValue, Entry, Failure, Received, Sent
from semel.sqs.errors import BadRequest, QueueNotFound, TooSoon

if TYPE_CHECKING:
    from semel.sqs.client.client import Client

_log: Final = logging.getLogger("semel.sqs")
_ARN: Final = re.compile(r"arn:[a-z0-9-]+:sqs:(?P<region>[a-z0-9-]+):(?P<account>\d+):(?P<name>[^:/]+)")


@dataclass(frozen=True, slots=True)
class Reference:
    """A queue as the caller named it. `url` or `arn` is set only if the caller gave one."""

    name: str
    url: str | None = None
    arn: str | None = None
    account: str | None = None

    @classmethod
    def parse(cls, text: str, endpoint: str, region: str) -> Reference:
        if text.startswith("arn:"):
            return cls._from_arn(text, endpoint, region)
        if "://" in text:
            name = _last_of_path(text)
            if not limits.QUEUE_NAME.match(name):
                raise BadRequest(
                    f"queue {text!r}: the URL does not end in a queue's name, as in http://host/account/name"
                )
            return cls(name, url=text)
        if not limits.QUEUE_NAME.match(text):
            raise BadRequest(
                f"queue {text!r} is no name, URL or ARN of a queue: a name has 1 to 80 letters, digits, - and _, "
                "and may end in .fifo"
            )
        return cls(text)

    @classmethod
    def _from_arn(cls, text: str, endpoint: str, region: str) -> Reference:
        match = _ARN.fullmatch(text)
        if match is None or not limits.QUEUE_NAME.match(match["name"]):
            raise BadRequest(
                f"queue {text!r} is not the ARN of a queue, as in arn:aws:sqs:eu-west-1:123456789012:orders"
            )
        # A local endpoint may use any region name. An endpoint with a region in its address serves only that one.
        if match["region"] != region and f".{region}." in endpoint:
            raise BadRequest(
                f"queue {text} is in {match['region']}, but the client talks to {endpoint}: "
                f"make one with Client(region={match['region']!r})"
            )
        return cls(match["name"], arn=text, account=match["account"])


def _last_of_path(url: str) -> str:
    try:
        return urlsplit(url).path.rstrip("/").rpartition("/")[2]
    except ValueError:  # an unpaired bracket, or an invalid character in the host
        return ""


class Queue:
    """One queue, as returned by `Client.queue` and `Client.create_queue`. Its URL is looked up when it is first needed.

    >>> from semel import Client
    >>> queue = Client().create_queue("orders", {"VisibilityTimeout": 60})
    >>> queue.name, queue.fifo, queue.attributes("VisibilityTimeout")
    ('orders', False, {'VisibilityTimeout': '60'})
    >>> queue.receive(wait=0)
    []
    """

    def __init__(self, client: Client, reference: Reference) -> None:
        """Internal. Use `Client.queue` or `Client.create_queue`."""
        self.client = client
        self.name = reference.name
        self.fifo = reference.name.endswith(".fifo")
        self._reference = reference
        self._url = reference.url
        self._arn = reference.arn
        self._scope: str | None = None
        self._lock = threading.Lock()
        self._receive_bodies: dict[tuple[int, int, int | None], bytes] = {}

    @property
    def url(self) -> str:
        """The URL of the queue; looked up when it is first needed."""
        if self._url is None:
            with self._lock:
                if self._url is None:
                    self._url = self._look_up()
        return self._url

    def _look_up(self) -> str:
        params = {"QueueName": self.name}
        if self._reference.account:
            params["QueueOwnerAWSAccountId"] = self._reference.account
        url = self.client.call("GetQueueUrl", params).get("QueueUrl")
        if not url or not isinstance(url, str):
            raise self.client.misses("GetQueueUrl", self.name, "QueueUrl")
        return url

    def set_url(self, url: str) -> None:
        """Internal. Sets the URL, so that no call is needed to look it up."""
        self._url = url
        self._receive_bodies.clear()

    @property
    def arn(self) -> str:
        """The ARN of the queue; looked up when it is first needed."""
        if self._arn is None:
            self._arn = self.attributes("QueueArn").get("QueueArn")
            if not self._arn:
                raise self.client.misses("GetQueueAttributes", self.name, "QueueArn")
        return self._arn

    @property
    def scope(self) -> str:
        """Region, account and name, which identify the queue: `us-east-1:123456789012:orders`. They come from SQS, so
        they are the same for every client, whatever it calls the region or the queue."""
        if self._scope is None:
            self.attributes("QueueArn")
        if self._scope is None:
            raise self.client.misses("GetQueueAttributes", self.name, "QueueArn")
        return self._scope

    def call(self, operation: str, params: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """Calls any operation on this queue; its URL is added. With `timeout`, in seconds, it is tried only once."""
        client = self.client
        body = client.encoded(operation, {"QueueUrl": self.url, **params}, self.name)
        return client.perform(operation, body, queue=self.name, timeout=timeout)

    # Receiving.

    def receive(
        self,
        limit: int = limits.MAX_RECEIVE,
        wait: int = limits.MAX_WAIT,
        *,
        visibility: int | None = None,
        attempt_id: str | None = None,
        cancel: Cancel | None = None,
    ) -> list[Received]:
        """Receives up to `limit` messages with all their attributes; waits up to `wait` seconds for the first one.

        A receive from a FIFO queue always has an attempt id. So if an answer is lost, the next attempt gets the same
        messages and does not find their groups blocked. A message whose body does not match its checksum is logged and
        left out; it becomes visible again when its visibility timeout ends."""
        body = self._receive_bodies.get((limit, wait, visibility))
        if body is None:
            body = self._receive_body(limit, wait, visibility)
        if attempt_id is not None or self.fifo:
            body = b'%b,"ReceiveRequestAttemptId":%b}' % (body[:-1], orjson.dumps(attempt_id or uuid4().hex))
        answer = self.client.perform("ReceiveMessage", body, queue=self.name, wait=wait, cancel=cancel)
        messages = answer.get("Messages")
        if not messages:
            return []
        try:
            return [Received.from_wire(message) for message in messages if self._intact(message)]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self.client.misses("ReceiveMessage", self.name, error) from error

    def _receive_body(self, limit: int, wait: int, visibility: int | None) -> bytes:
        for option, value, low, high in (
            ("limit", limit, 1, limits.MAX_RECEIVE),
            ("wait", wait, 0, limits.MAX_WAIT),
            ("visibility", 0 if visibility is None else visibility, 0, limits.MAX_VISIBILITY),
        ):
            if type(value) is not int or not low <= value <= high:
                raise BadRequest(
                    f"ReceiveMessage on queue {self.name}: {option}={value!r} is not a number from {low} to {high}",
                    operation="ReceiveMessage",
                    queue=self.name,
                )
        params: dict[str, Any] = {
            "QueueUrl": self.url,
            "MaxNumberOfMessages": limit,
            "WaitTimeSeconds": wait,
            # The older name as well, for endpoints that know only that one.
            "MessageSystemAttributeNames": ["All"],
            "AttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        }
        if visibility is not None:
            params["VisibilityTimeout"] = visibility
        body = orjson.dumps(params)
        if len(self._receive_bodies) < 1_000:
            self._receive_bodies[limit, wait, visibility] = body
        return body

    def _intact(self, message: dict[str, Any]) -> bool:
        digest = message.get("MD5OfBody")
        if digest is None or digest == md5(message["Body"].encode(), usedforsecurity=False).hexdigest():
            return True
        _log.warning(
            "queue %s: the body of message %s does not match its checksum and is left in the queue",
            self.name,
            message.get("MessageId"),
        )
        return False

    # Acknowledging, and changing visibility.

    def delete(self, receipts: Sequence[str]) -> list[Failure | None]:
        """Deletes any number of messages. Returns for each receipt, in order, None or its failure."""
        entries = [{"Id": str(place), "ReceiptHandle": receipt} for place, receipt in enumerate(receipts)]
        return self._batch_call("DeleteMessageBatch", entries)

    def change_visibility(
        self, pairs: Sequence[tuple[str, int]], *, timeout: float | None = None
    ) -> list[Failure | None]:
        """Hides messages for a number of seconds from now, given as (receipt, seconds); 0 makes them visible at once.
        Returns for each pair, in order, None or its failure.

        With `timeout`, each entry is tried once, and entries not done within that many seconds have failed. This is
        for heartbeats, which repeat anyway and must not be held up."""
        entries = [
            {"Id": str(place), "ReceiptHandle": receipt, "VisibilityTimeout": seconds}
            for place, (receipt, seconds) in enumerate(pairs)
        ]
        return self._batch_call("ChangeMessageVisibilityBatch", entries, timeout)

    def _batch_call(
        self, operation: str, entries: list[dict[str, Any]], timeout: float | None = None
    ) -> list[Failure | None]:
        outcomes = Batch(self, operation, entries, timeout).run(parts((place, 0) for place in range(len(entries))))
        return [outcome if isinstance(outcome, Failure) else None for outcome in outcomes]

    # Sending.

    def send(
        self,
        body: str,
        *,
        attributes: Mapping[str, AttributeValue] | None = None,
        delay: int | None = None,
        group: str | None = None,
        dedup: str | None = None,
        trace: str | None = None,
    ) -> Sent:
        """Sends a message. A retry after a lost answer may send it twice to a Standard queue, never to a FIFO queue."""
        answer = self.call("SendMessage", Entry(body, attributes, delay, group, dedup, trace).wire())
        return self._sent("SendMessage", answer)

    def send_many(self, entries: Sequence[Entry]) -> list[Sent | Failure]:
        """Sends any number of messages, in order. Returns for each, in order, a `Sent` or a `Failure`."""
        batch = Batch(self, "SendMessageBatch", [{"Id": str(place), **e.wire()} for place, e in enumerate(entries)])
        batch.outcomes[:] = [entry.unsendable() for entry in entries]
        fitting = [(place, e.size) for place, e in enumerate(entries) if batch.outcomes[place] is None]
        return [
            outcome if isinstance(outcome, Failure) else self._sent("SendMessageBatch", outcome)
            for outcome in batch.run(parts(fitting))
        ]

    def _sent(self, operation: str, answer: dict[str, Any]) -> Sent:
        message_id, sequence = answer.get("MessageId"), answer.get("SequenceNumber")
        if not isinstance(message_id, str) or not isinstance(sequence, str | None):
            raise self.client.misses(operation, self.name, "MessageId")
        return Sent(message_id, sequence)

    # The queue itself.

    def attributes(self, *names: str) -> dict[str, str]:
        """The queue's attributes by name; all of them if no name is given."""
        attributes: dict[str, str] = self.call("GetQueueAttributes", {"AttributeNames": names or ("All",)}).get(
            "Attributes", {}
        )
        if not isinstance(attributes, dict) or not all(isinstance(value, str) for value in attributes.values()):
            raise self.client.misses("GetQueueAttributes", self.name, "Attributes")
        if arn := attributes.get("QueueArn"):
            self._scope = ":".join(arn.split(":")[3:])
        return attributes

    def purge(self) -> None:
        """Deletes all messages of the queue; SQS allows this once a minute."""
        try:
            self.call("PurgeQueue", {})
        except TooSoon as error:
            # An earlier attempt was carried out, but its answer was lost.
            if error.attempts == 1:
                raise

    def drop(self) -> None:
        """Deletes the queue and its messages."""
        try:
            self.call("DeleteQueue", {})
        except QueueNotFound as error:
            if error.attempts == 1:
                raise
        self.client.forget(self)

    def __repr__(self) -> str:
        return f"Queue({self._url or self._reference.arn or self.name})"
