"""What every row of the crash matrix needs: a store, a mode, an app whose effects are counted, and workers that die."""

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
    """What handlers have done to the world: each call's key and fence."""

    @abstractmethod
    def add(self, tx: Transaction | None, ctx: Context) -> None: ...

    @abstractmethod
    def all(self) -> list[Effect]: ...


class Elsewhere(Effects):
    """In a place that knows nothing of the ledger, as a foreign service does."""

    def __init__(self) -> None:
        self._done: list[Effect] = []

    def add(self, tx: Transaction | None, ctx: Context) -> None:
        self._done.append((ctx.key, ctx.fence))

    def all(self) -> list[Effect]:
        return list(self._done)


class InSql(Effects):
    """In a table of the ledger's own database."""

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
    """In another table of the same DynamoDB: an item a key, with all the fences that wrote to it."""

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
    """One store in one mode."""

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
        """`before` is called in the handler, then the effect is made, then `after` is called."""
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
        """The one effect is there, by the holder that the ledger names; and nothing is left in the queue."""
        assert self.effects.all() == [(key, fence)]
        self.assert_recorded(key, fence=fence, queue=queue)

    def assert_recorded(self, key: str = "7", *, fence: int, queue: str = "orders") -> None:
        known = self.place.known(key, queue)
        assert (known.status, known.fence) == (Status.DONE, fence)
        assert self.place.is_empty(queue)

    def assert_nothing_done(self, key: str = "7") -> None:
        """No effect, and the message is where it was."""
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
    """The next transaction of `ledger` commits, or does not, and nobody hears of it."""
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
    """The next record of `ledger` is made, and nobody hears of it."""
    real = ledger.record

    def record(completions: Any) -> list[bool]:
        ledger.record = real  # type: ignore[method-assign]
        real(completions)
        raise LedgerUnavailable("the connection broke before the answer came")

    ledger.record = record  # type: ignore[method-assign]


def impatient(place: Place) -> Client:
    """A client that does not try again by itself."""
    return Client(place.broker.url, place.broker.region, access_key="test", secret_key="test", max_attempts=1)


def known(client: Client, name: str) -> Queue:
    """The queue, its address looked up by now."""
    queue = client.queue(name)
    queue.attributes("QueueArn")
    return queue
