"""Queues and lanes as the engine works with them, and the store that keeps them in step with the database.

Rules: what is in memory is a copy of committed or about-to-be-committed rows; a rollback throws all of it away and
reads it again; lane counters are written back once per transaction, however many messages moved.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from semel.broker.engine.attributes import Arn, Redrive, defaults, parse_redrive
from semel.broker.engine.dedup import DedupWindow
from semel.broker.engine.identity import Access
from semel.broker.engine.policy import Policy
from semel.broker.engine.receipts import KEY_BYTES, Receipts
from semel.broker.engine.schema import LANE_BITS

Row = tuple[Any, ...]

NEVER: Final = 1 << 62
_GROUPS_KEPT: Final = 20_000

_LOAD_QUEUES = (
    "SELECT id, region, account, name, lane, attributes, tags, group_dedup, created, modified, purged FROM queues"
)
# Written before queues had a region and an account of their own.
_ADOPT: Final = (
    "UPDATE queues SET region = ?, account = ? WHERE region = ''",
    "UPDATE deleted_queues SET region = ?, account = ? WHERE region = ''",
)
_LOAD_LANES = "SELECT id, next_n, ready, in_flight, delayed, busy_groups FROM lanes WHERE live = 1"
_INSERT_LANE = "INSERT INTO lanes (live, next_n, ready, in_flight, delayed, busy_groups) VALUES (1, ?, 0, 0, 0, 0)"
_SAVE_LANE = "UPDATE lanes SET next_n = ?, ready = ?, in_flight = ?, delayed = ?, busy_groups = ? WHERE id = ?"
_RETIRE_LANE = "UPDATE lanes SET live = 0 WHERE id = ?"
_INSERT_SENT = """
INSERT INTO messages (id, lane, state, due, pos, grp, receives, prior, first, received, enqueued, sent, late,
    message_id, body, md5, sender, extra)
VALUES (?1, ?2, ?3, ?4, ?1, ?5, 0, 0, 0, 0, ?6, ?6, 0, ?7, ?8, ?9, ?10, ?11)
"""
_SAVE_QUEUE = """
INSERT INTO queues (id, region, account, name, lane, attributes, tags, group_dedup, created, modified, purged)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET lane = excluded.lane, attributes = excluded.attributes, tags = excluded.tags,
    modified = excluded.modified, purged = excluded.purged
"""


class Caller(NamedTuple):
    """Who calls, and when: all that the rules may know of the world. `now` is in milliseconds.

    An empty region or account is the broker's own. `access` is None where signatures are not checked."""

    now: int
    origin: str = "http://localhost"
    sender: str = "anonymous"
    trace: str | None = None
    region: str = ""
    account: str = ""
    access: Access | None = None


class Lane:
    """Counters of one lane. `due_floor` and `expiry_floor` are times before which nothing falls due or expires."""

    __slots__ = (
        *("id", "low", "high", "next_n", "counts", "busy_groups"),
        *("due_floor", "expiry_floor", "horizon", "busy", "busy_at"),
    )

    def __init__(self, number: int, next_n: int, ready: int, in_flight: int, delayed: int, busy_groups: int) -> None:
        self.id = number
        self.low, self.high = number << LANE_BITS, (number + 1) << LANE_BITS
        self.next_n = next_n
        self.counts = [ready, in_flight, delayed]
        self.busy_groups = busy_groups
        self.due_floor = self.expiry_floor = 0
        self.horizon: int | None = None  # see horizon.py
        # Recent working time, fading. A hint, not state: it starts at nothing when the broker starts.
        self.busy, self.busy_at = 0.0, 0

    def __contains__(self, row: int) -> bool:
        return self.low <= row < self.high


@dataclass(eq=False, slots=True)
class Group:
    """A copy of a group's row, kept for the groups that are sent to."""

    id: int
    lane: int
    name: str
    head: int | None
    in_flight: int
    sent: int


