"""The rules of SQS over one SQLite database, which holds all state.

Takes the time and a random source as arguments; knows no HTTP, no clock and no threads. The caller opens a transaction
with `begin`, performs any number of calls in it, and commits: until then nothing has happened. A call that raises
ServiceError has changed nothing. After any other exception the transaction must be rolled back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from semel.broker.engine import (
    acknowledge,
    lookup,
    move_tasks,
    peek,
    queues,
    receive,
    send,
    sweep,
)
from semel.broker.engine.attributes import Arn
from semel.broker.engine.expiry import expire, expire_all
from semel.broker.engine.fault_injector import FaultInjector, NoFaults
from semel.broker.engine.generation import NEVER, Generation
from semel.broker.engine.identity import Access, Identity
from semel.broker.engine.peek import Wanted
from semel.broker.engine.receive import Received
from semel.broker.engine.store import Caller, Queue, Store
from semel.sqs.errors import ServiceError, no_such_queue

__all__ = ["NEVER", "Access", "Caller", "Engine", "Identity", "Queue", "Received", "Wanted"]

Params = dict[str, Any]
Operation = Callable[[Params, Caller], Params | Received]
_CHECKPOINT_PAGES: Final = 2_000
_OFTEN: Final = 3  # receives after which a message does not count for the age of the oldest one
# Before operations that may read the table of messages, sends and deletes are written out. These do not need it.
_BLIND = frozenset({"SendMessage", "SendMessageBatch", "DeleteMessage", "DeleteMessageBatch", "ReceiveMessage"})
# When the oldest messages came. Not of all messages: an age is not worth a long search.
_OLDEST = "SELECT id, coalesce(arrived, enqueued) FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT 1000"


class Measures(NamedTuple):
    """What a queue holds now."""

    visible: int
    in_flight: int
    delayed: int
    oldest_age: float
    busy_groups: int


class Engine:
    """One broker's queues. Every operation of SQS is `perform(name, params, caller)`."""

    def __init__(
        self,
        db: sqlite3.Connection,
        rng: Random,
        *,
        account: str = "000000000000",
        region: str = "us-east-1",
        cooldowns: bool = True,
        faults: FaultInjector | None = None,
    ) -> None:
        self.store = Store(db, rng, account=account, region=region)
        self._cooldowns = cooldowns
        self._faults: FaultInjector = faults or NoFaults()
        self._operations = self._on_queues() | self._on_messages()

    def perform(self, operation: str, params: Params, caller: Caller) -> Params:
        """The answer to a call, as a dictionary."""
        answer = self.call(operation, params, caller)
        return answer.as_dict() if isinstance(answer, Received) else answer

    def call(self, operation: str, params: Params, caller: Caller) -> Params | Received:
        """The answer to a call. Its parameters have been checked against the service model, and are not modified."""
        if operation not in _BLIND:
            self.store.write_out()
        return self._operations[operation](params, caller)

    def _on(self, action: str, rule: Callable[..., Params | Received], *more: object) -> Operation:
        """An operation on the queue that its QueueUrl names, for callers who have the permission `action`."""
        store, find = self.store, lookup.find
        return lambda params, caller: rule(store, find(store, params, caller, action), params, caller, *more)

    def _on_queues(self) -> dict[str, Operation]:
        store, cooldowns, find = self.store, self._cooldowns, partial(lookup.find, self.store)

        def url(params: Params, caller: Caller) -> Params:
            owner = params.get("QueueOwnerAWSAccountId")
            queue = lookup.find_by_name(store, params["QueueName"], owner, caller, "GetQueueUrl")
            return {"QueueUrl": lookup.url_of(queue, caller)}

        def tags(params: Params, caller: Caller) -> Params:
            queue_tags = find(params, caller, "ListQueueTags").tags
            return {"Tags": queue_tags} if queue_tags else {}

        return {
            "CreateQueue": lambda p, c: queues.create(store, p, c, cooldowns=cooldowns),
            "DeleteQueue": lambda p, c: queues.delete(store, find(p, c, "DeleteQueue"), c),
            "GetQueueUrl": url,
            "ListQueues": lambda p, c: queues.list_queues(store, p, c),
            "GetQueueAttributes": self._on("GetQueueAttributes", queues.get_attributes),
            "SetQueueAttributes": self._on("SetQueueAttributes", queues.set_attributes),
            "TagQueue": lambda p, c: queues.tag(store, find(p, c, "TagQueue"), p),
            "UntagQueue": lambda p, c: queues.untag(store, find(p, c, "UntagQueue"), p),
            "ListQueueTags": tags,
            "PurgeQueue": lambda p, c: queues.purge(store, find(p, c, "PurgeQueue"), c, cooldowns=cooldowns),
            "AddPermission": self._on("AddPermission", queues.add_permission),
            "RemovePermission": self._on("RemovePermission", queues.remove_permission),
            "ListDeadLetterSourceQueues": self._on("ListDeadLetterSourceQueues", queues.list_sources),
            "StartMessageMoveTask": lambda p, c: move_tasks.start(store, p, c),
            "ListMessageMoveTasks": lambda p, c: move_tasks.listed(store, p, c),
            "CancelMessageMoveTask": lambda p, c: move_tasks.cancel(store, p, c),
        }

    def _on_messages(self) -> dict[str, Operation]:
        """A batch needs the permission for the single operation."""
        on, faults = self._on, self._faults
        return {
            "SendMessage": on("SendMessage", send.send),
            "SendMessageBatch": on("SendMessage", send.send_batch),
            "ReceiveMessage": on("ReceiveMessage", receive.receive, faults),
            "DeleteMessage": on("DeleteMessage", acknowledge.delete, faults),
            "DeleteMessageBatch": on("DeleteMessage", acknowledge.delete_batch, faults),
            "ChangeMessageVisibility": on("ChangeMessageVisibility", acknowledge.change_visibility),
            "ChangeMessageVisibilityBatch": on("ChangeMessageVisibility", acknowledge.change_visibility_batch),
        }

    # Transactions.

    def begin(self) -> None:
        self.store.begin()

    def flush(self) -> None:
        """The last write before a commit."""
        self.store.flush()

    def commit(self) -> None:
        """Commits the transaction. It is durable once the log of the database has been synced, see `must_sync`."""
        self.store.db.execute("COMMIT")

    def committed(self) -> None:
        self.store.committed()

    def rollback(self) -> None:
        self.store.rollback()

    @property
    def must_sync(self) -> bool:
        """Whether this transaction changed anything that must not be lost once it is answered. Receives and changes of
        visibility may be lost: the messages are then delivered again."""
        return self.store.must_sync

    @property
    def checkpoint_is_due(self) -> bool:
        return self.store.wal_pages > _CHECKPOINT_PAGES

    def checkpoint(self) -> None:
        """Writes the log into the database, so that the log can be overwritten from its start. May run on another
        thread while this one leaves the engine alone."""
        self.store.wal_pages = 0
        with suppress(sqlite3.Error):
            self.store.db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def close(self) -> None:
        self.store.close()

    # What the server needs beside the operations.

    def key(self, text: str, caller: Caller) -> str:
        """The key of a queue that is given by its name, in the caller's region and account, or by its ARN."""
        return self.store.key(Arn.parse(text) or self.store.own(caller, text))

    def shown(self, key: str, caller: Caller) -> str:
        """The opposite of `key`: the name of a queue of the caller's region and account, the ARN of any other."""
        arn = Arn.parse(key) or Arn(self.store.region, self.store.account, key)
        return arn.name if arn == self.store.own(caller, arn.name) else str(arn)

    def key_of_call(self, params: Params, caller: Caller) -> str:
        """The key of the queue that a call is about, whether it exists or not; empty if it is about none."""
        url, name = params.get("QueueUrl"), params.get("QueueName")
        try:
            return lookup.key_of(self.store, url, caller) if url else self.key(name, caller) if name else ""
        except ServiceError:
            return ""

    def wait_seconds(self, params: Params, caller: Caller) -> int:
        """How long this receive may wait for a message."""
        return receive.wait_seconds(lookup.resolve(self.store, params["QueueUrl"], caller), params)

    def woken(self) -> set[str]:
        """Keys of the queues in which something may have become visible since this was last asked."""
        woken, self.store.woken = self.store.woken, set()
        return woken

    def next_look(self, name: str) -> int:
        """The time in milliseconds before which nothing hidden in a queue becomes visible; NEVER if nothing is."""
        queue = self.store.queues.get(name)
        return NEVER if queue is None else queue.generation.due_floor

    def give_back(self, name: str, handles: list[str], received: int, now: int) -> None:
        """Makes messages visible again whose receiver, at the time `received`, hung up before it got them."""
        self.store.write_out()
        queue = self.store.queues.get(name)
        if queue is not None:
            acknowledge.give_back(self.store, queue, handles, received, now)

    def step_moves(self, now: int) -> int | None:
        self.store.write_out()
        return move_tasks.step(self.store, now)

    def sweep(self, now: int) -> bool:
        self.store.write_out()
        return sweep.sweep(self.store, now)

    @property
    def sweep_is_due(self) -> bool:
        """Whether something should be swept now rather than at the next regular time."""
        return self.store.dedup.is_long or self.store.log.is_long

    def peek(self, name: str, wanted: Wanted, *, after: int = 0, limit: int = 100, now: int = 0) -> Params:
        queue = self.store.queues.get(name)
        if queue is None:
            raise no_such_queue()
        self.store.write_out()
        return peek.peek(self.store, queue, wanted, after=after, limit=limit, now=now)

    def receive_ids(
        self, name: str, ids: Sequence[str], places: Sequence[int] | None, visibility: int, caller: Caller
    ) -> Params:
        """Receives these very messages. With `places`, as a peek shows them, they need not be searched for."""
        queue = self.store.queues.get(name)
        if queue is None:
            raise no_such_queue()
        self.store.write_out()
        if places is None:
            known = peek.numbers_of(self.store, queue, ids)
            numbers = [known[message_id] for message_id in ids if message_id in known]
        else:
            rows = self.store.rows_at(queue.generation, places)
            numbers = [
                number
                for number, message_id in zip(places, ids, strict=True)
                if number in rows and rows[number].message_id == message_id
            ]
        return receive.receive_ids(self.store, queue, numbers, visibility * 1000, caller, self._faults).as_dict()

    def measure(self, name: str, now: int, *, wholly: bool = True) -> Measures:
        """How full a queue is; the age skips messages that were received three times or more, as SQS does.

        Not `wholly`: only a chunk of what has fallen due is brought up to date first, so that nobody is held up."""
        queue = self.store.queues[name]
        (expire_all if wholly else expire)(self.store, queue, now)
        self.store.write_out()
        generation = queue.generation
        visible, in_flight, delayed = generation.counts
        age = max(0, now - self._oldest(generation, now)) / 1000
        return Measures(visible, in_flight, delayed, age, generation.busy_groups)

    def _oldest(self, generation: Generation, now: int) -> int:
        with closing(self.store.db.execute(_OLDEST, (generation.low, generation.high))) as rows:
            for row, arrived in rows:
                state = generation.states.get(row - generation.low)
                if state is None or state.receives < _OFTEN:
                    return int(arrived)
        return now

    def count_empty_receive(self, name: str) -> None:
        self.store.totals[name, "empty_receives"] += 1
