"""The parts of the crash matrix (`test_crash_matrix.py`): a store, a mode, an app with counted effects, and workers."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from driven import Place
from ledger.stores import Dynamo, StoreUnderTest
from semel.consumer.app import App
from semel.consumer.context import Context
from semel.ledger.contract import Ledger, LedgerUnavailable, OutcomeUnknown, Status, Transaction
from semel.ledger.dynamodb.transaction import DynamoTransaction
from semel.sqs import Client, Queue
from semel.testing.driver import Driver

LEASE_MODE: Final = "lease"  # the effect is somewhere else; the ledger is written before and after it
TRANSACTION_MODE: Final = "transaction"  # the effect and the record are one commit
CASES: Final[tuple[tuple[str, str], ...]] = (
    ("sqlite", LEASE_MODE),
    ("postgres", LEASE_MODE),
    ("redis", LEASE_MODE),
    ("dynamodb", LEASE_MODE),
    ("sqlite", TRANSACTION_MODE),
    ("postgres", TRANSACTION_MODE),
    ("dynamodb", TRANSACTION_MODE),
)

Effect = tuple[str, int]  # key and fence
Hook = Callable[[Context], None]


def nothing(_ctx: Context) -> None:
    pass


class Effects(ABC):
    """The effects of handlers: the key and the fence of each call."""

    @abstractmethod
    def add(self, tx: Transaction | None, ctx: Context) -> None: ...

    @abstractmethod
    def all(self) -> list[Effect]: ...


class Elsewhere(Effects):
    """Effects in a place without a connection to the ledger, such as a foreign service."""

    def __init__(self) -> None:
        self._done: list[Effect] = []

    def add(self, tx: Transaction | None, ctx: Context) -> None:
        self._done.append((ctx.key, ctx.fence))

    def all(self) -> list[Effect]:
        return list(self._done)


class InSql(Effects):
    """Effects in a table of the ledger's own database."""

    def __init__(self, store: StoreUnderTest, ledger: Ledger) -> None:
        self._ledger, self._table, self._place = ledger, store.effects, store.placeholder
        with ledger.transaction() as tx:
            tx.execute(f"CREATE TABLE {self._table} (id text, fence integer)")

    def add(self, tx: Transaction | None, ctx: Context) -> None:
        assert tx is not None
        values = f"({self._place}, {self._place})"
        tx.execute(f"INSERT INTO {self._table} (id, fence) VALUES {values}", (ctx.key, ctx.fence))

    def all(self) -> list[Effect]:
        with self._ledger.transaction() as tx:
            rows = tx.execute(f"SELECT id, fence FROM {self._table} ORDER BY id, fence").fetchall()
        return [(key, fence) for key, fence in rows]


