"""The contract of every ledger, whichever store it uses.

Every store keeps these rules, and one conformance suite checks them:
1. A claim is one atomic operation. Of several concurrent claims of a free key, exactly one wins: it alone gets the
   newest fence.
2. The fence of a key never decreases, not even across release, forget and expiry.
3. Every write after the claim carries the claim's fence. If the key has a newer fence, the write returns False.
4. A recorded key stays recorded until it expires or is forgotten: no claim, extension or release undoes it. The one
   exception: a rejected key can be claimed again from another source.
5. Every call may be repeated if its answer was lost: a claim by the same claimant wins again what it has won already,
   and a record that is already there counts as made.
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
MAX_RESULT: Final = 256 * 1024  # bytes of a stored result, and of all steps of one key together


class LedgerError(SemelError):
    """A call to the ledger failed. Do what the text says."""


class LedgerUnavailable(LedgerError, Unavailable):
    """The store did not answer. Nothing is known to have changed. Do no work for the key, and try again later."""


class OutcomeUnknown(LedgerUnavailable):
    """The connection broke while a transaction was being committed. Look the key up before you do anything else."""


class Fenced(LedgerError):
    """A newer claim on the key exists, so the work of this holder must not count. Stop, and leave the key to the newer
    claim."""


@dataclass_transform(frozen_default=True)
def value(kind: type[Value]) -> type[Value]:
    """A dataclass for values of which every message creates several. Only the type checker treats them as frozen:
    checks at run time would make them four times as expensive to create."""
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
    REJECTED = "rejected"  # given up on; a consumer has dead-lettered the message


RECORDED: Final = frozenset({Status.DONE, Status.REJECTED})


@value
class ClaimRequest:
    """A request to claim one key.

    `payload` is a digest of the data that came with the key. The same key with a different digest is a conflict; ""
    matches every digest. `source` says where the request comes from, for example "orders/<message id>". A rejected key
    can be claimed again only from a different source. So a redriven dead-letter message runs, and a late duplicate of
    the rejected message does not.

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
    """The right to work on a key. Every later write for the key carries its `fence`.

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
    """The claim was won. It is valid for `lease` seconds from the moment the call was made.

    `attempt`: the number of this claim, from 1. It starts again when a key is forgotten, or claimed again after a
    rejection. `taken_over`: whether an earlier holder let its lease run out. `steps`: what earlier attempts have stored
    with `save_step`.

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
    steps: Mapping[str, bytes] = field(default_factory=dict)


