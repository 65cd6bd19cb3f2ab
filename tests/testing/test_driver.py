"""An app run step by step: every kind of handler, on every store, killed at every crash point, with a manual clock."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from semel import App, Batch, Context, Fixed, Ledger, PostgresLedger, Reject, SemelError, SqliteLedger, Transaction
from semel.broker import EmbeddedBroker
from semel.ledger.contract import ClaimRequest, Held, Won
from semel.testing import CRASH_POINTS, Driver, driver, driving
from servers import dynamodb, postgres, redis

LEASE: Final = 30
GOOD: Final = "us-east-1:000000000000:orders/good"  # the key of one, as the ledger has it
IDS: Final = ("good", "later", "bad")  # one is handled at once, one at its second attempt, one is rejected
EFFECTS: Final = {"good": 1, "later": 1}


# The stores, as a user would name them.


class Store:
    """Where to find it, and how a handler there counts its effects inside `tx`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create_tables(self, ledger: Ledger) -> None:
        with ledger.transaction() as tx:
            tx.execute("CREATE TABLE effects (id text)")

    def write(self, tx: Any, id_: str) -> None:
        tx.execute(f"INSERT INTO effects VALUES ({'?' if self.url.startswith('sqlite') else '%s'})", (id_,))

    def effects(self, ledger: Ledger) -> dict[str, int]:
        with ledger.transaction() as tx:
            return dict(tx.execute("SELECT id, count(*) FROM effects GROUP BY id").fetchall())


class DynamoStore(Store):
    def create_tables(self, ledger: Ledger) -> None:
        with ledger.transaction() as tx:
            self.client = tx.connection
        key: dict[str, Any] = {
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        }
        self.table = f"effects-{id(ledger)}"
        self.client.create_table(TableName=self.table, BillingMode="PAY_PER_REQUEST", **key)

    def write(self, tx: Any, id_: str) -> None:
        count = {"UpdateExpression": "ADD effects :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
        tx.write({"Update": {"TableName": self.table, "Key": {"id": {"S": id_}}, **count}})

    def effects(self, ledger: Ledger) -> dict[str, int]:
        items = self.client.scan(TableName=self.table)["Items"]
        self.client.delete_table(TableName=self.table)
        return {item["id"]["S"]: int(item["effects"]["N"]) for item in items}


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    match request.param:
        case "postgres":
            server: postgres.Server = request.getfixturevalue("postgres_server")
            return Store(server.url)
        case "redis":
            cache: redis.Server = request.getfixturevalue("redis_server")
            return Store(cache.url)
        case "dynamodb":
            moto: dynamodb.Server = request.getfixturevalue("dynamodb_server")
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            return DynamoStore(f"dynamodb://test?region=eu-west-1&endpoint={moto.url}")
    return Store(f"sqlite:///{tmp_path}/test.db")


# The handlers. All of them treat the three messages alike.


class Shop:
    """An app with one handler, and what it was called with: key and fence."""

    def __init__(self, kind: str, store: Store) -> None:
        self.app = App(store.url)
        self.calls: list[tuple[str, int]] = []
        options: Mapping[str, Any] = {"key": "$.id", "retry": Fixed(5)}
        if kind == "plain":

            @self.app.handler("orders", **options)
            def ship(order: dict[str, Any], ctx: Context) -> None:
                self._work(ctx)

        elif kind == "async":

            @self.app.handler("orders", **options)
            async def ship_async(order: dict[str, Any], ctx: Context) -> None:
                self._work(ctx)

        elif kind == "tx":

            @self.app.handler("orders", **options)
            def ship_tx(order: dict[str, Any], ctx: Context, tx: Transaction) -> None:
                store.write(tx, ctx.key)
                tx.send("receipts", {"order": ctx.key})
                self._work(ctx)

        elif kind == "batch":

            @self.app.batch_handler("orders", **options)
            def ship_all(orders: Batch[dict[str, Any]]) -> None:
                for item in orders:
                    self._work_item(item)

        else:

            @self.app.batch_handler("orders", **options)
            def ship_all_tx(orders: Batch[dict[str, Any]], tx: Transaction) -> None:
                for item in orders:
                    if self._work_item(item):
                        store.write(tx, item.key)
                        tx.send("receipts", {"order": item.key})

    def _work(self, ctx: Context) -> None:
        self.calls.append((ctx.key, ctx.fence))
        if ctx.key == "bad":
            raise Reject("no such item")
        if ctx.key == "later" and ctx.attempt == 1:
            raise ConnectionError("the warehouse does not answer")

    def _work_item(self, item: Any) -> bool:
        self.calls.append((item.key, item.fence))
        if item.key == "bad":
            item.reject("no such item")
        elif item.key == "later" and item.attempt == 1:
            item.retry("the warehouse does not answer")
        else:
            return True
        return False


TRANSACTIONAL: Final = ("tx", "batch tx")
HANDLERS: Final = ("plain", "async", "batch", *TRANSACTIONAL)


def is_passed(kind: str, point: str) -> bool:
    """Whether messages come by there."""
    return kind in TRANSACTIONAL or point not in ("before_commit", "after_outbox_send")


def matrix() -> Iterator[Any]:
    for store in ("sqlite", "postgres", "redis", "dynamodb"):
        for kind in HANDLERS:
            for point in CRASH_POINTS:
                if not is_passed(kind, point) or (store == "redis" and kind in TRANSACTIONAL):
                    continue
                is_quick = store == "sqlite" or (store == "postgres" and kind in ("plain", "tx"))
                is_quick = is_quick or (store, kind, point) == ("redis", "plain", "after_claim")
                marks = () if is_quick else (pytest.mark.slow,)
                yield pytest.param(store, kind, point, id=f"{store}-{kind}-{point}", marks=marks)


@contextmanager
def with_queues(broker: EmbeddedBroker) -> Iterator[str]:
    """The queue of the orders, with three messages in it."""
    with closing(broker.client()) as sqs:
        sqs.create_queue(QueueName="receipts")
        dead = sqs.create_queue(QueueName="dead-orders")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 100}}'
        url = sqs.create_queue(QueueName="orders", Attributes={"RedrivePolicy": policy})["QueueUrl"]
        for id_ in IDS:
            sqs.send_message(QueueUrl=url, MessageBody=f'{{"id": "{id_}"}}')
        yield url


