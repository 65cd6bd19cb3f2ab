"""The source's part of the attempt log: received and deleted, one event for each message, if a log is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time

from semel.consumer.attempts import Attempt, AttemptLog, Step
from semel.spark.building import Taken


class Tracer:
    """Open while its task runs; the log's own thread does the writing."""

    def __init__(self, folder: str | None, queue: str, visibility: int) -> None:
        self._log = None if folder is None else AttemptLog.open(folder)
        self._queue = queue
        self._visibility = visibility

    def received(self, taken: Sequence[Taken]) -> None:
        if self._log is None:
            return
        for t in taken:
            message = t.message
            self._log.add(
                Attempt(
                    t.at,
                    Step.RECEIVED,
                    self._queue,
                    message.message_id,
                    t.key or "",
                    receive_count=message.receive_count,
                    sent_at=message.sent_at or 0,
                    group=message.group or "",
                    visibility=self._visibility,
                )
            )

    def deleted(self, ids: Sequence[str], unsure: Mapping[str, int]) -> None:
        if self._log is None:
            return
        now = time()
        for id_ in ids:
            step = Step.DELETE_FAILED if id_ in unsure else Step.DELETED
            self._log.add(Attempt(now, step, self._queue, id_))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
