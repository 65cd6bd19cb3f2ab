"""Messages to the queue: ten a call, several calls at once, in order within a group.

The rule: a message counts as sent only after SQS has said so. What SQS refuses for its own sake goes to `refused`;
anything else that goes wrong ends the task, and with it every thread, before another message is sent.
"""

from __future__ import annotations

import queue as queues
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final
from zlib import crc32

from semel.errors import SemelError, Unavailable
from semel.spark.writer.encoder import Outgoing
from semel.sqs import Client, Failure, Queue, limits
from semel.sqs.client.failures import transient
from semel.sqs.errors import BadRequest, QueueNotFound, ServerFailed, SqsError

PATIENT: Final = 8  # attempts of a call; throttled to the end, they take half a minute
WAITING: Final = 2  # calls that wait for a thread

Sent = Callable[[Sequence[Outgoing]], None]
Refused = Callable[[Outgoing, str], None]

_clients: dict[tuple[str | None, ...], Client] = {}
_clients_lock = threading.Lock()


class SendError(SemelError):
    """Messages could not be sent; the text says to which queue, and why."""


def client_for(address: tuple[str | None, str | None, str | None]) -> Client:
    """One patient client a process and address: a task that fails sends all its rows again."""
    with _clients_lock:
        if address not in _clients:
            _clients[address] = Client(*address, max_attempts=PATIENT)
        return _clients[address]


class Sender:
    """`send` takes messages and returns before they are sent; `close` returns when they are, or raises why not.

    `sent` and `refused` are called from the sending threads, one at a time.
    """

    def __init__(self, queue: Queue, threads: int, sent: Sent, refused: Refused) -> None:
        self._queue = queue
        self._sent, self._refused = sent, refused
        self._telling = threading.Lock()
        self._error: BaseException | None = None
        # A FIFO queue has a line for each thread, which a group never leaves; a Standard queue has one for all.
        lines = threads if queue.fifo else 1
        self._lines = [queues.Queue[list[Outgoing] | None](WAITING * threads // lines) for _ in range(lines)]
        self._parts: list[list[Outgoing]] = [[] for _ in range(lines)]
        self._sizes = [0] * lines
        self._threads = [
            threading.Thread(target=self._run, args=(self._lines[place % lines],), name="semel-send", daemon=True)
            for place in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, messages: Iterable[Outgoing]) -> None:
        for message in messages:
            line = crc32((message.entry.group or "").encode()) % len(self._lines) if self._queue.fifo else 0
            size = message.entry.size
            part = self._parts[line]
            if len(part) == limits.MAX_BATCH_ENTRIES or self._sizes[line] + size > limits.MAX_BATCH_BYTES:
                self._hand_over(line)
                part = self._parts[line]
            part.append(message)
            self._sizes[line] += size

    def _hand_over(self, line: int) -> None:
        part, self._parts[line], self._sizes[line] = self._parts[line], [], 0
        if part:
            self._put(line, part)
        if self._error is not None:
            raise self._error

    def _put(self, line: int, part: list[Outgoing] | None) -> None:
        while True:
            with suppress(queues.Full):
                return self._lines[line].put(part, timeout=1.0)

    def close(self) -> None:
        try:
            for line in range(len(self._lines)):
                self._hand_over(line)
        finally:
            self._end()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Send no more, and wait for the calls under way."""
        self._error = self._error or SendError("the task was given up")
        self._end()

    def _end(self) -> None:
        for place in range(len(self._threads)):
            self._put(place % len(self._lines), None)
        for thread in self._threads:
            thread.join()

    # The threads.

    def _run(self, line: queues.Queue[list[Outgoing] | None]) -> None:
        while (part := line.get()) is not None:
            if self._error is None:
                try:
                    self._through(part)
                except BaseException as error:  # noqa: BLE001 - told to the task's own thread
                    self._error = self._error or error

    def _through(self, part: list[Outgoing]) -> None:
        try:
            outcomes = self._queue.send_many([message.entry for message in part])
        except BadRequest as error:
            if isinstance(error, QueueNotFound):
                raise
            self._one_by_one(part, error)
            return
        except Unavailable:
            raise
        except SqsError as error:
            raise SendError(f"{len(part)} messages could not be sent to {self._queue.name}: {error}") from error
        well, lost = [], None
        for message, outcome in zip(part, outcomes, strict=True):
            if not isinstance(outcome, Failure):
                well.append(message)
            elif transient(outcome.code, sender_fault=outcome.sender_fault):
                lost = outcome
            else:
                self._tell_refused(message, f"{outcome.code}: {outcome.message}")
        with self._telling:
            self._sent(well)
        if lost is not None:
            raise ServerFailed(
                f"{self._queue.name} did not take a message, again and again: {lost.code}: {lost.message}",
                code=lost.code,
                operation="SendMessageBatch",
                queue=self._queue.name,
            )

    def _one_by_one(self, part: list[Outgoing], error: BadRequest) -> None:
        """The call was refused as a whole: find out for whose sake."""
        if len(part) == 1:
            self._tell_refused(part[0], str(error))
            return
        for message in part:
            self._through([message])

    def _tell_refused(self, message: Outgoing, reason: str) -> None:
        with self._telling:
            self._refused(message, reason)
