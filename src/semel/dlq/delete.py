"""Deletes dead-letter messages, each only after it is in a snapshot on disk.

It works in rounds: claim, write to the snapshot, sync to disk, delete. A crash between the last two steps leaves
messages in both places; when the snapshot is restored to Semel's broker, messages that are still there are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from semel.dlq import snapshots
from semel.dlq.access import MessageAccess, MessageClaims
from semel.dlq.filter.parser import EVERYTHING, Filter
from semel.dlq.jobs import Job
from semel.dlq.messages import ShownMessages
from semel.errors import SemelError
from semel.text import count

ROUND: Final = 500


class Deleter:
    """Deletes messages that match and were in the queue at the start; with `shown`, only those. `run` is a job's
    work."""

    def __init__(
        self,
        access: MessageAccess,
        where: Filter,
        snapshot: Path,
        *,
        ids: Sequence[str] = (),
        shown: ShownMessages | None = None,
        clock: Callable[[], float] = time.time,
        crash: Callable[[str], None] = lambda _point: None,
    ) -> None:
        queue = access.queue.name
        if shown is not None:
            if shown.count < 1 or shown.ids == ():
                raise SemelError(f"queue {queue}: there is nothing to delete: no message was shown")
            if shown.ids is None and None in (shown.place, shown.at):
                raise SemelError(f"queue {queue}: it is not known which messages were shown; list them again")
            if shown.ids is None and access.receives:
                raise SemelError(f"queue {queue}: SQS has no places in a queue; name the messages by their ids")
        self._access = access
        self._where, self._ids = where, ids
        self._path, self._shown = snapshot, shown
        self._expected = None if shown is None else shown.count
        self._clock, self._crash = clock, crash

    def run(self, job: Job) -> None:
        job.total = self._expected
        claims = self._claims(job)
        writer = snapshots.Writer(self._path)
        job.result["snapshot"] = str(self._path)
        try:
            with claims:
                self._delete(job, claims, writer)
        finally:
            writer.close()
            if not writer.count:
                self._path.unlink(missing_ok=True)
                job.result.pop("snapshot", None)
        self._report(job)

    def _claims(self, job: Job) -> MessageClaims:
        shown = self._shown
        if shown is None:
            return self._access.claims(job, self._where, ids=self._ids)
        if shown.ids is not None:
            return self._access.claims(job, EVERYTHING, ids=shown.ids)
        return self._access.claims(job, self._where, ids=self._ids, until=shown.place, at=shown.at)

    def _delete(self, job: Job, claims: MessageClaims, writer: snapshots.Writer) -> None:
        while left := self._left(job):
            claims.checkpoint()  # before anything of this round is claimed
            messages = claims.claim(min(ROUND, left))
            if not messages:
                if self._ids and self._shown is None:
                    claims.log_missing()
                return
            writer.write(messages, at=self._clock())
            writer.sync()
            self._crash("after_snapshot")
            kept = claims.delete(messages)
            self._crash("after_delete")
            job.add(deleted=len(messages) - len(kept), failed=len(kept))
            for message in kept:
                job.log(f"message {message.id} is in the snapshot, but could not be deleted: it is still in the queue")

    def _left(self, job: Job) -> int:
        done = job.counts.deleted + job.counts.failed
        return ROUND if self._expected is None else self._expected - done

    def _report(self, job: Job) -> None:
        counts = job.counts
        if not counts.deleted and not counts.failed:
            job.log("no message matched; nothing was deleted")
            return
        job.log(f"deleted {count(counts.deleted, 'message')}; to restore: semel dlq restore {self._path}")
        if self._expected is not None and counts.deleted + counts.failed < self._expected:
            job.log(f"{self._expected:,} were shown: the others are gone, or in flight")
        if counts.failed:
            raise SemelError(f"{counts.failed} messages could not be deleted; run it again for those")
