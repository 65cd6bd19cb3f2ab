"""What only the PostgreSQL ledger has: its schema, its transactions, its locks, and failures in between."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.rows import dict_row

from ledger.asking import LEASE, ask, at_once, entry, finish, win
from ledger.postgres_wire import Wire, wire_to
from ledger.stores import Shift
from semel.ledger.contract import (
    Claim,
    ClaimRequest,
    Completion,
    Done,
    Held,
    Ledger,
    LedgerError,
    LedgerUnavailable,
    OutcomeUnknown,
    Status,
    Won,
)
from semel.ledger.postgres.ledger import PostgresLedger
from semel.ledger.postgres.query_runner import QueryRunner, TimedConnection
from semel.ledger.postgres.statements import Statements
from waiting import free_port

if TYPE_CHECKING:
    from servers.postgres import Server

Make = Callable[..., PostgresLedger]


@pytest.fixture
def schema(postgres_server: Server) -> Iterator[str]:
    name = f"test {uuid.uuid4().hex[:12]}"  # a name that needs its quotes
    yield name
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture
def make(postgres_server: Server, schema: str) -> Iterator[Make]:
    opened: list[PostgresLedger] = []

    def make(url: str = postgres_server.url, **options: Any) -> PostgresLedger:
        opened.append(PostgresLedger(url, **{"schema": schema, **options}))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(make: Make) -> PostgresLedger:
    return make()


@pytest.fixture
def database(postgres_server: Server, ledger: Ledger, schema: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's connection, with a table of effects beside the ledger."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
        connection.execute("CREATE TABLE effects (key text UNIQUE DEFERRABLE INITIALLY IMMEDIATE, cents int)")
        yield connection


@pytest.fixture
def effects(schema: str) -> str:
    return f'"{schema}".effects'


def count(database: psycopg.Connection[Any]) -> int:
    ((number,),) = database.execute("SELECT count(*) FROM effects").fetchall()
    return int(number)


class TestSchema:
    def test_many_that_start_at_once_make_it_once(self, make: Make) -> None:
        ledgers = at_once([make] * 8)
        verdicts = [ask(ledger, "key") for ledger in ledgers]
        assert [type(verdict) for verdict in verdicts] == [Won] + [Held] * 7

    def test_another_schema_is_another_ledger(self, ledger: Ledger, postgres_server: Server, schema: str) -> None:
        win(ledger, "key")
        with PostgresLedger(postgres_server.url, schema=f"{schema} b") as other:
            assert win(other, "key").claim == Claim("key", 1)
            with other.transaction() as tx:
                tx.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(f"{schema} b")))

    def test_the_address_may_name_it(self, ledger: Ledger, postgres_server: Server, schema: str) -> None:
        win(ledger, "key")
        url = f"{postgres_server.url}?application_name=a%20b&schema={schema.replace(' ', '%20')}"
        with Ledger.connect(url) as other:
            assert isinstance(ask(other, "key"), Held)
            with other.transaction() as tx:
                assert tx.execute("SHOW application_name").fetchone() == ("a b",)

    def test_a_newer_one_is_refused(self, make: Make, database: psycopg.Connection[Any]) -> None:
        database.execute("UPDATE semel_meta SET version = 99")
        with pytest.raises(LedgerError, match=r"has version 99.*upgrade Semel"):
            make()

    def test_it_is_not_touched_again_once_it_is_there(self, make: Make, database: psycopg.Connection[Any]) -> None:
        """Also not by one who may not: rights to use the tables are enough."""
        database.execute("DROP ROLE IF EXISTS worker")
        database.execute("CREATE ROLE worker")
        namespace = sql.Identifier(str(database.execute("SELECT current_schema()").fetchall()[0][0]))
        database.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO worker").format(namespace))
        database.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA {} TO worker").format(namespace))
        try:
            ledger = make(options_as("worker", database))
            assert finish(ledger, win(ledger, "key").claim)
            with pytest.raises(LedgerError, match="permission denied"):
                make(options_as("worker", database), schema="not there yet")
        finally:
            database.execute("DROP OWNED BY worker")
            database.execute("DROP ROLE worker")

    def test_people_can_read_it(self, ledger: Ledger, database: psycopg.Connection[Any]) -> None:
        finish(ledger, win(ledger, "ключ", source="orders/1").claim, result=b"12345")
        win(ledger, "odd\0key")
        rows = database.execute("SELECT key, status, result_bytes, source FROM readable ORDER BY first_seen").fetchall()
        assert rows == [("ключ", "done", 5, "orders/1"), ("odd\\000key", "claimed", None, "")]

    def test_a_record_soon_after_its_claim_touches_no_index(
        self, make: Make, database: psycopg.Connection[Any]
    ) -> None:
        middle = time.time() // 60 * 60 + 30  # away from the end of the minute, at which it would
        with make(clock=lambda: middle) as ledger:
            verdicts = ledger.claim(
                [ClaimRequest(f"key-{n}", "d" * 64, "orders/1") for n in range(500)], claimant="me", lease=9
            )
            assert all(ledger.record([Completion(won.claim) for won in verdicts if isinstance(won, Won)]))
        statement = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'ledger'::regclass"
        while database.execute(statement).fetchone() == (0, 0):  # counted when the connection has ended
            time.sleep(0.01)
        assert database.execute(statement).fetchone() == (500, 500)


def options_as(role: str, database: psycopg.Connection[Any]) -> str:
    info = database.info
    return f"postgresql://postgres@127.0.0.1:{info.port}/postgres?options=-c%20role%3D{role}"


class TestAnOpenTransaction:
    def test_keeps_no_claim_waiting_for_long_and_only_its_own_keys(self, make: Make, ledger: Ledger) -> None:
        shift = Shift()
        impatient = make(lock_timeout=0.05, clock=shift)
        mine = win(ledger, "mine").claim
        shift.advance(LEASE + 1)
        with ledger.transaction() as tx:
            assert tx.record([Completion(mine)]) == [True]
            asks = [ClaimRequest("first"), ClaimRequest("mine"), ClaimRequest("other")]
            first, held, other = impatient.claim(asks, claimant="they", lease=LEASE)
            assert (type(first), type(other)) == (Won, Won)
            assert isinstance(held, Held)
            assert 0 < held.remaining <= 2
        assert ask(impatient, "mine") == Done("mine", Status.DONE)

    def test_makes_a_write_to_its_keys_fail_and_to_no_others(self, make: Make, ledger: Ledger) -> None:
        impatient = make(lock_timeout=0.05)
        mine, other = win(ledger, "mine").claim, win(ledger, "other").claim
        with ledger.transaction() as tx:
            tx.record([Completion(mine)])

            def extend(claim: Claim) -> bool | str:
                try:
                    return impatient.extend([claim], LEASE)[0]
                except LedgerUnavailable as error:
                    return str(error)

            refused, extended = at_once([lambda: extend(mine), lambda: extend(other)])
            assert extended is True
            assert "open transaction" in str(refused)

    def test_is_passed_by_when_the_ledger_is_purged(self, make: Make, ledger: Ledger) -> None:
        shift = Shift()
        later = make(clock=shift, retention=60)
        claims = [win(ledger, f"key-{n}").claim for n in range(5)]
        with ledger.transaction() as tx:
            tx.record([Completion(claims[2], retention=10)])
            shift.advance(29 * 86_400)
            assert later.purge() == 4
            assert later.purge() == 0
        assert later.purge() == 1

    def test_that_stops_between_its_record_and_its_commit_does_not_keep_the_key_for_ever(
        self, make: Make, database: psycopg.Connection[Any], effects: str
    ) -> None:
        ledger, shift = make(idle_timeout=0.05), Shift()
        successor = make(clock=shift)
        claim = win(ledger, "key").claim
        shift.advance(LEASE + 1)

        def take_over() -> None:
            ends = time.monotonic() + 30
            while not isinstance(verdict := ask(successor, "key"), Won):
                assert isinstance(verdict, Held)
                assert time.monotonic() < ends
            assert verdict.taken_over

        def work() -> None:
            with ledger.transaction() as tx:
                tx.execute(f"INSERT INTO {effects} VALUES ('key', 1)")
                assert tx.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("0",)
                assert tx.record([Completion(claim)]) == [True]
                take_over()  # here this process is stopped

        with pytest.raises(LedgerUnavailable):
            work()
        assert count(database) == 0

    def test_takes_a_connection_with_its_first_statement(self, make: Make) -> None:
        ledger = make(pool_size=1)
        with ledger.transaction(), ledger.transaction() as tx:  # the outer one has not begun
            assert tx.execute("SELECT 1").fetchone() == (1,)

    def test_waits_for_a_connection_while_others_have_them_in_use(self, make: Make) -> None:
        ledger = make(pool_size=1)
        waiting, rows = threading.Event(), list[Any]()

        def wait_for_it() -> None:
            with ledger.transaction() as tx:
                waiting.set()
                rows.append(tx.execute("SELECT 1").fetchone())

        thread = threading.Thread(target=wait_for_it, daemon=True)
        with ledger.transaction() as tx:
            tx.execute("SELECT 1")
            ledger._timeout = 0.1  # only from here on, so that a slow machine does not fail for another reason
            thread.start()
            assert waiting.wait(30)
            thread.join(5 * ledger._timeout)
            assert thread.is_alive()
            assert win(ledger, "key")  # the ledger's own work goes on
        thread.join(30)
        assert rows == [(1,)]

    def test_around_another_is_refused_when_all_connections_are_in_use(self, make: Make) -> None:
        """It would wait for itself, or for others that do the same."""
        ledger = make(pool_size=1)
        with ledger.transaction() as outer:
            outer.execute("SELECT 1")
            ledger._timeout = 0.01  # only from here on, so that a slow machine does not fail for another reason
            with (
                pytest.raises(LedgerUnavailable, match=r"all 1 connections .* by this very thread"),
                ledger.transaction() as inner,
            ):
                inner.execute("SELECT 1")
            assert win(ledger, "key")  # the ledger's own work goes on


class TestAServerThatIsNotThere:
    def test_is_named_with_the_reason_in_one_line_and_without_the_password(self) -> None:
        port = free_port()
        with pytest.raises(LedgerUnavailable) as raised:
            PostgresLedger(f"postgresql://anna:secret@127.0.0.1:{port}/shop")
        text = str(raised.value)
        assert text.startswith(f"PostgreSQL at 127.0.0.1:{port}/shop cannot be reached: ")
        assert "refused" in text
        assert "\n" not in text
        assert "secret" not in text

    def test_an_address_that_is_none_is_shown_without_its_password(self) -> None:
        with pytest.raises(LedgerError, match=r"'postgrse://anna:\*\*\*@db/shop' is no address of a ledger"):
            Ledger.connect("postgrse://anna:se:c/ret@db/shop")


class TestTheUsersOwnErrors:
    def test_pass_as_they_are_and_undo_the_record(
        self, ledger: Ledger, database: psycopg.Connection[Any], effects: str
    ) -> None:
        claim = win(ledger, "key").claim

        def work() -> None:
            with ledger.transaction() as tx:
                tx.record([Completion(claim)])
                tx.execute(f"INSERT INTO {effects} VALUES ('a', 1), ('a', 2)")

        with pytest.raises(errors.UniqueViolation):
            work()
        assert entry(ledger, "key").status == Status.CLAIMED

    def test_of_a_constraint_that_is_checked_at_the_commit_do_too(
        self, ledger: Ledger, database: psycopg.Connection[Any], effects: str
    ) -> None:
        claim = win(ledger, "key").claim

        def work() -> None:
            with ledger.transaction() as tx:
                tx.record([Completion(claim)])
                tx.execute("SET CONSTRAINTS ALL DEFERRED")
                tx.execute(f"INSERT INTO {effects} VALUES ('a', 1), ('a', 2)")

        with pytest.raises(errors.UniqueViolation):
            work()
        assert entry(ledger, "key").status == Status.CLAIMED
        assert count(database) == 0

    def test_that_are_caught_outside_a_savepoint_do_not_end_in_a_commit_of_nothing(
        self, ledger: Ledger, database: psycopg.Connection[Any]
    ) -> None:
        claim = win(ledger, "key").claim

        def work() -> None:
            with ledger.transaction() as tx:
                assert tx.record([Completion(claim)]) == [True]
                with pytest.raises(errors.UndefinedTable):
                    tx.execute("SELECT * FROM not_there")

        with pytest.raises(LedgerError, match="savepoint"):
            work()
        assert entry(ledger, "key").status == Status.CLAIMED

    @pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
    def test_include_ending_the_transaction_by_hand(self, ledger: Ledger, ending: str) -> None:
        with pytest.raises(LedgerError, match="ended inside its block"), ledger.transaction() as tx:
            tx.execute(ending)
        with pytest.raises(psycopg.ProgrammingError), ledger.transaction() as tx:
            tx.connection.commit()
        with ledger.transaction() as tx:
            assert tx.execute("SELECT 1").fetchone() == (1,)

    def test_include_using_it_when_it_is_over(self, ledger: Ledger) -> None:
        with ledger.transaction() as tx:
            pass
        with pytest.raises(LedgerError, match="is over"):
            tx.execute("SELECT 1")

    def test_what_was_set_on_the_connection_reaches_nobody_else(self, make: Make) -> None:
        ledger = make(pool_size=1)
        claim = win(ledger, "key").claim
        with ledger.transaction() as tx:
            tx.connection.row_factory = dict_row
            assert tx.execute("SELECT 1 AS one").fetchone() == {"one": 1}
            assert tx.record([Completion(claim)]) == [True]
        with ledger.transaction() as tx:
            assert tx.execute("SELECT '100%'").fetchone() == ("100%",)


class TestCopy:
    def test_rows_are_part_of_the_transaction(
        self, ledger: Any, database: psycopg.Connection[Any], schema: str
    ) -> None:
        with ledger.transaction() as tx:
            assert tx.copy(f"{schema}.effects", ((f"key-{n}", n) for n in range(1_000))) == 1_000
            assert tx.copy(f"{schema}.effects", [(None,), (7,)], columns=["cents"]) == 2
            assert count(database) == 0
        assert count(database) == 1_002

    def test_a_row_that_does_not_fit_undoes_all(
        self, ledger: Any, database: psycopg.Connection[Any], schema: str
    ) -> None:
        with pytest.raises(errors.InvalidTextRepresentation), ledger.transaction() as tx:
            tx.copy(f"{schema}.effects", [("a", 1), ("b", "many")])
        with pytest.raises(ZeroDivisionError), ledger.transaction() as tx:
            tx.copy(f"{schema}.effects", ((str(n), 1 // (3 - n)) for n in range(5)))
        assert count(database) == 0


class TestALostConnection:
    @pytest.fixture
    def wire(self, postgres_server: Server) -> Iterator[Wire]:
        with wire_to(postgres_server.port) as wire:
            yield wire

    @pytest.fixture
    def remote(self, wire: Wire, ledger: Ledger, schema: str) -> Iterator[PostgresLedger]:
        with PostgresLedger(wire.url, schema=schema, timeout=20.0) as remote:
            yield remote

    def test_before_the_commit_has_committed_nothing(
        self, remote: Ledger, ledger: Ledger, database: psycopg.Connection[Any], wire: Wire, effects: str
    ) -> None:
        claim, met = win(remote, "key").claim, list[str]()

        def work() -> None:
            with remote.transaction() as tx:
                tx.execute(f"INSERT INTO {effects} VALUES ('key', 1)")
                tx.record([Completion(claim)])
                wire.cut_before(b"SELECT 'cut'")
                try:
                    tx.execute("SELECT 'cut'")
                except Exception as error:
                    met.append(str(error))
                    raise

        with pytest.raises(LedgerUnavailable) as raised:
            work()
        assert not isinstance(raised.value, OutcomeUnknown)
        assert met == [str(raised.value)]
        assert "nothing was committed" in met[0]
        assert entry(ledger, "key").status == Status.CLAIMED
        assert count(database) == 0
        assert finish(remote, claim)

    @pytest.mark.parametrize("caught", [True, False])
    def test_that_the_handler_meets_by_the_drivers_connection_is_the_same(
        self, remote: Ledger, wire: Wire, caught: bool
    ) -> None:
        def work() -> None:
            with remote.transaction() as tx:
                wire.cut_before(b"SELECT 'cut'")
                try:
                    tx.connection.execute("SELECT 'cut'")
                except psycopg.OperationalError:
                    if not caught:
                        raise

        with pytest.raises(LedgerUnavailable) as raised:
            work()
        assert not isinstance(raised.value, OutcomeUnknown)

    def test_in_place_of_the_commit_leaves_the_outcome_unknown_and_a_look_tells_it(
        self, remote: Ledger, ledger: Ledger, database: psycopg.Connection[Any], wire: Wire, effects: str
    ) -> None:
        claim = win(remote, "key").claim

        def work() -> None:
            with remote.transaction() as tx:
                tx.execute(f"INSERT INTO {effects} VALUES ('key', 1)")
                tx.record([Completion(claim)])
                wire.cut_before(b"COMMIT")

        with pytest.raises(OutcomeUnknown, match="look its keys up"):
            work()
        assert entry(remote, "key").status == Status.CLAIMED
        assert count(database) == 0

    def test_a_connection_that_says_nothing_any_more_is_given_up_on(self, wire: Wire, make: Make) -> None:
        ledger = make(wire.url, connections=1, timeout=20.0)
        claim = win(ledger, "key").claim
        wire.freeze()
        ledger._runner._timeout = 0.1
        with pytest.raises(LedgerUnavailable, match=r"no answer within 0\.1 seconds"):
            ledger.record([Completion(claim)])
        ledger._runner._timeout = 20.0
        assert finish(ledger, claim)
        ledger.close()

    def test_an_extension_waits_no_longer_than_it_is_told(self, wire: Wire, make: Make) -> None:
        ledger = make(wire.url, connections=1, timeout=60.0)
        claim = win(ledger, "key").claim
        wire.freeze()
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable, match=r"no answer within 0\.1 seconds"):
            ledger.extend([claim], LEASE, timeout=0.1)
        assert time.monotonic() - began < 30
        assert ledger.extend([claim], LEASE, timeout=30) == [True]
        ledger.close()

    def test_an_old_connection_is_not_noticed_by_the_next_transaction(
        self, ledger: Ledger, postgres_server: Server
    ) -> None:
        with ledger.transaction() as first, ledger.transaction() as second:
            first.execute("SELECT 1")
            second.execute("SELECT 1")
        postgres_server.stop()
        postgres_server.start()
        for _ in range(3):
            with ledger.transaction() as tx:
                assert tx.execute("SELECT 1").fetchone() == (1,)


class TestWhatCannotBe:
    def test_a_server_that_is_not_there_is_unavailable_and_its_password_stays_secret(self) -> None:
        with pytest.raises(LedgerUnavailable) as raised:
            PostgresLedger("postgresql://user:secret@127.0.0.1:1/database", timeout=1.0)
        assert "127.0.0.1:1/database" in str(raised.value)
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize(
        "address",
        [
            "postgresql://user:secret@host/db?no_such_option=1",
            "postgresql://user:a/secret@host/db",
            "postgresql://user:a@secret@host/db",
            "password=my secret",
        ],
    )
    def test_an_address_that_is_none_says_so_without_the_password(self, address: str) -> None:
        with pytest.raises(LedgerError, match="no address of a PostgreSQL database") as raised:
            PostgresLedger(address)
        assert "secret" not in str(raised.value)

    def test_a_standby_is_unavailable_and_the_text_names_the_way_out(
        self, make: Make, ledger: Ledger, postgres_server: Server
    ) -> None:
        standby = make(f"{postgres_server.url}?options=-c%20default_transaction_read_only%3Don")
        with pytest.raises(LedgerUnavailable, match="target_session_attrs=read-write"):
            win(standby, "key")

    def test_a_closed_ledger_says_so(self, make: Make) -> None:
        ledger = make()
        ledger.close()
        ledger.close()
        with pytest.raises(LedgerError, match="is closed"):
            win(ledger, "key")
        with pytest.raises(LedgerError, match="is closed"), ledger.transaction():
            pass

    @pytest.mark.parametrize("texts", [{"payload": "a\0"}, {"source": "a\0"}, {"claimant": "a\0"}])
    def test_a_nul_in_a_text_is_refused_before_it_is_sent(self, ledger: Ledger, texts: dict[str, str]) -> None:
        with pytest.raises(LedgerError, match="NUL"):
            ask(ledger, "key", **texts)  # type: ignore[arg-type]

    def test_a_table_that_somebody_has_dropped_is_an_error_of_the_ledger(
        self, ledger: Ledger, database: psycopg.Connection[Any]
    ) -> None:
        database.execute("DROP TABLE ledger CASCADE")
        with pytest.raises(LedgerError, match=r"refused a statement.*does not exist"):
            win(ledger, "key")


class TestDurability:
    def test_a_commit_is_on_the_disk_also_where_that_was_turned_off(self, make: Make, postgres_server: Server) -> None:
        ledger = make(f"{postgres_server.url}?options=-c%20synchronous_commit%3Doff")
        statement = "SHOW synchronous_commit"
        assert ledger._runner.run(lambda db, _: [db.execute(statement).fetchone()], [None]) == [("on",)]
        with ledger.transaction() as tx:
            assert tx.execute(statement).fetchone() == ("on",)

    def test_a_crash_of_the_server_loses_nothing_and_no_fence_comes_twice(
        self, make: Make, postgres_server: Server
    ) -> None:
        ledger = make()
        first, done = win(ledger, "first").claim, win(ledger, "done").claim
        assert finish(ledger, done, result=b"result")
        assert ledger.release([first]) == [True]
        assert win(ledger, "first").claim.fence == 2
        postgres_server.kill()
        postgres_server.start()
        assert ask(ledger, "done") == Done("done", Status.DONE, b"result")
        assert entry(ledger, "first").fence == 2

    def test_a_key_that_was_purged_and_comes_back_goes_on_with_a_higher_fence(self, make: Make) -> None:
        shift = Shift()
        ledger = make(retention=60, clock=shift)
        for fence in (1, 2, 3):
            claim = win(ledger, "key").claim
            assert claim.fence == fence
            ledger.release([claim])
        shift.advance(61)
        assert ledger.purge() == 1
        assert win(ledger, "key").claim.fence == 4

    def test_a_claim_that_began_before_a_purge_goes_on_with_a_higher_fence_too(
        self, make: Make, postgres_server: Server, schema: str
    ) -> None:
        shift = Shift()
        ledger = make(retention=60, clock=shift, lock_timeout=30.0)
        for key in ("key", "key", "other"):
            ledger.release([win(ledger, key).claim])
        shift.advance(61)
        purge, waits = Statements.within(schema).purge.encode(), "SELECT FROM pg_locks WHERE NOT granted"
        with (
            ThreadPoolExecutor() as threads,
            psycopg.connect(postgres_server.url) as purging,
            psycopg.connect(postgres_server.url, autocommit=True) as watching,
        ):
            assert purging.execute(purge, {"now": shift(), "limit": 10}).fetchone() == (2,)
            asks = [ClaimRequest(key) for key in ("key", "new", "other")]
            claiming = threads.submit(ledger.claim, asks, claimant="me", lease=LEASE)
            while watching.execute(waits).fetchone() is None:  # it waits for what is being purged
                assert not claiming.done()
            purging.commit()
            assert claiming.result() == [Won(Claim(key, 3), LEASE) for key in ("key", "new", "other")]
        assert [entry(ledger, key).fence for key in ("key", "new", "other")] == [3, 3, 3]
        assert finish(ledger, Claim("key", 3))

    def test_an_endless_keep_is_a_time_that_can_be_stored(self, make: Make) -> None:
        ledger = make(retention=float("inf"))
        assert ledger.record([Completion(win(ledger, "key").claim, retention=float("inf"))]) == [True]
        assert ask(ledger, "key") == Done("key", Status.DONE)


class TestOutgoing:
    def test_a_message_of_a_group_waits_for_those_before_it(self, make: Make, ledger: Ledger) -> None:
        shift = Shift()
        ledger = make(clock=shift)
        with ledger.transaction() as tx:
            for body in ("a1", "a2", "b1", "none"):
                tx.send("queue.fifo", body, group=None if body == "none" else body[0])
        (first,) = ledger.take_outgoing(1, lease=10)
        assert first.body == "a1"
        second = ledger.take_outgoing(10, lease=20)
        assert [message.body for message in second] == ["b1", "none"]
        shift.advance(11)
        assert [message.body for message in ledger.take_outgoing(10, lease=30)] == ["a1", "a2"]

    def test_its_id_is_its_own_among_all_ledgers(self, make: Make, ledger: Ledger, schema: str) -> None:
        other = make(schema=f"{schema} b")
        for each in (ledger, other):
            with each.transaction() as tx:
                tx.send("queue", {"body": 1})
        (mine,), (theirs,) = ledger.take_outgoing(), other.take_outgoing()
        assert mine.id != theirs.id
        other.sent_outgoing([mine.id])
        with other.transaction() as tx:
            tx.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(f"{schema} b")))


class TestCallersThatGoTogether:
    @pytest.fixture
    def runner(self, postgres_server: Server) -> Iterator[QueryRunner]:
        connect = lambda: TimedConnection.connect(postgres_server.url, autocommit=True)  # noqa: E731
        runner = QueryRunner(connect, where="here", connections=1, timeout=30.0)
        yield runner
        runner.close()

    def test_many_callers_are_one_statement(self, runner: QueryRunner) -> None:
        trips = list[list[Any]]()

        def echo(connection: psycopg.Connection[Any], items: list[Any]) -> list[Any]:
            trips.append(items)
            connection.execute("SELECT pg_sleep(0.05)")
            return [item * 10 for item in items]

        answers = at_once([lambda n=n: runner.run(echo, [n, n + 100]) for n in range(16)])  # type: ignore[misc]
        assert answers == [[n * 10, n * 10 + 1000] for n in range(16)]
        assert len(trips) <= 8
        assert sorted(item for trip in trips for item in trip) == sorted([*range(16), *range(100, 116)])

    def test_what_a_query_refuses_by_itself_does_not_cost_the_connection(self, runner: QueryRunner) -> None:
        def refuse(connection: psycopg.Connection[Any], _items: list[Any]) -> list[Any]:
            backends.add(connection.info.backend_pid)
            raise LedgerError("too much")

        backends = set[int]()
        for _ in range(3):
            with pytest.raises(LedgerError, match="too much"):
                runner.run(refuse, [1])
        assert len(backends) == 1

    def test_one_that_fails_harms_none_that_goes_along(self, runner: QueryRunner) -> None:
        def divide(connection: psycopg.Connection[Any], items: list[int]) -> list[Any]:
            return [connection.execute("SELECT 12 / %s", (item,)).fetchall()[0][0] for item in items]

        def ask_for(number: int) -> Any:
            try:
                return runner.run(divide, [number])[0]
            except LedgerError as error:
                return str(error)

        answers = at_once([lambda n=n: ask_for(n) for n in (1, 2, 0, 3, 4, 0)])  # type: ignore[misc]
        assert [answers[n] for n in (0, 1, 3, 4)] == [12, 6, 4, 3]
        assert all("division by zero" in answers[n] for n in (2, 5))
