"""Sends messages to a queue: ten per call, several calls at once, in order within a group.

The rule: a message counts as sent only after SQS has confirmed it. A message that SQS refuses goes to `on_refused`; any
other failure ends the task and all its threads before another message is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from queue import Queue as Inbox
from typing import Final
from zlib import crc32

from semel.errors import PermissionDenied, SemelError, Unavailable
from semel.spark.writer.encoder import Outgoing
from semel.sqs import Client, Failure, Queue, limits
from semel.sqs.client.error_parser import throttled, transient
from semel.sqs.errors import BadRequest, QueueNotFound, ServerFailed, SqsError, Throttled

MAX_ATTEMPTS: Final = 8  # of a call; if all attempts are throttled, they take half a minute
WAITING_CALLS: Final = 2  # per thread

OnSent = Callable[[Sequence[Outgoing]], None]
OnRefused = Callable[[Outgoing, str], None]

_clients: dict[tuple[str | None, ...], Client] = {}
_clients_lock = threading.Lock()


class SendError(SemelError):
    """Messages cannot be sent. The text names the queue and the reason. Do what the text says."""


class SendPermissionDenied(SendError, PermissionDenied):
    """The credentials are missing, or do not allow sending to the queue. Allow sqs:SendMessage on the queue."""


def client_for(address: tuple[str | None, str | None, str | None]) -> Client:
    """One client per process and address. It retries for long, because a task that fails has to send all its rows
    again."""
    with _clients_lock:
        if address not in _clients:
            _clients[address] = Client(*address, max_attempts=MAX_ATTEMPTS)
        return _clients[address]


def send_error(queue: str, error: SqsError) -> SemelError:
    """The error to raise for a failed call: an outage is raised unchanged, anything else becomes a SendError."""
    if isinstance(error, Unavailable):
        return error
    kind = SendPermissionDenied if isinstance(error, PermissionDenied) else SendError
    return kind(f"messages cannot be sent to {queue}: {error}")  # its text ends with what to do


class Sender:
    """`send` takes messages and may return before they are sent; `close` returns when they are sent, or raises the
    error.

    `on_sent` and `on_refused` are called one at a time, from any thread.
    """

    def __init__(self, queue: Queue, threads: int, on_sent: OnSent, on_refused: OnRefused) -> None:
        self._queue = queue
        self._on_sent, self._on_refused = on_sent, on_refused
        self._reporting = threading.RLock()
        self._error: BaseException | None = None
        # For a FIFO queue each thread has its own inbox, and a group always goes to the same one. Otherwise all threads
        # share one inbox.
        count = threads if queue.fifo else 1
        self._inboxes = [Inbox[list[Outgoing] | None](WAITING_CALLS * threads // count) for _ in range(count)]
        self._calls: list[list[Outgoing]] = [[] for _ in range(count)]  # the next call of each inbox
        self._sizes = [0] * count
        self._threads = [
            threading.Thread(target=self._run, args=(self._inboxes[number % count],), name="semel-send", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, messages: Iterable[Outgoing]) -> None:
        for message in messages:
            if message.problem:
                self._refuse(message, message.problem)
                continue
            inbox = crc32((message.entry.group or "").encode()) % len(self._inboxes) if self._queue.fifo else 0
            size = message.entry.size
            full = len(self._calls[inbox]) == limits.MAX_BATCH_ENTRIES
            if full or self._sizes[inbox] + size > limits.MAX_BATCH_BYTES:
                self._enqueue(inbox)
            self._calls[inbox].append(message)
            self._sizes[inbox] += size

    def close(self) -> None:
        try:
            for inbox in range(len(self._inboxes)):
                self._enqueue(inbox)
        finally:
            self._end_threads()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Send no more, and wait for the calls in progress."""
        self._error = self._error or SendError("the task was abandoned")
        self._end_threads()

    def _enqueue(self, inbox: int) -> None:
        messages, self._calls[inbox], self._sizes[inbox] = self._calls[inbox], [], 0
        if messages:
            self._inboxes[inbox].put(messages)
        if self._error is not None:
            raise self._error

    def _end_threads(self) -> None:
        for number in range(len(self._threads)):
            self._inboxes[number % len(self._inboxes)].put(None)
        for thread in self._threads:
            thread.join()

    # The threads. They empty their inboxes even after an error, so `put` never waits forever.

    def _run(self, inbox: Inbox[list[Outgoing] | None]) -> None:
        while (messages := inbox.get()) is not None:
            if self._error is None:
                try:
                    self._send(messages)
                except BaseException as error:  # noqa: BLE001 - the task's own thread raises it
                    self._error = self._error or error

    def _send(self, messages: list[Outgoing]) -> None:
        try:
            outcomes = self._queue.send_many([message.entry for message in messages])
        except SqsError as error:
            if not isinstance(error, BadRequest) or isinstance(error, QueueNotFound):
                raise send_error(self._queue.name, error) from error
            if len(messages) == 1:
                self._refuse(messages[0], str(error))
            else:  # the whole call was refused: find out which message was the reason
                for message in messages:
                    self._send([message])
            return
        sent, failed = [], None
        for message, outcome in zip(messages, outcomes, strict=True):
            if not isinstance(outcome, Failure):
                sent.append(message)
            elif transient(outcome.code, sender_fault=outcome.sender_fault):
                failed = outcome
            else:
                self._refuse(message, f"{outcome.code}: {outcome.message}")
        with self._reporting:
            self._on_sent(sent)
        if failed is not None:
            raise _outage(self._queue.name, failed)

    def _refuse(self, message: Outgoing, reason: str) -> None:
        with self._reporting:
            self._on_refused(message, reason)


def _outage(queue: str, failure: Failure) -> SqsError:
    kind = Throttled if throttled(failure.code) else ServerFailed
    text = f"{queue} did not take a message in {MAX_ATTEMPTS} attempts: {failure.code}: {failure.message}"
    return kind(text, code=failure.code, operation="SendMessageBatch", queue=queue)
