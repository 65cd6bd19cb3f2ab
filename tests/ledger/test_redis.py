"""What is special about the Redis ledger. The conformance suite tests what is true for every store."""

from __future__ import annotations

import logging
import signal
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
import redis

from ledger.asking import LEASE, ask, at_once, entry, finish, win
from ledger.stores import Shift
from semel.ledger.contract import (
    ClaimRequest,
    Completion,
    Done,
    Held,
    Ledger,
    LedgerError,
    LedgerUnavailable,
    Status,
    Won,
)
from semel.ledger.redis.ledger import RedisLedger
from semel.ledger.redis.script_runner import CONNECTIONS
from servers.redis import Server, running, running_cluster


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def ledger(redis_server: Server, prefix: str) -> Iterator[RedisLedger]:
    with RedisLedger(redis_server.url, prefix=prefix) as ledger:
        yield ledger


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def names(client: redis.Redis, prefix: str) -> list[str]:
    return [name.decode() for name in client.scan_iter(f"{{{prefix}:*")]


def user(*rules: str) -> list[str]:
    """Settings with a user "app" that may do everything but what the rules say."""
    return ["--user", "app", "on", ">secret", "~*", "&*", "+@all", *rules]


class TestFitToKeepALedger:
    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
    def test_a_server_that_evicts_is_refused_with_the_way_out(self, policy: str) -> None:
        with running("--maxmemory", "50mb", "--maxmemory-policy", policy) as server:
            with pytest.raises(LedgerError, match=f"{policy}.*set maxmemory-policy noeviction.*allow_eviction=True"):
                RedisLedger(server.url)

    def test_a_server_that_evicts_is_taken_if_told_so_and_the_log_warns(self, caplog: pytest.LogCaptureFixture) -> None:
        with running("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru") as server:
            with caplog.at_level(logging.WARNING, "semel.ledger"):
                with RedisLedger.from_url(f"{server.url}?allow_eviction=1") as ledger:
                    assert win(ledger, "a")
        assert "evicts" in caplog.text

    def test_a_server_without_an_append_only_file_is_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        with running("--appendonly", "no") as server, caplog.at_level(logging.WARNING, "semel.ledger"):
            RedisLedger(server.url).close()
        assert "appendonly no" in caplog.text

    def test_a_durable_server_is_warned_of_in_nothing(
        self, redis_server: Server, prefix: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "semel.ledger"):
            RedisLedger(redis_server.url, prefix=prefix).close()
        assert caplog.text == ""

    def test_where_config_is_forbidden_the_policy_is_read_from_info(self) -> None:
        with running("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru", *user("-config")) as server:
            with pytest.raises(LedgerError, match="evicts"):
                RedisLedger(server.url.replace("//", "//app:secret@"))

    def test_where_nothing_can_be_read_the_log_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        with running(*user("-config", "-info")) as server:
            with caplog.at_level(logging.WARNING, "semel.ledger"):
                with RedisLedger(server.url.replace("//", "//app:secret@")) as ledger:
                    assert win(ledger, "a")
        assert "make sure that it is noeviction" in caplog.text


