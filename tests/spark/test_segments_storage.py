"""Where segments are stored: one name has one winner and complete bytes, on disk and in buckets."""

from __future__ import annotations

import errno
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from semel.errors import PermissionDenied, Unavailable
from semel.spark.pipeline.checkpoint import Checkpoint
from semel.spark.pipeline.query_failures import in_one_line
from semel.spark.segments.object_store import ObjectStore
from semel.spark.segments.segment_log import (
    COMMITS,
    FORMER_COMMITTED,
    FORMER_UNCONFIRMED,
    IDENTITY,
    LogError,
    SegmentLog,
)
from semel.spark.segments.storage import LocalStore, StorageError, StorageUnavailable, Store, open_store
from semel.spark.source.options import ReadOptions
from semel.spark.source.reader import Assignment, SourceTask
from servers.s3_proxy import Answer, Proxy, error, first, losing_the_answer
from spark.sinks_support import s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        with s3_server() as url:
            yield url


@pytest.fixture
def proxy(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    started = Proxy(os.environ["AWS_ENDPOINT_URL_S3"].removeprefix("http://"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{started.address}")
    yield started
    started.close()


def in_memory(url: str) -> ObjectStore:
    """What the stores share, without the service."""
    store = ObjectStore(url)
    store._made = MemoryStore()
    return store


@pytest.fixture(params=["local", "s3", "gs", "abfss"])
def store(request: Any, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(str(tmp_path / "a b"))
    if request.param == "s3":
        return open_store(f"{request.getfixturevalue('s3')}/{tmp_path.name}/a b")
    return in_memory({"gs": "gs://bucket/log", "abfss": "abfss://box@account.dfs.core.windows.net/log"}[request.param])


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
    for name in ("b1/x.seg", "b1/x.ack", "b2/y.seg", "over.json", "b1 x/ü+%20=.seg"):
        store.put(name, b"")
    assert store.names("b1") == ["b1/x.ack", "b1/x.seg"]
    assert store.names() == ["b1 x/ü+%20=.seg", "b1/x.ack", "b1/x.seg", "b2/y.seg", "over.json"]
    store.delete(["b1/x.seg", "b1/x.ack", "never/there", "b1 x/ü+%20=.seg"])
    assert store.names() == ["b2/y.seg", "over.json"]
    store.delete([])


def test_names_are_listed_by_what_they_begin_with(store: Store) -> None:
    assert store.names_with("t-") == []
    for name in ("t-1/x", "t-b0", "t-b1-t0", "t-b1-t1", "t-b10-t0", "t-b2", "_of/t-b1-t0", "_of/t-b2-t0"):
        store.put(name, b"")
    assert store.names_with("t-b1-t") == ["t-b1-t0", "t-b1-t1"]
    assert store.names_with("_of/t-b1-") == ["_of/t-b1-t0"]
    assert store.names_with("u") == []


def test_a_store_that_was_pickled_reads_the_same_files(s3: str) -> None:
    store = open_store(f"{s3}/pickled/log", 30.0)
    store.put("a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.read("a"), copy.url, copy._patience) == (b"1", "s3://bucket/pickled/log", 30.0)


# A folder.


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


def test_a_folder_that_is_dropped_while_a_file_is_put_into_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))
    store.put("b1/x.seg", b"")
    link = os.link

    def dropped_before(source: Path, target: Path) -> None:
        if store.read("b1/x.seg") is not None:
            store.delete(["b1/x.seg"])
            assert not (tmp_path / "b1").exists()
        link(source, target)

    monkeypatch.setattr(os, "link", dropped_before)
    assert store.put_if_absent("b1/y.seg", b"1")
    assert store.names() == ["b1/y.seg"]


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = open_store(f"file://{tmp_path}/file")
    for call in (lambda: store.put("b1/x", b""), lambda: store.put_if_absent("x", b""), store.names):
        with pytest.raises(StorageError, match=f"{tmp_path}/file"):
            call()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ESTALE, StorageUnavailable), (errno.EACCES, StorageError), (errno.EPERM, StorageError)]
)
def test_what_a_network_file_system_may_get_over_is_an_outage(
    number: int, kind: type[StorageError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    monkeypatch.setattr(os, "link", failing)
    with pytest.raises(StorageError, match="hard links" if number == errno.EPERM else "x.seg") as raised:
        LocalStore(str(tmp_path)).put_if_absent("x.seg", b"")
    assert type(raised.value) is kind
    assert not list(tmp_path.iterdir())


# A bucket.


def test_a_conflict_of_two_writes_is_not_a_loss(proxy: Proxy) -> None:
    """S3 took neither of them: who went away now would leave the name to nobody."""
    proxy.fault = first(2, lambda _: error(409, "ConditionalRequestConflict"))
    assert open_store("s3://bucket/conflict").put_if_absent("a", b"1")
    assert proxy.requests == ["PUT", "PUT", "PUT"]


def test_a_put_whose_answer_was_lost_is_repeated_and_finds_its_own(proxy: Proxy) -> None:
    proxy.fault = first(1, losing_the_answer)
    store = open_store("s3://bucket/lost")
    assert not store.put_if_absent("a", b"ours")  # the caller reads whose it is
    assert store.read("a") == b"ours"


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_answers_are_not_taken_for_a_store_that_ignores_the_condition(proxy: Proxy, lost: int) -> None:
    store = ObjectStore("s3://bucket/checked")
    proxy.fault = first(lost, losing_the_answer)
    store.check()
    assert store.names() == []


def test_a_store_that_ignores_the_condition_is_refused(proxy: Proxy) -> None:
    proxy.dropped_header = "if-none-match"
    store = ObjectStore("s3://bucket/careless")
    with pytest.raises(StorageError, match="If-None-Match"):
        store.check()
    assert store.names() == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda _: error(503, "SlowDown"), "SlowDown"),
        (lambda _: error(500, "InternalError"), "InternalError"),
        (lambda _: error(429, "TooManyRequests"), "TooManyRequests"),
        (lambda _: None, "no answer"),
    ],
)
def test_a_store_that_does_not_answer_is_unavailable_after_some_tries(proxy: Proxy, fault: Any, said: str) -> None:
    proxy.fault = lambda _, forward: fault(forward)
    store = ObjectStore("s3://bucket/out", 1.0)
    for call in (lambda: store.put("a", b""), lambda: store.read("a"), store.names, lambda: store.delete(["a"])):
        proxy.requests.clear()
        with pytest.raises(StorageUnavailable, match=said) as raised:
            call()
        assert isinstance(raised.value, Unavailable)
        assert len(proxy.requests) > 1


