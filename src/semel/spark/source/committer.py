"""The end of batches: what Spark has committed is deleted for sure, remembered where that is in doubt, and dropped.

Runs beside the driver, in the planner. The rule: a batch is settled when Spark asks for the one after it, for then its
commit is written; Spark's own `commit` call comes late and may not come at all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Final

from semel.messages.visibility import visibility_for
from semel.spark.segments.log import (
    HORIZON,
    NOTHING_DONE,
    Committed,
    LogError,
    Sealed,
    SegmentAck,
    SegmentId,
    SegmentLog,
    Totals,
    folder,
    way_out,
)
from semel.spark.segments.storage import StorageError
from semel.spark.source.acknowledger import Acknowledger, queues_by_scope
from semel.spark.source.options import ReadOptions
from semel.sqs.client import Queue
from semel.sqs.errors import SqsError

_log: Final = logging.getLogger("semel.spark")
PAGE: Final = 100


class BatchCommitter:
    def __init__(
        self,
        log: SegmentLog,
        queues: Mapping[str, Queue],
        options: ReadOptions,
        kept_until: Callable[[SegmentId], float] = lambda _: 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._queues = queues_by_scope(queues)
        self._options = options
        self._kept_until = kept_until
        self._clock = clock
        self._committed = log.committed()
        self._unconfirmed = log.unconfirmed_deletes()
        self._lock = threading.Lock()
        self._drop_leftovers()

    @property
    def totals(self) -> Totals:
        return self._committed.totals

    @property
    def any_unconfirmed(self) -> bool:
        return any(self._unconfirmed.values())

    def _drop_leftovers(self) -> None:
        """Files of batches that are over: a driver died while it dropped them."""
        committed = folder(self._committed.through)
        self._log.store.delete(
            [name for name in self._log.store.names() if name.startswith("b") and name.partition("/")[0] <= committed]
        )

    def settle(self, through: int, plan: str | None) -> list[SegmentAck]:
        """Batches up to this one, run by the plan with this id, are committed. Returns what they came to, if that was
        not known before."""
        with self._lock:
            if through <= self._committed.through:
                return []
            batches = range(self._committed.through + 1, through + 1)
            for batch in batches:
                self._check(batch, plan if batch == through else None)
            acks = [ack for batch in batches for ack in self._settled(batch)]
            totals = Totals(**{name: getattr(self._committed.totals, name) for name in Totals.__slots__})
            totals.batches += len(batches)
            for ack in acks:
                totals.add(ack)
            unconfirmed = self._changed(acks)
            committed = Committed(through, totals)
            self._log.finish(committed, unconfirmed, batches)
            self._committed = committed
            self._unconfirmed = self._unconfirmed if unconfirmed is None else unconfirmed
            return acks

    def _check(self, batch: int, plan: str | None) -> None:
        """That what is sealed of a batch is what was committed. Before anything of it is deleted or dropped."""
        found, url = self._log.plan(batch), self._log.store.url
        if found is None or (plan is not None and found["id"] != plan):
            what = "has no plan of it" if found is None else "has another plan of it"
            raise LogError(
                f"the checkpoint says that batch {batch} is committed, but the segment log {url} {what}: log and "
                f"checkpoint do not belong together, or one is an older copy. {NOTHING_DONE}. "
                f"{way_out(self._options.owner)}"
            )
        tasks = sum(found["plan"].values())
        strange = [place for place in self._log.places(batch)[0] if place.task >= tasks]
        if strange:
            raise LogError(
                f"{url}/{strange[0].name} is of a task that the plan of batch {batch} does not have: it was not "
                f"committed with it. {NOTHING_DONE}. {way_out(self._options.owner)}"
            )

    def _settled(self, batch: int) -> list[SegmentAck]:
        sealed, acked = self._log.places(batch)
        returned = self._log.returned() if self._options.ack == "committed" else {}
        acks = []
        for place in sorted({*sealed, *acked}):
            ack = self._log.read_ack(place) if place in acked else None
            if ack is None or not ack.deleted:
                ack = self._delete(place, ack, returned)
            acks.append(ack)
        return acks

    def _delete(self, place: SegmentId, ack: SegmentAck | None, returned: Mapping[str, float]) -> SegmentAck:
        segment = self._log.read(place)
        if segment is None:
            raise self._log.lost(place)
        segment = segment.without(ack.refused if ack is not None else ())
        if returned:
            self._give_back(segment, returned)
            segment = segment.without(returned)
        hidden_until = max(segment.meta.surely_hidden_until, self._kept_until(place))
        with Acknowledger(self._queues[segment.meta.queue], self._options.threads, self._clock) as acknowledger:
            unsure = acknowledger.acknowledge(segment.table, hidden_until).unconfirmed()
        rows = len(segment.table)
        known = ack or SegmentAck(segment.meta.queue, rows, segment.table.nbytes, rows, backlog=rows)
        return replace(known, deleted=True, unconfirmed={**known.unconfirmed, **unsure})

    def _give_back(self, segment: Sealed, until: Mapping[str, float]) -> None:
        """To their queue: what the sink has not finished. If that fails, they come back when their visibility ends."""
        ids, receipts = (segment.table.column(name).to_pylist() for name in ("message_id", "receipt"))
        now, queue = self._clock(), self._queues[segment.meta.queue]
        pairs = [
            (receipt, visibility_for(until[id_] - now, self._options.visibility))
            for id_, receipt in zip(ids, receipts, strict=True)
            if id_ in until
        ]
        try:
            queue.change_visibility(pairs)
        except SqsError as error:
            _log.warning("queue %s: %d messages could not be given back: %s", queue.name, len(pairs), error)

    def _changed(self, acks: Sequence[SegmentAck]) -> dict[str, dict[str, int]] | None:
        """The redelivered from now on, or None if they are as before."""
        found = {queue: dict(ids) for queue, ids in self._unconfirmed.items()}
        for ack in acks:
            ids = found.setdefault(ack.queue, {})
            ids.update(ack.unconfirmed)
            for confirmed in ack.confirmed:
                ids.pop(confirmed, None)
        too_old = (self._clock() - HORIZON) * 1_000
        found = {
            queue: {id_: sent for id_, sent in ids.items() if sent > too_old or not sent}
            for queue, ids in found.items()
        }
        found = {queue: ids for queue, ids in found.items() if ids}
        return None if found == self._unconfirmed else found


class VisibilityHeartbeat:
    """`ack=committed`: keeps what the batch in hand has sealed hidden until it is settled. One thread makes the rounds,
    several call. A call that fails costs its own messages a round, not those of others."""

    def __init__(
        self,
        log: SegmentLog,
        queues: Mapping[str, Queue],
        options: ReadOptions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._named_queues = queues
        self._options = options
        self._clock = clock
        self._batch: int | None = None
        self._receipts: dict[SegmentId, tuple[str, list[str]]] = {}
        self._until: dict[SegmentId, float] = {}
        self._round = threading.Lock()
        self._wake = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    @cached_property
    def _queues(self) -> dict[str, Queue]:
        return queues_by_scope(self._named_queues)

    def watch(self, batch: int) -> None:
        self._forget(batch)
        self._until = {}
        with self._wake:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="semel-heart", daemon=True)
                self._thread.start()

    def committed(self, through: int) -> None:
        """Batches up to this one are about to be deleted: nothing of them is kept hidden from now on."""
        if self._batch is not None and self._batch <= through:
            self._forget(None)

    def kept_until(self, place: SegmentId) -> float:
        """Seconds since 1970; 0 if it is not known to have been kept."""
        return self._until.get(place, 0.0)

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def _forget(self, batch: int | None) -> None:
        self._batch = batch  # a round that is under way makes no further call
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
                self.beat(batch)
            except Exception:  # noqa: BLE001  the next beat may succeed; if none does, the messages come back and are recognised
                _log.exception("the heartbeat of batch %d failed", batch)

    def beat(self, batch: int) -> int:
        """One round; returns how many messages were kept hidden."""
        with self._round:
            self._look(batch)
            pages = [
                (place, queue, receipts[start : start + PAGE])
                for place, (queue, receipts) in self._receipts.items()
                for start in range(0, len(receipts), PAGE)
            ]
            until = self._clock() + self._options.visibility
            with ThreadPoolExecutor(self._options.threads, thread_name_prefix="semel-heart") as pool:
                kept = list(pool.map(lambda page: self._extended(batch, page[1], page[2]), pages))
            failed = {place for (place, _, page), count in zip(pages, kept, strict=True) if count < len(page)}
            self._until |= dict.fromkeys(self._receipts.keys() - failed, until)
            return sum(kept)

    def _look(self, batch: int) -> None:
        """Which receipts there are by now. What was found before is kept hidden also if the log does not answer."""
        try:
            for place in self._log.places(batch)[0]:
                if place not in self._receipts and (segment := self._log.read(place)) is not None:
                    self._receipts[place] = (segment.meta.queue, segment.table.column("receipt").to_pylist())
        except StorageError as error:
            _log.warning("the heartbeat of batch %d does not know what was sealed last: %s", batch, error)

    def _extended(self, batch: int, queue: str, receipts: list[str]) -> int:
        if self._batch != batch:
            return 0
        try:
            outcomes = self._queues[queue].change_visibility([(one, self._options.visibility) for one in receipts])
        except SqsError as error:
            _log.warning("queue %s: %d messages could not be kept hidden: %s", queue, len(receipts), error)
            return 0
        return sum(outcome is None for outcome in outcomes)