class TestDoors:
    def test_a_wrong_password_is_an_error_that_does_not_show_it(self) -> None:
        with running("--requirepass", "right") as server:
            with pytest.raises(LedgerError, match="does not let us in") as refused:
                RedisLedger(server.url.replace("//", "//:wrong@"))
            assert not isinstance(refused.value, LedgerUnavailable)
            assert "wrong@" not in str(refused.value)
            with RedisLedger(server.url.replace("//", "//:right@")) as ledger:
                assert win(ledger, "a")

    def test_a_user_that_may_not_run_scripts_is_told_what_is_missing(self) -> None:
        with running(*user("-eval", "-evalsha")) as server:
            with RedisLedger(server.url.replace("//", "//app:secret@")) as ledger:
                with pytest.raises(LedgerError, match="EVALSHA"):
                    ask(ledger, "a")

    def test_a_server_that_is_not_there_is_unavailable(self) -> None:
        with running() as server:
            server.stop()
            with pytest.raises(LedgerUnavailable, match=str(server.port)):
                RedisLedger(server.url, timeout=2)

    def test_an_address_that_is_none_is_an_error(self) -> None:
        with pytest.raises(LedgerError, match="address"):
            RedisLedger("redis://127.0.0.1:port/0")

    @pytest.mark.parametrize("prefix", ["", "a{b", "a}b"])
    def test_a_prefix_that_would_break_the_slots_is_refused(self, prefix: str) -> None:
        with pytest.raises(LedgerError, match="prefix"):
            RedisLedger("redis://127.0.0.1:1/0", prefix=prefix)

    def test_options_can_be_part_of_the_address(self, redis_server: Server, prefix: str) -> None:
        with Ledger.connect(f"{redis_server.url}?prefix={prefix}&retention=60&timeout=3") as ledger:
            assert ledger.retention == 60
            win(ledger, "a")
        with Ledger.connect(redis_server.url.replace("redis:", "valkey:"), prefix=prefix) as again:
            assert isinstance(ask(again, "a"), Held)

    def test_an_option_that_cannot_be_read_is_named(self, redis_server: Server) -> None:
        with pytest.raises(LedgerError, match="retention='soon'"):
            RedisLedger.from_url(f"{redis_server.url}?retention=soon")


class TestTheServerGoesOn:
    def test_what_was_recorded_survives_a_crash_of_the_server(self) -> None:
        # With `everysec` an answer may be a second ahead of its log, and a kill can cost that second.
        with running("--appendfsync", "always") as server, RedisLedger(server.url) as ledger:
            assert finish(ledger, win(ledger, "a").claim, result=b"\x00\xff")
            server.kill()
            server.start()
            assert ask(ledger, "a") == Done("a", Status.DONE, b"\x00\xff")

    def test_scripts_that_the_server_has_forgotten_are_sent_again(
        self, ledger: RedisLedger, client: redis.Redis
    ) -> None:
        claim = win(ledger, "a").claim
        client.script_flush()
        assert ledger.extend([claim], 30) == [True]

    def test_a_full_server_is_unavailable_and_keeps_all_that_it_has(self) -> None:
        with running() as server, RedisLedger(server.url) as ledger, redis.Redis.from_url(server.url) as client:
            claim = win(ledger, "a").claim
            client.config_set("maxmemory", 1)
            with pytest.raises(LedgerUnavailable, match="maxmemory"):
                ask(ledger, "b")
            client.config_set("maxmemory", 0)
            assert finish(ledger, claim)
            assert isinstance(ask(ledger, "b"), Won)

    def test_a_replica_is_unavailable_until_it_is_the_primary(self) -> None:
        with running() as server, RedisLedger(server.url) as ledger, redis.Redis.from_url(server.url) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(LedgerUnavailable, match="primary"):
                ask(ledger, "a")
            client.execute_command("REPLICAOF", "NO", "ONE")
            assert isinstance(ask(ledger, "a"), Won)


class TestReplicas:
    def test_a_claim_that_no_replica_has_counts_only_when_one_has_it(self) -> None:
        with running() as primary, running() as replica:
            with redis.Redis.from_url(replica.url) as client, redis.Redis.from_url(primary.url) as first:
                with RedisLedger(primary.url, wait_replicas=1, timeout=1) as ledger:
                    with pytest.raises(LedgerUnavailable, match="0 of 1 replicas"):
                        ledger.claim([ClaimRequest("a")], claimant="me", lease=30)
                client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
                while first.info("replication").get("slave0", {}).get("state") != "online":
                    pass
                with RedisLedger(primary.url, wait_replicas=1, timeout=30) as ledger:
                    (won,) = ledger.claim([ClaimRequest("a")], claimant="me", lease=30)
                    assert isinstance(won, Won)
                    assert ledger.record([Completion(won.claim)]) == [True]
                assert client.hgetall(names(client, "semel")[0])[b"h"].startswith(b"D 1 1")


