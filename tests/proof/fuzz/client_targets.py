"""Targets for the SQS client: answers of a server, or of something else that listens in its place."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

from fuzz.complaints import no_error_logged
from semel.sqs import Client
from semel.sqs.client import error_parser
from semel.sqs.client.connection import Answer, Connection
from semel.sqs.client.error_parser import Call
from semel.sqs.client.messages import Entry, Failure, Received, Sent
from semel.sqs.client.queue import Queue
from semel.sqs.errors import SqsError

_CALL: Final = Call("SendMessage", "orders", "http://localhost:9324", "us-east-1")


def fuzz_connection(data: bytes) -> None:
    """Bytes of a server that then hangs up: they give one answer with a correct length, or an OSError. A connection
    that may be reused has no unread bytes left."""
    here, there = socket.socketpair()
    connection = Connection(here)
    try:
        there.sendall(data)
        there.shutdown(socket.SHUT_WR)
        try:
            answer = connection.exchange(b"x", 2.0)
        except OSError as error:
            assert not isinstance(error, TimeoutError), "it waits for more although the server has hung up"
            error_parser.from_exception(error, _CALL, 2.0)
            return
        assert data.endswith(answer.body) or not connection.reusable or b"transfer-encoding" in answer.head.lower()
        assert isinstance(error_parser.from_answer(answer, _CALL), SqsError)
    finally:
        connection.close()
        there.close()


def fuzz_answer(data: bytes) -> None:
    """A head, an empty line and a body: for any status they become an error with a text and a code."""
    head, _, body = data.partition(b"\r\n\r\n")
    status = int(head[9:12]) if head[9:12].isdigit() else 400
    error = error_parser.from_answer(Answer(status, head + b"\r\n", body), _CALL)
    assert isinstance(error, SqsError)
    assert str(error).startswith("SendMessage on queue orders: ")
    assert error.code
    assert len(str(error)) < 20_000 + len(body)
    error_parser.server_time(head)


class _Script:
    """A transport that always gives the same answer."""

    def __init__(self) -> None:
        self.body = b""

    def exchange(self, *_args: Any, **_options: Any) -> Answer:
        return Answer(200, b"HTTP/1.1 200 OK\r\n", self.body)

    def close(self) -> None: ...


@cache
def _client() -> tuple[_Script, Queue]:
    client = Client(
        "http://localhost:9324", "us-east-1", access_key="a", secret_key="b", max_attempts=1, sleep=lambda _: None
    )
    script = _Script()
    client._transport = script  # type: ignore[assignment]
    return script, client.queue("http://localhost:9324/000000000000/orders")


def fuzz_received(data: bytes) -> None:
    """The body of an answer with status 200: every call of the client returns values of its declared types, or raises
    SqsError. Messages whose body does not match its checksum are left out."""
    script, queue = _client()
    script.body = data
    with no_error_logged():
        for call in _CALLS:
            with suppress(SqsError):
                call(queue)


def _receive(queue: Queue) -> None:
    for message in queue.receive(10, 0):
        assert isinstance(message, Received)
        assert message.message_id
        assert all(isinstance(text, str) for text in (message.message_id, message.receipt, message.body))
        assert isinstance(repr(message), str)
        assert isinstance(message.sent_at, float | None)
        assert isinstance(message.first_received_at, float | None)
        assert all(isinstance(value.value, str | bytes) for value in message.attributes.values())
        for text in (message.group, message.dedup, message.sequence, message.source_queue, message.trace):
            assert isinstance(text, str | None)


def _send(queue: Queue) -> None:
    sent = queue.send("x")
    assert isinstance(sent.message_id, str)
    assert isinstance(sent.sequence, str | None)


def _send_many(queue: Queue) -> None:
    outcomes: Sequence[Any] = queue.send_many([Entry("x"), Entry("y")])
    assert len(outcomes) == 2
    for outcome in outcomes:
        assert isinstance(outcome, Sent | Failure)
        _check_failure(outcome)


def _delete(queue: Queue) -> None:
    outcomes = queue.delete(["r0", "r1"])
    assert len(outcomes) == 2
    for outcome in outcomes:
        _check_failure(outcome)


def _check_failure(outcome: Any) -> None:
    if isinstance(outcome, Failure):
        assert isinstance(outcome.gone, bool)
        assert isinstance(outcome.code, str)
        assert isinstance(outcome.message, str)
    elif outcome is not None:
        assert isinstance(outcome.message_id, str)


def _attributes(queue: Queue) -> None:
    attributes = queue.attributes()
    assert all(isinstance(text, str) for item in attributes.items() for text in item)


def _create(queue: Queue) -> None:
    assert isinstance(queue.client.create_queue("new").url, str)


_CALLS: Final[tuple[Callable[[Queue], None], ...]] = (
    _receive,
    _send,
    _send_many,
    _delete,
    _attributes,
    _create,
)
