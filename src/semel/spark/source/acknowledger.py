"""Deletes messages whose segment is sealed, for tasks and for the driver, and says which deletes are not confirmed.

The rules:
1. A delete counts only if SQS answered it while the message was certainly hidden. After that, another worker may have
   received the message.
2. A failure that may pass (an outage, an expired receipt) leaves an unconfirmed delete. A delete that SQS refuses for
   good, for example because a permission is missing, is an error: otherwise the message would come back forever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import PermissionDenied
from semel.sqs.client import Failure, Queue
from semel.sqs.client.error_parser import short
from semel.sqs.errors import ReceiptInvalid, SqsError

_log: Final = logging.getLogger("semel.spark")
PAGE: Final = 100  # messages that one thread deletes at a time
_COLUMNS: Final = ("message_id", "receipt", "sent_at")
# Error codes of single entries for which a retry is useless: SQS's own, and the names of our errors.
_REFUSED: Final = frozenset(
    {"AccessDenied", "KmsAccessDenied", "OptInRequired", "KmsOptInRequired", "InvalidSecurity", "CredentialsRefused"}
    | {"InvalidClientTokenId", "UnrecognizedClient", "MissingAuthenticationToken", "SignatureDoesNotMatch"}
    | {"ExpiredToken", "NoCredentials", "QueueDoesNotExist", "NonExistentQueue", "QueueNotFound"}
)


class DeleteRefused(PermissionDenied):
    """SQS refuses to delete messages, and waiting does not help. Allow sqs:DeleteMessage on the queue."""

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(
            f"queue {queue}: SQS refuses to delete messages: {reason.rstrip('.')}. Semel needs the permission "
            "sqs:DeleteMessage on this queue; if the queue was deleted, create it again. What was received is in the "
            "segment log. Start the query again once this is fixed, and it continues from there"
        )


def sent_times(messages: pa.Table) -> dict[str, int]:
    """When each message was sent, by message id, in milliseconds; 0 if that is not known."""
    milliseconds = pc.divide(messages.column("sent_at").cast(pa.int64()), 1_000)
    return dict(zip(messages.column("message_id").to_pylist(), milliseconds.fill_null(0).to_pylist(), strict=True))


class PendingAck:
    """Deletes in progress. `ids`: the ids of all messages to be deleted."""

    def __init__(self, messages: pa.Table, pages: Sequence[Future[pa.Table]]) -> None:
        self._messages = messages
        self._pages = pages

    @property
    def ids(self) -> list[str]:
        ids: list[str] = self._messages.column("message_id").to_pylist()
        return ids

    def unconfirmed(self) -> dict[str, int]:
        """Waits until the deletes have ended. Returns the messages whose delete is not confirmed, by id, with the times
        they were sent. Raises DeleteRefused."""
        times: dict[str, int] = {}
        for page in self._pages:
            left = page.result()
            if len(left):
                times |= sent_times(left)
        return times


class Acknowledger:
    """Deletes messages from one queue, with several threads. `hidden_until` is a time of `clock`."""

    def __init__(self, queue: Queue, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue = queue
        self._threads = threads
        self._clock = clock
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Acknowledger:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the deletes in progress."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def acknowledge(self, messages: pa.Table, hidden_until: float) -> PendingAck:
        """Starts to delete messages, a table with the columns of a segment. All are hidden at least until
        `hidden_until`."""
        messages = messages.select(_COLUMNS)  # the bodies are not kept in memory meanwhile
        if self._pool is None and len(messages):
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="semel-delete")
        pages = []
        for start in range(0, len(messages), PAGE):
            assert self._pool is not None
            pages.append(self._pool.submit(self._delete, messages.slice(start, PAGE), hidden_until))
        return PendingAck(messages, pages)

    def _delete(self, page: pa.Table, hidden_until: float) -> pa.Table:
        """Deletes a page. Returns the messages whose delete is not confirmed."""
        try:
            outcomes = self._queue.delete(page.column("receipt").to_pylist())
        except SqsError as error:
            if not error.retryable and not isinstance(error, ReceiptInvalid):
                raise DeleteRefused(self._queue.name, str(error)) from error
            _log.warning("queue %s: %d messages could not be deleted yet: %s", self._queue.name, len(page), error)
            return page
        if not any(outcomes):
            return page.slice(0, 0) if self._clock() < hidden_until else page
        for failure in outcomes:
            if failure is not None and _is_refused(failure):
                raise DeleteRefused(self._queue.name, f"{failure.message} ({failure.code})")
        if self._clock() >= hidden_until:
            return page
        return page.filter(pa.array([failure is not None for failure in outcomes]))


def _is_refused(failure: Failure) -> bool:
    return not failure.gone and short(failure.code) in _REFUSED
