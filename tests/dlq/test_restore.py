"""Restore: in the order of each group, and only one run at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlq.dead_letters import DLQ, ended, message
from driven import Place, new_place
from semel.dlq import restore, snapshots
from semel.dlq.jobs import State
from semel.dlq.service import DeadLetterService

FIFO = "pay-dlq.fifo"


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq=DLQ)
        place.queue("pay.fifo", dlq=FIFO)
        yield place


@pytest.fixture
def service(place: Place, tmp_path: Path) -> DeadLetterService:
    return DeadLetterService(place.client, state=tmp_path / "state", who="tester", clock=place.clock.now)


def snapshot(path: Path, queue: str, *names: str, size: int = 10) -> Path:
    """A file of messages; the first character of a name is its FIFO group, and one in upper case is a large message."""
    lines = []
    for name in names:
        body = f'"{name}{"." * (3_000 if name.isupper() else size)}"'
        group = name[0].lower() if queue.endswith(".fifo") else ""
        lines.append(snapshots.line(message(id=name, queue=queue, body=body, group=group, attributes={}), at=0.0))
    path.write_bytes(b"".join(lines))
    return path


def names(place: Place, queue: str) -> list[str]:
    return [body.rstrip(".") for body in place.bodies(queue)]


def most_bytes(place: Place, queue: str, size: int) -> None:
    place.client.queue(queue).call("SetQueueAttributes", {"Attributes": {"MaximumMessageSize": str(size)}})


def test_a_fifo_message_that_is_refused_holds_up_those_behind_it_and_the_next_run_keeps_their_order(
    place: Place, service: DeadLetterService, tmp_path: Path
) -> None:
    file = snapshot(tmp_path / "all.jsonl", FIFO, "a1", "b1", "A2", "b2", "a3", "b3", "a4")
    most_bytes(place, FIFO, 2_048)
    job = ended(service.restore(file))
    assert (job.state, job.counts.sent, job.counts.failed) == (State.FAILED, 4, 3)
    assert "3 messages were not sent; those of group a wait for message A2" in job.reason
    assert names(place, FIFO) == ["a1", "b1", "b2", "b3"]
    most_bytes(place, FIFO, 1_048_576)
    job = ended(service.restore(file))
    assert (job.state, job.counts.sent, job.counts.skipped) == (State.DONE, 3, 4)
    assert names(place, FIFO) == ["a1", "b1", "b2", "b3", "A2", "a3", "a4"]


def test_one_call_never_has_two_of_a_group(
    place: Place, service: DeadLetterService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str | None]] = []
    kind = type(place.client.queue(FIFO))
    send_many = kind.send_many

    def spy(self: Any, entries: Any) -> Any:
        calls.append([entry.group for entry in entries])
        return send_many(self, entries)

    monkeypatch.setattr(kind, "send_many", spy)
    file = snapshot(tmp_path / "all.jsonl", FIFO, "a1", "b1", "a2", "b2", "a3", "c1")
    assert ended(service.restore(file)).state is State.DONE
    assert calls == [["a", "b"], ["a", "b"], ["a", "c"]]


HOLD = """
import sys
from pathlib import Path
from semel.dlq.jobs import Job
from semel.dlq.restore import Restorer
from semel.sqs import Client
client = Client(sys.argv[1], "us-east-1", access_key="test", secret_key="test")
def hold(point):
    if point == "before_restore_send" and not held:
        held.append(point)
        print("held", flush=True)
        sys.stdin.readline()
held = []
restorer = Restorer(client, Path(sys.argv[2]), folder=Path(sys.argv[3]), crash=hold)
print(Job("restore", "orders-dlq", who="ann", id="first").run(restorer.run).state)
"""


@contextmanager
def restore_elsewhere(place: Place, service: DeadLetterService, file: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is about to send its first batch."""
    code = [sys.executable, "-c", HOLD, place.broker.url, str(file), str(service.state / "restores")]
    process = subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("way", ["the same file", "a copy of it", "an upload of it"])
