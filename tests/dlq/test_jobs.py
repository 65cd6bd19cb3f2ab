"""Jobs: followed while they run, stopped only at their checkpoints, and recorded for other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from semel.dlq.jobs import MAX_JOBS, Job, Jobs, JobStopped, NoSuchJob, State
from semel.dlq.jobs.job_control import ControlFile
from semel.errors import SemelError
from waiting import until


def test_a_job_tells_what_it_does_and_how_it_ended() -> None:
    job = Job("redrive", "dead", {"where": "timeout"}, who="ada", clock=lambda: 100.0)
    assert job.state is State.PLANNED

    def work(job: Job) -> None:
        job.total = 3
        job.add(sent=2, deleted=1)
        job.log("two of three")

    assert job.run(work).wait(0)
    content = json.loads(json.dumps(job.to_json()))
    assert (content["state"], content["kind"], content["queue"], content["who"]) == ("done", "redrive", "dead", "ada")
    assert content["counts"]["sent"] == 2
    assert content["messages"] == [{"at": 100.0, "text": "two of three"}]
    assert (content["plan"], content["total"], content["started"], content["ended"]) == (
        {"where": "timeout"},
        3,
        100.0,
        100.0,
    )


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (JobStopped("enough"), State.STOPPED, "enough"),
        (SemelError("no such queue"), State.FAILED, "no such queue"),
        (ZeroDivisionError("by zero"), State.FAILED, "ZeroDivisionError: by zero"),
    ],
)
def test_an_error_is_a_jobs_end_and_not_its_callers(error: Exception, state: State, reason: str) -> None:
    def work(_job: Job) -> None:
        raise error

    job = Job("redrive", "dead").run(work)
    assert (job.state, job.reason) == (state, reason)


def test_a_paused_job_waits_at_its_next_checkpoint_and_goes_on(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    at_work, go_on = threading.Event(), threading.Event()
    steps: list[str] = []

    def work(job: Job) -> None:
        at_work.set()
        go_on.wait(60)
        steps.append("half done, and then done")
        job.checkpoint()
        steps.append("next")

    job = jobs.start("redrive", "dead", work)
    at_work.wait(60)
    assert job.pause()
    assert job.to_json()["pausing"]
    go_on.set()
    until(lambda: job.state is State.PAUSED)
    assert steps == ["half done, and then done"]
    assert Jobs(tmp_path).get(job.id).state is State.PAUSED
    assert job.resume()
    assert job.wait(60)
    assert (job.state, len(steps)) == (State.DONE, 2)
    assert not job.pause()
    assert not job.cancel()
    assert not job.resume()


@pytest.mark.parametrize("paused", [True, False])
def test_a_cancelled_job_ends_at_its_next_checkpoint_also_when_it_is_paused(tmp_path: Path, paused: bool) -> None:
    def work(job: Job) -> None:
        while True:
            job.sleep(0.01)

    job = Jobs(tmp_path).start("redrive", "dead", work)
    if paused:
        job.pause()
        until(lambda: job.state is State.PAUSED)
    assert job.cancel()
    assert job.wait(60)
    assert job.state is State.CANCELLED


def test_a_job_cancelled_before_it_began_does_nothing() -> None:
    job = Job("redrive", "dead")
    job.cancel()
    done: list[int] = []
    job.run(lambda _job: done.append(1))
    assert (job.state, done) == (State.CANCELLED, [])


def test_pause_and_cancel_end_a_long_sleep_at_once(tmp_path: Path) -> None:
    job = Jobs(tmp_path).start("redrive", "dead", lambda job: job.sleep(10_000))
    job.pause()
    until(lambda: job.state is State.PAUSED)
    job.cancel()
    assert job.wait(60)


def test_a_job_ends_also_when_its_work_exits(tmp_path: Path) -> None:
    def work(_job: Job) -> None:
        raise SystemExit(3)

    job = Jobs(tmp_path).create("redrive", "dead")
    with pytest.raises(SystemExit):
        job.run(work)
    assert (job.state, job.reason) == (State.FAILED, "SystemExit: 3")
    assert Jobs(tmp_path).get(job.id).state is State.FAILED


def test_nobody_sees_the_end_of_a_job_before_it_is_on_disk() -> None:
    """A command that follows the job exits as soon as it has ended."""
    readable: list[bool] = []

    job = Job("redrive", "dead")

    def on_change() -> None:
        def read() -> None:
            readable.append(job._lock.acquire(blocking=False))
            if readable[-1]:
                job._lock.release()

        if job.ended is not None:  # where the state is written
            reader = threading.Thread(target=read)
            reader.start()
            reader.join()

    job.on_change = on_change
    job.run(lambda _job: None)
    assert (readable, job.state) == ([False], State.DONE)


def test_jobs_are_remembered_by_the_next_process(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)

    def work(job: Job) -> None:
        job.add(sent=4)
        job.log("four")
        job.result["file"] = "x"

    first = jobs.start("redrive", "dead", work, {"a": 1}, who="ada")
    first.wait(60)
    again = Jobs(tmp_path).get(first.id)
    assert again.to_json() == first.to_json() | {"rate": None}
    assert [job.id for job in Jobs(tmp_path).all()] == [first.id]
    with pytest.raises(NoSuchJob):
        jobs.get("unknown")
    with pytest.raises(NoSuchJob):
        jobs.get(f"../{tmp_path.name}/{first.id}")


def test_a_job_whose_process_was_killed_is_shown_as_interrupted(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from semel.dlq.jobs import Jobs\n"
        f"jobs = Jobs(pathlib.Path({str(tmp_path)!r}))\n"
        "def work(job):\n    job.add(sent=3); job.log('x'); print(job.id, flush=True); job.sleep(600)\n"
        "job = jobs.start('redrive', 'dead', work); job.wait()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    id = process.stdout.readline().strip()
    jobs = Jobs(tmp_path)
    assert jobs.get(id).state is State.RUNNING
    process.kill()
    process.wait()
    process.stdout.close()
    job = jobs.get(id)
    assert job.state is State.INTERRUPTED
    assert "run the command again" in job.reason
    assert [job.state for job in jobs.all()] == [State.INTERRUPTED]


def test_only_the_last_ones_are_kept_and_nothing_that_runs_is_forgotten(tmp_path: Path) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    jobs = Jobs(tmp_path, clock=clock)
    oldest = jobs.start("redrive", "dead", lambda job: job.sleep(600))
    for _ in range(MAX_JOBS + 20):
        jobs.create("redrive", "dead").run(lambda _job: None)
    assert len(list(tmp_path.glob("*.json"))) <= MAX_JOBS + 1
    assert jobs.get(oldest.id) is oldest
    jobs.close()
    assert oldest.state is State.CANCELLED


def test_a_running_job_of_another_process_is_not_removed(tmp_path: Path) -> None:
    other = Jobs(tmp_path, clock=lambda: 0.0)
    running = other.start("redrive", "dead", lambda job: job.sleep(600))
    jobs = Jobs(tmp_path, clock=lambda: 1.0)
    for _ in range(MAX_JOBS + 5):
        jobs.create("redrive", "dead").run(lambda _job: None)
    assert jobs.get(running.id).state is State.RUNNING
    other.close()


def test_a_file_that_is_no_job_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "odd.json").write_text("{")
    (tmp_path / "older.json").write_text('{"id": "older"}')
    jobs = Jobs(tmp_path)
    assert jobs.all() == jobs.all() == []
    assert len(caplog.records) == 2, "once for each file"


def test_the_folder_is_private_and_created_only_for_a_job(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    jobs = Jobs(folder)
    assert jobs.all() == []
    with pytest.raises(NoSuchJob):
        jobs.get("20261116-120000-a1b2c3")
    assert not folder.exists()
    jobs.create("redrive", "dead").run(lambda _job: None)
    assert os.stat(folder).st_mode & 0o077 == 0


def test_a_job_that_cannot_be_recorded_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("a file in its place")
    with pytest.raises(SemelError, match=r"redrive of dead was not started: .* set SEMEL_STATE"):
        Jobs(tmp_path / "jobs").create("redrive", "dead")


def test_a_job_file_is_read_again_only_if_it_has_changed(tmp_path: Path) -> None:
    job = Jobs(tmp_path).create("redrive", "dead").run(lambda job: job.log("first"))
    reader, path = Jobs(tmp_path), tmp_path / f"{job.id}.json"
    assert [line.text for line in reader.all()[0].messages] == ["first"]
    before = path.stat()
    path.write_text(path.read_text().replace("first", "later"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [line.text for line in reader.all()[0].messages] == ["first"], "same time, size and inode"
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert [line.text for line in reader.all()[0].messages] == ["later"]
    path.unlink()
    assert reader.all() == []


def test_waiting_for_a_job_of_another_process_ends_with_it_or_with_the_timeout(tmp_path: Path) -> None:
    here, there = Jobs(tmp_path), Jobs(tmp_path)
    job = there.create("redrive", "dead")
    job.begin()
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 10.0:
            job.end(State.DONE)

    assert here.wait(job.id, 3.2, clock=lambda: now[0], sleep=sleep).state is State.RUNNING
    assert now[0] == pytest.approx(3.2)
    now[0] = 5.0
    assert here.wait(job.id, clock=lambda: now[0], sleep=sleep).state is State.DONE
    assert now[0] == 10.0
    with pytest.raises(NoSuchJob):
        here.wait("20261116-120000-a1b2c3", 1, clock=lambda: now[0], sleep=sleep)


def test_an_older_state_never_overwrites_a_newer_one(tmp_path: Path) -> None:
    """A thread that pauses the job is held up between taking the state and writing it, while the job ends."""
    jobs = Jobs(tmp_path)
    job = jobs.create("redrive", "dead")
    job.begin()
    state_read, go_on = threading.Event(), threading.Event()
    to_json = job.to_json

    def held_up() -> dict[str, Any]:
        content = to_json()
        if threading.current_thread() is pausing:
            state_read.set()
        return content

    class Held:
        """The lock around writing, which the pausing thread gets last."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            if threading.current_thread() is pausing:
                go_on.wait(60)
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def pause() -> None:
        job.pause()
        own.write()

    own = jobs._own[job.id]
    pausing = threading.Thread(target=pause)
    job.to_json = held_up  # type: ignore[method-assign]
    own._writing = Held()  # type: ignore[assignment]
    pausing.start()
    assert state_read.wait(60)
    job.end(State.DONE)
    go_on.set()
    pausing.join(60)
    stored_job = Jobs(tmp_path).get(job.id)
    assert (stored_job.state, stored_job.pausing) == (State.DONE, False)


def test_a_job_that_has_ended_does_not_run_again(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    job = jobs.create("redrive", "dead").run(lambda _job: None)
    job.working(State.CANARY)
    assert Jobs(tmp_path).get(job.id).state is job.state is State.DONE


@pytest.mark.parametrize("damage", [b'{"id": "\xff"}', b"[" * 5_000, b'{"id": "j"'])
def test_a_damaged_job_file_hides_no_other_job(tmp_path: Path, damage: bytes) -> None:
    jobs = Jobs(tmp_path)
    good = jobs.create("redrive", "orders-dlq").run(lambda _job: None)
    (tmp_path / "20260101-000000-damaged.json").write_bytes(damage)
    assert [job.id for job in Jobs(tmp_path).all()] == [good.id]


def test_a_damaged_request_to_a_job_costs_no_other_request(tmp_path: Path) -> None:
    control = ControlFile(tmp_path / "job.json")
    (tmp_path / "job.control").write_bytes(b'{"action": "\xff"}\n' + b"[" * 5_000 + b"\n")
    control.ask("cancel", "ann", 1.0)
    assert [request.action for request in control.new()] == ["cancel"]
