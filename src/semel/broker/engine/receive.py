"""ReceiveMessage: which messages are next, hiding them, and what a client gets to see of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from heapq import heappop
from typing import Any, Final, NamedTuple

import orjson

from semel.broker.engine import fair_queue
from semel.broker.engine.dead_letters import dead_letter
from semel.broker.engine.expiry import expire, expire_all, make_ready, remove
from semel.broker.engine.fault_injector import FaultInjector
from semel.broker.engine.generation import BACK_OF_QUEUE_RECEIVES, Attempt, Generation, Group, MessageState
from semel.broker.engine.look_ahead import look_ahead_end, set_aside
from semel.broker.engine.rows import COLUMNS, EXTRA_ATTRIBUTES, Row
from semel.broker.engine.schema import IN_FLIGHT, NUMBER_MASK, READY
from semel.broker.engine.store import Caller, Queue, Store, sequence_number
from semel.broker.engine.validation import check_token
from semel.sqs import limits
from semel.sqs.checksums import md5_of_attributes
from semel.sqs.errors import INVALID_ATTRIBUTE_NAME, OVER_LIMIT, ServiceError, invalid_value
from semel.sqs.service_model import enum_values

_NEXT = f"SELECT {COLUMNS} FROM messages WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
# One call stops searching after this many messages that went to the dead-letter queue or had expired.
_MAX_SET_ASIDE: Final = 1_000


class Received(NamedTuple):
    """The answer to a receive that got messages: as JSON, and the handles in it."""

    json: str
    handles: list[str]

    def as_dict(self) -> dict[str, Any]:
        answer: dict[str, Any] = orjson.loads(self.json)
        return answer


def receive(
    store: Store, queue: Queue, params: dict[str, Any], caller: Caller, faults: FaultInjector
) -> Received | dict[str, Any]:
    """Received, or an empty answer."""
    want, visibility, wait = _checked(queue, params)
    view = _view(params)
    now, generation = caller.now, queue.generation
    store.touched.add(generation)
    expire(store, queue, now)
    attempt = params.get("ReceiveRequestAttemptId")
    if attempt is not None:
        again = _same_again(store, queue, attempt, visibility, now)
        if again:
            return _show(queue, again, view)
    room = limits.MAX_IN_FLIGHT - generation.counts[IN_FLIGHT]
    if room <= 0 and not queue.fifo and wait == 0:
        raise ServiceError(OVER_LIMIT, f"Too many messages in flight for queue {queue.name}: the limit is 120000.")
    if wait == 0 and not queue.fifo:
        want = faults.short_poll(queue.key, want)
    handed = _take(store, queue, min(want, room), visibility, now, faults) if want and room > 0 else []
    if not handed:
        return {}
    store.count(queue, "received", len(handed))
    states = [state for _, state in handed]
    if attempt is None:
        store.log.add(generation, states)
    else:
        _remember_attempt(store, generation, attempt, states, now)
    return _show(queue, handed, view)


def wait_seconds(queue: Queue, params: dict[str, Any]) -> int:
    """How long a receive may wait: its own value, even 0, takes precedence over the queue's."""
    seconds = params.get("WaitTimeSeconds")
    return queue.wait if seconds is None else int(seconds)


