"""`semel serve` with a full disk: it reports this, loses nothing, and continues when there is space again."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import pytest
from serve_process import ACCOUNT, Answer, Serve, Starter, assert_clean, run_to_end

_SMALL_DISK: Final = 128  # MiB
_BODY: Final = "x" * 250_000


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage cannot write its own file to a disk that takes nothing, and prints a traceback for it."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is soon full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if sys.platform != "linux":
        pytest.skip("NOT TESTED: a really full disk; only Linux has tmpfs")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK}m", "tmpfs", folder], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"NOT TESTED: a really full disk; a tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def assert_disk_trouble(refused: Answer) -> None:
    assert refused.status == 503
    assert refused.headers["x-amzn-query-error"] == "ServiceUnavailable;Receiver"
    assert "disk" in refused.json["message"]


def fill(broker: Serve, queue: str) -> tuple[set[str], Answer]:
    """Sends until that is refused: the ids that were acknowledged, and the refusal."""
    ids: set[str] = set()
    with broker.connect() as connection:
        while len(ids) < 1000:
            answer = connection.call("SendMessage", queue, MessageBody=_BODY)
            if answer.status != 200:
                return ids, answer
            ids.add(answer.json["MessageId"])
    raise AssertionError(f"{len(ids)} messages fit on the disk")


def test_a_full_disk_refuses_sends_and_still_serves_receives_and_deletes(small_disk: Path, serve: Starter) -> None:
    broker = serve("--data", str(small_disk / "data"))
    broker.create("orders")
    ids, refused = fill(broker, "orders")
    assert_disk_trouble(refused)
    assert len(ids) > 20
    for _ in range(10):
        received = broker.call("ReceiveMessage", "orders", VisibilityTimeout=600)
        assert received.status == 200, received.json
        (message,) = received.json["Messages"]
        deleted = broker.call("DeleteMessage", "orders", ReceiptHandle=message["ReceiptHandle"])
        assert deleted.status == 200, deleted.json
        ids.remove(message["MessageId"])
    assert_clean(broker.stop())
    subprocess.run(["mount", "-o", "remount,size=1g", small_disk], check=True)
    assert {message["MessageId"] for message in serve("--data", str(small_disk / "data")).peek("orders")} == ids


@pytest.mark.slow
def test_a_full_disk_loses_nothing_and_takes_sends_again_once_there_is_room(small_disk: Path, serve: Starter) -> None:
    broker = serve("--data", str(small_disk / "data"))
    broker.create("orders")
    ids, refused = fill(broker, "orders")
    assert_disk_trouble(refused)
    subprocess.run(["mount", "-o", "remount,size=1g", small_disk], check=True)
    end = monotonic() + 5
    while (sent := broker.call("SendMessage", "orders", MessageBody=_BODY)).status != 200 and monotonic() < end:
        sleep(0.05)  # it may look at the disk only now and then
    ids.add(sent.json["MessageId"])
    assert {message["MessageId"] for message in broker.peek("orders")} == ids
    assert_clean(broker.stop())


def test_files_that_may_not_grow_refuse_sends_and_lose_nothing(serve: Starter) -> None:
    """The portable way to a disk that takes no more: a limit on the size of a file."""
    broker = serve(file_size=3_000_000)
    broker.create("orders")
    ids, refused = fill(broker, "orders")
    assert_disk_trouble(refused)
    for _ in range(3):
        received = broker.call("ReceiveMessage", "orders", VisibilityTimeout=600)
        if received.status != 200:
            assert_disk_trouble(received)
            continue
        (message,) = received.json["Messages"]
        if broker.call("DeleteMessage", "orders", ReceiptHandle=message["ReceiptHandle"]).status == 200:
            ids.remove(message["MessageId"])
    assert {message["MessageId"] for message in broker.peek("orders")} == ids
    assert broker.call("ListQueues").status == 200
    assert_clean(broker.stop())
    assert {message["MessageId"] for message in serve().peek("orders")} == ids


@pytest.mark.parametrize("size", [0, 4096, 50_000])
def test_a_disk_without_room_for_an_empty_database_is_refused_in_one_line(tmp_path: Path, size: int) -> None:
    ended = run_to_end(tmp_path, "--port", "0", "--data", "data", file_size=size)
    assert (ended.code, ended.output) == (1, "")
    assert ended.errors.startswith("semel: data folder data: ")
    assert ended.errors.count("\n") == 1


class Disk:
    """Switches a running broker's disk off and on."""

    def __init__(self, broker: Serve) -> None:
        self._pid = broker.pid

    def takes_nothing(self) -> None:
        self._limit(0)

    def takes_all(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        if sys.platform != "linux":
            pytest.skip("NOT TESTED: a disk that fills up while running; only Linux can limit another process")
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_calls_that_only_look_are_served_while_the_disk_takes_nothing(serve: Starter) -> None:
    broker = serve()
    broker.create("orders")
    broker.call("SendMessage", "orders", MessageBody="x")
    Disk(broker).takes_nothing()
    assert_disk_trouble(broker.call("SendMessage", "orders", MessageBody="y"))
    assert_disk_trouble(broker.call("CreateQueue", QueueName="more"))
    attributes = broker.call("GetQueueAttributes", "orders", AttributeNames=["ApproximateNumberOfMessages"])
    assert attributes.json["Attributes"] == {"ApproximateNumberOfMessages": "1"}
    assert len(broker.call("ListQueues").json["QueueUrls"]) == 1
    assert len(broker.peek("orders")) == 1
    assert_clean(broker.stop())


def test_calls_that_arrive_together_are_each_refused_or_done(serve: Starter) -> None:
    """Ten sends in one packet share a transaction; when it fails, each is answered for itself."""
    broker = serve()
    broker.create("orders")
    Disk(broker).takes_nothing()
    with broker.connect() as connection:
        for _ in range(10):
            connection.ask("SendMessage", "orders", MessageBody="x")
        for _ in range(10):
            assert_disk_trouble(connection.answer())
    Disk(broker).takes_all()
    assert broker.peek("orders") == []
    assert broker.call("SendMessage", "orders", MessageBody="x").status == 200
    assert len(broker.peek("orders")) == 1


def test_a_waiting_poll_outlasts_a_full_disk(serve: Starter) -> None:
    broker = serve()
    broker.create("orders")
    disk = Disk(broker)
    with broker.connect() as poll:
        poll.ask("ReceiveMessage", "orders", WaitTimeSeconds=20)
        broker.call("ListQueues")
        disk.takes_nothing()
        assert_disk_trouble(broker.call("SendMessage", "orders", MessageBody="x"))
        disk.takes_all()
        asked = monotonic()
        assert broker.call("SendMessage", "orders", MessageBody="y").status == 200
        (message,) = poll.answer().json["Messages"]
        assert message["Body"] == "y"
        assert monotonic() - asked < 5


def test_a_poll_that_a_full_disk_keeps_from_its_message_burns_no_cpu(serve: Starter) -> None:
    """The message becomes visible while the poll waits, but a receive is a change, and the disk takes none."""
    broker = serve()
    broker.create("orders")
    broker.call("SendMessage", "orders", MessageBody="x", DelaySeconds=1)
    with broker.connect() as poll:
        poll.ask("ReceiveMessage", "orders", WaitTimeSeconds=20)
        broker.call("ListQueues")
        Disk(broker).takes_nothing()
        sleep(1.2)  # real time: the delay ends
        before = _cpu_seconds(broker)
        sleep(1)
        assert _cpu_seconds(broker) - before < 0.15
        Disk(broker).takes_all()
        assert poll.answer().json["Messages"][0]["Body"] == "x"


def _cpu_seconds(broker: Serve) -> float:
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_delete_refused_for_want_of_room_works_later(serve: Starter) -> None:
    broker = serve()
    broker.create("orders")
    broker.call("SendMessage", "orders", MessageBody="x")
    (message,) = broker.call("ReceiveMessage", "orders").json["Messages"]
    disk = Disk(broker)
    disk.takes_nothing()
    assert_disk_trouble(broker.call("DeleteMessage", "orders", ReceiptHandle=message["ReceiptHandle"]))
    disk.takes_all()
    assert broker.call("DeleteMessage", "orders", ReceiptHandle=message["ReceiptHandle"]).status == 200
    assert broker.peek("orders") == []


def test_a_move_task_outlasts_a_full_disk(serve: Starter) -> None:
    broker = serve()
    arn = _dead_letters(broker, 40)
    disk = Disk(broker)
    with broker.connect() as connection:
        connection.ask("StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=50)
        assert connection.answer().status == 200
    disk.takes_nothing()
    assert_disk_trouble(broker.call("SendMessage", "work", MessageBody="x"))
    sleep(1.2)  # real time, in which the task tries to take its last step
    disk.takes_all()
    before = _moved(broker, arn)
    end = monotonic() + 4
    while _moved(broker, arn) == before and monotonic() < end:
        sleep(0.05)
    assert _moved(broker, arn) > before
    assert len(broker.peek("work")) + len(broker.peek("dead")) == 40
    assert_clean(broker.stop())


def _dead_letters(broker: Serve, number: int) -> str:
    """Fills a dead-letter queue; its ARN."""
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"
    broker.create("dead")
    broker.create("work", RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    with broker.connect() as connection:
        for _ in range(number):
            connection.call("SendMessage", "work", MessageBody="x")
        while len(broker.peek("dead")) < number:
            connection.call("ReceiveMessage", "work", VisibilityTimeout=0, MaxNumberOfMessages=10)
    return arn


def _moved(broker: Serve, arn: str) -> int:
    (task,) = broker.call("ListMessageMoveTasks", SourceArn=arn).json["Results"]
    moved: Any = task["ApproximateNumberOfMessagesMoved"]
    return int(moved)