def test_a_body_that_breaks_off_is_an_outage_and_is_read_again(proxy: Proxy) -> None:
    store = ObjectStore("s3://bucket/half", 2.0)
    store.put("a", b"123456")

    def half(forward: Callable[[], Answer]) -> Answer:
        status, body = forward()
        return status, body[:3]

    proxy.fault = first(1, half, "GET")
    assert store.read("a") == b"123456"
    proxy.fault = first(99, half, "GET")
    with pytest.raises(StorageUnavailable, match="s3://bucket/half/a"):
        store.read("a")


def test_all_tries_of_a_call_end_within_the_patience(proxy: Proxy) -> None:
    done = threading.Event()

    def stall(command: str, forward: Callable[[], Answer]) -> None:
        done.wait(5)

    proxy.fault = stall
    store = ObjectStore("s3://bucket/stalled", 1.5)
    began = time.monotonic()
    try:
        with pytest.raises(StorageUnavailable):
            store.put_if_absent("a", b"")
    finally:
        done.set()
    assert time.monotonic() - began < 1.5
    assert len(proxy.requests) > 1


def test_a_task_gives_a_seal_in_s3_no_more_time_than_its_messages_stay_hidden(s3: str) -> None:
    options = ReadOptions(("orders",), f"{s3}/log", visibility=40, endpoint_url="http://127.0.0.1:9")
    store = SourceTask(options, Assignment(1, 0, "orders", 1, 1)).log.store
    assert isinstance(store, ObjectStore)
    assert store._patience <= options.margin


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (error(403, "AccessDenied"), "AccessDenied: as told. The credentials need s3:PutObject.* on bucket"),
        (error(301, "PermanentRedirect"), "AWS_REGION"),
        (error(400, "ExpiredToken"), "ExpiredToken"),
    ],
)
def test_what_waiting_cannot_fix_is_said_at_once_with_the_way_out(proxy: Proxy, answer: Answer, said: str) -> None:
    proxy.fault = lambda *_: answer
    store = open_store("s3://bucket/log")
    for call in (lambda: store.put("a", b""), lambda: store.read("a"), store.names, lambda: store.delete(["a"])):
        proxy.requests.clear()
        with pytest.raises(StorageError, match=said) as raised:
            call()
        assert not isinstance(raised.value, Unavailable)
        assert isinstance(raised.value, PermissionDenied) == ("AccessDenied" in said)
        assert len(proxy.requests) == 1