def test_a_restore_that_another_process_is_at_is_refused_and_each_message_is_sent_once(
    place: Place, service: DeadLetterService, tmp_path: Path, way: str
) -> None:
    file = snapshot(tmp_path / "all.jsonl", DLQ, *[f"m{n}" for n in range(25)])
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(file.read_bytes())
    lines = file.read_bytes().splitlines(keepends=True)
    with restore_elsewhere(place, service, file) as first:
        second = service.restore(lines if way == "an upload of it" else copy if way == "a copy of it" else file)
        assert ended(second).state is State.FAILED
        assert f"is being restored already, by job first of ann (process {first.pid})" in second.reason
        assert names(place, DLQ) == []
        said, _ = first.communicate("go on\n", timeout=60)
        assert said == "done\n"
    assert len(names(place, DLQ)) == 25
    if way == "the same file":
        assert ended(service.restore(file)).counts.skipped == 25
        assert len(names(place, DLQ)) == 25


def test_the_lock_of_a_restore_that_was_killed_is_nobodys(
    place: Place, service: DeadLetterService, tmp_path: Path
) -> None:
    file = snapshot(tmp_path / "all.jsonl", DLQ, "m1", "m2")
    with restore_elsewhere(place, service, file) as first:
        first.kill()
    assert ended(service.restore(file)).state is State.DONE
    assert names(place, DLQ) == ["m1", "m2"]


def test_a_restore_into_two_queues_is_a_job_of_one_of_them_that_names_both(
    place: Place, service: DeadLetterService, tmp_path: Path
) -> None:
    file = snapshot(tmp_path / "one.jsonl", DLQ, "m1")
    other = snapshot(tmp_path / "two.jsonl", FIFO, "a1")
    file.write_bytes(file.read_bytes() + other.read_bytes())
    job = ended(service.restore(file))
    assert (job.state, job.queue, job.plan["queues"]) == (State.DONE, DLQ, [DLQ, FIFO])
    assert (names(place, DLQ), names(place, FIFO)) == (["m1"], ["a1"])
    entry = service.audit_entries()[0]
    assert (entry.queue, entry.details["queues"]) == (DLQ, f"{DLQ}, {FIFO}")


def test_an_upload_that_breaks_off_leaves_no_file(place: Place, service: DeadLetterService, tmp_path: Path) -> None:
    lines = snapshot(tmp_path / "all.jsonl", DLQ, "m1", "m2").read_bytes().splitlines(keepends=True)

    def broken() -> Iterator[bytes]:
        yield lines[0]
        raise ConnectionResetError

    with pytest.raises(snapshots.SnapshotError):
        service.restore(broken())

    def interrupted() -> Iterator[bytes]:
        yield lines[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        service.restore(interrupted())
    assert list((service.state / "restores").iterdir()) == []


def test_uploads_and_their_journals_are_kept_for_a_month(
    place: Place, service: DeadLetterService, tmp_path: Path
) -> None:
    folder = service.state / "restores"
    file = snapshot(tmp_path / "all.jsonl", DLQ, "m1")
    ended(service.restore(file.read_bytes().splitlines(keepends=True)))
    assert {path.suffix for path in folder.iterdir()} == {".jsonl", ".restored", ".lock"}
    (folder / ".7-7.part").write_text("half")
    for days, left in ((29, 3), (31, 0)):
        for path in folder.iterdir():
            os.utime(path, (place.clock.now() - days * 86_400,) * 2)
        restore.prune(folder, place.clock.now())
        assert len(list(folder.iterdir())) == left


def test_what_is_being_restored_is_not_removed_however_old_it_is(place: Place, service: DeadLetterService) -> None:
    folder = service.state / "restores"
    folder.mkdir(parents=True)
    file = snapshot(folder / "all.jsonl", DLQ, "m1", "m2")
    with restore_elsewhere(place, service, file) as first:
        for path in folder.iterdir():
            os.utime(path, (place.clock.now() - 40 * 86_400,) * 2)
        before = sorted(folder.iterdir())
        restore.prune(folder, place.clock.now())
        assert sorted(folder.iterdir()) == before
        said, _ = first.communicate("go on\n", timeout=60)
        assert said == "done\n"
