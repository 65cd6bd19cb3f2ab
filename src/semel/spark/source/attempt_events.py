"""The source's part of the attempt log, if there is one: an event for each message received and each one deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time

import pyarrow as pa

from semel.spark.source.acknowledger import PendingAck
from semel.spark.source.columns import SourceMessage
from semel.telemetry.attempt_log import Attempt, AttemptLog, Step


class Tracer:
    """Open while its task runs. The attempt log writes in a thread of its own."""

    def __init__(self, folder: str | None, queue: str, visibility: int) -> None:
        self._log = None if folder is None else AttemptLog.open(folder)
        self._queue = queue
        self._visibility = visibility
        self._known: dict[str, Attempt] = {}  # by message id: the delivery that a delete will refer to

    def received(self, messages: Sequence[SourceMessage]) -> None:
        if self._log is None:
            return
        for received in messages:
            message = received.message
            event = Attempt(
                received.at,
                Step.RECEIVED,
                self._queue,
                message.message_id,
                received.key or "",
                receive_count=message.receive_count,
                sent_at=message.sent_at or 0,
                group=message.group or "",
                visibility=self._visibility,
            )
            self._known[message.message_id] = event
            self._log.add(event)

    def received_before(self, table: pa.Table) -> None:
        """A segment that another attempt received. It is deleted here, so its events use the sealed receive counts."""
        if self._log is None:
            return
        columns = (table.column(name).to_pylist() for name in ("message_id", "key", "receive_count", "group_id"))
        for id_, key, count, group in zip(*columns, strict=True):
            self._known[id_] = Attempt(
                0, Step.RECEIVED, self._queue, id_, key or "", receive_count=count or 0, group=group or ""
            )

    def deleted(self, deletes: PendingAck, unconfirmed: Mapping[str, int]) -> None:
        if self._log is None:
            return
        now = time()
        for id_ in deletes.ids:
            step = Step.DELETE_FAILED if id_ in unconfirmed else Step.DELETED
            known = self._known.pop(id_, None) or Attempt(now, step, self._queue, id_)
            self._log.add(known._replace(at=now, step=step))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