def test_one_file_of_many_that_may_not_be_deleted_is_an_error(proxy: Proxy) -> None:
    refused = (
        b"<DeleteResult><Error><Key>log/b</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    )
    proxy.fault = lambda *_: (200, refused)
    with pytest.raises(StorageError, match=r"AccessDenied.*s3:DeleteObject"):
        open_store("s3://bucket/log").delete(["a", "b"])


def test_a_bucket_that_does_not_exist_is_named_and_not_empty(s3: str) -> None:
    store = open_store("s3://elsewhere/log")
    for call in (lambda: store.put("a", b""), lambda: store.read("a"), store.names):
        with pytest.raises(StorageError, match="no bucket elsewhere"):
            call()


def test_credentials_region_and_endpoint_may_come_from_a_profile(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(
        "[profile team]\naws_access_key_id = a\naws_secret_access_key = b\nregion = eu-central-1\nservices = here\n"
        f"[services here]\ns3 =\n  endpoint_url = {os.environ['AWS_ENDPOINT_URL_S3']}\n"
    )
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    store = ObjectStore("s3a://bucket/profile")
    store.put("a", b"1")
    assert open_store("s3n://bucket/profile").read("a") == b"1"
    assert store._made.config["region"] == "eu-central-1"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageError, match="nobody"):
        open_store("s3://bucket/profile").read("a")


def test_without_an_endpoint_the_bucket_is_in_its_regions_host(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    hosts = []
    for region, bucket in (("eu-west-1", "lake"), ("eu-west-1", "lake.example.org"), ("cn-north-1", "lake")):
        monkeypatch.setenv("AWS_REGION", region)
        store = ObjectStore(f"s3://{bucket}/log")
        hosts.append(store._store(1.0).config["endpoint"])
    assert hosts == [
        "https://lake.s3.eu-west-1.amazonaws.com",
        "https://s3.eu-west-1.amazonaws.com",
        "https://lake.s3.cn-north-1.amazonaws.com.cn",
    ]


def test_missing_credentials_are_said_with_the_way_out(
    s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorageError, match=r"no AWS credentials.*AWS_PROFILE"):
        open_store("s3://bucket/log").read("a")


def test_an_endpoint_that_is_no_address_is_named(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "localhost:9000")
    with pytest.raises(StorageError, match=r"localhost:9000.*http://host:port"):
        open_store("s3://bucket/log").read("a")


# Addresses.


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gopher://x/y", "gopher.*gs://bucket/prefix"),
        ("s3://", "needs a bucket"),
        ("gs:///x", "needs a bucket"),
        ("az://box/log", "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_an_address_that_cannot_be_used_is_named(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StorageError, match=said):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "spark_url"),
    [
        ("/data/a b", "file:///data/a%20b/query"),
        ("s3://lake/orders", "s3a://lake/orders/query"),
        ("s3a://lake/orders/", "s3a://lake/orders/query"),
        ("gs://lake/orders", "gs://lake/orders/query"),
        ("az://box/orders", "abfss://box@account.dfs.core.windows.net/orders/query"),
        ("abfs://box@other.dfs.core.windows.net/orders", "abfss://box@other.dfs.core.windows.net/orders/query"),
    ],
)
def test_spark_gets_its_part_of_a_checkpoint_in_its_own_spelling(
    url: str, spark_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert Checkpoint(url).query == spark_url


@pytest.mark.parametrize(
    ("url", "jar"),
    [
        ("s3a://lake/orders", "hadoop-aws"),
        ("gs://lake/orders", "hadoop-gcp"),
        ("abfss://box@account.dfs.core.windows.net/orders", "hadoop-azure"),
    ],
)
def test_a_connector_that_spark_does_not_have_is_named(spark: Any, url: str, jar: str) -> None:
    """Spark keeps its part of a checkpoint in the bucket too, and PySpark comes without connectors."""
    query = spark.readStream.format("rate").load().writeStream.format("noop").option("checkpointLocation", url)
    with pytest.raises(Exception, match="not found") as raised:
        query.start()
    assert jar in in_one_line(str(raised.value))


@pytest.mark.parametrize("content", [b"", b'{"through": 5', b"[]", b'{"through": "6", "totals": {}}', b"{}", b"\xff"])
@pytest.mark.parametrize("name", [f"{COMMITS}/0000000005.json", FORMER_COMMITTED])
def test_a_commit_that_is_not_whole_is_damage_and_not_the_beginning_of_a_log(
    tmp_path: Path, content: bytes, name: str
) -> None:
    log = SegmentLog(LocalStore(str(tmp_path)))
    log.store.put(name, content)
    with pytest.raises(LogError, match=f"{name} is damaged"):
        log.committed()


@pytest.mark.parametrize("name", [IDENTITY, FORMER_UNCONFIRMED, "returned/0000000001.json", "b0000000007/plan.json"])
def test_every_other_file_of_the_log_is_read_whole_or_named(tmp_path: Path, name: str) -> None:
    log = SegmentLog(LocalStore(str(tmp_path)))
    log.store.put(name, b'{"id": 5, "orders": {"m": "soon"')
    questions: dict[str, Callable[[], object]] = {
        IDENTITY: log.identity,
        FORMER_UNCONFIRMED: log.unconfirmed_deletes,
        "returned/0000000001.json": log.returned,
        "b0000000007/plan.json": lambda: log.plan(7),
    }
    with pytest.raises(LogError, match=name):
        questions[name]()
