"""The broker at work: requests that arrive together share one transaction, and often one sync to disk.

Rules: an answer is sent only after its own change, and every change that it has seen, is durable. Only receives and
changes of visibility need not be on disk. The next transaction does not wait for the sync of the previous one. A
message goes to a waiting client only if that client is still connected.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

from semel.broker.admin import Admin
from semel.broker.answers import error_of, rendered
from semel.broker.auth import Verifier
from semel.broker.call_reader import CallReader
from semel.broker.calls import Batch, ParkedCalls, PendingCall, PendingCalls
from semel.broker.clock import Clock
from semel.broker.connections import Connections, Limits
from semel.broker.engine import NEVER, Engine, Received
from semel.broker.faults import Fault, Faults
from semel.broker.http import Connection, Request
from semel.broker.maintenance import FIRST_PAUSE, Maintenance
from semel.broker.metric_history import History
from semel.broker.syncer import Syncer
from semel.sqs.errors import INTERNAL_FAILURE, REQUEST_THROTTLED, SERVICE_UNAVAILABLE, ServiceError

log = logging.getLogger("semel.broker")

_DISK_SECONDS: Final = 0.02
_RESERVE: Final = 32 * 1024 * 1024  # more than twice the log at its longest
_TOO_MANY: Final = "Too many calls are waiting to be carried out. Try again in a moment."
_REFUSAL_SECONDS: Final = 0.5
_GROWING: Final = frozenset({"SendMessage", "SendMessageBatch", "CreateQueue"})


class Broker:
    """Owns the engine and is owned by one event loop. `log` is the file to sync, None if nothing is to be durable."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        faults: Faults,
        *,
        log: Path | None,
        verifier: Verifier | None = None,
        allowed_hosts: Collection[str] = (),
        rng: Random | None = None,
        limits: Limits = Limits(),  # noqa: B008  it is frozen
        free_space: Callable[[], int] | None = None,
    ) -> None:
        self._free_space, self._disk_is_low, self._disk_seen = free_space, False, 0.0
        self.engine, self.clock, self.faults = engine, clock, faults
        self.connections = Connections(limits)
        history = History(engine)
        history.begin(clock.now())
        self._maintenance = Maintenance(engine, clock, history)
        self._reader = CallReader(engine, faults, verifier, allowed_hosts, rng or Random())
        self._admin = Admin(engine, clock, faults, history, self.time_passed, self._reader.origins.refusal)
        self._loop = asyncio.get_running_loop()
        self._pending = PendingCalls()
        self._held: dict[PendingCall, asyncio.TimerHandle] = {}  # by the latency fault
        self._parked = ParkedCalls()
        # Received by clients that hung up before they got the answer: queue, receipt handles, time.
        self._undelivered: list[tuple[str, list[str], int]] = []
        self._unsynced: list[Batch] = []  # committed; the next sync makes them durable
        self._syncing: list[Batch] = []  # the sync under way makes these durable
        self._disk_failure = ""
        self._scheduled = self._checkpointing = self._stopping = self._closed = False
        self._look_again = True
        self._look_timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._syncer = Syncer(log, self._loop) if log is not None else None
        self._tick_timer = self._loop.call_later(self.connections.limits.tick_seconds, self._tick)
        self._schedule()

    def connect(self) -> Connection:
        return Connection(self.accept, self.connections, raw_headers=self._reader.needs_raw_headers)

    @property
    def overloaded(self) -> bool:
        """Whether a new client, or its call, would be refused now."""
        return self._pending.full or len(self.connections) >= self.connections.limits.connections

    # In.

    def accept(self, request: Request) -> None:
        reader = self._reader
        call = reader.call_of(request)
        try:
            if self._admin.serves(request.target):
                reader.authenticate_operator(call, public=self._admin.is_public(request.target))
                call.work = self._admin.work(request, call.caller)
            elif self._pending.full:
                self._refuse(call)
                return
            else:
                reader.read(call)
                delay = reader.delay(call)
                if delay:
                    self._held[call] = self._loop.call_later(delay, self._release, call)
                    self._pending.held += 1
                    return
        except ServiceError as error:
            call.error = error
            request.reply(rendered(call))
            return
        except Exception:
            log.exception("a request could not be read")
            call.error = ServiceError(INTERNAL_FAILURE, "The broker failed on this request; see its log.")
            request.reply(rendered(call))
            return
        self._submit(call)

    def _refuse(self, call: PendingCall) -> None:
        """Too many calls wait: this one is not carried out, and its error is sent a moment later. A refusal costs less
        than a call, but not nothing, and clients that retry at once would keep the broker busy with refusals only."""
        call.error = ServiceError(REQUEST_THROTTLED, _TOO_MANY)
        self._loop.call_later(_REFUSAL_SECONDS, call.request.reply, rendered(call))

    def _release(self, call: PendingCall) -> None:
        self._held.pop(call).cancel()
        self._pending.held -= 1
        self._submit(call)

    def _submit(self, call: PendingCall) -> None:
        self._pending.add(call)
        self._schedule()

    # The transaction.

    def _schedule(self) -> None:
        if not (self._scheduled or self._checkpointing or self._closed):
            self._scheduled = True
            self._idle.clear()
            # Not in this turn of the loop but in the next: requests that have already arrived are read first, to join.
            self._loop.call_soon(self._loop.call_soon, self._run)

    def _run(self) -> None:
        """Carries out the calls that wait, as many as one transaction may have."""
        self._scheduled = False
        if self._checkpointing or self._closed:
            return
        self._look_at_disk()
        batch = Batch(self._pending.take())
        try:
            self.engine.begin()
            self._carry_out(batch)
            self.engine.flush()
            self.engine.commit()
        except Exception as error:  # noqa: BLE001 - whatever it is, each call must get its own answer
            self._repeat_one_by_one(batch, error)
            return
        self._pending.put_back(batch.deferred)
        self._committed(batch)

    def _carry_out(self, batch: Batch) -> None:
        """Receives run last, waiting ones before new ones, so that they see what the other calls have sent."""
        now = self.clock.now()
        receives = []
        for call in batch.calls:
            if call.is_receive:
                receives.append(call)
            else:
                self._perform(call, batch, now)
        now = self.clock.now()  # one of the calls may have moved a manual clock
        for queue, handles, received in self._undelivered:
            self.engine.give_back(queue, handles, received, now)
        self._maintenance.run(now)
        self._serve_parked(batch, now)
        for place, call in enumerate(receives):
            if batch.full:
                batch.deferred = receives[place:]
                break
            self._perform(call, batch, now)
        woken = self.engine.woken()  # by receives whose messages stay visible
        waited_for = not woken.isdisjoint(self._parked.by_queue)
        self._look_again = batch.full or waited_for or any(call.queue in woken for call in batch.parked)

    def _committed(self, batch: Batch) -> None:
        """The transaction is committed: polls are parked or unparked. Answers are sent when it is durable."""
        self.engine.committed()
        del self._undelivered[:]
        for call in batch.unparked:
            self._unpark(call)
        for call in batch.parked:
            self._park(call)
        if self._syncer is not None and (self.engine.must_sync or self._syncing):
            self._await_sync(batch)
        else:
            self._render_all(batch)
            self._answer(batch)
        if self._syncer is not None and self.engine.checkpoint_is_due:
            self._checkpointing = True
            self._syncer.run(self.engine.checkpoint, self._checkpointed)
        else:
            self._plan()

    def _await_sync(self, batch: Batch) -> None:
        self._unsynced.append(batch)
        self._pending.unsynced += len(batch.done)
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        assert self._syncer is not None
        self._syncing, self._unsynced = self._unsynced, []
        if self._syncer.is_fast:
            try:
                self._syncer.sync_now()
            except OSError as error:
                self._synced(error)
            else:
                self._synced(None)
        else:
            self._syncer.sync(self._synced)
            # The disk is busy for a while, which is time to render the answers and go on with the next transaction.
            for batch in self._syncing:
                self._render_all(batch)

    def _synced(self, error: Exception | None) -> None:
        durable, self._syncing = self._syncing, []
        if error is not None:
            self._give_up(error, durable)
            return
        for batch in durable:
            self._pending.unsynced -= len(batch.done)
            self._render_all(batch)
            self._answer(batch)
        if self._unsynced:
            self._sync()
        self._plan()

    def _give_up(self, error: Exception, batches: list[Batch]) -> None:
        """After a sync that failed, nobody knows what is on disk: a new broker has to read it again."""
        self._disk_failure = f"The broker's disk failed ({error}). Restart the broker: it then knows what is stored."
        log.critical("%s", self._disk_failure)
        unsynced, self._unsynced = self._unsynced, []
        for batch in (*batches, *unsynced):
            self._pending.unsynced -= len(batch.done)
            for call in batch.done:
                call.error, call.result = ServiceError(SERVICE_UNAVAILABLE, self._disk_failure), None
                if call.work is None:
                    call.answer = rendered(call)
                call.request.reply(call.answer)
        self._plan()

    def _checkpointed(self, error: Exception | None) -> None:
        self._checkpointing = False
        if error is not None:
            log.error("the log could not be written into the database", exc_info=error)
        self._plan()

    def _look_at_disk(self) -> None:
        """Stops accepting messages while there is still room to deliver the others."""
        if self._free_space is None or monotonic() - self._disk_seen < _DISK_SECONDS:
            return
        self._disk_seen = monotonic()
        low = self._free_space() < _RESERVE
        if low and not self._disk_is_low:
            # From now on the log is overwritten from its start, and the database has all the room that it needs.
            self.engine.checkpoint()
        self._disk_is_low = low

    def _perform(self, call: PendingCall, batch: Batch, now: int) -> None:
        if call.work is not None:
            if not call.answer:  # what was done once is not done again if the batch must be repeated
                call.answer = call.work(now)
            batch.done.append(call)
            return
        assert call.parsed is not None
        operation, params, _ = call.parsed
        caller = call.caller(now)
        call.error = None
        try:
            if self._disk_is_low or self._disk_failure:
                self._check_disk(operation.name)
            call.result = self.engine.call(operation.name, params, caller)
            call.performed = now
            if isinstance(call.result, Received):
                batch.result_bytes += len(call.result.json)
            if not call.result and call.is_receive and not self._stopping and not call.deadline:
                wait = self.engine.wait_seconds(params, caller)
                if wait:
                    call.deadline = now + wait * 1000
                    batch.parked.append(call)
                    return
            if operation.name == "StartMessageMoveTask":
                self._maintenance.move_task_started(now)
        except ServiceError as error:
            call.error = error
        batch.done.append(call)

    def _check_disk(self, operation: str) -> None:
        if self._disk_failure:
            raise ServiceError(SERVICE_UNAVAILABLE, self._disk_failure)
        if operation in _GROWING:
            raise ServiceError(SERVICE_UNAVAILABLE, "The broker's disk is almost full: it takes no message now.")

    def _serve_parked(self, batch: Batch, now: int) -> None:
        """Gives messages that have become visible to the polls that wait for them, first come, first served."""
        woken, everywhere = self.engine.woken(), self._look_again
        parked = self._parked.by_queue
        names = [name for name in parked if name in woken or everywhere or self.engine.next_look(name) <= now]
        for name in names:
            for call in parked[name]:
                if batch.full:
                    return
                if call.request.hung_up:
                    call.request.abort()
                    batch.unparked.append(call)
                    continue
                self._perform(call, batch, now)
                if call.error is None and not call.result:
                    batch.done.pop()
                    break
                batch.unparked.append(call)

    def _repeat_one_by_one(self, batch: Batch, error: Exception) -> None:
        """The shared transaction failed: each call is carried out again, in a transaction of its own."""
        pause = FIRST_PAUSE
        if self._maintenance.running:
            pause = self._maintenance.put_off(error)
        elif not isinstance(error, sqlite3.Error):
            log.error("a call failed; the calls of its batch are repeated one by one", exc_info=error)
        alone = Batch(batch.calls)
        self.engine.rollback()
        if isinstance(error, sqlite3.Error):
            self.engine.checkpoint()
        must_sync = False
        for call in batch.calls:
            call.deadline, call.result = 0, None
            if call.work is None:
                call.answer = b""
            try:
                self.engine.begin()
                self._perform(call, alone, self.clock.now())
                self.engine.flush()
                self.engine.commit()
                self.engine.committed()
                must_sync = must_sync or self.engine.must_sync
            except Exception as cause:  # noqa: BLE001 - this call failed; the others must not
                self.engine.rollback()
                call.error = error_of(cause)
                alone.done = [done for done in alone.done if done is not call]
                alone.parked = [parked for parked in alone.parked if parked is not call]
                call.work = None
                alone.done.append(call)
        for call in alone.parked:
            self._park(call)
        self._render_all(alone)
        if self._syncer is not None and must_sync:
            self._await_sync(alone)
        else:
            self._answer(alone)
        # The broker's own work was rolled back as well; it is tried again after a pause, which gives the disk a moment.
        self._loop.call_later(pause, self._try_again)
        if self._pending:
            self._schedule()
        else:
            self._idle.set()

    def _try_again(self) -> None:
        self._look_again = True
        self._maintenance.undone()
        self._schedule()

    # Out.

    def _render_all(self, batch: Batch) -> None:
        for call in batch.done:
            if not call.answer:
                call.answer = rendered(call)

    def _answer(self, batch: Batch) -> None:
        """Sends the answers, because the transaction is durable."""
        for call in batch.done:
            self._reply(call)

    def _reply(self, call: PendingCall) -> None:
        if call.is_receive and call.error is None:
            if not call.result:
                self.engine.count_empty_receive(call.queue)
            elif call.request.hung_up:
                assert isinstance(call.result, Received)
                self._undelivered.append((call.queue, call.result.handles, call.performed))
                call.request.abort()
                return
        if self.faults.active and call.parsed is not None and self.faults.strikes(Fault.LOST_ANSWER, call.queue):
            call.request.abort()
            return
        call.request.reply(call.answer)

    def _plan(self) -> None:
        """Plans the next run: now if something waits, otherwise when something falls due."""
        if self._pending or self._undelivered or (self._look_again and self._parked):
            self._schedule()
            return
        now = self.clock.now()
        next_move = self._maintenance.next_move
        if next_move <= now:
            self._schedule()
            return
        if self._maintenance.sweep_due and self._maintenance.allowed:
            self._loop.call_later(0.005, self._schedule)
        due = min((self.engine.next_look(name) for name in self._parked.by_queue), default=NEVER)
        due = min(due, next_move)
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        if due < NEVER and not self.clock.manual:
            self._look_timer = self._loop.call_later(max(0.001, (due - now) / 1000), self._schedule)
        self._idle.set()

    # Long polls.

    def _park(self, call: PendingCall) -> None:
        if self._stopping:
            self._end_poll(call)
            return
        seconds = max(0.0, (call.deadline - self.clock.now()) / 1000)
        call.timer = self._loop.call_later(seconds, self._end_poll, call)
        if self._parked.sweep_is_due:
            self._drop_polls_of_the_gone()
        self._parked.add(call)
        # Something may have become visible between the receive and now.
        self._look_again = self._look_again or self.engine.next_look(call.queue) <= self.clock.now()

    def _unpark(self, call: PendingCall) -> None:
        if call.timer is not None:
            call.timer.cancel()
        self._parked.remove(call)

    def _drop_polls_of_the_gone(self) -> None:
        """A client that hangs up and polls again leaves a poll behind each time, which would wait until its end."""
        for call in self._parked:
            if call.request.hung_up:
                self._unpark(call)
                call.request.abort()
        self._parked.swept()

    def _end_poll(self, call: PendingCall) -> None:
        if self._checkpointing:
            # Nobody may use the engine now.
            call.timer = self._loop.call_later(0.001, self._end_poll, call)
            return
        self._unpark(call)
        call.result = {}
        self.engine.count_empty_receive(call.queue)
        call.request.reply(rendered(call))

    # Time and the end.

    def time_passed(self) -> None:
        """The manual clock was moved: ends the polls whose wait is over and does all that has fallen due."""
        now = self.clock.now()
        self._look_again = self._maintenance.sweep_due = True
        for call in [call for call in self._parked if call.deadline <= now]:
            if call.timer is not None:
                call.timer.cancel()
            call.timer = self._loop.call_later(0.001, self._end_poll, call)

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(self.connections.limits.tick_seconds, self._tick)
        self.connections.let_overdue_go(monotonic())
        self._maintenance.sweep_due = True
        self._schedule()

    async def stop(self) -> None:
        """Finishes what is under way, answers the polls that wait, and closes the database."""
        self._stopping = True
        self._tick_timer.cancel()
        for call in list(self._held):
            self._release(call)
        while self._scheduled or self._checkpointing or self._pending or self._syncing or self._unsynced:
            self._idle.clear()
            if not self._syncing:
                self._schedule()
            await self._idle.wait()
        for call in self._parked:
            self._end_poll(call)
        for connection in list(self.connections):
            connection.finish()
        if self._look_timer is not None:
            self._look_timer.cancel()
        if self._syncer is not None:
            self._syncer.stop()
        self._closed = True
        self.engine.close()
