"""What only the SQLite ledger has: shared commits, several processes on one file, problems with the file."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.asking import LEASE, ask, at_once, entry, finish, win
from ledger.stores import Shift
from semel.ledger.contract import (
    MAX_RESULT,
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
from semel.ledger.sqlite import operations
from semel.ledger.sqlite.ledger import SqliteLedger
from waiting import until


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def ledger(path: str, clock_offset: Shift) -> Iterator[SqliteLedger]:
    with SqliteLedger(path, clock=clock_offset) as ledger:
        yield ledger


@contextlib.contextmanager
def commits(ledger: SqliteLedger) -> Iterator[list[str]]:
    """The commits that the ledger makes."""
    made: list[str] = []
    connection = ledger._writer.connection
    connection.set_trace_callback(lambda sql: made.append(sql) if sql == "COMMIT" else None)
    yield made
    connection.set_trace_callback(None)


class TestSharedCommits:
    def held_up(self, ledger: SqliteLedger, works: list[Callable[[], Any]]) -> list[Any]:
        """Let all works queue behind a transaction, then let them go."""

        def hold_up() -> None:
            with ledger.transaction() as tx:
                tx.execute("SELECT 1")
                holding.set()
                until(lambda: len(ledger._writer._combiner._queue) == len(works))

        def wait_for_it(work: Callable[[], Any]) -> Callable[[], Any]:
            def then() -> Any:
                assert holding.wait(60)
                return work()

            return then

        holding = threading.Event()
        return at_once([hold_up, *map(wait_for_it, works)])[1:]

    def test_calls_that_come_together_share_one_commit(self, ledger: SqliteLedger) -> None:
        works: list[Callable[[], Any]] = [lambda n=n: win(ledger, f"order-{n}") for n in range(12)]  # type: ignore[misc]
        with commits(ledger) as made:
            assert len(self.held_up(ledger, works)) == 12
        assert len(made) == 2  # that of the transaction, and one for all
        assert all(ledger.get([f"order-{n}" for n in range(12)]))

    def test_a_call_that_fails_does_not_fail_its_neighbours(self, ledger: SqliteLedger) -> None:
        first = win(ledger, "first").claim
        assert ledger.save_step(first, "half", bytes(MAX_RESULT))

        def too_much() -> str:
            with pytest.raises(LedgerError, match="steps"):
                ledger.save_step(first, "more", b"!")
            return "refused"

        works: list[Callable[[], Any]] = [lambda n=n: win(ledger, f"order-{n}").claim.fence for n in range(6)]  # type: ignore[misc]
        assert self.held_up(ledger, [*works[:3], too_much, *works[3:]]) == [1, 1, 1, "refused", 1, 1, 1]
        assert entry(ledger, "first").steps == {"half": bytes(MAX_RESULT)}

    def test_in_memory_threads_share_one_ledger(self) -> None:
        with SqliteLedger(":memory:") as ledger:
            works = [
                lambda: ledger.claim(
                    [ClaimRequest(str(n)) for n in range(50)], claimant=os.urandom(4).hex(), lease=LEASE
                )
            ] * 8
            verdicts = [verdict for part in at_once(works) for verdict in part]
            won = Counter(verdict.claim.key for verdict in verdicts if isinstance(verdict, Won))
            assert won == Counter(str(n) for n in range(50))
            assert entry(ledger, "7").status is Status.CLAIMED


WORKER = """
import sys, threading
from semel.ledger.contract import ClaimRequest, Done, Completion, Won
from semel.ledger.sqlite.ledger import SqliteLedger

