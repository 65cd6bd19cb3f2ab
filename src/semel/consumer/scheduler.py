"""Decides which claimed messages are handled next: the order of FIFO groups, and what goes into one call of a batch.

The scheduler needs no thread: claimers put messages in, workers take them out. Its rules:
1. Standard queues: first come, first served.
2. FIFO queues: a message starts only when all messages before it in its group have ended with a record. If one of them
   ends without, all behind it are returned to the queue, because they must not overtake it. Groups run in parallel.
3. A batch may have several messages of a group, in order. The next batch has none of this group until they have ended.
4. A message that was tried before is handled alone, so that a bad message fails alone. The exception is a transaction
   on a Standard queue: it is rolled back as a whole, and its batch can be halved.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from semel.consumer.delivery import Delivery
from semel.consumer.lifecycle import State
from semel.consumer.queue_setup import QueueSetup

ENDED_WELL = frozenset({State.RECORDED, State.ACKED})


class _Group:
    """The messages of a FIFO group in the order in which they were received, and those that were given to a worker."""

    __slots__ = ("members", "queued", "started")

    def __init__(self) -> None:
        self.members: deque[Delivery] = deque()
        self.started: set[Delivery] = set()
        self.queued = False  # it is among the groups that can start a message

    @property
    def is_ready(self) -> bool:
        if self.started or not self.members:
            return False
        first = self.members[0]
        return first.state is State.CLAIMED and not first.unwanted


class Scheduler:
    def __init__(self, setup: QueueSetup) -> None:
        self._fifo = setup.fifo
        handler = setup.handler
        # Whether a message that was tried before is handled alone.
        self._alone = handler.is_batch and (setup.fifo or not handler.transaction)
        self._is_batch = handler.is_batch
        self._ready: deque[Delivery] = deque()
        self._tried: deque[Delivery] = deque()
        self._groups: dict[str, _Group] = {}
        self._turns: deque[_Group] = deque()  # groups whose first message can start
        self.changed = threading.Condition(threading.Lock())
        self.on_put: Callable[[], bool] = lambda: True  # under the lock: whether a waiting worker is to be woken
        self.waiting = 0  # workers that wait
        self.closed = False

    def __len__(self) -> int:
        """Messages that could start now; on a FIFO queue, groups that have one."""
        return len(self._ready) + len(self._tried) + len(self._turns)

    @property
    def groups(self) -> int:
        return len(self._groups)

    # From the receiver, the claimer, and the table of deliveries in flight.

    def expect(self, chunk: Iterable[Delivery]) -> None:
        """Messages of a FIFO queue that were received, in this order. They are put when they are claimed."""
        with self.changed:
            for delivery in chunk:
                group = self._groups.setdefault(delivery.group or "", _Group())
                group.members.append(delivery)

    def put(self, chunk: Sequence[Delivery]) -> None:
        """Claimed messages."""
        if not self._fifo and not self._alone:
            self._ready.extend(chunk)  # atomic
            if self.waiting:
                with self.changed:
                    if self.on_put():
                        self.changed.notify()
            return
        with self.changed:
            for delivery in chunk:
                if self._fifo:
                    group = self._groups.get(delivery.group or "")
                    if group is not None:
                        self._offer(group)
                elif delivery.attempt > 1:
                    self._tried.append(delivery)
                else:
                    self._ready.append(delivery)
            if self.waiting and len(self):
                self.changed.notify()

    def _offer(self, group: _Group) -> None:
        if group.is_ready and not group.queued:
            group.queued = True
            self._turns.append(group)

    def ended(self, chunk: Iterable[Delivery]) -> list[Delivery]:
        """Messages of a FIFO queue that have ended here. Returns those that must now be returned to the queue."""
        blocked: list[Delivery] = []
        with self.changed:
            for delivery in chunk:
                group = self._groups.get(delivery.group or "")
                if group is None or delivery not in group.members:
                    continue
                if delivery.state not in ENDED_WELL:
                    place = group.members.index(delivery)
                    blocked += [other for other in list(group.members)[place + 1 :] if other not in group.started]
                group.members.remove(delivery)
                group.started.discard(delivery)
                if not group.members:
                    del self._groups[delivery.group or ""]
                elif not blocked or group.members[0] not in blocked:
                    self._offer(group)
            if self.waiting and self._turns:
                self.changed.notify()
        return blocked

    # For the worker.

    def fills(self, size: int) -> bool:
        """Under the lock: whether there are enough messages for a batch of this size."""
        return len(self._ready) + sum(len(group.members) for group in self._turns) >= size

    def take_now(self) -> Delivery | None:
        """The next message of a Standard queue for a handler of single messages, if there is one."""
        try:
            return self._ready.popleft()
        except IndexError:
            return None

    def take(self, most: int) -> list[Delivery]:
        """Under the lock of `changed`: what goes into the next call; empty if nothing can start now."""
        if not self._fifo:
            if self._tried:
                return [self._tried.popleft()]
            return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        chosen: list[Delivery] = []
        while self._turns and len(chosen) < most:
            group = self._turns[0]
            members = self._startable(group, most - len(chosen))
            if members and self._alone and members[0].attempt > 1 and chosen:
                break  # it goes alone, with the next call
            self._turns.popleft()
            group.queued = False
            group.started.update(members)
            chosen += members
            if members and self._alone and members[0].attempt > 1:
                break
        return sorted(chosen, key=lambda delivery: delivery.number) if len(chosen) > 1 else chosen

    def _startable(self, group: _Group, most: int) -> list[Delivery]:
        """The first messages of a group that can be in one call."""
        startable: list[Delivery] = []
        if not group.is_ready:
            return startable
        for delivery in group.members:
            tried = self._alone and delivery.attempt > 1
            if len(startable) == most or delivery.state is not State.CLAIMED or (tried and startable):
                break
            startable.append(delivery)
            if tried or not self._is_batch:
                break
        return startable

    def surplus(self, most: int, received_before: float) -> list[Delivery]:
        """Remove the last messages of a Standard queue: those beyond `most` that were received before that time. A
        message that was received more than once stays, because SQS counts its receives."""
        removed: list[Delivery] = []
        while not self._fifo and len(self._ready) > most:
            try:
                last = self._ready.pop()
            except IndexError:  # a worker was faster
                break
            if last.received_at >= received_before or last.received.receive_count > 1:
                self._ready.append(last)
                break
            removed.append(last)
        return removed

    def wake_all(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()
