"""Batches of any length in calls of ten: split, send, and resend only the entries whose failure is transient.

The rule: each entry gets one outcome, in the order given. If a whole call fails, the error is raised only if no entry
has an outcome yet. Otherwise it becomes the Failure of the entries without one, so that callers repeat only those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from semel.sqs.client.error_parser import short, throttled, transient
from semel.sqs.client.messages import Failure, check_texts
from semel.sqs.client.retries import pause_before_retry
from semel.sqs.errors import BadRequest, SqsError, Unreachable
from semel.sqs.limits import MAX_BATCH_BYTES, MAX_BATCH_ENTRIES

if TYPE_CHECKING:
    from semel.sqs.client.queue import Queue

_UNANSWERED = Failure("NoAnswer", "the answer says nothing about this entry", sender_fault=False)


def parts(
    sizes: Iterable[tuple[int, int]], most: int = MAX_BATCH_ENTRIES, room: int = MAX_BATCH_BYTES
) -> Iterator[list[int]]:
    """Splits (place, bytes) pairs into lists of places, in order, of at most `most` entries and `room` bytes each."""
    part: list[int] = []
    filled = 0
    for place, size in sizes:
        if part and (len(part) == most or filled + size > room):
            yield part
            part, filled = [], 0
        part.append(place)
        filled += size
    if part:
        yield part


class Batch:
    """One batch operation on one queue. `entries` are in wire form, each with its place as its Id.

    With `timeout`, each entry is tried once, and those not sent within that many seconds have failed."""

    def __init__(
        self, queue: Queue, operation: str, entries: Sequence[dict[str, Any]], timeout: float | None = None
    ) -> None:
        self._queue = queue
        self._operation = operation
        self._entries = entries
        self._ends = None if timeout is None else monotonic() + timeout
        # For each entry: its element of Successful, or why it failed.
        self.outcomes: list[dict[str, Any] | Failure | None] = [None] * len(entries)

    def run(self, split: Iterable[list[int]]) -> list[dict[str, Any] | Failure]:
        try:
            for part in split:
                self._through(part)
        except SqsError as error:
            if not any(self.outcomes):
                raise
            rest = Failure(error.code, str(error), sender_fault=not error.retryable)
            return [outcome or rest for outcome in self.outcomes]
        return [outcome or _UNANSWERED for outcome in self.outcomes]

    def _through(self, part: list[int]) -> None:
        client = self._queue.client
        attempt = 1
        while failed := self._once(part):
            again = [place for place, failure in failed if transient(failure.code, sender_fault=failure.sender_fault)]
            if not again or attempt >= (client.max_attempts if self._ends is None else 1):
                return
            slow_down = any(throttled(failure.code) for _, failure in failed)
            client.pause(pause_before_retry(attempt, client.chance(), throttled=slow_down))
            attempt += 1
            part = again

    def _once(self, part: list[int]) -> list[tuple[int, Failure]]:
        """One call; returns the entries that failed."""
        queue = self._queue
        left = None if self._ends is None else self._ends - monotonic()
        if left is not None and left <= 0:
            raise Unreachable(f"{self._operation} on queue {queue.name}: no time was left for all of its entries")
        try:
            answer = queue.call(self._operation, {"Entries": [self._entries[place] for place in part]}, timeout=left)
        except BadRequest as error:
            # The endpoint has a lower limit than SQS has today.
            if short(error.code) != "BatchRequestTooLong" or len(part) == 1:
                raise
            middle = len(part) // 2
            return self._once(part[:middle]) + self._once(part[middle:])
        try:
            return self._sorted(part, answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise queue.client.misses(self._operation, queue.name, f"an entry: {error!r}") from error

    def _sorted(self, part: list[int], answer: dict[str, Any]) -> list[tuple[int, Failure]]:
        outcomes, unanswered = self.outcomes, set(part)
        for done in answer.get("Successful") or ():
            place = int(done["Id"])
            check_texts(value for name, value in done.items() if name in ("MessageId", "SequenceNumber"))
            unanswered.remove(place)
            outcomes[place] = done
        failed = []
        for entry in answer.get("Failed") or ():
            place = int(entry["Id"])
            unanswered.remove(place)
            code, message = entry["Code"], entry.get("Message") or ""
            check_texts((code, message))
            failed.append((place, Failure(code, message, bool(entry.get("SenderFault", True)))))
        failed += [(place, _UNANSWERED) for place in unanswered]
        for place, failure in failed:
            outcomes[place] = failure
        return failed