def _checked(queue: Queue, params: dict[str, Any]) -> tuple[int, int, int]:
    want = params.get("MaxNumberOfMessages", 1)
    if not 1 <= want <= limits.MAX_RECEIVE:
        raise invalid_value(want, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
    wait = wait_seconds(queue, params)
    if not 0 <= wait <= limits.MAX_WAIT:
        raise invalid_value(wait, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided.")
    visibility = params.get("VisibilityTimeout")
    if visibility is None:
        visibility = queue.visibility // 1000
    elif not 0 <= visibility <= limits.MAX_VISIBILITY:
        raise invalid_value(visibility, "VisibilityTimeout", "Must be >= 0 and <= 43200, if provided.")
    attempt = params.get("ReceiveRequestAttemptId")
    if attempt is not None:
        if not queue.fifo:
            reason = "The request include parameter that is not valid for this queue type."
            raise invalid_value(attempt, "ReceiveRequestAttemptId", reason)
        check_token(attempt, "ReceiveRequestAttemptId")
    return want, visibility * 1000, wait


# Choosing.

Handed = tuple[Row, MessageState]


def _take(store: Store, queue: Queue, want: int, visibility: int, now: int, faults: FaultInjector) -> list[Handed]:
    """The next messages, hidden; those that were received too often go to the dead-letter queue instead."""
    generation, aside = queue.generation, 0
    chosen: list[Row] = []
    groups: dict[str, Group] = {}
    group: Group | None = None
    while len(chosen) < want:
        begun = group is not None and bool(chosen) and chosen[-1].group == group.name
        rows = _candidates(store, queue, want - len(chosen), now, group, begun=begun)
        if not rows:
            break
        for row in rows:
            if row.group is not None:
                group = groups[row.group] = generation.group_of_row(row.group)
            if _goes_elsewhere(store, queue, row, now):
                aside += 1
            else:
                chosen.append(row)
        if aside >= _MAX_SET_ASIDE:
            # More may be ready behind them: polls that wait should look again.
            store.woken.add(queue.key)
            break
    return _hand_out(store, queue, chosen, groups.values(), visibility, now, faults)


def _goes_elsewhere(store: Store, queue: Queue, row: Row, now: int) -> bool:
    """Removes a message that has expired or has to be dead-lettered; returns whether it did."""
    number = row.id & NUMBER_MASK
    if row.enqueued + queue.retention <= now:
        remove(store, queue, {number: row.group}, now)
        return True
    if queue.redrive is None:
        return False
    state = queue.generation.states.get(number)
    receives = state.receives if state is not None else 0
    return receives >= queue.redrive.max_receives and dead_letter(store, queue, row, now)


def _candidates(store: Store, queue: Queue, want: int, now: int, group: Group | None, *, begun: bool) -> list[Row]:
    """The next ready messages, taken out of where the ready ones are kept. In a FIFO queue, first from `group`, which
    is `begun` if this call already hands out a message of it."""
    generation = queue.generation
    store.write_out()
    if queue.fifo:
        numbers = _from_groups(store, generation, want, group, begun=begun)
    elif generation.groups:
        numbers = fair_queue.take(store, generation, want, now)
    else:
        return _without_group(store, generation, want)
    return store.known_rows_at(generation, numbers)


def _without_group(store: Store, generation: Generation, want: int) -> list[Row]:
    """The next messages by place: those that were returned, and those that were never received."""
    low, states = generation.low, generation.states
    chosen: list[Row] = []
    while len(chosen) < want:
        state = generation.next_returned()
        place = generation.next_number if state is None else state.place
        if generation.cursor + 1 < place:
            limit = want - len(chosen)
            rows = store.db.execute(_NEXT, (low | generation.cursor, low | place, limit)).fetchall()
            chosen += [Row._make(row) for row in rows if row[0] - low not in states]
            generation.cursor = rows[-1][0] - low if len(rows) == limit else place - 1
        elif state is None:
            break
        else:
            chosen += store.known_rows_at(generation, _returned(generation, want - len(chosen)))
    return chosen


def _returned(generation: Generation, most: int) -> list[int]:
    """Numbers of returned messages whose place is before all that were never received."""
    numbers: list[int] = []
    while len(numbers) < most:
        state = generation.next_returned()
        if state is None or state.place > generation.cursor + 1:
            break
        heappop(generation.returned)
        if state.number not in numbers:  # it may have two entries
            numbers.append(state.number)
    return numbers


def _from_groups(store: Store, generation: Generation, want: int, group: Group | None, *, begun: bool) -> list[int]:
    """FIFO: one group after another, in the order of their turns; each gives all that it can before the next one. The
    look-ahead limits only the search for groups: a group that is begun has been found, however far back the rest is."""
    end = look_ahead_end(store, generation)
    numbers: list[int] = []
    while len(numbers) < want:
        if group is None or group.rank(fifo=True) is None:
            group = generation.next_group()
            if group is None:
                break
            generation.pop_group()
            begun = False
        first = group.items[group.start] & NUMBER_MASK
        if first >= end and not begun:
            set_aside(generation, group, first)
            group = None
            continue
        locked = min(group.in_flight) if group.in_flight else generation.next_number
        while len(numbers) < want and len(group) and group.items[group.start] & NUMBER_MASK < locked:
            numbers.append(group.pop())
            group.receiving += 1
        generation.offer(group)
    return numbers


# Receiving by id, which only the admin interface can.


def receive_ids(
    store: Store, queue: Queue, numbers: Iterable[int], visibility: int, caller: Caller, faults: FaultInjector
) -> Received:
    """Hides exactly these messages and hands them out, in this order, except those that do not exist or are not ready.

    Their place in the queue and the order of FIFO groups are ignored, and none goes to a dead-letter queue instead,
    because the caller asked for these very messages. The messages that remain in a FIFO group behind one of them wait,
    as they do behind any message in flight."""
    now, generation = caller.now, queue.generation
    store.touched.add(generation)
    expire_all(store, queue, now)
    store.write_out()
    wanted = list(dict.fromkeys(numbers))
    rows = store.rows_at(generation, wanted)
    room = max(0, limits.MAX_IN_FLIGHT - generation.counts[IN_FLIGHT])
    chosen: list[Row] = []
    groups: dict[str, Group] = {}
    for number in wanted:
        row, state = rows.get(number), generation.states.get(number)
        if row is None or row.enqueued + queue.retention <= now or len(chosen) == room:
            continue
        if state is not None and state.state != READY:
            continue
        chosen.append(row)
        if row.group is not None:
            group = groups[row.group] = generation.group_of_row(row.group)
            group.discard(MessageState(number, group, READY, 0).key if state is None else state.key)
            group.receiving += 1
    handed = _hand_out(store, queue, chosen, groups.values(), visibility, now, faults)
    store.log.add(generation, [state for _, state in handed])
    store.count(queue, "received", len(handed))
    return _show(queue, handed, _view({"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}))


# Hiding.


def _hand_out(
    store: Store,
    queue: Queue,
    rows: Sequence[Row],
    groups: Iterable[Group],
    visibility: int,
    now: int,
    faults: FaultInjector,
) -> list[Handed]:
    """The caller writes the log. `groups`: all groups from which a message was taken, even if it went elsewhere."""
    generation, encode = queue.generation, store.receipts.encode
    states, counts, queue_id, start = generation.states, generation.counts, queue.id, store.start
    handed: list[Handed] = []
    for group in groups:
        group.receiving = 0
    served: Group | None = None
    for row in rows:
        number = row[0] & NUMBER_MASK
        state = states.get(number)
        if state is None:
            group_of = generation.group_of_row(row[3]) if row[3] is not None else None
            state = states[number] = MessageState(number, group_of, READY, 0)
        if queue.fifo and state.group is not None and state.group is not served:
            served = state.group
            generation.turn += 1
            served.turn = generation.turn
        timeout = faults.visibility(queue, visibility) if faults.active else visibility
        state.receives += 1
        state.first = state.first or now
        state.received = now
        state.start = start
        state.handle = encode(queue_id, row[0], state.receives, start)
        if timeout > 0:
            state.state, state.due = IN_FLIGHT, now + timeout
            counts[READY] -= 1
            counts[IN_FLIGHT] += 1
            generation.hide(state)
            if state.group is not None:
                generation.add_in_flight(state.group, number)
        else:
            if not queue.fifo and state.receives >= BACK_OF_QUEUE_RECEIVES:
                state.place = generation.next_place()
            generation.put_back(state)
            store.woken.add(queue.key)
        handed.append((row, state))
    for group in groups:
        generation.drop_if_empty(group)
    return handed


# ReceiveRequestAttemptId.


def _remember_attempt(store: Store, generation: Generation, attempt: str, states: list[MessageState], now: int) -> None:
    generation.attempts.pop(attempt, None)
    messages = [(state.number, state.receives, state.due) for state in states]
    generation.attempts[attempt] = Attempt(now + limits.RECEIVE_ATTEMPT_WINDOW * 1000, messages)
    store.log.add_attempt(generation, states, attempt, now)


def _same_again(store: Store, queue: Queue, attempt: str, visibility: int, now: int) -> list[Handed]:
    """The messages that an earlier receive with this attempt id got, hidden again; none if any of them has changed."""
    generation = queue.generation
    earlier = generation.attempts.get(attempt)
    if earlier is None or earlier.expires <= now:
        return []
    states = generation.states_of(earlier)
    if not states:
        return []
    for state in states:
        state.received = max(now, state.received + 1)
        state.handle = store.receipts.encode(queue.id, generation.low | state.number, state.receives, state.start)
        if visibility:
            state.due = now + visibility
            generation.hide(state)
    if not visibility:
        make_ready(store, queue, states, now)
    _remember_attempt(store, generation, attempt, states, now)
    store.write_out()
    rows = store.known_rows_at(generation, [state.number for state in states])
    return list(zip(rows, states, strict=True))


# Showing.


class View(NamedTuple):
    """How a request wants messages shown. `chosen` is None if it wants no message attributes."""

    system: frozenset[str]
    chosen: Callable[[str], bool] | None


def _show(queue: Queue, handed: list[Handed], view: View) -> Received:
    handles = [state.handle for _, state in handed]
    if not view.system and view.chosen is None:
        shown = [f'{{{row.wire},"ReceiptHandle":"{state.handle}"}}' for row, state in handed]
    else:
        shown = [_shown(queue, row, state, view) for row, state in handed]
    return Received(f'{{"Messages":[{",".join(shown)}]}}', handles)


def _shown(queue: Queue, row: Row, state: MessageState, view: View) -> str:
    extra = row.extras()
    shown = f'{{{row.wire},"ReceiptHandle":"{state.handle}"'
    if view.system:
        attributes = system_attributes(queue, row, state.receives, state.first)
        if view.system is not _ALL_SYSTEM:
            attributes = {name: value for name, value in attributes.items() if name in view.system}
        if attributes:
            shown += f',"Attributes":{orjson.dumps(attributes).decode()}'
    if view.chosen is not None and "attributes" in extra:
        selected = {name: value for name, value in extra["attributes"].items() if view.chosen(name)}
        if selected:
            shown += f',"MessageAttributes":{orjson.dumps(selected).decode()}'
            shown += f',"MD5OfMessageAttributes":"{md5_of_attributes(selected)}"'
    return shown + "}"


def system_attributes(queue: Queue, row: Row, receives: int, first: int) -> dict[str, str]:
    """All system attributes of a message; `receives` and `first` are those in this queue."""
    extra = row.extras()
    first = extra.get("first", first)
    attributes = {
        "SenderId": extra.get("sender", queue.arn.account),
        "SentTimestamp": str(extra.get("sent", row.enqueued)),
        "ApproximateReceiveCount": str(extra.get("prior", 0) + receives),
    }
    if first:
        attributes["ApproximateFirstReceiveTimestamp"] = str(first)
    if queue.fifo:
        attributes["SequenceNumber"] = sequence_number(row.id & NUMBER_MASK)
    if row.group is not None:
        attributes["MessageGroupId"] = row.group
    for key, name in EXTRA_ATTRIBUTES:
        if key in extra:
            attributes[name] = extra[key]
    return attributes


_ALL_ATTRIBUTES: Final = frozenset({"All", "*", ".*"})
_ALL_SYSTEM: Final = frozenset(enum_values("MessageSystemAttributeName"))


def _view(params: dict[str, Any]) -> View:
    old, new = params.get("AttributeNames") or (), params.get("MessageSystemAttributeNames") or ()
    names = params.get("MessageAttributeNames") or ()
    return _VIEW_OF_NOTHING if not (old or new or names) else _made_view((*old, *new), tuple(names))


@lru_cache(maxsize=256)
def _made_view(system: tuple[str, ...], names: tuple[str, ...]) -> View:
    return View(_system_names(system), _attribute_filter(names))


def _system_names(asked: tuple[str, ...]) -> frozenset[str]:
    for name in asked:
        if name not in _ALL_SYSTEM and name not in enum_values("QueueAttributeName"):
            raise ServiceError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")
    return _ALL_SYSTEM if "All" in asked else frozenset(asked)


def _attribute_filter(names: tuple[str, ...]) -> Callable[[str], bool] | None:
    if not names:
        return None
    if not _ALL_ATTRIBUTES.isdisjoint(names):
        return lambda _name: True
    exact = {name for name in names if not name.endswith(".*")}
    prefixes = tuple(name.removesuffix(".*") for name in names if name.endswith(".*"))
    return lambda name: name in exact or name.startswith(prefixes)


_VIEW_OF_NOTHING: Final = View(frozenset(), None)