path, me = sys.argv[1:]
won = []
with SqliteLedger(path, timeout=240) as ledger:
    print("ready", flush=True)
    sys.stdin.readline()

    def work(thread):
        # Its own keys, and those that everybody wants.
        for start in range(0, 200, 10):
            asks = [ClaimRequest(f"{me}/{thread}/{n}") for n in range(start, start + 10)] + [
                ClaimRequest(f"common/{n}") for n in range(start, start + 10)
            ]
            verdicts = ledger.claim(asks, claimant=f"{me}/{thread}/{start}", lease=3600)
            mine = [verdict.claim for verdict in verdicts if isinstance(verdict, Won)]
            assert all(ledger.record([Completion(claim, result=me.encode()) for claim in mine]))
            won.extend(claim.key for claim in mine)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print("\\n".join(won))
"""


class TestSeveralProcesses:
    def test_four_processes_on_one_file_lose_nothing_and_none_starves(self, path: str) -> None:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, path, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for n in range(4)
        ]
        for process in processes:  # all open the new file at the same time
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        won = Counter(key for process in processes for key in process.communicate()[0].split())
        assert [process.returncode for process in processes] == [0] * 4
        own = [f"{me}/{thread}/{n}" for me in range(4) for thread in range(3) for n in range(200)]
        assert won == Counter(own + [f"common/{n}" for n in range(200)])
        with SqliteLedger(path) as ledger:
            assert all(entry is not None and entry.status is Status.DONE for entry in ledger.get(list(won)))

    def test_what_was_answered_survives_a_kill(self, path: str) -> None:
        program = (
            "import os, signal, sys\n"
            "from semel.ledger.contract import *\n"
            "from semel.ledger.sqlite.ledger import SqliteLedger\n"
            "ledger = SqliteLedger(sys.argv[1])\n"
            "done, held = ledger.claim([ClaimRequest('done'), ClaimRequest('held')], claimant='me', lease=3600)\n"
            "ledger.record([Completion(done.claim, result=b'yes')])\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == -9
        with SqliteLedger(path) as ledger:
            assert ask(ledger, "done") == Done("done", Status.DONE, b"yes")
            assert isinstance(ask(ledger, "held"), Held)


class TestTroubleWithTheFile:
    def test_a_locked_file_says_so_and_how_to_get_out(self, path: str) -> None:
        with SqliteLedger(path, timeout=0.02) as ledger, contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerUnavailable, match=r"ledger\.db.*another program"):
                win(ledger, "a")
            assert ledger.get(["a"]) == [None]  # who only looks is not in the way
            other.rollback()
            win(ledger, "a")

    def test_a_full_disk_says_so_and_goes_on_by_itself_when_there_is_room(self, ledger: SqliteLedger) -> None:
        before = win(ledger, "before").claim
        connection = ledger._writer.connection
        connection.execute("PRAGMA max_page_count = 1").fetchall()

        def fill() -> None:
            for n in range(1_000):
                win(ledger, f"order-{n}", payload="p" * 1_000)

        with pytest.raises(LedgerUnavailable, match="the disk is full"):
            fill()
        connection.execute("PRAGMA max_page_count = 1000000").fetchall()
        assert finish(ledger, before)
        win(ledger, "after")

    def test_a_file_that_became_read_only_says_so(self, ledger: SqliteLedger) -> None:
        ledger._writer.connection.execute("PRAGMA query_only = ON")
        with pytest.raises(LedgerUnavailable, match="cannot be written to"):
            win(ledger, "a")
        ledger._writer.connection.execute("PRAGMA query_only = OFF")
        win(ledger, "a")

    def test_a_folder_that_is_not_there_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(LedgerError, match="check that the folder exists"):
            SqliteLedger(str(tmp_path / "nowhere" / "ledger.db"))

    def test_a_file_that_is_no_database_is_left_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "notes.txt"
        file.write_text("These are the notes of somebody who has nothing to do with ledgers.\n" * 100)
        before = file.read_bytes()
        with pytest.raises(LedgerError, match="no SQLite database"):
            SqliteLedger(str(file))
        assert file.read_bytes() == before

    @pytest.mark.parametrize("options", [{"synchronous": "SOMETIMES"}, {"retention": 0}])
    def test_options_that_make_no_sense_are_refused(self, path: str, options: Any) -> None:
        with pytest.raises(LedgerError):
            SqliteLedger(path, **options)

    def test_what_is_answered_is_synced_to_the_disk(self, path: str) -> None:
        with SqliteLedger(path) as full, SqliteLedger(path, synchronous="normal") as normal:
            levels = [it._writer.connection.execute("PRAGMA synchronous").fetchone()[0] for it in (full, normal)]
            assert levels == [2, 1]
            assert full._writer.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


class TestSchema:
    def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(self, path: str) -> None:
        with SqliteLedger(path) as ledger:
            win(ledger, "a")
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE semel_meta SET value = 99 WHERE name = 'version'")
        with pytest.raises(LedgerError, match=r"version 99.*up to 3.*newer Semel"):
            SqliteLedger(path)
        with contextlib.closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT key FROM semel_ledger").fetchall() == [("a",)]

    def test_a_ledger_of_the_first_version_is_brought_up_with_all_that_is_in_it(
        self, path: str, clock_offset: Shift
    ) -> None:
        with SqliteLedger(path, retention=60) as ledger:
            win(ledger, "a", lease=10)
            with ledger.transaction() as tx:
                tx.send("receipts", "a")
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("DROP INDEX semel_ledger_purge_at")
            other.execute("ALTER TABLE semel_ledger DROP COLUMN purge_at")
            other.execute("CREATE INDEX semel_ledger_expires ON semel_ledger (expires)")
            other.execute("ALTER TABLE semel_outbox DROP COLUMN attempts")
            other.execute("ALTER TABLE semel_outbox DROP COLUMN error")
            other.execute("UPDATE semel_meta SET value = 1 WHERE name = 'version'")
        with SqliteLedger(path, clock=clock_offset) as ledger:
            (waiting,) = ledger.take_outgoing()
            assert (waiting.body, waiting.attempts, waiting.error) == ("a", 0, "")
            assert isinstance(ask(ledger, "a"), Held)
            clock_offset.advance(61)
            assert ledger.purge() == 1

    def test_a_ledger_lives_beside_the_tables_of_others(self, path: str) -> None:
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("CREATE TABLE orders (id)")
            other.execute("INSERT INTO orders VALUES (7)")
        with SqliteLedger(path) as ledger:
            win(ledger, "a")
            with ledger.transaction() as tx:
                assert tx.execute("SELECT id FROM orders").fetchall() == [(7,)]

    def test_many_may_make_the_file_at_once(self, path: str) -> None:
        ledgers = at_once([lambda: SqliteLedger(path)] * 8)
        assert [ask(ledger, "a").__class__ for ledger in ledgers] == [Won] + [Held] * 7
        for ledger in ledgers:
            ledger.close()


class TestTransactions:
    def test_a_block_that_has_not_written_yet_keeps_nobody_waiting(self, path: str) -> None:
        with SqliteLedger(path, timeout=0.02) as ledger, ledger.transaction() as tx:
            win(ledger, "a")
            tx.execute("CREATE TABLE effects (id)")

    def test_a_block_that_writes_for_too_long_is_named_to_those_who_wait(self, path: str) -> None:
        with SqliteLedger(path, timeout=0.02) as ledger:
            with ledger.transaction() as tx:
                tx.execute("CREATE TABLE effects (id)")

                def wait_in_vain() -> None:
                    with pytest.raises(LedgerUnavailable, match="keep SQLite transactions short"):
                        win(ledger, "a")

                at_once([wait_in_vain])
            win(ledger, "a")

    def test_an_extension_waits_no_longer_than_it_is_told(self, path: str) -> None:
        with SqliteLedger(path, timeout=60) as ledger, contextlib.closing(sqlite3.connect(path)) as other:
            claim = win(ledger, "a").claim
            with ledger.transaction() as tx:  # of this process
                tx.execute("CREATE TABLE effects (id)")

                def wait_in_vain() -> None:
                    with pytest.raises(LedgerUnavailable, match=r"0\.02 s"):
                        ledger.extend([claim], LEASE, timeout=0.02)

                at_once([wait_in_vain])
            other.execute("BEGIN IMMEDIATE")  # of another
            began = time.monotonic()
            with pytest.raises(LedgerUnavailable, match="another program"):
                ledger.extend([claim], LEASE, timeout=0.02)
            assert time.monotonic() - began < 30
            other.rollback()
            assert ledger.extend([claim], LEASE, timeout=0.02) == [True]

    def test_asking_the_ledger_inside_its_own_transaction_is_an_error_and_no_deadlock(
        self, ledger: SqliteLedger
    ) -> None:
        claim = win(ledger, "a").claim
        with ledger.transaction() as tx:
            assert tx.record([Completion(claim)]) == [True]
            with pytest.raises(LedgerError, match="use the transaction's own methods"):
                ledger.claim([ClaimRequest("b")], claimant="me", lease=LEASE)
            with pytest.raises(LedgerError, match="closed inside"):
                ledger.close()
            assert entry(ledger, "a").status is Status.CLAIMED  # looking is possible, and sees what is committed
        assert entry(ledger, "a").status is Status.DONE

    def test_a_commit_inside_the_block_is_found_out(self, ledger: SqliteLedger) -> None:
        def commit_inside() -> None:
            with ledger.transaction() as tx:
                tx.connection.executescript("CREATE TABLE effects (id)")

        with pytest.raises(LedgerError, match="was ended inside its block"):
            commit_inside()
        win(ledger, "a")

    def test_a_transaction_that_is_over_is_over(self, ledger: SqliteLedger) -> None:
        with ledger.transaction() as tx:
            pass
        for use in (lambda: tx.execute("SELECT 1"), lambda: tx.connection, lambda: tx.send("q", "b")):
            with pytest.raises(LedgerError, match="is over"):
                use()

    def test_what_the_user_sets_on_the_connection_does_not_reach_the_ledger(self, ledger: SqliteLedger) -> None:
        claim = win(ledger, "a").claim
        with ledger.transaction() as tx:
            tx.connection.row_factory = lambda cursor, row: {"first": row[0]}
            tx.connection.text_factory = bytes
            assert tx.execute("SELECT 'x'").fetchone() == {"first": b"x"}
            assert tx.record([Completion(claim), Completion(Claim("unknown", 1))]) == [True, False]
        assert isinstance(ask(ledger, "a"), Done)
        assert ledger.purge() == 0

    def test_a_result_that_is_not_read_to_its_end_does_not_hold_the_ledger_up(self, path: str) -> None:
        with SqliteLedger(path, timeout=0.02) as ledger, SqliteLedger(path) as other:
            with ledger.transaction() as tx:
                tx.execute("CREATE TABLE effects (id)")
                tx.executemany("INSERT INTO effects VALUES (?)", [(n,) for n in range(10_000)])
            with ledger.transaction() as tx:
                unread = [tx.execute("SELECT id FROM effects"), tx.connection.cursor().execute("SELECT 1 FROM effects")]
                assert [cursor.fetchone() for cursor in unread] == [(0,), (1,)]
            win(other, "a")  # now the file is another than that which the open results are of
            win(ledger, "b")
            with pytest.raises(sqlite3.ProgrammingError, match="closed cursor"):
                unread[0].fetchone()

    def test_a_constraint_that_fails_at_the_commit_is_the_users_own_error(self, ledger: SqliteLedger) -> None:
        claim = win(ledger, "a").claim
        with ledger.transaction() as tx:
            tx.execute("CREATE TABLE parent (id PRIMARY KEY)")
            tx.execute("CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
        ledger._writer.connection.execute("PRAGMA foreign_keys = ON")

        def orphan() -> None:
            with ledger.transaction() as tx:
                tx.execute("INSERT INTO child VALUES (7)")
                assert tx.record([Completion(claim)]) == [True]

        with pytest.raises(sqlite3.IntegrityError):
            orphan()
        assert entry(ledger, "a").status is Status.CLAIMED

    def test_a_disk_that_fails_at_the_commit_leaves_the_outcome_unknown_and_the_ledger_tells_it(
        self, ledger: SqliteLedger, path: str
    ) -> None:
        claim = win(ledger, "a").claim
        before = resource.getrlimit(resource.RLIMIT_FSIZE)

        def commit_to_nowhere() -> None:
            with ledger.transaction() as tx:
                assert tx.record([Completion(claim, result=b"x" * 100_000)]) == [True]
                resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(f"{path}-wal"), before[1]))

        try:
            with pytest.raises(OutcomeUnknown, match="look its keys up"):
                commit_to_nowhere()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert entry(ledger, "a").status is Status.CLAIMED
        assert finish(ledger, claim)

    def test_messages_of_a_group_leave_in_their_order_whoever_sends_them(self, ledger: SqliteLedger) -> None:
        with ledger.transaction() as tx:
            for number in range(3):
                tx.send("orders.fifo", str(number), group="a")
            tx.send("orders.fifo", "other", group="b")
        (first,) = ledger.take_outgoing(limit=1, lease=30)
        assert [it.body for it in ledger.take_outgoing(lease=30)] == ["other"]  # 1 and 2 wait for 0
        ledger.sent_outgoing([first.id])
        assert [it.body for it in ledger.take_outgoing()] == ["1", "2"]

    def test_ids_of_messages_from_two_files_differ(self, ledger: SqliteLedger, tmp_path: Path) -> None:
        ids = set()
        with SqliteLedger(str(tmp_path / "other.db")) as other:
            for it in (ledger, other):
                with it.transaction() as tx:
                    tx.send("receipts", "a")
                ids |= {outgoing.id for outgoing in it.take_outgoing()}
            assert len(ids) == 2
            ledger.sent_outgoing([*ids, "nonsense"])


class TestPurge:
    def test_it_finds_what_has_expired_by_an_index_and_commits_in_small_parts(
        self, path: str, clock_offset: Shift
    ) -> None:
        with SqliteLedger(path, retention=60, clock=clock_offset) as ledger:
            for start in range(0, 1_200, 400):
                ledger.claim([ClaimRequest(str(start + n)) for n in range(400)], claimant="me", lease=LEASE)
            clock_offset.advance(61)
            with commits(ledger) as made:
                assert ledger.purge(10_000) == 1_200
            assert len(made) == 3
        with contextlib.closing(sqlite3.connect(path)) as other:
            ((*_, plan),) = other.execute(f"EXPLAIN QUERY PLAN {operations._DUE}", (1, 1)).fetchall()
            assert "USING INDEX semel_ledger_purge_at" in plan

    def test_rows_that_were_kept_for_longer_are_looked_at_once_and_then_left(
        self, path: str, clock_offset: Shift
    ) -> None:
        with SqliteLedger(path, retention=60, clock=clock_offset) as ledger:
            results = ledger.claim([ClaimRequest(str(n)) for n in range(1_200)], claimant="me", lease=LEASE)
            claims = [result.claim for result in results if isinstance(result, Won)]
            clock_offset.advance(30)
            assert all(ledger.record([Completion(claim) for claim in claims]))
            clock_offset.advance(31)
            with commits(ledger) as made:
                assert ledger.purge(10) == 0
                assert ledger.purge(10) == 0
            assert len(made) == 3 + 1  # in transactions of 500 rows, and then none
            clock_offset.advance(30)
            assert ledger.purge(10_000) == 1_200

    def test_neither_an_extension_nor_a_record_changes_an_index(self, ledger: SqliteLedger) -> None:
        claims = [win(ledger, str(n)).claim for n in range(3)]
        before = ledger._writer.connection.execute("SELECT key, purge_at FROM semel_ledger").fetchall()
        assert ledger.extend(claims, LEASE) == [True] * 3
        assert ledger.record([Completion(claim) for claim in claims]) == [True] * 3
        assert ledger._writer.connection.execute("SELECT key, purge_at FROM semel_ledger").fetchall() == before


class TestAddresses:
    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("sqlite://", ":memory:"),
            ("sqlite:///:memory:", ":memory:"),
            ("sqlite:///ledger.db", "ledger.db"),
            ("sqlite:///a/folder%20b/ledger.db", "a/folder b/ledger.db"),
        ],
    )
    def test_an_address_leads_to_its_file(
        self, url: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a" / "folder b").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        with SqliteLedger.from_url(url, retention=60) as ledger:
            assert (ledger.path, ledger.retention) == (path, 60)
            win(ledger, "a")
        assert path == ":memory:" or (tmp_path / path).exists()

    def test_four_slashes_are_an_absolute_path(self, path: str) -> None:
        with Ledger.connect(f"sqlite:///{path}") as ledger:
            assert isinstance(ledger, SqliteLedger)
            assert ledger.path == path

    @pytest.mark.parametrize("url", ["sqlite://ledger.db", "sqlite:///ledger.db?mode=ro"])
    def test_another_form_is_refused_with_those_that_work(self, url: str) -> None:
        with pytest.raises(LedgerError, match=r"sqlite:///relative\.db"):
            SqliteLedger.from_url(url)


class TestClose:
    def test_a_closed_ledger_says_so_and_closes_again_without_harm(self, path: str) -> None:
        ledger = SqliteLedger(path)
        ledger.close()
        ledger.close()
        for use in (lambda: win(ledger, "a"), lambda: ledger.get(["a"]), lambda: ledger.take_outgoing()):
            with pytest.raises(LedgerError, match="is closed"):
                use()

    def test_what_was_asked_before_the_close_is_answered(self, path: str) -> None:
        ledger = SqliteLedger(path)
        queue = ledger._writer._combiner._queue

        def hold_up() -> None:
            with ledger.transaction() as tx:
                tx.execute("SELECT 1")
                holding.set()
                until(lambda: ledger._writer._combiner._closed)

        def claim() -> None:
            assert holding.wait(60)
            win(ledger, "a")

        def close() -> None:
            until(lambda: len(queue) == 1)
            ledger.close()

        holding = threading.Event()
        at_once([hold_up, claim, close])
        with SqliteLedger(path) as again:
            assert isinstance(ask(again, "a"), Held)

    def test_a_close_does_not_wait_for_ever_for_a_transaction(self, path: str) -> None:
        ledger = SqliteLedger(path, timeout=0.02)
        with ledger.transaction() as tx:
            tx.execute("CREATE TABLE effects (id)")
            at_once([ledger.close])
            tx.execute("INSERT INTO effects VALUES (1)")
        with contextlib.closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT id FROM effects").fetchall() == [(1,)]
        with pytest.raises(LedgerError, match="is closed"):
            win(ledger, "a")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE semel_ledger SET status = 'd0ne'",
        "UPDATE semel_ledger SET expires = 'soon'",
        "UPDATE semel_ledger SET result = 5",
        "UPDATE semel_meta SET value = 'x' WHERE name = 'floor'",
    ],
)
def test_a_row_that_no_ledger_has_written_is_damage_and_its_work_is_not_done_again(path: str, damage: str) -> None:
    with contextlib.closing(SqliteLedger(path)) as ledger:
        finish(ledger, win(ledger, "k").claim)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(damage)
    with contextlib.closing(SqliteLedger(path)) as ledger, pytest.raises(LedgerError, match="damaged"):
        ask(ledger, "k")


def test_a_damaged_schema_is_named_with_its_file(path: str) -> None:
    SqliteLedger(path).close()
    content = Path(path).read_bytes()
    Path(path).write_bytes(content.replace(b"CREATE TABLE semel_ledger", b"CREATE \xcf\xff\xcf\xff\xcf semel_ledger"))
    with pytest.raises(LedgerError, match=path):
        SqliteLedger(path)