class TestTheData:
    def test_prefixes_keep_ledgers_apart(self, redis_server: Server, ledger: RedisLedger, prefix: str) -> None:
        win(ledger, "a")
        with RedisLedger(redis_server.url, prefix=f"{prefix}-other") as other:
            assert isinstance(ask(other, "a"), Won)

    def test_the_server_drops_a_key_some_time_after_it_has_expired(
        self, ledger: RedisLedger, client: redis.Redis, prefix: str
    ) -> None:
        ledger.retention = 600
        assert finish(ledger, win(ledger, "a").claim)
        (name,) = names(client, prefix)
        assert 1_100_000 < client.pttl(name) <= 1_200_000
        assert ledger.purge() == 0

    def test_a_claim_is_not_dropped_while_its_lease_runs(
        self, ledger: RedisLedger, client: redis.Redis, prefix: str
    ) -> None:
        ledger.retention = 1
        win(ledger, "a", lease=3_600)
        (name,) = names(client, prefix)
        assert client.pttl(name) > 3_600_000

    def test_a_new_life_after_a_key_has_expired_knows_no_notes(
        self, redis_server: Server, prefix: str, clock_offset: Shift
    ) -> None:
        with RedisLedger(redis_server.url, prefix=prefix, retention=600, clock=clock_offset) as ledger:
            assert ledger.save_step(win(ledger, "a", payload="p").claim, "step", b"1")
            clock_offset.advance(601)
            assert win(ledger, "a", payload="q").steps == {}
            assert entry(ledger, "a").steps == {}

    def test_a_ledger_of_a_newer_semel_is_refused(
        self, redis_server: Server, ledger: RedisLedger, client: redis.Redis, prefix: str
    ) -> None:
        client.hset(f"{prefix}:meta", "version", 99)
        with pytest.raises(LedgerError, match=r"schema 99.*upgrade Semel"):
            RedisLedger(redis_server.url, prefix=prefix)

    def test_the_number_of_shards_cannot_change(self, redis_server: Server, ledger: RedisLedger, prefix: str) -> None:
        with pytest.raises(LedgerError, match="made with 16 shards"):
            RedisLedger(redis_server.url, prefix=prefix, shards=4)

    def test_a_key_that_holds_something_else_fails_alone(
        self, ledger: RedisLedger, client: redis.Redis, prefix: str
    ) -> None:
        win(ledger, "bad")
        (name,) = names(client, prefix)
        client.delete(name)
        client.set(name, "not ours")

        def work(key: str) -> bool:
            try:
                return isinstance(ask(ledger, key), Won)
            except LedgerError as error:
                return "WRONGTYPE" in str(error) and key == "bad"

        keys = ["bad" if n % 8 == 0 else f"good-{n}" for n in range(32)]
        assert all(at_once([lambda key=key: work(key) for key in keys]))  # type: ignore[misc]

    def test_more_keys_than_one_script_may_take_are_answered_in_their_order(self, ledger: RedisLedger) -> None:
        asks = [ClaimRequest(f"key-{n}") for n in range(1_234)]
        won = ledger.claim(asks, claimant="me", lease=30)
        assert [verdict.claim.key for verdict in won if isinstance(verdict, Won)] == [it.key for it in asks]
        twice = ledger.claim([*asks, *asks], claimant="me", lease=30)
        assert [type(verdict) for verdict in twice] == [Won] * 1_234 + [Held] * 1_234