def wait_and_drain(app: App, broker: EmbeddedBroker) -> None:
    """The successor's turn: when the lease is over, and once more for what failed meanwhile."""
    for _ in range(3):
        broker.clock.advance(LEASE + 1)
        app.drain()


@pytest.mark.parametrize(("store", "kind", "point"), list(matrix()), indirect=["store"])
def test_whoever_dies_wherever_each_effect_is_there_as_promised(
    sqs_broker: EmbeddedBroker, store: Store, kind: str, point: str
) -> None:
    shop = Shop(kind, store)
    with with_queues(sqs_broker), driving(shop.app, sqs_broker, ledger=store.url, crash_at=point) as driver:
        if kind in TRANSACTIONAL:
            store.create_tables(driver.ledger)
        shop.app.drain()
        assert (driver.crashed_at, driver.workers) == (point, 1)
        calls = len(shop.calls)
        shop.app.drain()  # at once: nobody waits for a lease that is not over, and nobody takes it
        assert len(shop.calls) == calls
        (verdict,) = driver.ledger.claim([ClaimRequest(GOOD)], claimant="somebody else", lease=1)
        assert isinstance(verdict, Won) == (point == "after_receive")
        wait_and_drain(shop.app, sqs_broker)
        effects = store.effects(driver.ledger) if kind in TRANSACTIONAL else {}
    assert sqs_broker.peek("orders") == []
    dead = [message["Body"] for message in sqs_broker.peek("dead-orders")]
    assert set(dead) == {'{"id": "bad"}'}
    assert len(dead) == 1 or point == "after_dead_letter" or point == "after_outbox_send"
    if kind in TRANSACTIONAL:
        assert effects == EFFECTS
        receipts = {message["Body"] for message in sqs_broker.peek("receipts")}
        assert {body.replace(" ", "") for body in receipts} == {'{"order":"good"}', '{"order":"later"}'}
    # Nobody was called with a key that another had: each holder has a newer fence than the one before it. One holder
    # may be called again, after its transaction was undone.
    fences: dict[str, list[int]] = {}
    for key, fence in dict.fromkeys(shop.calls):
        fences.setdefault(key, []).append(fence)
    assert set(fences) == set(IDS)
    assert all(newer > older for its in fences.values() for older, newer in pairwise(its))
    # What was recorded before the crash is not done again.
    if point in ("after_record", "before_delete", "after_delete", "after_receive", "after_claim", "before_work"):
        assert len(fences["good"]) == 1