@dataclass(eq=False, slots=True)
class Queue:
    """One queue, its attributes parsed. Times are in milliseconds.

    `key` is what this broker calls it: its name, or its ARN if it is not of the broker's own region and account."""

    id: int
    name: str
    arn: Arn
    lane: Lane
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
    """The database and the copies of its small tables. One transaction is open at a time, opened by `begin`."""

    def __init__(self, db: sqlite3.Connection, rng: Random, *, account: str, region: str) -> None:
        self.db = db
        self.rng = rng
        self.account, self.region = account, region
        self.queues: dict[str, Queue] = {}
        self.dedup = DedupWindow(db)
        # Messages that were sent in this transaction, written together before anybody looks at the table:
        # (row, lane, state, due, group, time, message id, body, md5, sender, extra).
        self.unwritten: list[Row] = []
        self.groups: dict[tuple[int, str], Group] = {}
        self.by_url: dict[tuple[str, str, str], Queue] = {}  # region and account of the caller, and the URL
        self._accounts: set[str] | None = None
        self.tally: dict[tuple[str, str], int] = {}
        self.totals: Counter[tuple[str, str]] = Counter()
        self._forgotten: set[str] = set()
        self.woken: set[str] = set()
        self._id_pool, self._ids_used = "", 0
        self.touched: set[Lane] = set()
        self._lanes: dict[int, Lane] = {}
        self.receipts = Receipts(self._receipt_key())
        for statement in _ADOPT:
            db.execute(statement, (region, account))
        self.load()

    def _receipt_key(self) -> bytes:
        # Made by the database, and not from `rng`: the ids that this makes would give it away.
        self.db.execute("INSERT OR IGNORE INTO meta VALUES ('receipt-key', randomblob(?))", (KEY_BYTES,))
        (key,) = self.db.execute("SELECT value FROM meta WHERE key = 'receipt-key'").fetchone()
        return bytes(key)

    def load(self) -> None:
        self._lanes = {row[0]: Lane(*row) for row in self.db.execute(_LOAD_LANES)}
        self.queues = {}
        self.dedup.load()
        self.groups.clear()
        self.forget_addresses()
        for number, region, account, name, lane, attributes, tags, group_dedup, *times in self.db.execute(_LOAD_QUEUES):
            arn = Arn(region, account, name)
            created, modified, purged = times
            self.queues[self.key(arn)] = Queue(
                number,
                name,
                arn,
                self._lanes[lane],
                json.loads(attributes),
                json.loads(tags),
                bool(group_dedup),
                created,
                modified,
                purged,
                key=self.key(arn),
            )

    # Regions and accounts.

    def own(self, caller: Caller, name: str) -> Arn:
        """The ARN of this name in the caller's region and account."""
        return Arn(caller.region or self.region, caller.account or self.account, name)

    def key(self, arn: Arn) -> str:
        """What a queue is called in `queues`, and wherever else queues are told apart."""
        return arn.name if arn.region == self.region and arn.account == self.account else str(arn)

    def by_arn(self, arn: Arn) -> Queue | None:
        return self.queues.get(self.key(arn))

    def knows_account(self, account: str) -> bool:
        """Whether it is the broker's own, or has a queue."""
        if self._accounts is None:
            self._accounts = {self.account, *[queue.arn.account for queue in self.queues.values()]}
        return account in self._accounts

    def forget_addresses(self) -> None:
        """A queue came or went: a URL may mean another one now."""
        self.by_url.clear()
        self._accounts = None

    # Transactions.

    def begin(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def write_out(self) -> None:
        """Writes the rows of messages that were sent."""
        if self.unwritten:
            self.db.executemany(_INSERT_SENT, self.unwritten)
            self.unwritten = []

    def flush(self) -> None:
        """Writes everything that is left to write; the transaction is then ready to commit."""
        self.write_out()
        for lane in self.touched:
            self.db.execute(_SAVE_LANE, (lane.next_n, *lane.counts, lane.busy_groups, lane.id))
        self.touched.clear()

    def committed(self) -> None:
        if self._forgotten:
            for key in [key for key in self.totals if key[0] in self._forgotten]:
                del self.totals[key]
            self._forgotten.clear()
        if self.tally:
            self.totals.update(self.tally)
            self.tally.clear()

    def rollback(self) -> None:
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        self.tally.clear()
        self._forgotten.clear()
        self.touched.clear()
        self.unwritten = []
        self.load()

    # Small tables.

    def new_lane(self, next_n: int) -> Lane:
        number = self.db.execute(_INSERT_LANE, (next_n,)).lastrowid
        assert number is not None
        lane = self._lanes[number] = Lane(number, next_n, 0, 0, 0, 0)
        return lane

    def retire_lane(self, lane: Lane) -> None:
        self.db.execute(_RETIRE_LANE, (lane.id,))
        del self._lanes[lane.id]
        self.touched.discard(lane)

    def save_queue(self, queue: Queue) -> None:
        attributes, tags = json.dumps(queue.attributes), json.dumps(queue.tags)
        where = (queue.arn.region, queue.arn.account, queue.name, queue.lane.id)
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

    def remember_group(self, group: Group) -> None:
        if len(self.groups) >= _GROUPS_KEPT:
            self.groups.clear()
        self.groups[group.lane, group.name] = group

    def next_row(self, lane: Lane) -> int:
        """The next free row id of a lane, which is also its last place."""
        row = lane.low | lane.next_n
        lane.next_n += 1
        self.touched.add(lane)
        return row

    def shift(self, lane: Lane, state: int, amount: int) -> None:
        """`amount` more messages are in `state`."""
        lane.counts[state] += amount
        self.touched.add(lane)


def sequence_number(row: int) -> str:
    """20 digits, growing with the row's number within its queue, never consecutive."""
    return str(18_850_000_000_000_000_000 + (row & ((1 << LANE_BITS) - 1)) * 256)
