"""A power cut leaves only what was synced. Everything that the broker had answered before must still be there.

The disk is simulated in the sync call: each sync keeps a copy of the files as they are when it begins, and a power cut
leaves the newest copy. SIGKILL cannot test this, because the system still writes what a dead process had not synced.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

import semel.broker
from semel.broker import syncer
from semel.broker.engine import Caller, Engine, Wanted
from semel.broker.engine.schema import DATABASE_NAME, open_database
from semel.sqs.errors import ServiceError


class Disk:
    """What a power cut would leave of a data folder."""

    def __init__(self, data: Path, kept: Path) -> None:
        self._data, self._kept = data, kept
        self._copies = 0
        self._lock = threading.Lock()
        self._newest: Path | None = None

    def sync(self, _descriptor: int) -> None:
        self._copies += 1
        copy = self._kept / str(self._copies)
        copy.mkdir()
        for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal"):
            shutil.copy(self._data / name, copy / name)
        with self._lock:
            old, self._newest = self._newest, copy
        if old is not None:
            shutil.rmtree(old)

    def after_power_cut(self, folder: Path) -> Engine:
        with self._lock:
            assert self._newest is not None
            shutil.copytree(self._newest, folder)
        engine = Engine(open_database(folder), Random(1))
        engine.begin()
        return engine


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    (tmp_path / "kept").mkdir()
    disk = Disk(tmp_path / "data", tmp_path / "kept")
    monkeypatch.setattr(syncer, "_fdatasync", disk.sync)
    return disk


def bodies(engine: Engine, queue: str) -> list[str]:
    return [message["Body"] for message in engine.peek(queue, Wanted(), limit=10_000)["Messages"]]


def test_what_was_answered_survives_a_power_cut(disk: Disk, tmp_path: Path) -> None:
    rng = Random(18)
    with semel.broker.running(data=tmp_path / "data") as sqs:
        client = sqs.client()
        url = client.create_queue(QueueName="q")["QueueUrl"]
        sent: set[str] = set()
        deleted: set[str] = set()
        for cut in range(25):
            for number in range(rng.randint(1, 4)):
                body = f"{cut}-{number}"
                client.send_message(QueueUrl=url, MessageBody=body)
                sent.add(body)
            for message in client.receive_message(QueueUrl=url, MaxNumberOfMessages=rng.randint(1, 3)).get(
                "Messages", []
            ):
                if rng.random() < 0.7:
                    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                    deleted.add(message["Body"])
            engine = disk.after_power_cut(tmp_path / f"cut-{cut}")
            assert set(bodies(engine, "q")) == sent - deleted
            engine.rollback()
            engine.close()


def test_a_fifo_queue_keeps_its_order_and_its_dedup_ids(disk: Disk, tmp_path: Path) -> None:
    with semel.broker.running(data=tmp_path / "data") as sqs:
        client = sqs.client()
        url = client.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        answers = [
            client.send_message(QueueUrl=url, MessageBody=str(n), MessageGroupId="g", MessageDeduplicationId=str(n))
            for n in range(5)
        ]
        (first,) = client.receive_message(QueueUrl=url)["Messages"]
        client.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
        (second,) = client.receive_message(QueueUrl=url)["Messages"]
        assert second["Body"] == "1"
        engine = disk.after_power_cut(tmp_path / "cut")
        assert bodies(engine, "q.fifo") == ["1", "2", "3", "4"]
        params: dict[str, Any] = {
            "QueueUrl": url,
            "MessageBody": "3",
            "MessageGroupId": "g",
            "MessageDeduplicationId": "3",
        }
        now = 0
        again = engine.perform("SendMessage", params, Caller(now))
        assert (again["MessageId"], again["SequenceNumber"]) == (answers[3]["MessageId"], answers[3]["SequenceNumber"])
        # The next message has a number that nobody has seen: handles of lost messages must not fit it.
        params |= {"MessageBody": "new", "MessageDeduplicationId": "new"}
        new = engine.perform("SendMessage", params, Caller(now))
        assert int(new["SequenceNumber"]) > max(int(answer["SequenceNumber"]) for answer in answers)
        engine.rollback()
        engine.close()


def test_a_number_that_was_lost_is_not_given_out_again(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt handle of a lost message must not fit another message."""
    with semel.broker.running(data=tmp_path / "data") as sqs:
        client = sqs.client()
        url = client.create_queue(QueueName="q")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="kept")
        monkeypatch.setattr(syncer, "_fdatasync", lambda _: None)  # a disk that syncs nothing
        client.send_message(QueueUrl=url, MessageBody="lost")
        handles = {
            message["Body"]: message["ReceiptHandle"]
            for message in client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        }
    engine = disk.after_power_cut(tmp_path / "cut")
    assert bodies(engine, "q") == ["kept"]
    engine.perform("SendMessage", {"QueueUrl": url, "MessageBody": "new"}, Caller(1))
    engine.perform("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handles["lost"]}, Caller(2))
    assert bodies(engine, "q") == ["kept", "new"]
    engine.rollback()
    engine.close()


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_receipt_handle_is_not_given_out_again_after_a_power_cut(suffix: str, disk: Disk, tmp_path: Path) -> None:
    """The receive was not synced, so the broker has forgotten it. But the worker that got the message still works."""
    queue = f"q{suffix}"
    more: Any = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if suffix else {}
    attributes: Any = {"FifoQueue": "true"} if suffix else {}
    with semel.broker.running(data=tmp_path / "data") as sqs:
        client = sqs.client()
        url = client.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="x", **more)
        (stale,) = client.receive_message(QueueUrl=url)["Messages"]
    engine = disk.after_power_cut(tmp_path / "cut")
    (newer,) = engine.perform("ReceiveMessage", {"QueueUrl": url}, Caller(1))["Messages"]
    assert newer["MessageId"] == stale["MessageId"]
    assert newer["ReceiptHandle"] != stale["ReceiptHandle"]
    if suffix:  # on Standard queues, every handle of a message is valid
        params = {"QueueUrl": url, "ReceiptHandle": stale["ReceiptHandle"]}
        with pytest.raises(ServiceError, match="has expired"):
            engine.perform("DeleteMessage", params, Caller(2))
        with pytest.raises(ServiceError, match="not available for visibility timeout change"):
            engine.perform("ChangeMessageVisibility", {**params, "VisibilityTimeout": 0}, Caller(2))
    assert bodies(engine, queue) == ["x"]
    engine.perform("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": newer["ReceiptHandle"]}, Caller(3))
    assert bodies(engine, queue) == []
    engine.rollback()
    engine.close()


