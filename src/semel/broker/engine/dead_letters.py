"""Messages that change queues: to the dead-letter queue when they were received too often, and back by redrive."""

from __future__ import annotations

from semel.broker.engine.expiry import remove
from semel.broker.engine.rows import Row, packed, with_id
from semel.broker.engine.schema import NUMBER_MASK
from semel.broker.engine.send import enter
from semel.broker.engine.store import Queue, Store


def dead_letter(store: Store, queue: Queue, row: Row, now: int) -> bool:
    """Moves a ready message to the queue's dead-letter queue. False if that queue is gone: then the message stays."""
    assert queue.redrive is not None
    target = store.by_arn(queue.redrive.target)
    if target is None:
        return False
    state = queue.generation.states[row.id & NUMBER_MASK]
    extra = dict(row.extras())
    extra["source"] = str(queue.arn)
    extra["prior"] = extra.get("prior", 0) + state.receives
    extra.setdefault("first", state.first)
    if target.fifo:
        # Its message id becomes its dedup id, so that the dead-letter queue cannot drop it as a duplicate.
        extra["dedup"] = row.message_id
        extra.setdefault("sent", row.enqueued)
    _insert(
        store,
        target,
        row._replace(extra=packed(extra), enqueued=now if target.fifo else row.enqueued),
        # The delay of a FIFO queue applies to all messages in it, that of a Standard queue to messages sent to it.
        delay=target.delay if target.fifo else 0,
        now=now,
    )
    remove(store, queue, {row.id & NUMBER_MASK: row.group}, now)
    store.count(queue, "dead_lettered")
    return True


def redrive(store: Store, source: Queue, target: Queue, row: Row, now: int) -> None:
    """Moves a ready message out of a dead-letter queue as if it were sent anew: new id, new times, no receives."""
    extra = {key: value for key, value in row.extras().items() if key in ("attributes", "trace", "sender")}
    message_id = store.new_id()
    if target.fifo:
        extra["dedup"] = message_id
    moved = row._replace(wire=with_id(row.wire, message_id), extra=packed(extra), enqueued=now)
    _insert(store, target, moved, delay=target.delay, now=now)
    remove(store, source, {row.id & NUMBER_MASK: row.group}, now)


def _insert(store: Store, target: Queue, row: Row, *, delay: int, now: int) -> None:
    generation = target.generation
    store.touched.add(generation)
    row = row._replace(id=store.next_row(generation))
    number, due = row.id & NUMBER_MASK, now + delay if delay else 0
    backdated = row.enqueued < now
    store.insert(*row, due if due and not target.fifo else None, now if backdated else None)
    enter(generation, number, row.group, due, now)
    if backdated:
        generation.add_backdated(row.enqueued, number)
        generation.expiry_floor = min(generation.expiry_floor, row.enqueued + target.retention)
    store.woken.add(target.key)
