"""`ack=committed`: keeps the sealed messages of the batch in progress hidden until the batch is committed.

The rules:
1. If a call fails, only its own messages miss a round. One thread makes the rounds, several threads make the calls.
2. An extension counts only if SQS answered it while the messages were certainly hidden. After that, another worker may
   have received them: SQS still accepts the older receipt, but a delete with it may have no effect.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from semel.spark.segments.model import SegmentId
from semel.spark.segments.segment_log import SegmentLog
from semel.spark.segments.storage import StorageError
from semel.spark.source.options import ReadOptions
from semel.spark.source.sqs_clock import UNKNOWN, SqsClock
from semel.sqs.client import Queue
from semel.sqs.errors import SqsError

_log: Final = logging.getLogger("semel.spark")
PAGE: Final = 100  # receipts of one call


class VisibilityHeartbeat:
    """`queues`: by id."""

    def __init__(
        self,
        log: SegmentLog,
        queues: Mapping[str, Queue],
        options: ReadOptions,
        sqs_clock: SqsClock,
    ) -> None:
        self._log = log
        self._queues = queues
        self._options = options
        self._sqs_clock = sqs_clock
        self._batch: int | None = None
        self._receipts: dict[SegmentId, tuple[str, list[str]]] = {}
        self._sealed_until: dict[SegmentId, float] = {}  # by SQS's clock
        self._until: dict[SegmentId, float] = {}  # by the monotonic clock
        self._round = threading.Lock()
        self._wake = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def watch(self, batch: int) -> None:
        self._forget(batch)
        self._until, self._sealed_until = {}, {}
        with self._wake:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="semel-heartbeat", daemon=True)
                self._thread.start()

    def committed(self, through: int) -> None:
        """The messages of batches up to this one are about to be deleted. From now on they are not kept hidden."""
        if self._batch is not None and self._batch <= through:
            self._forget(None)

    def hidden_until(self, segment_id: SegmentId) -> float:
        """A time of the monotonic clock; 0 if no round has seen the segment yet, or if that is not known."""
        return self._until.get(segment_id, 0.0)

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def _forget(self, batch: int | None) -> None:
        self._batch = batch  # a round in progress makes no further calls
        with self._round:
            self._receipts = {}

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._wake.wait_for(lambda: self._stopped, self._options.visibility / 3):
                    return
            batch = self._batch
            if batch is None:
                continue
            try:
                self.extend(batch)
            except Exception:  # noqa: BLE001  the next round may succeed; if none does, the messages come back and are recognised
                _log.exception("the heartbeat of batch %d failed", batch)

    def extend(self, batch: int) -> int:
        """One round; returns how many messages stay hidden."""
        with self._round:
            self._read_receipts(batch)
            self._read_clock()
            pages = [
                (segment_id, queue, receipts[start : start + PAGE])
                for segment_id, (queue, receipts) in self._receipts.items()
                for start in range(0, len(receipts), PAGE)
            ]
            until = self._sqs_clock.monotonic() + self._options.visibility
            with ThreadPoolExecutor(self._options.threads, thread_name_prefix="semel-heartbeat") as pool:
                hidden = list(pool.map(lambda page: self._extend_page(batch, page[1], page[2]), pages))
            failed = {page[0] for page, count in zip(pages, hidden, strict=True) if count < len(page[2])}
            answered = self._sqs_clock.monotonic()
            hidden_still = {segment_id for segment_id in self._receipts if answered < self.hidden_until(segment_id)}
            self._until |= dict.fromkeys(hidden_still - failed, until)
            return sum(hidden)

    def _read_receipts(self, batch: int) -> None:
        """Reads the receipts of new segments. If the log does not answer, the receipts known so far are still
        extended."""
        try:
            for segment_id in self._log.files(batch).sealed:
                if segment_id not in self._receipts and (segment := self._log.read(segment_id)) is not None:
                    self._receipts[segment_id] = (segment.meta.queue, segment.table.column("receipt").to_pylist())
                    self._sealed_until[segment_id] = segment.meta.hidden_until
        except StorageError as error:
            _log.warning("the heartbeat of batch %d does not know what was sealed last: %s", batch, error)

    def _read_clock(self) -> None:
        """Converts the times until which new segments are hidden from SQS's clock to ours. If SQS does not answer, the
        next round tries again."""
        unknown = self._sealed_until.keys() - self._until.keys()
        reading = self._sqs_clock.read() if unknown else UNKNOWN
        if reading is not UNKNOWN:
            self._until |= {segment_id: reading.surely_before(self._sealed_until[segment_id]) for segment_id in unknown}

    def _extend_page(self, batch: int, queue: str, receipts: list[str]) -> int:
        if self._batch != batch:
            return 0
        try:
            outcomes = self._queues[queue].change_visibility(
                [(receipt, self._options.visibility) for receipt in receipts]
            )
        except SqsError as error:
            _log.warning("queue %s: %d messages could not be kept hidden: %s", queue, len(receipts), error)
            return 0
        return sum(outcome is None for outcome in outcomes)
