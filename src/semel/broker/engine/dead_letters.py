"""Messages that change queues: to the dead-letter queue when they were received too often, and back by redrive."""

from __future__ import annotations

import orjson

from semel.broker.engine import groups
from semel.broker.engine.expiry import hide_until, remove
from semel.broker.engine.messages import Stored
from semel.broker.engine.schema import DELAYED, READY
from semel.broker.engine.store import Queue, Store

_INSERT_MOVED = """
INSERT INTO messages (id, lane, state, due, pos, grp, receives, prior, first, received, enqueued, sent, late,
    message_id, body, md5, sender, extra)
VALUES (?1, ?2, ?3, ?4, ?1, ?5, 0, ?6, ?7, 0, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
"""


def dead_letter(store: Store, queue: Queue, message: Stored, now: int) -> bool:
    """Moves a ready message to the queue's dead-letter queue. False if that queue is gone: then it stays."""
    assert queue.redrive is not None
    target = store.by_arn(queue.redrive.target)
    if target is None:
        return False
    extra = orjson.loads(message.extra) if message.extra else {}
    extra["source"] = str(queue.arn)
    if target.fifo:
        # Its own id as dedup id: no window of the dead-letter queue can swallow it.
        extra["dedup"] = message.message_id
    _insert(
        store,
        target,
        message._replace(prior=message.prior + message.receives, extra=orjson.dumps(extra)),
        group=extra.get("group"),
        enqueued=now if target.fifo else message.enqueued,
        # A FIFO queue's delay is for whatever is in it; a Standard queue's is for what is sent to it.
        delay=target.delay if target.fifo else 0,
        now=now,
    )
    remove(store, queue, [(message.id, READY, message.grp, 0)], now)
    store.count(queue, "dead_lettered")
    return True


def redrive(store: Store, source: Queue, target: Queue, message: Stored, now: int) -> None:
    """Moves a ready message out of a dead-letter queue as if it were sent anew: new id, new times, no receives."""
    extra = orjson.loads(message.extra) if message.extra else {}
    extra.pop("source", None)
    message_id = store.new_id()
    if target.fifo:
        extra["dedup"] = message_id
    else:
        extra.pop("dedup", None)
    _insert(
        store,
        target,
        message._replace(
            message_id=message_id,
            prior=0,
            first=0,
            sent=now,
            extra=orjson.dumps(extra) if extra else None,
        ),
        group=extra.get("group"),
        enqueued=now,
        delay=target.delay,
        now=now,
    )
    remove(store, source, [(message.id, READY, message.grp, 0)], now)


def _insert(
    store: Store, target: Queue, message: Stored, *, group: str | None, enqueued: int, delay: int, now: int
) -> None:
    lane = target.lane
    row = store.next_row(lane)
    state, due = (DELAYED, now + delay) if delay else (READY, 0)
    if delay:
        hide_until(lane, due)
    grp = groups.enter(store, target, group, None if delay else row, now) if group else None
    late = now if enqueued < now else 0
    if late:
        lane.expiry_floor = min(lane.expiry_floor, enqueued + target.retention)
    content = (message.message_id, message.body, message.md5, message.sender, message.extra)
    times = (message.prior, message.first, enqueued, message.sent, late)
    store.db.execute(_INSERT_MOVED, (row, lane.id, state, due, grp, *times, *content))
    store.shift(lane, state, 1)
    store.woken.add(target.key)
