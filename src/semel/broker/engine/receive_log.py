"""The receive log: the effects of receives and changes of visibility, so that they are known after a restart.

A transaction appends one row for each generation in which it received, returned or hid messages: the whole state of
each of them. Nothing waits until this is on disk: if the last rows are lost, messages are delivered again, which SQS
may do at any time. Rules: the newest row of a message counts; a row is obsolete once all its messages are deleted or in
newer rows; the log is trimmed from its front, and states that still count are appended again.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from semel.broker.engine.generation import Attempt, Generation, MessageState
from semel.broker.engine.schema import IN_FLIGHT, READY
from semel.sqs import limits

_FIELDS: Final = 6  # of a state: number, place, receives (and the start of the last one), first, received, due
_START_BITS: Final = 32  # below the start, which is 0 in rows from before starts were counted
_RECEIVES: Final = (1 << _START_BITS) - 1
_APPEND = "INSERT INTO receive_log (id, generation, states, attempt, attempted) VALUES (?, ?, ?, ?, ?)"
_LAST = "SELECT coalesce(max(id), 0) FROM receive_log"
_SIZE = f"SELECT coalesce(sum(length(states)), 0) / {8 * _FIELDS} FROM receive_log"
_OF_GENERATION = "SELECT id, states, attempt, attempted FROM receive_log WHERE generation = ? ORDER BY id"
_OLDEST = "SELECT id, generation, states, attempt FROM receive_log ORDER BY id LIMIT ?"
_DROP = "DELETE FROM receive_log WHERE id <= ?"
_EXISTING = "SELECT id FROM messages WHERE id IN ({})"
_MOST_STATES: Final = 100  # in one row
_TRIMMED_ROWS: Final = 50  # at a time
_LONG: Final = 20_000  # states

Fields = tuple[int, int, int, int, int, int]


class ReceiveLog:
    """Collects the changes of a transaction; `flush` writes them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._changed: dict[Generation, list[MessageState]] = {}
        self._attempts: list[tuple[Generation, list[MessageState], bytes, str, int]] = []
        self._next = 1
        self._states = 0  # in all rows
        self._limit = _LONG

    def read_bounds(self) -> None:
        (last,) = self._db.execute(_LAST).fetchone()
        (self._states,) = self._db.execute(_SIZE).fetchone()
        self._next = last + 1

    def add(self, generation: Generation, states: Sequence[MessageState]) -> None:
        """Records that these have changed."""
        changed = self._changed.get(generation)
        if changed is None:
            self._changed[generation] = list(states)
        else:
            changed.extend(states)

    def add_attempt(self, generation: Generation, states: list[MessageState], attempt: str, now: int) -> None:
        """These were received under a ReceiveRequestAttemptId."""
        self._attempts.append((generation, states, _encode(states), attempt, now))

    def drop(self, generation: Generation) -> None:
        """The generation was retired: nothing of it is written any more."""
        self._changed.pop(generation, None)
        self._attempts = [attempt for attempt in self._attempts if attempt[0] is not generation]

    def flush(self) -> None:
        rows: list[tuple[int, int, bytes, str | None, int | None]] = []
        for generation, states, encoded, attempt, at in self._attempts:
            rows.append((self._numbered(states), generation.id, encoded, attempt, at))
        for generation, states in self._changed.items():
            here = generation.states
            states = [state for state in states if here.get(state.number) is state]
            for start in range(0, len(states), _MOST_STATES):
                chunk = states[start : start + _MOST_STATES]
                rows.append((self._numbered(chunk), generation.id, _encode(chunk), None, None))
        if rows:
            self._db.executemany(_APPEND, rows)
        self.forget()

    def forget(self) -> None:
        """Clears what was collected: it has been written, or was rolled back."""
        self._changed = {}
        if self._attempts:
            self._attempts = []

    def _numbered(self, states: Sequence[MessageState]) -> int:
        row = self._next
        self._next += 1
        self._states += len(states)
        for state in states:
            state.log = row
        return row

    # Reading it again.

    def restore(self, generation: Generation) -> None:
        """Gives the messages of a generation the states that the log has for them. Deleted messages get none;
        groups are not changed."""
        newest: dict[int, tuple[Fields, int]] = {}
        for row, encoded, attempt, attempted in self._db.execute(_OF_GENERATION, (generation.id,)):
            entries = list(_decode(encoded))
            for fields in entries:
                newest[fields[0]] = fields, row
            if attempt is not None:
                messages = [(number, receives & _RECEIVES, due) for number, _, receives, _, _, due in entries]
                generation.attempts.pop(attempt, None)
                expires = attempted + limits.RECEIVE_ATTEMPT_WINDOW * 1000
                generation.attempts[attempt] = Attempt(expires, messages)
        for number in self._existing(generation, newest):
            fields, row = newest[number]
            _, place, receives, first, received, due = fields
            if not receives & _RECEIVES:  # its receive was undone
                continue
            state = MessageState(number, None, IN_FLIGHT if due else READY, due)
            state.receives, state.start = receives & _RECEIVES, receives >> _START_BITS
            state.place, state.first, state.received, state.log = place, first, received, row
            generation.states[number] = state

    def _existing(self, generation: Generation, numbers: Iterable[int]) -> Iterator[int]:
        rows = [generation.low | number for number in numbers]
        for start in range(0, len(rows), 500):
            chunk = rows[start : start + 500]
            for (row,) in self._db.execute(_EXISTING.format(",".join("?" * len(chunk))), chunk).fetchall():
                yield row - generation.low

    # Trimming.

    @property
    def is_long(self) -> bool:
        return self._states > self._limit

    def trim(self, generations: dict[int, Generation], now: int) -> bool:
        """Drops a few of the oldest rows; states that still count are appended again. True if there is more to do."""
        if not self.is_long:
            return False
        oldest = self._db.execute(_OLDEST, (_TRIMMED_ROWS,)).fetchall()
        dropped = kept = 0
        for row, number, encoded, attempt in oldest:
            dropped += len(encoded) // (8 * _FIELDS)
            generation = generations.get(number)
            if generation is None:
                continue
            states = [generation.states.get(fields[0]) for fields in _decode(encoded)]
            live = [state for state in states if state is not None and state.log == row]
            kept += len(live)
            if live:
                self.add(generation, live)
            if attempt is not None:
                self._keep_attempt(generation, attempt, now)
        if oldest:
            self._db.execute(_DROP, (oldest[-1][0],))
        self._states -= dropped
        # If most of it still counts, the log is not too long: it must grow before another try is worth it.
        self._limit = _LONG + (self._states if 2 * kept > dropped else 0)
        return self.is_long

    def _keep_attempt(self, generation: Generation, name: str, now: int) -> None:
        """Appends an attempt again, unless it has expired or is no longer valid."""
        attempt = generation.attempts.get(name)
        if attempt is None or attempt.expires <= now:
            return
        states = generation.states_of(attempt)
        if states is not None:
            self.add_attempt(generation, states, name, attempt.expires - limits.RECEIVE_ATTEMPT_WINDOW * 1000)


def _encode(states: Iterable[MessageState]) -> bytes:
    numbers: list[int] = []
    for state in states:
        receives = state.start << _START_BITS | state.receives
        numbers += (state.number, state.place, receives, state.first, state.received, state.due)
    return array("q", numbers).tobytes()


def encode_fields(fields: Fields) -> bytes:
    return array("q", fields).tobytes()


def _decode(encoded: bytes) -> Iterator[Fields]:
    numbers = array("q")
    numbers.frombytes(encoded)
    return zip(*[iter(numbers)] * _FIELDS, strict=True)
