"""Queues as the engine works with them, and the store that keeps memory and database in step.

Rules: a message is inserted into the table once and deleted once. A rollback discards the memory of the generations
that the transaction touched, and rebuilds it from the database, as the start does for all generations.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify
from random import Random
from typing import Final, NamedTuple

from semel.broker.engine.attributes import Arn, Redrive, defaults, parse_redrive
from semel.broker.engine.dedup import DedupWindow
from semel.broker.engine.generation import Generation, MessageState, rows_as_ranges
from semel.broker.engine.identity import Access
from semel.broker.engine.queue_policy import Policy
from semel.broker.engine.receipts import KEY_BYTES, Receipts
from semel.broker.engine.receive_log import ReceiveLog
from semel.broker.engine.rows import COLUMNS, DamagedRow, Row
from semel.broker.engine.schema import DELAYED, GENERATION_BITS, IN_FLIGHT, NUMBER_MASK, READY
from semel.sqs import limits

_NUMBERS_RESERVED: Final = 1 << 20  # at a time
_TYPICAL_ROW: Final = 300  # bytes
_ROWS_READ: Final = limits.MAX_RECEIVE  # at a time

_LOAD_QUEUES = """
SELECT id, region, account, name, generation, attributes, tags, group_dedup, created, modified, purged FROM queues
"""
# Written before queues had a region and an account of their own.
_ADOPT: Final = (
    "UPDATE queues SET region = ?, account = ? WHERE region = ''",
    "UPDATE deleted_queues SET region = ?, account = ? WHERE region = ''",
)
_COUNT_START = """
INSERT INTO meta VALUES ('starts', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value
"""
_LOAD_GENERATIONS = "SELECT id, numbers_end FROM generations WHERE live = 1"
_INSERT_GENERATION = "INSERT INTO generations (live, numbers_end) VALUES (1, ?)"
_RESERVE_NUMBERS = "UPDATE generations SET numbers_end = ? WHERE id = ?"
_GIVE_BACK_NUMBERS = "UPDATE generations SET numbers_end = ? WHERE id = ? AND numbers_end > ?"
_RETIRE_GENERATION = "UPDATE generations SET live = 0 WHERE id = ?"
# What has to be known about messages at the start: for most queues, only how many there are.
_COUNT = "SELECT count(*), count(grp) + count(due) + count(arrived) FROM messages WHERE id >= ? AND id < ?"
_SPECIAL = """
SELECT id, enqueued, grp, due, arrived FROM messages
WHERE id >= ? AND id < ? AND (grp IS NOT NULL OR due IS NOT NULL OR arrived IS NOT NULL) ORDER BY id
"""
_INSERT_PLAIN = "INSERT INTO messages (id, enqueued, wire) VALUES (?, ?, ?)"
_INSERT = "INSERT INTO messages (id, enqueued, wire, grp, extra, due, arrived) VALUES (?, ?, ?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM messages WHERE id BETWEEN ? AND ?"
_READ_TEN = f"SELECT {COLUMNS} FROM messages WHERE id IN ({', '.join('?' * _ROWS_READ)})"
_SAVE_QUEUE = """
INSERT INTO queues (id, region, account, name, generation, attributes, tags, group_dedup, created, modified, purged)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET generation = excluded.generation, attributes = excluded.attributes,
    tags = excluded.tags, modified = excluded.modified, purged = excluded.purged
"""


class Caller(NamedTuple):
    """Who calls, and when: all that the rules know about the outside world. `now` is in milliseconds.

    An empty region or account is the broker's own. `access` is None where signatures are not checked."""

    now: int
    origin: str = "http://localhost"
    sender: str = "000000000000"
    trace: str | None = None
    region: str = ""
    account: str = ""
    access: Access | None = None


@dataclass(eq=False, slots=True)
class Queue:
    """One queue, its attributes parsed. Times are in milliseconds.

    `key` is what this broker calls it: its name, or its ARN if it is not of the broker's own region and account."""

    id: int
    name: str
    arn: Arn
    generation: Generation
    attributes: dict[str, str]
    tags: dict[str, str]
    group_dedup: bool
    created: int
    modified: int
    purged: int
    fifo: bool = False
    visibility: int = 0
    delay: int = 0
    retention: int = 0
    wait: int = 0
    max_bytes: int = 0
    content_dedup: bool = False
    redrive: Redrive | None = None
    policy: Policy | None = None
    key: str = ""
    effective: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fifo = self.name.endswith(".fifo")
        self.key = self.key or self.name
        self.apply(self.attributes)

    def apply(self, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        self.effective = values = {**defaults(self.fifo), **attributes}
        self.visibility = int(values["VisibilityTimeout"]) * 1000
        self.delay = int(values["DelaySeconds"]) * 1000
        self.retention = int(values["MessageRetentionPeriod"]) * 1000
        self.wait = int(values["ReceiveMessageWaitTimeSeconds"])
        self.max_bytes = int(values["MaximumMessageSize"])
        self.content_dedup = values.get("ContentBasedDeduplication") == "true"
        self.redrive = parse_redrive(values["RedrivePolicy"]) if "RedrivePolicy" in values else None
        self.policy = Policy.parse(values["Policy"]) if "Policy" in values else None


class Store:
    """The database and what is known in memory. One transaction is open at a time, opened by `begin`."""

    def __init__(self, db: sqlite3.Connection, rng: Random, *, account: str, region: str) -> None:
        self.db = db
        self.rng = rng
        self.account, self.region = account, region
        self.queues: dict[str, Queue] = {}
        self.by_url: dict[tuple[str, str, str], Queue] = {}  # region and account of the caller, and the URL
        self._accounts: set[str] | None = None
        self.generations: dict[int, Generation] = {}
        self.dedup = DedupWindow(db)
        self.log = ReceiveLog(db)
        # Sends and deletes of this transaction, which are written together before anything reads the table.
        self._sent_plain: list[tuple[int, int, str]] = []
        self._sent: list[tuple[int, int, str, str | None, str | None, int | None, int | None]] = []
        self._deleted: list[int] = []
        self.touched: set[Generation] = set()
        self._changes = 0
        self.must_sync = False  # whether the transaction wrote anything but the receive log
        self.wal_pages = 0  # about how many pages were added to the log since it was last written into the database
        self.tally: dict[tuple[str, str], int] = {}
        self.totals: Counter[tuple[str, str]] = Counter()
        self._forgotten: set[str] = set()
        self.woken: set[str] = set()
        self._id_pool, self._ids_used = "", 0
        self.receipts = Receipts(self._receipt_key())
        self.start = self._count_start()
        for statement in _ADOPT:
            db.execute(statement, (region, account))
        self.log.read_bounds()
        self.dedup.load()
        self._restore(self._load_queues())

    def _receipt_key(self) -> bytes:
        # Made by SQLite and not by `rng`, from whose ids the key could be derived.
        self.db.execute("INSERT OR IGNORE INTO meta VALUES ('receipt-key', randomblob(?))", (KEY_BYTES,))
        (key,) = self.db.execute("SELECT value FROM meta WHERE key = 'receipt-key'").fetchone()
        return bytes(key)

    def _count_start(self) -> int:
        """The number of this start. It is on disk before anything is received. Receives are not, so after a power cut
        this number tells a new receive from one that was forgotten."""
        self.db.execute("PRAGMA synchronous = FULL")
        ((number,),) = self.db.execute(_COUNT_START).fetchall()
        self.db.execute("PRAGMA synchronous = NORMAL")
        return int(number)

    # Reading what is in the database.

    def _load_queues(self) -> list[Generation]:
        """Reads queues and generations. Generations that are already known stay as they are; new ones are returned."""
        known, new = self.generations, []
        ends = dict(self.db.execute(_LOAD_GENERATIONS).fetchall())
        self.queues, self.generations = {}, {}
        self.forget_addresses()
        for number, region, account, name, generation_id, attributes, tags, group_dedup, *times in self.db.execute(
            _LOAD_QUEUES
        ):
            created, modified, purged = times
            arn = Arn(region, account, name)
            generation = known.get(generation_id)
            if generation is None:
                generation = Generation(generation_id, ends[generation_id], fifo=name.endswith(".fifo"))
                new.append(generation)
            generation.numbers_end = ends[generation_id]
            self.generations[generation_id] = generation
            self.queues[self.key(arn)] = Queue(
                number,
                name,
                arn,
                generation,
                json.loads(attributes),
                json.loads(tags),
                bool(group_dedup),
                created,
                modified,
                purged,
                key=self.key(arn),
            )
        return new

    def _restore(self, generations: Iterable[Generation]) -> None:
        """Rebuilds the memory of these generations from the database."""
        delays = {queue.generation: queue.delay for queue in self.queues.values() if queue.fifo}
        for generation in generations:
            generation.clear()
            self.log.restore(generation)
            # Places at the back of the queue are not reserved on disk. Messages that are sent later come behind them.
            behind = [state.place + 1 for state in generation.states.values()]
            generation.next_number = max([generation.next_number, *behind])
            bounds = (generation.low, generation.high)
            total, special = self.db.execute(_COUNT, bounds).fetchone()
            delay = delays.get(generation, 0)
            for row, enqueued, name, due, arrived in self.db.execute(_SPECIAL, bounds) if special else ():
                if row & NUMBER_MASK >= generation.numbers_end:
                    raise DamagedRow(
                        f"the table messages has number {row & NUMBER_MASK}, but by the table generations the numbers "
                        f"of its queue end before {generation.numbers_end}"
                    )
                if arrived:
                    generation.backdated.append(enqueued << GENERATION_BITS | row & NUMBER_MASK)
                due = due or (enqueued + delay if delay else 0)
                _restore_message(generation, row & NUMBER_MASK, name, due)
            states = generation.states.values()
            generation.counts = [sum(state.state == kind for state in states) for kind in (READY, IN_FLIGHT, DELAYED)]
            generation.counts[READY] = total - generation.counts[IN_FLIGHT] - generation.counts[DELAYED]
            for state in list(states):
                if state.state != READY:
                    generation.hide(state)
                elif state.group is None:
                    generation.returned.append(state.key)
            heapify(generation.returned)
            heapify(generation.backdated)
            for group in generation.groups.values():
                group.items.sort()
                generation.offer(group)

    # Regions and accounts.

    def own(self, caller: Caller, name: str) -> Arn:
        """The ARN of this name in the caller's region and account."""
        return Arn(caller.region or self.region, caller.account or self.account, name)

    def key(self, arn: Arn) -> str:
        """The name of a queue in `queues`, and wherever else it must be unique."""
        return arn.name if arn.region == self.region and arn.account == self.account else str(arn)

    def by_arn(self, arn: Arn) -> Queue | None:
        return self.queues.get(self.key(arn))

    def knows_account(self, account: str) -> bool:
        """Whether the account is the broker's own, or has a queue."""
        if self._accounts is None:
            self._accounts = {self.account, *[queue.arn.account for queue in self.queues.values()]}
        return account in self._accounts

    def forget_addresses(self) -> None:
        """A queue was created or deleted: a URL may mean another one now."""
        self.by_url.clear()
        self._accounts = None

    # Transactions.

    def begin(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self._changes = self.db.total_changes

    def write_out(self) -> None:
        """Writes the rows of messages that were sent or deleted."""
        if self._sent_plain or self._sent or self._deleted:
            self.wal_pages += 4 + self._pages()
        if self._sent_plain:
            self.db.executemany(_INSERT_PLAIN, self._sent_plain)
            self._sent_plain = []
        if self._sent:
            self.db.executemany(_INSERT, self._sent)
            self._sent = []
        if self._deleted:
            self.db.executemany(_DELETE, rows_as_ranges(self._deleted))
            self._deleted = []

    def _pages(self) -> int:
        size = sum([len(row[2]) for row in self._sent_plain]) + sum([len(row[2]) + 100 for row in self._sent])
        return (size + _TYPICAL_ROW * len(self._deleted)) // 4096

    def flush(self) -> None:
        """Writes everything that is left to write; the transaction is then ready to commit."""
        self.write_out()
        self.dedup.write_out()
        self.must_sync = self.db.total_changes != self._changes
        self.log.flush()

    def committed(self) -> None:
        self.touched.clear()
        if self._forgotten:
            for key in [key for key in self.totals if key[0] in self._forgotten]:
                del self.totals[key]
            self._forgotten.clear()
        if self.tally:
            for key, amount in self.tally.items():
                self.totals[key] += amount
            self.tally.clear()

    def rollback(self) -> None:
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        self.tally.clear()
        self._forgotten.clear()
        self._sent_plain, self._sent, self._deleted = [], [], []
        self.log.forget()
        self.dedup.load()
        new = self._load_queues()
        # Generations that this transaction has not touched are right as they are.
        self._restore({*new, *self.touched} & set(self.generations.values()))
        self.touched.clear()

    def close(self) -> None:
        """Gives back the numbers that were reserved and not used."""
        with suppress(sqlite3.Error):
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            used = [
                (generation.next_number, generation.id, generation.next_number)
                for generation in self.generations.values()
            ]
            self.db.executemany(_GIVE_BACK_NUMBERS, used)
        self.db.close()

    # Messages.

    def next_row(self, generation: Generation) -> int:
        """The next free row id of a generation."""
        number = generation.next_number
        if number >= generation.numbers_end:
            generation.numbers_end = number + _NUMBERS_RESERVED
            self.db.execute(_RESERVE_NUMBERS, (generation.numbers_end, generation.id))
        generation.next_number = number + 1
        return generation.low | number

    def insert_plain(self, row: int, enqueued: int, wire: str) -> None:
        self._sent_plain.append((row, enqueued, wire))

    def insert(
        self,
        row: int,
        enqueued: int,
        wire: str,
        group: str | None,
        extra: str | None,
        due: int | None = None,
        arrived: int | None = None,
    ) -> None:
        self._sent.append((row, enqueued, wire, group, extra, due, arrived))

    def delete(self, rows: Iterable[int]) -> None:
        self._deleted.extend(rows)

    def rows_at(self, generation: Generation, numbers: Sequence[int]) -> dict[int, Row]:
        """The rows of these messages, by number."""
        low = generation.low
        rows: dict[int, Row] = {}
        for start in range(0, len(numbers), _ROWS_READ):
            ids = [low | number for number in numbers[start : start + _ROWS_READ]]
            ids += [-1] * (_ROWS_READ - len(ids))
            for row in self.db.execute(_READ_TEN, ids):
                rows[row[0] - low] = Row._make(row)
        return rows

    def known_rows_at(self, generation: Generation, numbers: Sequence[int]) -> list[Row]:
        """The rows of messages that are known to exist, in this order."""
        rows = self.rows_at(generation, numbers)
        try:
            return [rows[number] for number in numbers]
        except KeyError as missing:  # a scan of the table finds it, but its id does not
            raise DamagedRow(f"the table messages is damaged: number {missing} cannot be found by its id") from None

    # Small tables.

    def new_generation(self, next_number: int, *, fifo: bool) -> Generation:
        number = self.db.execute(_INSERT_GENERATION, (next_number,)).lastrowid
        assert number is not None
        generation = self.generations[number] = Generation(number, next_number, fifo=fifo)
        return generation

    def retire_generation(self, generation: Generation) -> None:
        self.db.execute(_RETIRE_GENERATION, (generation.id,))
        del self.generations[generation.id]
        self.log.drop(generation)

    def save_queue(self, queue: Queue) -> None:
        attributes, tags = json.dumps(queue.attributes), json.dumps(queue.tags)
        where = (queue.arn.region, queue.arn.account, queue.name, queue.generation.id)
        times = (queue.created, queue.modified, queue.purged)
        self.db.execute(_SAVE_QUEUE, (queue.id, *where, attributes, tags, int(queue.group_dedup), *times))
        self.queues[queue.key] = queue
        self.forget_addresses()

    def new_id(self) -> str:
        """A random UUID, version 4, from the engine's own random source."""
        at = self._ids_used
        if at == len(self._id_pool):
            at, self._id_pool = 0, self.rng.randbytes(16 * 256).hex()
        self._ids_used = at + 32
        text = self._id_pool[at : at + 32]
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"

    def count(self, queue: Queue, name: str, amount: int = 1) -> None:
        key = (queue.key, name)
        self.tally[key] = self.tally.get(key, 0) + amount

    def forget_counts(self, queue: str) -> None:
        """A queue is gone; another of the same key starts at 0."""
        self._forgotten.add(queue)
        self.tally = {key: amount for key, amount in self.tally.items() if key[0] != queue}


def sequence_number(number: int) -> str:
    """20 digits, growing with the message's number within its queue, never consecutive."""
    return str(18_850_000_000_000_000_000 + number * 256)


def _restore_message(generation: Generation, number: int, group_name: str | None, due: int) -> None:
    """`due` ends the message's delay."""
    group = generation.group(group_name) if group_name is not None else None
    state = generation.states.get(number)
    if state is None and due:
        state = generation.states[number] = MessageState(number, group, DELAYED, due)
    if state is not None:
        state.group = group
    if group is None:
        return
    if state is None:
        group.items.append(number << GENERATION_BITS | number)
    elif state.state == READY:
        group.items.append(state.key)
    elif state.state == DELAYED:
        group.delayed += 1
    else:
        generation.add_in_flight(group, number)
