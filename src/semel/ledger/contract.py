"""What a ledger promises, whichever store it is kept in.

The rules that every store keeps, and that one conformance suite checks:
1. A claim is one atomic operation. Of all that ask for a key, one wins; it alone gets the newest fence.
2. A key's fence only grows, also across release, forget and expiry.
3. Every write after the claim shows its fence and is refused, as a plain False, if a newer one was handed out.
4. What is recorded stays recorded until it expires or is forgotten: no claim, extension or release undoes it.
5. Each call may be repeated if its answer was lost: a claim with the same claimant wins what it had won, a record
   that is already there counts as made.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar, dataclass_transform

from semel.errors import SemelError, Unavailable

Value = TypeVar("Value")

DAY: Final = 86_400.0
# SQS cannot redeliver past the retention of the source plus that of the dead-letter queue: 14 days each at most.
RETENTION: Final = 28 * DAY
MAX_KEY: Final = 1_024  # bytes of UTF-8
MAX_RESULT: Final = 256 * 1024  # bytes of a stored result, and of all the notes of one key together


class LedgerError(SemelError):
    """The ledger cannot do what it was asked for. Follow the text: it names the way out."""


class LedgerUnavailable(LedgerError, Unavailable):
    """The store did not answer. Nothing is known to have changed. Do no work for the key, and try again later."""


class OutcomeUnknown(LedgerUnavailable):
    """The connection broke while a transaction was being committed. Look the key up before you do anything else."""


class Fenced(LedgerError):
    """A newer claim on the key exists: what this holder did must not count. Stop, and leave the key to the newer
    claim."""


@dataclass_transform(frozen_default=True)
def value(kind: type[Value]) -> type[Value]:
    """A value of which every message makes several. The type checker refuses to change it; at run time nothing does,
    as that would make it four times as expensive to create."""
    return dataclass(slots=True, unsafe_hash=True)(kind)


class Status(enum.StrEnum):
    """The state of a key in the ledger.

    >>> from semel.ledger import Status
    >>> [str(status) for status in Status]
    ['free', 'claimed', 'done', 'rejected']
    """

    FREE = "free"  # released or forgotten; the row stays for its fence
    CLAIMED = "claimed"
    DONE = "done"
    REJECTED = "rejected"  # given up on, and put aside as a dead letter


RECORDED: Final = frozenset({Status.DONE, Status.REJECTED})


@value
class ClaimRequest:
    """One key that somebody wants to work on.

    `payload` is a digest of what came with the key: the same key with another digest is a conflict; "" fits anything.
    `source` says where it came from, for example "orders/<message id>". A rejected key can be won again only from
    another source than the rejected one: so a dead letter that is sent back runs, and a late twin of it does not.

    >>> from semel import SqliteLedger
    >>> from semel.ledger import ClaimRequest
    >>> with SqliteLedger(":memory:") as ledger:
    ...     [won] = ledger.claim([ClaimRequest("order-7", payload="sha256:1f")], claimant="a", lease=30)
    >>> won.claim.key
    'order-7'
    """

    key: str
    payload: str = ""
    source: str = ""


@value
class Claim:
    """The right to work on a key; every later write shows `fence`.

    >>> from semel import SqliteLedger
    >>> from semel.ledger import ClaimRequest
    >>> with SqliteLedger(":memory:") as ledger:
    ...     [won] = ledger.claim([ClaimRequest("order-7")], claimant="a", lease=30)
    ...     ledger.release([won.claim])
    [True]
    >>> won.claim
    Claim(key='order-7', fence=1)
    """

    key: str
    fence: int


@value
class Won:
    """The claim is ours for `lease` seconds from the moment the call was made.

    `attempt` counts the claims since the key was new, forgotten, or brought back after a rejection: 1 is the first.
    `taken_over`: an earlier holder let its lease run out. `notes`: what earlier attempts noted (finished steps).

    >>> from semel import SqliteLedger
    >>> from semel.ledger import ClaimRequest
    >>> with SqliteLedger(":memory:") as ledger:
    ...     [won] = ledger.claim([ClaimRequest("order-7")], claimant="a", lease=30)
    >>> won.attempt, won.lease, won.taken_over
    (1, 30, False)
    """

    claim: Claim
    lease: float
    attempt: int = 1
    taken_over: bool = False
    notes: Mapping[str, bytes] = field(default_factory=dict)


@value
class Done:
    """Somebody has recorded the key: `status` is DONE or REJECTED, `result` what was stored with it.

    >>> from semel import SqliteLedger
    >>> from semel.ledger import ClaimRequest, Completion
    >>> with SqliteLedger(":memory:") as ledger:
    ...     [won] = ledger.claim([ClaimRequest("order-7")], claimant="a", lease=30)
    ...     recorded = ledger.record([Completion(won.claim, result=b"shipped")])
    ...     [done] = ledger.claim([ClaimRequest("order-7")], claimant="b", lease=30)
    >>> done.result
    b'shipped'
    """

    key: str
    status: Status
    result: bytes = b""


@value
class Held:
    """Another holder has the key for `remaining` more seconds, or for longer if it extends its lease.

    >>> from semel import SqliteLedger
    >>> from semel.ledger import ClaimRequest
    >>> with SqliteLedger(":memory:") as ledger:
    ...     for claimant in ("a", "b"):
    ...         [result] = ledger.claim([ClaimRequest("order-7")], claimant=claimant, lease=30)
    >>> type(result).__name__, 29 < result.remaining <= 30
    ('Held', True)
    """

    key: str
    remaining: float


@value
class Conflict:
    """The key is known with another payload: two different things bear one name. `recorded`: the other one is done.

    >>> from semel import SqliteLedger
    >>> from semel.ledger import ClaimRequest
    >>> with SqliteLedger(":memory:") as ledger:
    ...     for payload in ("one", "another"):
    ...         [result] = ledger.claim([ClaimRequest("order-7", payload)], claimant=payload, lease=30)
    >>> result
    Conflict(key='order-7', recorded=False)
    """

    key: str
    recorded: bool = False


ClaimResult = Won | Done | Held | Conflict


@value
class Completion:
    """What became of a claim. `retention`: seconds to remember it for; None is the ledger's own `retention`.

    >>> from semel import SqliteLedger
    >>> from semel.ledger import ClaimRequest, Completion, Status
    >>> with SqliteLedger(":memory:") as ledger:
    ...     [won] = ledger.claim([ClaimRequest("order-7")], claimant="a", lease=30)
    ...     ledger.record([Completion(won.claim, Status.REJECTED, result=b"no such customer")])
    [True]
    """

    claim: Claim
    status: Status = Status.DONE  # or REJECTED
    result: bytes = b""
    retention: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as the ledger has it. Times are seconds since 1970 by the store's clock.

    >>> from semel import SqliteLedger
    >>> from semel.ledger import ClaimRequest
    >>> with SqliteLedger(":memory:") as ledger:
    ...     claimed = ledger.claim([ClaimRequest("order-7")], claimant="a", lease=30)
    ...     [entry, absent] = ledger.get(["order-7", "order-8"])
    >>> str(entry.status), entry.fence, entry.attempt, absent
    ('claimed', 1, 1, None)
    """

    key: str
    status: Status
    fence: int
    attempt: int
    claimant: str
    lease_ends: float
    payload: str
    source: str
    result: bytes
    notes: Mapping[str, bytes]
    first_seen: float
    changed: float
    expires: float


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that a transaction has sent: it waits in the outbox until it was handed to SQS.

    >>> from semel import SqliteLedger
    >>> with SqliteLedger(":memory:") as ledger:
    ...     with ledger.transaction() as tx:
    ...         tx.send("receipts", {"order": 7})
    ...     [outgoing] = ledger.take_outgoing()
    >>> outgoing.queue, outgoing.body
    ('receipts', '{"order":7}')
    """

    queue: str
    body: str
    key: str = ""  # travels with it, so that the receiving side can tell a second sending from a second message
    delay: int | None = None
    group: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    id: str = ""  # given by the outbox
    attempts: int = 0  # how often SQS has refused it, and what it said the last time
    error: str = ""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """What is in the outbox: all that waits, how many of those SQS has refused, and some of these, the oldest first.

    >>> from semel import SqliteLedger
    >>> with SqliteLedger(":memory:") as ledger:
    ...     with ledger.transaction() as tx:
    ...         tx.send("receipts", {"order": 7})
    ...     ledger.outbox_status()
    OutboxStatus(waiting=1, refused=0, examples=())
    """

    waiting: int = 0
    refused: int = 0
    examples: tuple[Outgoing, ...] = ()


class Transaction(ABC):
    """The user's writes and the ledger's record in one commit. Not thread-safe: one handler, one transaction.

    >>> from semel import App, Transaction
    >>> app = App(ledger="sqlite:///shop.db")
    >>> @app.handler("payments", key="$.id")
    ... def book(payment: dict, tx: Transaction) -> None:
    ...     tx.execute("INSERT INTO payments VALUES (?, ?)", (payment["id"], payment["amount"]))
    ...     tx.send("receipts", {"payment": payment["id"]})
    """

    @property
    @abstractmethod
    def connection(self) -> Any:
        """The driver's own connection (psycopg, sqlite3), inside this transaction. Do not commit it."""

    @abstractmethod
    def execute(self, query: Any, parameters: Any = (), /) -> Any:
        """Run one statement, in the driver's own placeholder style; returns its cursor."""

    @abstractmethod
    def executemany(self, query: Any, parameters: Any, /) -> Any:
        """Run one statement for each set of parameters."""

    @abstractmethod
    def send(
        self,
        queue: str,
        body: Any,
        *,
        key: str = "",
        delay: int | None = None,
        group: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Send a message if and only if this transaction commits. A body that is no string is sent as JSON.

        Raises LedgerError for what SQS would refuse: a message that is too large, more than nine attributes, a delay
        above 900 seconds. Messages of one group are handed to SQS in their order."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """A part that can fail alone: an exception undoes what was written inside, and goes on to the caller."""

    @abstractmethod
    def record(self, completions: Sequence[Completion]) -> list[bool]:
        """As `Ledger.record`, inside this transaction. The caller raises if one is refused, so that all is undone."""


# Seconds since 1970; None: the store's own clock decides.
Clock = Callable[[], float | None]


def own_clock() -> None:
    return None


class Ledger(ABC):
    """Who has done what. Thread-safe. Calls are batch first: one round trip for many keys; answers in their order.

    Every call raises LedgerUnavailable when the store cannot be reached. `clock` is for tests: the time to go by in
    the place of the store's own. It can be set at any time.

    >>> from semel import Ledger
    >>> from semel.ledger import ClaimRequest, Completion
    >>> with Ledger.connect("sqlite:///ledger.db") as ledger:
    ...     [won] = ledger.claim([ClaimRequest("order-7")], claimant="call-1", lease=30)
    ...     ledger.record([Completion(won.claim)])
    ...     ledger.claim([ClaimRequest("order-7")], claimant="call-2", lease=30)
    [True]
    [Done(key='order-7', status=<Status.DONE: 'done'>, result=b'')]
    """

    transactional: bool = False  # whether `transaction` works
    retention: float = RETENTION
    clock: Clock = staticmethod(own_clock)

    @staticmethod
    def connect(url: str, **options: Any) -> Ledger:
        """A ledger by its address: sqlite:///path, postgresql://…, redis://…, dynamodb://table?region=…"""
        from semel.ledger.connect import connect

        return connect(url, **options)

    @abstractmethod
    def claim(self, requests: Sequence[ClaimRequest], *, claimant: str, lease: float) -> list[ClaimResult]:
        """Ask for keys. `claimant` names this very call (new for each, the same when a call is repeated).

        A key that comes twice in one call is decided once; its second place is Held (or Done, or Conflict).
        """

    @abstractmethod
    def extend(self, claims: Sequence[Claim], lease: float, *, timeout: float | None = None) -> list[bool]:
        """Hold on for `lease` seconds from now. False: the claim is no longer ours. A lease that has run out can
        still be extended as long as nobody else has claimed the key. `timeout`: raise LedgerUnavailable after so many
        seconds, if that is sooner than the ledger would; the call may still have its effect."""

    @abstractmethod
    def save_step(self, claim: Claim, name: str, value: bytes) -> bool:
        """Keep a named value with the key until it is recorded; the next attempt gets it with its claim."""

    @abstractmethod
    def record(self, completions: Sequence[Completion]) -> list[bool]:
        """Write down what became of claims, durably. True also if just this was recorded before (same fence)."""

    @abstractmethod
    def release(self, claims: Sequence[Claim], *, tried: bool = True) -> list[bool]:
        """Give claims back, so that the next one need not wait. `tried=False`: the attempt does not count."""

    @abstractmethod
    def forget(self, keys: Sequence[str]) -> int:
        """Make keys as good as new, whatever their state (their fence goes on growing). Returns how many were known."""

    @abstractmethod
    def purge(self, limit: int = 1_000) -> int:
        """Remove up to `limit` entries that have expired; returns how many. 0: nothing is left to remove."""

    @abstractmethod
    def get(self, keys: Sequence[str]) -> list[Entry | None]:
        """The entries of these keys, in their order; None for a key that the ledger does not have."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections to the store."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Commits when the block ends, undoes everything if it raises."""
        raise LedgerError(
            f"{type(self).__name__} has no transactions that the handler's own writes could be part of; "
            "use a PostgreSQL or SQLite ledger, or leave `tx` out of the handler"
        )

    def take_outgoing(self, limit: int = 10, *, lease: float = 30.0) -> list[Outgoing]:  # noqa: ARG002
        """Messages of committed transactions that are to be handed to SQS now; hidden from others for `lease`."""
        return []

    def sent_outgoing(self, ids: Sequence[str]) -> None:  # noqa: B027
        """These were handed to SQS: drop them from the outbox."""

    def refused_outgoing(self, ids: Sequence[str], *, error: str, wait: float) -> None:  # noqa: B027
        """SQS did not take these, for this reason: keep them, and hand them out again after `wait` seconds. Those of
        their groups that come after them wait too."""

    def outbox_status(self, examples: int = 3) -> OutboxStatus:  # noqa: ARG002
        """What is in the outbox, with up to `examples` refused messages."""
        return OutboxStatus()

    def count_outgoing(self) -> int:
        """How many messages are in the outbox, also those that somebody has taken and not yet sent."""
        return 0

    def __enter__(self) -> Self:
        """Returns the ledger; the end of the block closes it."""
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def check_requests(requests: Sequence[ClaimRequest], claimant: str, lease: float) -> None:
    """Refuse what no store could keep, before any of them sees it."""
    check_lease(lease)
    if not claimant:
        raise LedgerError("a claim needs a claimant: a name that is new for each call, for example a uuid")
    for request in requests:
        key = request.key
        if not (0 < len(key) <= MAX_KEY and key.isascii()):
            _check_key(key)


def _check_key(key: str) -> None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise LedgerError(f"the key {key[:60]!r} is not text: half of a surrogate pair is in it") from None
    if not 0 < size <= MAX_KEY:
        raise LedgerError(
            f"the key {key[:60]!r} has {size} bytes: a key has 1 to {MAX_KEY}; use a digest of it instead"
        )


def check_lease(lease: float) -> None:
    if not 0 < lease <= 12 * 3_600:
        raise LedgerError(f"a lease of {lease} seconds is not possible: it must be above 0 and at most 12 hours")


def check_completions(completions: Sequence[Completion]) -> None:
    for completion in completions:
        if completion.status not in RECORDED:
            raise LedgerError(
                f"the key {completion.claim.key!r} cannot be recorded as {completion.status}: a claim ends as DONE or "
                "REJECTED; to give it back, release it"
            )
        if len(completion.result) > MAX_RESULT:
            check_result(completion.result, f"the result of the key {completion.claim.key!r}")


def check_retention(retention: float) -> None:
    if retention <= 0:
        raise LedgerError(f"a ledger cannot keep entries for {retention} seconds: it must be above 0")


def check_result(value: bytes, what: str) -> None:
    if len(value) > MAX_RESULT:
        raise LedgerError(
            f"{what} has {len(value)} bytes, the ledger keeps at most {MAX_RESULT}: "
            "store it elsewhere and keep its address"
        )
