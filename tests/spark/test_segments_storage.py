"""Where segments are kept: one name, one winner, whole bytes; on disk and in S3 alike."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.spark.segments.object_store import S3Store, Timeouts
from semel.spark.segments.storage import LocalStore, StorageError, Store, open_store
from semel.spark.source.options import ReadOptions
from semel.spark.source.reader import Assignment, SourceTask


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A real server that speaks S3's protocol."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = dict(os.environ)
    os.environ.update(
        AWS_ENDPOINT_URL_S3=f"http://{host}:{port}",
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_DEFAULT_REGION="us-east-1",
    )
    try:
        S3Store("bucket")._client.create_bucket(Bucket="bucket")
        yield "s3://bucket"
    finally:
        server.stop()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(params=["local", "s3"])
def store(request: Any, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(str(tmp_path / "a b"))
    return open_store(f"{request.getfixturevalue('s3')}/{tmp_path.name}")


def test_what_was_put_is_read_whole(store: Store) -> None:
    store.put("over.json", b"1")
    store.put("over.json", b"22")
    assert store.read("over.json") == b"22"
    assert store.read("nothing") is None


def test_of_all_who_put_a_name_at_once_one_wins(store: Store) -> None:
    start = threading.Barrier(8)
    won: list[int] = []

    def put(number: int) -> None:
        start.wait()
        if store.put_if_absent("b1/t0.seg", f"{number}".encode() * 1_000):
            won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("b1/t0.seg") == f"{won[0]}".encode() * 1_000


def test_names_are_listed_by_folder_and_deleted_with_it(store: Store) -> None:
    for name in ("b1/x.seg", "b1/x.ack", "b2/y.seg", "over.json"):
        store.put(name, b"")
    assert store.names("b1") == ["b1/x.ack", "b1/x.seg"]
    assert store.names() == ["b1/x.ack", "b1/x.seg", "b2/y.seg", "over.json"]
    store.delete(["b1/x.seg", "b1/x.ack", "never/there"])
    assert store.names() == ["b2/y.seg", "over.json"]


def test_a_folder_of_which_all_was_deleted_is_gone(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("b1/x.seg", b"")
    (tmp_path / "b1" / ".tmp-of-a-dead-task").touch()
    store.delete(store.names("b1"))
    assert not (tmp_path / "b1").exists()


def test_every_new_folder_is_synced_in_the_one_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the power takes a sealed segment with it, after its messages were deleted."""
    synced: list[Path] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fsync", watched)
    store = open_store(str(tmp_path / "checkpoint" / "segments"))
    assert store.put_if_absent("b1/t0.seg", b"1")
    assert {tmp_path, tmp_path / "checkpoint", Path(store.url), Path(store.url, "b1")} <= set(synced)
    synced.clear()
    assert store.put_if_absent("b1/t1.seg", b"1")  # another may have made the folder, and died before it was synced
    assert {Path(store.url), Path(store.url, "b1")} <= set(synced)


def test_a_bucket_that_does_not_exist_is_named(s3: str) -> None:
    with pytest.raises(StorageError, match="s3://elsewhere/log"):
        open_store("s3://elsewhere/log").put("a", b"")


def test_a_store_that_ignores_the_condition_is_refused(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store("bucket/careless")

    def careless(name: str, data: bytes) -> bool:
        store.put(name, data)
        return True

    monkeypatch.setattr(store, "put_if_absent", careless)
    with pytest.raises(StorageError, match="If-None-Match"):
        store.check()


@pytest.mark.parametrize("seconds", [2.5, 12.0, 12.1, 30.0, 61.0, 120.0])
def test_all_tries_of_a_call_to_s3_fit_into_the_time_there_is(seconds: float) -> None:
    found = Timeouts.within(seconds)
    assert found.longest == pytest.approx(seconds)
    assert min(found.connect, found.read) > 0.5


def test_a_task_gives_a_seal_in_s3_no_more_time_than_its_messages_stay_hidden(s3: str) -> None:
    options = ReadOptions(("orders",), f"{s3}/log", visibility=40, endpoint_url="http://127.0.0.1:9")
    store = SourceTask(options, Assignment(1, 0, "orders", 1, 1)).log.store
    assert isinstance(store, S3Store)
    config = store._client.meta.config
    used = Timeouts(config.retries["total_max_attempts"], config.connect_timeout, config.read_timeout)
    assert used.longest < options.margin


@pytest.mark.parametrize(("url", "said"), [("gopher://x/y", "gopher"), ("s3://", "needs a bucket")])
def test_an_address_that_cannot_be_used_is_named(url: str, said: str) -> None:
    with pytest.raises(StorageError, match=said):
        open_store(url)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/b1"):
        open_store(f"file://{tmp_path}/file").put("b1/x", b"")