class TestThreads:
    def test_calls_of_many_threads_share_a_few_connections(self, redis_server: Server, prefix: str) -> None:
        with RedisLedger(redis_server.url, prefix=prefix) as ledger, redis.Redis.from_url(redis_server.url) as client:
            before = client.info("clients")["connected_clients"]

            def work(thread: int) -> int:
                claims = [win(ledger, f"{thread}-{n}").claim for n in range(50)]
                return sum(ledger.record([Completion(claim) for claim in claims]))

            assert at_once([lambda n=n: work(n) for n in range(16)]) == [50] * 16  # type: ignore[misc]
            assert client.info("clients")["connected_clients"] <= before + 2

    def test_an_extension_waits_no_longer_than_it_is_told(
        self, redis_server: Server, prefix: str, client: redis.Redis
    ) -> None:
        with RedisLedger(redis_server.url, prefix=prefix, timeout=60) as ledger:
            claim = win(ledger, "mine").claim
            client.client_pause(60_000, all=False)
            try:
                began = time.monotonic()
                with pytest.raises(LedgerUnavailable, match="within the time"):
                    ledger.extend([claim], LEASE, timeout=0.05)
                assert time.monotonic() - began < 30
            finally:
                client.client_unpause()
            assert ledger.extend([claim], LEASE, timeout=5) == [True]

    def test_a_thread_that_is_interrupted_while_it_waits_leaves_the_others_going(
        self, redis_server: Server, prefix: str, client: redis.Redis
    ) -> None:
        # As patient as the pause is long: on a busy machine what happens in it may take seconds.
        with RedisLedger(redis_server.url, prefix=prefix, timeout=60) as ledger:
            self._interrupt_one_of_three(ledger, client)

    def _interrupt_one_of_three(self, ledger: RedisLedger, client: redis.Redis) -> None:
        win(ledger, "before")
        runner = ledger._client._runner
        assert runner is not None
        calls = runner._combiner
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            while not calls._queue:
                time.sleep(0.001)
            signal.pthread_kill(main, signal.SIGUSR1)

        def raise_it(*_: object) -> None:
            raise KeyboardInterrupt

        old = signal.signal(signal.SIGUSR1, raise_it)
        client.client_pause(60_000, all=False)
        others = [threading.Thread(target=ask, args=(ledger, f"other-{n}")) for n in range(2)]
        killer = threading.Thread(target=interrupt)
        try:
            for thread in others:
                thread.start()
            while calls._free:
                time.sleep(0.001)
            killer.start()
            with pytest.raises(KeyboardInterrupt):
                ask(ledger, "mine")
        finally:
            signal.signal(signal.SIGUSR1, old)
            client.client_unpause()
            for thread in (*others, killer):
                thread.join()
        assert (len(calls._queue), len(calls._free)) == (0, CONNECTIONS)
        assert [isinstance(ask(ledger, key), Held) for key in ("other-0", "other-1")] == [True, True]
        assert isinstance(ask(ledger, "mine"), Won)

    def test_a_closed_ledger_says_so(self, redis_server: Server, prefix: str) -> None:
        ledger = RedisLedger(redis_server.url, prefix=prefix)
        ledger.close()
        with pytest.raises(LedgerUnavailable, match="closed"):
            ask(ledger, "a")


def test_a_cluster_keeps_a_ledger_whose_keys_are_on_all_its_nodes() -> None:
    shift = Shift()
    with running_cluster() as nodes, RedisLedger(nodes[1].url, clock=shift) as ledger:
        asks = [ClaimRequest(f"key-{n}", payload="p", source="s") for n in range(64)]
        won = [it for it in ledger.claim([*asks, asks[0]], claimant="me", lease=30) if isinstance(it, Won)]
        assert [it.claim.key for it in won] == [it.key for it in asks]
        sizes = []
        for node in nodes:
            with redis.Redis.from_url(node.url) as client:
                sizes.append(client.dbsize())
                client.script_flush()
        assert all(size > 5 for size in sizes), sizes
        assert ledger.save_step(won[0].claim, "step", b"1")
        assert ledger.extend([it.claim for it in won], 60) == [True] * 64
        assert ledger.record([Completion(it.claim, result=it.claim.key.encode()) for it in won[:32]]) == [True] * 32
        assert ledger.release([it.claim for it in won[32:48]]) == [True] * 16
        shift.advance(61)
        answers = ledger.claim(asks, claimant="another", lease=30)
        assert answers[:32] == [Done(it.key, Status.DONE, it.key.encode()) for it in asks[:32]]
        assert all(isinstance(it, Won) and it.taken_over is (n >= 16) for n, it in enumerate(answers[32:]))
        assert ledger.forget([it.key for it in asks]) == 64
        assert [entry.status for entry in ledger.get([it.key for it in asks]) if entry] == [Status.FREE] * 64
        with pytest.raises(LedgerError, match="wait_replicas"):
            RedisLedger(nodes[0].url, wait_replicas=1)