def test_the_number_of_a_start_is_on_disk_before_anything_is_received(tmp_path: Path) -> None:
    """SQLite itself syncs it. From then on it survives a power cut, whatever else is lost."""
    engine = Engine(open_database(tmp_path), Random(1))
    assert engine.store.start == 1
    assert engine.store.db.execute("PRAGMA synchronous").fetchone() == (1,)  # NORMAL: the server syncs
    engine.close()
    statements: list[str] = []
    database = open_database(tmp_path)
    database.set_trace_callback(statements.append)
    engine = Engine(database, Random(1))
    assert engine.store.start == 2
    counted = next(at for at, text in enumerate(statements) if "'starts'" in text)
    assert statements[counted - 1] == "PRAGMA synchronous = FULL"
    engine.close()


def test_a_receive_alone_does_not_wait_for_the_disk(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with semel.broker.running(data=tmp_path / "data") as sqs:
        client = sqs.client()
        url = client.create_queue(QueueName="q")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="x")
        released = threading.Event()
        monkeypatch.setattr(syncer, "_fdatasync", lambda _: released.wait(30))
        (message,) = client.receive_message(QueueUrl=url)["Messages"]
        client.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
        (again,) = client.receive_message(QueueUrl=url)["Messages"]
        assert again["MessageId"] == message["MessageId"]
        released.set()
    engine = disk.after_power_cut(tmp_path / "cut")
    assert bodies(engine, "q") == ["x"]
    engine.rollback()
    engine.close()


def test_a_disk_that_fails_to_sync_is_not_trusted_again(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del disk
    with semel.broker.running(data=tmp_path / "data") as sqs:
        client = sqs.client()
        url = client.create_queue(QueueName="q")["QueueUrl"]

        def fail(_descriptor: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(syncer, "_fdatasync", fail)
        for _ in range(2):
            with pytest.raises(Exception, match="Restart the broker"):
                client.send_message(QueueUrl=url, MessageBody="x")