# Which ledger a test gets.


def app_with(ledger: Ledger | str | None, *, takes_tx: bool) -> App:
    app = App(ledger)
    if takes_tx:

        @app.handler("orders", key="$.id")
        def book(order: dict[str, Any], tx: Transaction) -> None: ...

    else:

        @app.handler("orders", key="$.id")
        def ship(order: dict[str, Any]) -> None: ...

    return app


@pytest.mark.parametrize("takes_tx", [True, False])
@pytest.mark.parametrize("own", [None, "sqlite:///production.db"])
def test_by_default_it_is_in_memory_and_the_apps_own_file_is_not_touched(
    sqs_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, takes_tx: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    app = app_with(own, takes_tx=takes_tx)
    with with_queues(sqs_broker), driving(app, sqs_broker) as driver:
        assert app.drain() == 3
        assert isinstance(driver.ledger, SqliteLedger)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ("postgresql://shop:secret@db/shop", 'ledger="postgresql://localhost/test"'),
        ("dynamodb://ledger?region=eu-west-1", 'ledger="dynamodb://test?'),
    ],
)
def test_a_handler_whose_sql_is_another_stores_needs_a_store_for_tests_and_is_told_how_to_name_it(
    sqs_broker: EmbeddedBroker, own: str, named: str
) -> None:
    with pytest.raises(SemelError, match=r"app_with\.<locals>\.book takes `tx`") as raised:
        with driving(app_with(own, takes_tx=True), sqs_broker):
            pytest.fail("it ran without one")
    assert named in str(raised.value)
    assert "secret" not in str(raised.value)