@value
class Done:
    """The key is already recorded. `status` is DONE or REJECTED, `result` is what was stored with it.

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
    """Another holder has the claim on the key for `remaining` more seconds, or longer if it extends its lease.

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
    """The key is known with another payload: it stands for something else. `recorded`: whether that is already done.

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
    """The outcome of a claim. `retention`: how many seconds to keep it; None: the ledger's own `retention`.

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
    """The ledger's entry for one key. Times are seconds since 1970 by the store's clock.

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
    steps: Mapping[str, bytes]
    first_seen: float
    changed: float
    expires: float


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that a transaction has sent. It stays in the outbox until SQS has accepted it.

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
    key: str = ""  # sent with the message, so that its receiver can tell a repeated send from another message
    delay: int | None = None
    group: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    id: str = ""  # assigned by the outbox
    attempts: int = 0  # how often SQS has refused it; `error` is its latest reason
    error: str = ""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """The state of the outbox: how many messages wait, how many of them SQS has refused, and the oldest refused ones.

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
    """The handler's writes and the ledger's record in one commit. Not thread-safe: one handler, one transaction.

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
        """Run one statement, written with the driver's placeholder style. Returns the cursor."""

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
        """Send a message if and only if this transaction commits. A body that is not a string is sent as JSON.

        Raises LedgerError for a message that SQS would refuse: it is too large, has more than nine attributes, or a
        delay above 900 seconds. Messages of one group are sent to SQS in order."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """A block that can fail on its own: an exception undoes only the writes of the block, and is raised again."""

    @abstractmethod
    def record(self, completions: Sequence[Completion]) -> list[bool]:
        """Like `Ledger.record`, but inside this transaction. If a completion is refused, the caller must raise an
        exception, so that the transaction is rolled back."""


# Returns seconds since 1970, or None for the store's own clock.
Clock = Callable[[], float | None]


def own_clock() -> None:
    return None


class Ledger(ABC):
    """The record of which keys are claimed and which are done. Thread-safe.

    Calls take many keys at once, and return results in the order of the keys. Every call raises LedgerUnavailable if
    the store cannot be reached. `clock` is for tests: it replaces the store's own clock, and can be set at any time.

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
        """Open the ledger at an address: sqlite:///path, postgresql://…, redis://…, dynamodb://table?region=…"""
        from semel.ledger.connect import connect

        return connect(url, **options)

    @abstractmethod
    def claim(self, requests: Sequence[ClaimRequest], *, claimant: str, lease: float) -> list[ClaimResult]:
        """Claim keys. `claimant` names this call: a new name for each call, the same name if the call is repeated.

        A key that occurs twice in one call is won at most once; the other result is Held, Done or Conflict.
        """

    @abstractmethod
    def extend(self, claims: Sequence[Claim], lease: float, *, timeout: float | None = None) -> list[bool]:
        """Extend claims to `lease` seconds from now. False: the claim is no longer ours. A lease that has run out can
        still be extended as long as nobody else has claimed the key. `timeout`: raise LedgerUnavailable after this many
        seconds, if the ledger's own timeout is longer; the extension may take effect all the same."""

    @abstractmethod
    def save_step(self, claim: Claim, name: str, value: bytes) -> bool:
        """Store a named value with the key until it is recorded; the next attempt gets it with its claim. False: the
        claim is no longer ours."""

    @abstractmethod
    def record(self, completions: Sequence[Completion]) -> list[bool]:
        """Record the outcomes of claims, durably. True also if the same outcome is already recorded (same fence)."""

    @abstractmethod
    def release(self, claims: Sequence[Claim], *, tried: bool = True) -> list[bool]:
        """Give claims back, so that the next claim need not wait. `tried=False`: the attempt does not count."""

    @abstractmethod
    def forget(self, keys: Sequence[str]) -> int:
        """Reset keys to new, whatever their state; their fences go on growing. Returns how many were known."""

    @abstractmethod
    def purge(self, limit: int = 1_000) -> int:
        """Remove up to `limit` entries that have expired. Returns how many were removed; 0: nothing was left."""

    @abstractmethod
    def get(self, keys: Sequence[str]) -> list[Entry | None]:
        """The entries of these keys, in the same order; None for a key that the ledger does not have."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections to the store."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction for a `with` block: commits when the block ends, rolls back if the block raises."""
        raise LedgerError(
            f"{type(self).__name__} has no transactions that the handler's own writes could be part of; "
            "use a SQLite, PostgreSQL or DynamoDB ledger, or leave `tx` out of the handler"
        )

    def take_outgoing(self, limit: int = 10, *, lease: float = 30.0) -> list[Outgoing]:  # noqa: ARG002
        """Messages of committed transactions that must now be sent to SQS. Other callers do not get them for `lease`
        seconds."""
        return []

    def sent_outgoing(self, ids: Sequence[str]) -> None:  # noqa: B027
        """Remove these messages from the outbox: SQS has accepted them."""

    def refused_outgoing(self, ids: Sequence[str], *, error: str, wait: float) -> None:  # noqa: B027
        """Keep these messages, which SQS refused with this error, and hand them out again after `wait` seconds. Later
        messages of their groups wait too."""

    def outbox_status(self, examples: int = 3) -> OutboxStatus:  # noqa: ARG002
        """The state of the outbox, with up to `examples` refused messages."""
        return OutboxStatus()

    def count_outgoing(self) -> int:
        """How many messages are in the outbox, including those that were taken and not yet sent."""
        return 0

    def __enter__(self) -> Self:
        """Returns the ledger; the end of the block closes it."""
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def check_requests(requests: Sequence[ClaimRequest], claimant: str, lease: float) -> None:
    """Refuse requests that no store could keep."""
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