class InDynamo(Effects):
    """Effects in another table of the same DynamoDB: an item for each key, with all fences that wrote to it."""

    def __init__(self, store: Dynamo, ledger: Ledger) -> None:
        self._table = f"{store.table}-effects"
        with ledger.transaction() as tx:
            self._client = tx.connection
        self._client.create_table(
            TableName=self._table,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def add(self, tx: Transaction | None, ctx: Context) -> None:
        update = {
            "TableName": self._table,
            "Key": {"id": {"S": ctx.key}},
            "UpdateExpression": "SET fences = list_append(if_not_exists(fences, :none), :mine)",
            "ExpressionAttributeValues": {":none": {"L": []}, ":mine": {"L": [{"N": str(ctx.fence)}]}},
        }
        cast(DynamoTransaction, tx).write({"Update": update})

    def all(self) -> list[Effect]:
        items = self._client.scan(TableName=self._table, ConsistentRead=True)["Items"]
        return sorted((item["id"]["S"], int(fence["N"])) for item in items for fence in item["fences"]["L"])


class Case:
    """A store and a mode."""

    def __init__(self, place: Place, store: StoreUnderTest, mode: str, effects: Effects) -> None:
        self.place, self.store, self.mode, self.effects = place, store, mode, effects
        self._opened: list[Ledger] = []

    @property
    def transactional(self) -> bool:
        return self.mode == TRANSACTION_MODE

    def ledger(self, **options: Any) -> Ledger:
        """Another process's ledger on the same data."""
        self._opened.append(self.store.open(self.place.clock, **options))
        return self._opened[-1]

    def app(
        self,
        *,
        queue: str = "orders",
        key: str | None = "$.id",
        before: Hook = nothing,
        after: Hook = nothing,
        **options: Any,
    ) -> App:
        """The handler calls `before`, then has its effect, then calls `after`."""
        app = App()
        effects = self.effects
        if self.transactional:

            @app.handler(queue, key=key, **options)
            def book(order: dict[str, Any], ctx: Context, tx: Transaction) -> None:
                before(ctx)
                effects.add(tx, ctx)
                after(ctx)

        else:

            @app.handler(queue, key=key, **options)
            def ship(order: dict[str, Any], ctx: Context) -> None:
                before(ctx)
                effects.add(None, ctx)
                after(ctx)

        return app

    def worker(self, *, crash_at: str | None = None, ledger: Ledger | None = None, **options: Any) -> Driver:
        return self.place.worker(self.app(**options), crash_at=crash_at, ledger=ledger)

    def close(self) -> None:
        for ledger in self._opened:
            ledger.close()

    # What is asserted at the end of every row.

    def assert_done_once(self, key: str = "7", *, fence: int = 1, queue: str = "orders") -> None:
        """There is exactly one effect, with the fence that the ledger has, and the queue is empty."""
        assert self.effects.all() == [(key, fence)]
        self.assert_recorded(key, fence=fence, queue=queue)

    def assert_recorded(self, key: str = "7", *, fence: int, queue: str = "orders") -> None:
        known = self.place.known(key, queue)
        assert (known.status, known.fence) == (Status.DONE, fence)
        assert self.place.is_empty(queue)

    def assert_nothing_done(self, key: str = "7") -> None:
        """There is no effect, and the message is still in its queue."""
        assert self.effects.all() == []
        known = self.place.entry(key)
        assert known is None or known.status in (Status.CLAIMED, Status.FREE)
        assert len(self.place.messages()) == 1


def effects_of(store: StoreUnderTest, mode: str, ledger: Ledger) -> Effects:
    if mode == LEASE_MODE:
        return Elsewhere()
    return InDynamo(store, ledger) if isinstance(store, Dynamo) else InSql(store, ledger)


class _Undone(Exception):
    pass


def lose_the_answer_to_a_commit(ledger: Ledger, *, carried_out: bool) -> None:
    """The next transaction of `ledger` commits, or does not, and its answer is lost."""
    real = ledger.transaction

    @contextlib.contextmanager
    def transaction() -> Iterator[Transaction]:
        ledger.transaction = real  # type: ignore[method-assign]
        with contextlib.suppress(_Undone), real() as tx:
            yield tx
            if not carried_out:
                raise _Undone
        raise OutcomeUnknown("the connection broke while a transaction was being committed")

    ledger.transaction = transaction  # type: ignore[method-assign]


def lose_the_answer_to_a_record(ledger: Ledger) -> None:
    """The next record of `ledger` is made, and its answer is lost."""
    real = ledger.record

    def record(completions: Any) -> list[bool]:
        ledger.record = real  # type: ignore[method-assign]
        real(completions)
        raise LedgerUnavailable("the connection broke before the answer came")

    ledger.record = record  # type: ignore[method-assign]


def impatient(place: Place) -> Client:
    """A client that does not retry."""
    return Client(place.broker.url, place.broker.region, access_key="test", secret_key="test", max_attempts=1)


def known(client: Client, name: str) -> Queue:
    """The queue, whose address the client has already looked up."""
    queue = client.queue(name)
    queue.attributes("QueueArn")
    return queue
