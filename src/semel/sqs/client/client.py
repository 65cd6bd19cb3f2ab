"""The client itself: signs a call, sends it, and retries it where that can help.

The rule: every failure is raised as one `SqsError`, after at most `max_attempts` attempts. Two causes are corrected
once for each call, and the attempt is not counted: expired credentials and a wrong clock.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from random import random
from typing import Any, Final, Self

import orjson

from semel.sqs import limits
from semel.sqs.client import error_parser
from semel.sqs.client.cancellation import Cancel
from semel.sqs.client.connection import Answer
from semel.sqs.client.error_parser import Call
from semel.sqs.client.queue import Queue, Reference
from semel.sqs.client.retries import pause_after
from semel.sqs.client.signer import Signer, plain_signature
from semel.sqs.client.transport import Transport
from semel.sqs.errors import BadConfiguration, BadRequest, Cancelled, CredentialsRefused, ServerFailed, SqsError
from semel.version import __version__

# Seconds that an answer may take beyond its long poll.
MARGIN: Final = 10.0
# If the clocks differ by fewer seconds than this, the clock is not why SQS refuses a call.
SKEW: Final = 240.0
_KEPT_QUEUES: Final = 1_024


class Client:
    """SQS at one endpoint. Safe to use from any number of threads; `close()` it, or use it in a `with` block.

    Anything you do not pass is looked up as boto3 does: environment variables, ~/.aws, roles. `session` is a botocore
    or boto3 session. `max_attempts` includes the first attempt. `read_timeout` is extended for long polls. `sleep`,
    `chance` and `clock` are for tests: how to wait, a random number in [0, 1), the time in seconds since 1970.

    >>> from semel import Client
    >>> with Client() as client:
    ...     queue = client.create_queue("orders")
    ...     sent = queue.send('{"id": 7}')
    ...     [message] = queue.receive(wait=1)
    ...     queue.delete([message.receipt])
    [None]
    >>> message.body
    '{"id": 7}'
    """

    def __init__(
        self,
        endpoint_url: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        session: Any = None,
        *,
        connect_timeout: float = 5.0,
        read_timeout: float = 60.0,
        max_attempts: int | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        session_token: str | None = None,
        sleep: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for option, seconds in (("connect_timeout", connect_timeout), ("read_timeout", read_timeout)):
            if not seconds > 0:
                raise BadConfiguration(f"{option}={seconds}: give a number of seconds above 0")
        # Imported here because it takes a third of a second: `import semel` without a client stays fast.
        from semel.sqs.client.config import Wanted, resolve

        wanted = Wanted(endpoint_url, region, profile, session, max_attempts, access_key, secret_key, session_token)
        resolved = resolve(wanted)
        self.endpoint = resolved.url
        self.region = resolved.region
        self.max_attempts = resolved.max_attempts
        self._read_timeout = read_timeout
        self._credentials = resolved.credentials
        self._resolved = resolved
        self._transport = Transport(resolved.address, connect_timeout)
        self._signer = Signer(
            host=resolved.host,
            path=resolved.path,
            region=resolved.region,
            key_pair=resolved.credentials,
            user_agent=f"semel/{__version__} python/{platform.python_version()}",
            address=resolved.request_address,
            headers=resolved.proxy_headers,
        )
        self._sleep, self._chance, self._clock = sleep, chance, clock
        self._ahead = 0.0  # seconds by which the endpoint's clock is ahead of ours, once SQS refused a call for it
        self._queues: dict[str, Queue] = {}

    # Queues.

    def queue(self, queue: str | Queue) -> Queue:
        """The queue with this name, URL or ARN. No call is made before it is used."""
        if isinstance(queue, Queue):
            return queue
        known = self._queues.get(queue)
        if known is None:
            if len(self._queues) >= _KEPT_QUEUES:
                self._queues.clear()
            known = self._queues.setdefault(queue, Queue(self, Reference.parse(queue, self.endpoint, self.region)))
        return known

    def create_queue(
        self, name: str, attributes: Mapping[str, Any] | None = None, tags: Mapping[str, str] | None = None
    ) -> Queue:
        """Creates the queue, or returns the one that has the same attributes. A name in .fifo makes a FIFO queue."""
        wanted = {key: _attribute_text(value) for key, value in (attributes or {}).items()}
        if name.endswith(".fifo"):
            wanted.setdefault("FifoQueue", "true")
        params: dict[str, Any] = {"QueueName": name}
        if wanted:
            params["Attributes"] = wanted
        if tags:
            params["tags"] = dict(tags)
        url = self.call("CreateQueue", params).get("QueueUrl")
        if not url or not isinstance(url, str):
            raise self.misses("CreateQueue", name, "QueueUrl")
        queue = self.queue(name)
        queue.set_url(url)
        return queue

    def queues(self, prefix: str = "") -> list[Queue]:
        """All queues of the account and region whose names begin with `prefix`."""
        queues: list[Queue] = []
        params: dict[str, Any] = {"MaxResults": limits.MAX_LISTED}
        if prefix:
            params["QueueNamePrefix"] = prefix
        while True:
            page = self.call("ListQueues", params)
            queues += [self.queue(url) for url in page.get("QueueUrls") or ()]
            if not page.get("NextToken"):
                return queues
            params["NextToken"] = page["NextToken"]

    def forget(self, queue: Queue) -> None:
        """Internal. The queue was deleted: a later `queue()` looks it up again."""
        self._queues = {ref: known for ref, known in self._queues.items() if known is not queue}

    # Calls.

    def call(
        self, operation: str, params: Mapping[str, Any] | None = None, *, cancel: Cancel | None = None
    ) -> dict[str, Any]:
        """Calls any operation of SQS. Parameters and answer are those of AWS's documentation."""
        if not (operation.isascii() and operation.isalpha()):
            raise BadRequest(f"{operation!r} is not an operation of SQS; write it like SendMessage")
        params = params or {}
        wait = float(params.get("WaitTimeSeconds", limits.MAX_WAIT)) if operation == "ReceiveMessage" else 0.0
        queue = params.get("QueueUrl") or params.get("QueueName") or ""
        return self.perform(operation, self.encoded(operation, params, queue), queue=queue, wait=wait, cancel=cancel)

    def encoded(self, operation: str, params: Mapping[str, Any], queue: str) -> bytes:
        """Internal. The parameters of a call as JSON."""
        try:
            return orjson.dumps(params)
        except TypeError as error:
            raise BadRequest(
                f"{operation} on queue {queue}: this cannot be written as JSON: {error}. "
                "Bodies and other texts are str without lone surrogates, numbers are int.",
                operation=operation,
                queue=queue,
            ) from error

    def perform(
        self,
        operation: str,
        body: bytes,
        *,
        queue: str = "",
        wait: float = 0.0,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> dict[str, Any]:
        """Internal. One call with its retries. `queue` is for error texts. `wait` is the length of a long poll in
        seconds, for which the read timeout is extended.

        With `timeout` there is one attempt, which takes at most about that many seconds.
        """
        limit = max(self._read_timeout, wait + MARGIN) if wait else self._read_timeout
        most = self.max_attempts
        if timeout is not None:
            limit, most = min(timeout, limit), 1
        try:
            return self._attempt(operation, body, queue, limit, cancel)
        except SqsError as error:
            return self._again(error, operation, body, queue, limit, cancel, most)

    def _again(
        self, error: SqsError, operation: str, body: bytes, queue: str, timeout: float, cancel: Cancel | None, most: int
    ) -> dict[str, Any]:
        counted, tried = 1, 0
        mended: set[str] = set()
        while True:
            tried += error.attempts
            error.attempts = tried
            mend = self._mend(error)
            if mend and mend not in mended:
                mended.add(mend)
            elif error.retryable and counted < most:
                self.pause(pause_after(error, counted, self._chance()), cancel)
                counted += 1
            else:
                if tried > 1:
                    error.args = (f"{error} Tried {tried} times.",)
                raise error
            try:
                return self._attempt(operation, body, queue, timeout, cancel)
            except SqsError as next_error:
                error = next_error

    def _attempt(
        self, operation: str, body: bytes, queue: str, timeout: float, cancel: Cancel | None
    ) -> dict[str, Any]:
        request = self._signer.request(operation, body, self._clock() + self._ahead)
        try:
            answer = self._transport.exchange(request, timeout, cancel)
        except OSError as error:
            raise error_parser.from_exception(error, self._call(operation, queue), timeout) from error
        except Cancelled:
            call = self._call(operation, queue)
            raise Cancelled(f"{call}: cancelled", operation=operation, queue=queue) from None
        if answer.status != 200:
            raise error_parser.from_answer(answer, self._call(operation, queue))
        try:
            result = orjson.loads(answer.body or b"{}")
        except orjson.JSONDecodeError:
            result = None
        if type(result) is not dict:
            raise error_parser.not_json(self._call(operation, queue), answer)
        return result

    def exchange(
        self, method: str, target: str, body: bytes = b"", *, signed: bool = True, timeout: float | None = None
    ) -> Answer:
        """Internal. Sends any HTTP request for `target`, a path with its query, to the same endpoint: for requests that
        are not calls of SQS."""
        host = self._resolved.host
        headers = {"Host": host, "Content-Type": "application/json", "Content-Length": str(len(body))}
        if signed:
            now = self._clock() + self._ahead
            headers |= plain_signature(method, target, body, host, self.region, self._credentials(), now)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
        head = f"{method} {self._resolved.request_address}{target} HTTP/1.1\r\n".encode()
        request = head + lines + self._resolved.proxy_headers + b"\r\n" + body
        limit = self._read_timeout if timeout is None else min(timeout, self._read_timeout)
        try:
            return self._transport.exchange(request, limit)
        except OSError as error:
            path = target.partition("?")[0]
            raise error_parser.from_exception(error, self._call(f"{method} {path}", ""), limit) from error

    def _call(self, operation: str, queue: str) -> Call:
        return Call(operation, queue, self.endpoint, self.region)

    def misses(self, operation: str, queue: str, what: object) -> ServerFailed:
        """Internal. The error for an answer that lacks a required member."""
        return error_parser.unreadable(self._call(operation, queue), f"a success that misses {what}")

    def _mend(self, error: SqsError) -> str:
        """Corrects the cause of a refusal if it can. Returns which cause it was, or an empty string."""
        if not isinstance(error, CredentialsRefused):
            return ""
        code = error_parser.short(error.code)
        if code in error_parser.EXPIRED:
            return "credentials" if self._credentials.renew() else ""
        if code in error_parser.CLOCK and error.server_time is not None:
            ahead = error.server_time - self._clock()
            if abs(ahead - self._ahead) > SKEW:
                self._ahead = ahead
                return "clock"
        return ""

    def pause(self, seconds: float, cancel: Cancel | None = None) -> None:
        """Internal. Waits before another attempt; a `Cancel` ends the waiting, and the attempt then finds it set."""
        if cancel is None:
            self._sleep(seconds)
        else:
            cancel.wait(seconds)

    def chance(self) -> float:
        """Internal. A random number in [0, 1)."""
        return self._chance()

    # The end.

    def close(self) -> None:
        """Closes the idle connections. Calls in progress still complete."""
        self._transport.close()

    def __enter__(self) -> Self:
        """Returns the client; the end of the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.endpoint}, {self.region})"


def _attribute_text(value: object) -> str:
    """Queue attributes are sent as text, and policies as JSON in that text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return orjson.dumps(value).decode()
