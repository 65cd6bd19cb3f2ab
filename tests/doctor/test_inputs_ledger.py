"""What the doctor learns about a ledger, from a real Redis that evicts keys, refuses calls or is unreachable."""

from __future__ import annotations

import pytest

from doctor.made_up import case, finding_of, look
from semel.doctor.errors import DoctorError
from semel.doctor.inputs import ledger as ledgers
from servers import redis


def test_a_redis_that_evicts_is_seen_and_the_cure_ends_it() -> None:
    import redis as driver

    with redis.running("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        ledger = ledgers.look(server.url, 86_400.0)
        assert (ledger.eviction, ledger.retention, ledger.problem) == ("allkeys-lru", 86_400.0, None)
        (command,) = finding_of("ledger-evicts", case(ledger=ledger)).remedy.cli
        program, option, address, *words = command.split()
        assert (program, option, address) == ("redis-cli", "-u", server.url)
        with driver.Redis.from_url(server.url) as client:
            client.execute_command(*words)
        assert look("ledger-evicts", case(ledger=ledgers.look(server.url))) is None


def test_a_redis_that_refuses_config_is_asked_by_info() -> None:
    with redis.running("--rename-command", "CONFIG", "") as server:
        assert ledgers.look(server.url).eviction == "noeviction"


def test_a_redis_that_tells_nothing_is_a_problem_and_no_error() -> None:
    with redis.running("--rename-command", "CONFIG", "", "--rename-command", "INFO", "") as server:
        ledger = ledgers.look(server.url)
    assert ledger.eviction is None
    assert ledger.problem is not None
    assert "make sure that it is noeviction" in ledger.problem


def test_a_redis_that_is_away_is_a_problem_and_no_error() -> None:
    ledger = ledgers.look("redis://:secret@127.0.0.1:9/0")
    assert ledger.where == "redis://127.0.0.1:9/0"
    assert ledger.problem is not None
    assert "Redis does not answer" in ledger.problem
    assert "secret" not in ledger.problem


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://me:secret@host/shop?sslmode=require", "postgresql://me@host/shop"),
        ("sqlite:///ledger.db", "sqlite:///ledger.db"),
        ("dynamodb://table?region=eu-west-1", "dynamodb://table"),
    ],
)
def test_of_other_stores_what_was_said_is_what_is_known(url: str, where: str) -> None:
    ledger = ledgers.look(url, 60.0)
    assert (ledger.where, ledger.retention, ledger.eviction, ledger.problem) == (where, 60.0, None, None)


def test_what_is_no_address_of_a_ledger_is_refused() -> None:
    with pytest.raises(DoctorError, match=r"--ledger ledger.db: it is no address of a ledger"):
        ledgers.look("ledger.db")
