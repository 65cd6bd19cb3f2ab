"""The messages of a queue since its last purge, as they are known in memory.

The row of a message is inserted once and deleted once. Everything that changes in between is kept here, and in the
receive log (receive_log.py), from which it is restored at the start. Rules:
- A message that was never received, has no group and is not delayed uses no memory: all messages up to the number
  `cursor` have been examined, and every message after it in the table is ready unless it has a MessageState.
- Every other message without a group has a MessageState. If it is ready, it is in the heap `returned`.
- A message with a group is in its group's `items` while it is ready, and has a MessageState once it was received.
- Heaps are never searched. Outdated entries are skipped when they come to the top, and a heap with more outdated than
  valid entries is rebuilt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from semel.broker.engine.rows import DamagedRow
from semel.broker.engine.schema import DELAYED, GENERATION_BITS, IN_FLIGHT, NUMBER_MASK, READY

NEVER: Final = 1 << 62
# A Standard message received this often without a delete goes to the back of the queue.
BACK_OF_QUEUE_RECEIVES: Final = 3
_STALE_ENTRIES: Final = 1_000  # of a heap, before it is worth rebuilding it
_ITEMS_DROPPED: Final = 64
_NONE: Final[frozenset[int]] = frozenset()  # most groups have none in flight


class MessageState:
    """The state of a message, which is not in its row. `place` is its number unless it was sent to the back of the
    queue. `log` is the row of the receive log that has this state. `due` is the end of its delay or visibility timeout;
    0 if it is ready. `start` is the number of the broker's start in which it was last received."""

    __slots__ = ("due", "first", "group", "handle", "log", "number", "place", "received", "receives", "start", "state")

    def __init__(self, number: int, group: Group | None, state: int, due: int) -> None:
        self.number = self.place = number
        self.group = group
        self.state = state
        self.due = due
        self.receives = self.start = self.first = self.received = self.log = 0
        self.handle = ""  # the newest, as long as the broker runs

    @property
    def key(self) -> int:
        """Sorts by place."""
        return self.place << GENERATION_BITS | self.number


