"""Letters that are given up: none is deleted that is not in a snapshot on disk.

Round by round: take, write down, make sure that it is on disk, delete. A crash between the last two leaves letters that
are in both places; restoring the snapshot to Semel's broker leaves those out that are still there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from semel.dlq import snapshots
from semel.dlq.access.sqs import Choice, MessageClaims, taker
from semel.dlq.filter.parser import EVERYTHING, Filter
from semel.dlq.jobs import Job
from semel.dlq.messages import ShownMessages
from semel.errors import SemelError
from semel.sqs.client import Client
from semel.sqs.client.admin import Admin

ROUND: Final = 500


class Deleter:
    """What matches now and was there when it began; with `shown`, only that. `run` is a job's work."""

    def __init__(
        self,
        client: Client,
        queue: str,
        where: Filter,
        snapshot: Path,
        *,
        ids: Sequence[str] = (),
        shown: ShownMessages | None = None,
        clock: Callable[[], float] = time.time,
        crash: Callable[[str], None] = lambda _point: None,
    ) -> None:
        if shown is not None:
            if shown.count < 1 or shown.ids == ():
                raise SemelError(f"queue {queue}: there is nothing to drop: no message was shown")
            if shown.ids is None and None in (shown.place, shown.at):
                raise SemelError(f"queue {queue}: nothing says which messages were shown; look again, and drop those")
        self._client = client
        self._queue = client.queue(queue)
        self._where, self._ids = where, frozenset(ids)
        self._path = snapshot
        self._shown = shown
        self._expected = None if shown is None else shown.count
        self._clock, self._crash = clock, crash

    def run(self, job: Job) -> None:
        job.total = self._expected
        choice = self._choice()
        writer = snapshots.Writer(self._path)
        job.result["snapshot"] = str(self._path)
        try:
            with taker(self._client, self._queue, choice, job) as hand:
                self._drop(job, hand, writer)
        finally:
            writer.close()
            if not writer.count:
                self._path.unlink(missing_ok=True)
                job.result.pop("snapshot", None)
        self._tell(job)

    def _choice(self) -> Choice:
        now, shown = self._clock(), self._shown
        if shown is None:
            return Choice(self._where, self._ids, now)
        if shown.ids is not None:
            return Choice(EVERYTHING, frozenset(shown.ids), now)
        if Admin.of(self._client) is None:
            raise SemelError(f"queue {self._queue.name}: SQS has no places in a queue; name the messages by their ids")
        return Choice(self._where, self._ids, now if shown.at is None else shown.at, shown.place)

    def _drop(self, job: Job, hand: MessageClaims, writer: snapshots.Writer) -> None:
        while (left := self._left(job)) and (messages := hand.take(min(ROUND, left))):
            try:
                job.checkpoint()
                writer.write(messages, at=self._clock())
                writer.sync()
            except SemelError:
                hand.refuse(messages)
                raise
            self._crash("after_snapshot")
            kept = hand.delete(messages)
            self._crash("after_drop")
            job.add(deleted=len(messages) - len(kept), failed=len(kept))
            for message in kept:
                job.say(f"message {message.id} is in the snapshot, but could not be deleted: it is still in the queue")

    def _left(self, job: Job) -> int:
        done = job.counts.deleted + job.counts.failed
        return ROUND if self._expected is None else self._expected - done

    def _tell(self, job: Job) -> None:
        counts = job.counts
        if not counts.deleted and not counts.failed:
            job.say("nothing matched; nothing was dropped")
            return
        job.say(f"{counts.deleted:,} letters were dropped; bring them back with: semel dlq restore {self._path}")
        if self._expected is not None and counts.deleted + counts.failed < self._expected:
            job.say(f"{self._expected:,} were shown: the others are gone, or in flight")
        if counts.failed:
            raise SemelError(f"{counts.failed} letters could not be deleted; run it again for those")