def test_the_address_in_the_environment_counts_as_the_apps_own(
    sqs_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_LEDGER", "postgresql://db/shop")
    with pytest.raises(SemelError, match="name a store for tests"), driving(app_with(None, takes_tx=True), sqs_broker):
        pytest.fail("it ran without one")


def test_a_handler_without_tx_is_tested_in_memory_whatever_its_ledger_is(sqs_broker: EmbeddedBroker) -> None:
    app = app_with("postgresql://nowhere.invalid/shop", takes_tx=False)
    with with_queues(sqs_broker), driving(app, sqs_broker):
        assert app.drain() == 3


def test_an_address_means_an_empty_ledger_that_leaves_nothing_behind(
    sqs_broker: EmbeddedBroker, postgres_server: postgres.Server, redis_server: redis.Server
) -> None:
    import psycopg
    import redis as driver

    schemas = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'semel_test%'"
    app = app_with(None, takes_tx=False)
    with (
        psycopg.connect(postgres_server.url, autocommit=True) as database,
        driver.Redis.from_url(redis_server.url) as r,
    ):
        before = set(r.keys())
        for url in (postgres_server.url, redis_server.url):
            for _ in range(2):  # the second does not remember what the first has done
                with with_queues(sqs_broker), driving(app, sqs_broker, ledger=url):
                    assert app.drain() == 3
        assert database.execute(schemas).fetchall() == []
        assert set(r.keys()) <= before, "those of other tests may expire meanwhile"


def test_tables_that_a_test_creates_are_its_own_and_those_of_the_database_are_found(
    sqs_broker: EmbeddedBroker, postgres_server: postgres.Server
) -> None:
    import psycopg

    app = app_with(None, takes_tx=False)
    with psycopg.connect(postgres_server.url, autocommit=True) as database:
        database.execute("CREATE TABLE IF NOT EXISTS of_a_migration (id text)")
        try:
            for _ in range(2):
                with driving(app, sqs_broker, ledger=postgres_server.url) as driver:
                    with driver.ledger.transaction() as tx:
                        tx.execute("CREATE TABLE of_a_test (id text)")
                        assert tx.execute("SELECT count(*) FROM of_a_migration").fetchone() == (0,)
            assert database.execute("SELECT FROM pg_class WHERE relname = 'of_a_test'").fetchall() == []
        finally:
            database.execute("DROP TABLE of_a_migration")


def test_a_ledger_that_is_passed_stays_open_and_follows_the_brokers_clock_inside_only(
    sqs_broker: EmbeddedBroker, postgres_server: postgres.Server
) -> None:
    app = app_with(None, takes_tx=True)
    sqs_broker.clock.advance(86_400)
    with PostgresLedger(postgres_server.url, schema="passed") as ledger:
        with with_queues(sqs_broker), driving(app, sqs_broker, ledger=ledger):
            assert app.drain() == 3
        with with_queues(sqs_broker), driving(app, sqs_broker, ledger=ledger):
            assert app.drain() == 0  # it remembers
        (entry,) = ledger.get([GOOD])
        assert entry is not None
        assert entry.changed == pytest.approx(sqs_broker.clock.now())
        ledger.claim([ClaimRequest("today")], claimant="somebody", lease=1)
        (today,) = ledger.get(["today"])
        assert today is not None
        assert today.changed < entry.changed - 80_000


def test_a_lease_ends_when_the_clock_says_so_and_not_a_moment_earlier(
    sqs_broker: EmbeddedBroker, postgres_server: postgres.Server
) -> None:
    with driving(app_with(None, takes_tx=False), sqs_broker, ledger=postgres_server.url) as driver:

        def ask(claimant: str) -> Any:
            (verdict,) = driver.ledger.claim([ClaimRequest("key")], claimant=claimant, lease=LEASE)
            return verdict

        assert isinstance(ask("first"), Won)
        sqs_broker.clock.advance(LEASE - 0.001)
        held = ask("second")
        assert isinstance(held, Held)
        assert held.remaining == pytest.approx(0.001, abs=1e-6)
        sqs_broker.clock.advance(0.001)
        assert isinstance(ask("third"), Won)


# Crash points.


def test_a_crash_point_that_nobody_comes_to_fails_the_test(sqs_broker: EmbeddedBroker) -> None:
    app = app_with(None, takes_tx=False)
    with with_queues(sqs_broker):
        with pytest.raises(SemelError, match=r"no worker reached the crash point 'before_commit'.*takes `tx`"):
            with driving(app, sqs_broker, crash_at="before_commit"):
                app.drain()
        with pytest.raises(ZeroDivisionError), driving(app, sqs_broker, crash_at="before_commit"):
            raise ZeroDivisionError  # the test's own failure comes first


def test_a_crash_point_that_does_not_exist_is_refused_with_those_that_do(sqs_broker: EmbeddedBroker) -> None:
    with pytest.raises(SemelError, match=r"no crash point 'after_lunch'; there are after_receive, "):
        with driving(app_with(None, takes_tx=False), sqs_broker, crash_at="after_lunch"):
            pytest.fail("it ran")


# The names.

ORDERS: Final = (
    "from semel.testing import driving",
    "import semel.testing.driver; from semel.testing import driving",
    "import semel.testing; driving = semel.testing.driving",
    "from semel.testing import driving; import semel.testing.driver; driving = semel.testing.driving",
)


@pytest.mark.parametrize("imports", ORDERS)
def test_driving_is_the_function_whatever_was_imported_before(imports: str) -> None:
    check = f"{imports}\nassert callable(driving) and driving.__name__ == 'driving', driving"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_module_has_the_name_of_something_that_is_exported() -> None:
    import semel.testing

    modules = {path.stem for path in Path(semel.testing.__file__).parent.glob("*.py")}
    assert modules.isdisjoint(semel.testing.__all__)


@pytest.mark.parametrize("module", [driver])
def test_the_examples_in_the_docstrings_work(module: Any) -> None:
    results = doctest.testmod(module)
    assert (results.failed, results.attempted > 0) == (0, True)


def test_the_driver_says_what_it_is(sqs_broker: EmbeddedBroker) -> None:
    with with_queues(sqs_broker), driving(app_with(None, takes_tx=False), sqs_broker) as driver:
        assert isinstance(driver, Driver)
        driver.drain()
        driver.kill()
        driver.drain()
        assert driver.workers == 2