class Group:
    """A message group with at least one message.

    `items[start:]` are the keys of its ready messages, sorted; `in_flight` has the numbers of those in flight.
    `receiving` counts messages that a receive has taken out and is still deciding on. `turn` grows with each receive
    from a FIFO group. `offered` is the rank of its newest entry in the heap of groups."""

    __slots__ = (
        "busy",
        "busy_at",
        "delayed",
        "in_flight",
        "items",
        "name",
        "offered",
        "receiving",
        "sent",
        "start",
        "turn",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: list[int] = []
        self.start = 0
        self.in_flight: set[int] | frozenset[int] = _NONE
        self.delayed = self.receiving = 0
        self.turn = 0
        self.offered: int | None = None
        # Of a tenant of a Standard queue: its last send, and its recent working time. Hints, not state.
        self.sent = self.busy_at = 0
        self.busy = 0.0

    def __lt__(self, other: Group) -> bool:
        """Needed by the heap of groups, where the entry of a group that is gone may have the same rank."""
        return False

    def __len__(self) -> int:
        """The number of ready messages."""
        return len(self.items) - self.start

    @property
    def is_empty(self) -> bool:
        return len(self.items) == self.start and not self.in_flight and not self.delayed and not self.receiving

    def rank(self, fifo: bool) -> int | None:
        """The order in which groups are served; None if this one has nothing to hand out. In a FIFO queue, a message in
        flight blocks all that are behind it."""
        if self.start == len(self.items):
            return None
        head = self.items[self.start]
        if fifo and self.in_flight and head & NUMBER_MASK > min(self.in_flight):
            return None
        return self.turn << 2 * GENERATION_BITS | head

    def pop(self) -> int:
        """Takes the first ready message out, and returns its number."""
        number = self.items[self.start] & NUMBER_MASK
        self.start += 1
        if self.start == len(self.items) or (self.start >= _ITEMS_DROPPED and 2 * self.start >= len(self.items)):
            del self.items[: self.start]
            self.start = 0
        return number

    def add(self, key: int) -> None:
        items, start = self.items, self.start
        if not items or items[-1] < key:
            items.append(key)
        elif start and key < items[start]:
            self.start = start - 1
            items[start - 1] = key
        else:
            items.insert(bisect_left(items, key, start), key)

    def discard(self, key: int) -> None:
        """Takes a message out if it is among the ready ones."""
        items = self.items
        at = bisect_left(items, key, self.start)
        if at == len(items) or items[at] != key:
            return
        if at == self.start:
            self.pop()
        else:
            del items[at]


class Attempt(NamedTuple):
    """What a receive with a ReceiveRequestAttemptId got: number, receive count and due time of each message."""

    expires: int
    messages: list[tuple[int, int, int]]


class Generation:
    """`low` and `high` bound its row ids. `due_floor` and `expiry_floor`: times before which nothing falls due or
    expires. `numbers_end`: numbers from here on have to be reserved before they are used."""

    __slots__ = (
        *("id", "low", "high", "fifo", "next_number", "numbers_end", "counts", "cursor", "states", "returned"),
        *("hidden", "backdated", "groups", "group_heap", "beyond_look_ahead", "attempts", "busy_groups", "turn"),
        *("expiry_floor", "look_ahead_end", "busy", "busy_at"),
    )

    def __init__(self, id: int, next_number: int, *, fifo: bool) -> None:
        self.id = id
        self.low, self.high = id << GENERATION_BITS, (id + 1) << GENERATION_BITS
        self.fifo = fifo
        self.next_number = self.numbers_end = next_number
        self.clear()

    def clear(self) -> None:
        self.counts = [0, 0, 0]  # ready, in flight, delayed
        self.cursor = 0
        self.states: dict[int, MessageState] = {}
        self.returned: list[int] = []  # keys of ready messages without a group
        self.hidden: list[int] = []  # due, then number, of what is delayed or in flight
        self.backdated: list[
            int
        ] = []  # enqueued, then number, of messages that came with an older date than their neighbours
        self.groups: dict[str, Group] = {}
        self.group_heap: list[tuple[int, Group]] = []  # groups with something to hand out, by rank
        self.beyond_look_ahead: dict[int, Group] = {}  # FIFO: groups that begin beyond the look-ahead, by number
        self.attempts: dict[str, Attempt] = {}  # oldest first
        self.busy_groups = self.turn = 0
        self.expiry_floor = 0
        self.look_ahead_end: int | None = None  # see look_ahead.py
        self.busy, self.busy_at = 0.0, 0

    def __contains__(self, row: int) -> bool:
        return self.low <= row < self.high

    # What is hidden.

    @property
    def due_floor(self) -> int:
        return self.hidden[0] >> GENERATION_BITS if self.hidden else NEVER

    def hide(self, state: MessageState) -> None:
        """Adds a message that is delayed or in flight until `state.due`."""
        hidden = self.hidden
        if len(hidden) > _STALE_ENTRIES + 2 * (self.counts[IN_FLIGHT] + self.counts[DELAYED]):
            hidden[:] = [s.due << GENERATION_BITS | s.number for s in self.states.values() if s.state != READY]
            heapify(hidden)
        heappush(hidden, state.due << GENERATION_BITS | state.number)

    def take_due(self, now: int, limit: int) -> list[MessageState]:
        """Takes out hidden messages that are due."""
        due: dict[int, MessageState] = {}  # a message may have two entries with the same time
        hidden, states = self.hidden, self.states
        while hidden and len(due) < limit:
            at, number = hidden[0] >> GENERATION_BITS, hidden[0] & NUMBER_MASK
            state = states.get(number)
            if state is None or state.due != at or state.state == READY:
                heappop(hidden)
            elif at > now:
                break
            else:
                heappop(hidden)
                due[number] = state
        return list(due.values())

    def make_ready(self, state: MessageState) -> None:
        """Puts a hidden message back: to its old place, or to the back of a Standard queue after too many receives."""
        counts, group = self.counts, state.group
        counts[state.state] -= 1
        counts[READY] += 1
        if state.state == IN_FLIGHT and not self.fifo and state.receives >= BACK_OF_QUEUE_RECEIVES:
            state.place = self.next_place()
        if group is not None:
            if state.state == IN_FLIGHT:
                self.remove_in_flight(group, state.number)
            else:
                group.delayed -= 1
        state.state, state.due = READY, 0
        self.put_back(state)

    def put_back(self, state: MessageState) -> None:
        """Adds a message that has a state to the ready ones."""
        group = state.group
        if group is not None:
            group.add(state.key)
            self.offer(group)
            if not state.received:
                del self.states[state.number]
        elif not state.received and state.number > self.cursor:
            del self.states[state.number]  # as if it had never been hidden
        else:
            returned = self.returned
            if len(returned) > _STALE_ENTRIES + 2 * self.counts[READY]:
                returned[:] = [s.key for s in self.states.values() if s.state == READY and s.group is None]
                heapify(returned)
            heappush(returned, state.key)

    def next_place(self) -> int:
        """A place at the back of the queue: a number that no message has. It need not be reserved on disk: a restart
        continues behind all places that are in the receive log (`Store._restore`)."""
        self.next_number += 1
        return self.next_number - 1

    # Groups.

    def group(self, name: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name)
            group.turn = self.turn  # behind groups that wait for theirs
        return group

    def group_of_row(self, name: str) -> Group:
        """The group of a message that a query has returned. It is known, unless the table is damaged."""
        group = self.groups.get(name)
        if group is None:
            raise DamagedRow(f"the table messages is damaged: group {name!r} is in a row, but not in the index")
        return group

    def offer(self, group: Group) -> None:
        """Called when what the group can hand out may have changed."""
        rank = group.rank(self.fifo)
        if rank is None or rank == group.offered:
            return
        group.offered = rank
        heappush(self.group_heap, (rank, group))
        if len(self.group_heap) > _STALE_ENTRIES + 2 * len(self.groups):
            self._rebuild_heap()

    def _rebuild_heap(self) -> None:
        """Removes outdated entries. A group that loses its entry counts as not offered, because it can get the same
        rank again when a message that was received by its id comes back."""
        entries, self.group_heap = self.group_heap, []
        for rank, group in entries:
            if group.offered == rank == group.rank(self.fifo):
                self.group_heap.append((rank, group))
            elif group.offered == rank:
                group.offered = None
        heapify(self.group_heap)

    def next_group(self) -> Group | None:
        """The group whose turn it is, if any. It must be offered again after taking from it or setting it aside."""
        heap = self.group_heap
        while heap:
            rank, group = heap[0]
            if group.offered == rank == group.rank(self.fifo):
                return group
            self.pop_group()
        return None

    def pop_group(self) -> None:
        rank, group = heappop(self.group_heap)
        if group.offered == rank:
            group.offered = None

    def add_in_flight(self, group: Group, number: int) -> None:
        if group.in_flight:
            group.in_flight |= {number}
        else:
            self.busy_groups += 1
            group.in_flight = {number}

    def remove_in_flight(self, group: Group, number: int) -> None:
        group.in_flight -= {number}
        if not group.in_flight:
            self.busy_groups -= 1
            group.in_flight = _NONE

    def drop_if_empty(self, group: Group) -> None:
        if group.is_empty:
            self.groups.pop(group.name, None)
        else:
            self.offer(group)

    # Messages without a group.

    def next_returned(self) -> MessageState | None:
        """The first ready message that has a state; it is not taken out."""
        returned, states = self.returned, self.states
        while returned:
            key = returned[0]
            state = states.get(key & NUMBER_MASK)
            if state is not None and state.state == READY and state.key == key:
                return state
            heappop(returned)
        return None

    # Leaving.

    def add_backdated(self, enqueued: int, number: int) -> None:
        heappush(self.backdated, enqueued << GENERATION_BITS | number)

    def forget(self, number: int, group_name: str | None) -> MessageState | None:
        """Removes a message; returns its state, if it had one."""
        state = self.states.pop(number, None)
        if state is None:
            self.counts[READY] -= 1
            group = self.groups.get(group_name) if group_name is not None else None
            if group is not None:
                group.discard(number << GENERATION_BITS | number)
                self.drop_if_empty(group)
            return None
        self.counts[state.state] -= 1
        group = state.group
        if group is not None:
            if state.state == IN_FLIGHT:
                self.remove_in_flight(group, number)
            elif state.state == DELAYED:
                group.delayed -= 1
            else:
                group.discard(state.key)
            self.drop_if_empty(group)
        return state

    def states_of(self, attempt: Attempt) -> list[MessageState] | None:
        """The states of the messages that an attempt id got; None if any of them has changed since."""
        states: list[MessageState] = []
        for number, receive, due in attempt.messages:
            state = self.states.get(number)
            if state is None or (state.receives, state.state, state.due) != (receive, IN_FLIGHT, due):
                return None
            states.append(state)
        return states

    def undo_attempts(self, number: int) -> list[str]:
        """A receive of a message was undone: invalidates and returns the attempt ids of receives that included it."""
        undone = [
            name for name, attempt in self.attempts.items() if any(other == number for other, _, _ in attempt.messages)
        ]
        for name in undone:
            self.attempts[name] = self.attempts[name]._replace(messages=[])
        return undone

    def expire_attempts(self, now: int) -> None:
        for name in list(self.attempts):
            if self.attempts[name].expires > now:
                break
            del self.attempts[name]


def rows_as_ranges(rows: Iterable[int]) -> list[tuple[int, int]]:
    """Row ids as ranges of consecutive ones, both ends included."""
    ranges: list[tuple[int, int]] = []
    first = last = -2
    for row in sorted(rows):
        if row == last + 1:
            last = row
            continue
        if first >= 0:
            ranges.append((first, last))
        first = last = row
    if first >= 0:
        ranges.append((first, last))
    return ranges
