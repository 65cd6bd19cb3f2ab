"""Jobs: seen while they run, stopped where nothing is half done, and remembered after the process is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.dlq.jobs import KEPT, Job, Jobs, JobStopped, NoSuchJob, State
from semel.errors import SemelError


def wait_for(holds: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to pass")


def test_a_job_tells_what_it_does_and_how_it_ended() -> None:
    job = Job("redrive", "dead", {"where": "timeout"}, who="ada", clock=lambda: 100.0)
    assert job.state is State.PLANNED

    def work(job: Job) -> None:
        job.total = 3
        job.add(sent=2, deleted=1)
        job.say("two of three")

    assert job.run(work).wait(0)
    seen = json.loads(json.dumps(job.to_json()))
    assert (seen["state"], seen["kind"], seen["queue"], seen["who"]) == ("done", "redrive", "dead", "ada")
    assert seen["counts"]["sent"] == 2
    assert seen["messages"] == [{"at": 100.0, "text": "two of three"}]
    assert (seen["plan"], seen["total"], seen["started"], seen["ended"]) == ({"where": "timeout"}, 3, 100.0, 100.0)


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
    wait_for(lambda: job.state is State.PAUSED)
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
        wait_for(lambda: job.state is State.PAUSED)
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
    wait_for(lambda: job.state is State.PAUSED)
    job.cancel()
    assert job.wait(60)


def test_what_comes_after_is_called_at_every_end(tmp_path: Path) -> None:
    ends: list[State] = []
    jobs = Jobs(tmp_path)

    def fail(_job: Job) -> None:
        raise SemelError("no")

    for work in (fail, lambda _job: None):
        job = jobs.start("drop", "dead", work, then=lambda job: ends.append(job.state))
        assert job.wait(60)
    wait_for(lambda: len(ends) == 2)
    assert ends == [State.FAILED, State.DONE]


def test_jobs_are_remembered_by_the_next_process(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)

    def work(job: Job) -> None:
        job.add(sent=4)
        job.say("four")
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
        "def work(job):\n    job.add(sent=3); job.say('x'); print(job.id, flush=True); job.sleep(600)\n"
        "job = jobs.start('redrive', 'dead', work); job.wait()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    id = process.stdout.readline().strip()
    seen = Jobs(tmp_path)
    assert seen.get(id).state is State.RUNNING
    process.kill()
    process.wait()
    process.stdout.close()
    job = seen.get(id)
    assert job.state is State.INTERRUPTED
    assert "run it again" in job.reason
    assert [one.state for one in seen.all()] == [State.INTERRUPTED]


def test_only_the_last_ones_are_kept_and_nothing_that_runs_is_forgotten(tmp_path: Path) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    jobs = Jobs(tmp_path, clock=clock)
    oldest = jobs.start("redrive", "dead", lambda job: job.sleep(600))
    for _ in range(KEPT + 20):
        jobs.create("redrive", "dead").run(lambda _job: None)
    assert len(list(tmp_path.glob("*.json"))) <= KEPT + 1
    assert jobs.get(oldest.id) is oldest
    jobs.close()
    assert oldest.state is State.CANCELLED


def test_what_cannot_be_read_is_no_job(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{")
    (tmp_path / "older.json").write_text('{"id": "older"}')
    assert Jobs(tmp_path).all() == []


def test_the_folder_is_nobody_elses(tmp_path: Path) -> None:
    Jobs(tmp_path / "jobs")
    assert os.stat(tmp_path / "jobs").st_mode & 0o077 == 0
