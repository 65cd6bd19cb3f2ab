"""The commits of sinks without transactions: which one counts while others write, read and drop them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson
import pytest

from semel.spark.segments.storage import LocalStore
from semel.spark.sinks.commit_log import CommitLog
from semel.spark.sinks.contract import Commit, MicroBatch


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def made_of(number: int) -> MicroBatch:
    return MicroBatch("orders", number, f"content {number}")


def test_the_newest_batch_counts_and_only_its_file_is_kept(store: LocalStore) -> None:
    log = CommitLog(store, "commits")
    assert log.last() is None
    for number in (8, 9, 10, 10):
        log.record(made_of(number))
        assert log.last() == Commit(number, f"content {number}")
    assert store.names() == ["commits/0000000010"]


def test_a_driver_that_records_its_batch_late_takes_nothing_back(store: LocalStore) -> None:
    CommitLog(store, "commits").record(made_of(8))
    CommitLog(store, "commits").record(made_of(7))
    assert CommitLog(store, "commits").last() == Commit(8, "content 8")
    assert store.names() == ["commits/0000000008"]


def test_a_commit_that_is_dropped_while_it_is_read_has_a_newer_one(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, read = CommitLog(store, "commits"), store.read
    log.record(made_of(7))

    def read_late(name: str) -> bytes | None:
        monkeypatch.setattr(store, "read", read)
        CommitLog(store, "commits").record(made_of(8))
        return read(name)

    monkeypatch.setattr(store, "read", read_late)
    assert log.last() == Commit(8, "content 8")


def test_the_file_of_an_earlier_version_counts_until_there_is_a_newer_commit(store: LocalStore) -> None:
    log = CommitLog(store, "commits", former="committed.json")
    for fields in ({"number": 6}, {"number": 6, "content": "content 6"}):
        store.put("committed.json", orjson.dumps(fields))
        assert log.last() == Commit(6, fields.get("content", ""))  # type: ignore[arg-type]
    log.record(made_of(7))
    assert log.last() == Commit(7, "content 7")


def test_a_driver_that_dies_before_it_has_dropped_older_commits_leaves_them_to_the_next(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, delete = CommitLog(store, "commits"), store.delete

    def die(_names: Iterable[str]) -> None:
        raise InterruptedError

    monkeypatch.setattr(store, "delete", die)
    for number in (7, 8):
        with pytest.raises(InterruptedError):
            log.record(made_of(number))
    assert log.last() == Commit(8, "content 8")
    monkeypatch.setattr(store, "delete", delete)
    log.record(made_of(9))
    assert store.names() == ["commits/0000000009"]
