"""`semel jobs`: jobs of any process that shares the state folder, and how long to wait for them."""

from __future__ import annotations

from typing import Any

import pytest

from cli.shell import DLQ, Shell, Terminal
from semel.dlq.jobs import Job, Jobs, JobStopped, State
from semel.errors import SemelError
from semel.state_folder import state_folder


def stopped(_job: Job) -> None:
    raise JobStopped("2 of 3 canary messages failed")


def failed(_job: Job) -> None:
    raise SemelError("the queue is gone")


def run(work: Any) -> Job:
    job = Jobs(state_folder() / "jobs").start("redrive", DLQ, work, {"queue": DLQ, "where": "n > 1"}, who="ann")
    assert job.wait(60)
    return job


def test_jobs_are_listed_and_shown_without_an_endpoint(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell("jobs", "list").out == "there are no jobs\n"
    assert shell("jobs", "list", "--output", "json").json == []
    done, halted = run(lambda job: job.add(matched=3, sent=3, deleted=3)), run(stopped)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:1")
    lines = shell("jobs", "list").out.splitlines()
    assert lines[0].split() == ["JOB", "KIND", "QUEUE", "STATE", "SENT", "DELETED", "FAILED", "REASON"]
    assert {line.split()[0] for line in lines[1:]} == {done.id, halted.id}
    assert {job["id"] for job in shell("jobs", "list", "--output", "jsonl").lines} == {done.id, halted.id}
    shown = shell("jobs", "show", halted.id).out
    assert "reason      2 of 3 canary messages failed\n" in shown
    assert "plan        where=n > 1\n" in shown
    assert shell("jobs", "show", done.id, "--output", "json").json["counts"]["sent"] == 3
    missing = shell("jobs", "show", "nobody")
    assert (missing.code, "there is no job 'nobody'" in missing.err) == (1, True)


@pytest.mark.parametrize(("work", "code"), [(lambda _job: None, 0), (failed, 1), (stopped, 4)])
def test_wait_exits_as_the_job_ended(shell: Shell, work: Any, code: int) -> None:
    job = run(work)
    ran = shell("jobs", "wait", job.id, "--output", "json")
    assert (ran.code, ran.json["state"]) == (code, str(job.state))


def test_wait_of_a_job_that_goes_on_ends_at_its_timeout_or_with_ctrl_c_and_cancel_ends_it(shell: Shell) -> None:
    job = Jobs(state_folder() / "jobs").start("redrive", DLQ, lambda job: job.sleep(600))
    late = shell("jobs", "wait", job.id, "--timeout", "1ms", "--quiet")
    assert (late.code, f"job {job.id} is still running after" in late.err) == (1, True)
    waiting = Terminal("jobs", "wait", job.id)
    waiting.until("scanned")
    waiting.interrupt()
    assert waiting.end() == 130
    assert job.state is State.RUNNING, "who waits does not cancel"
    other = Terminal("jobs", "cancel", job.id)
    assert other.end() == 0
    assert job.wait(60)
    assert shell("jobs", "wait", job.id).code == 4
    again = shell("jobs", "pause", job.id)
    assert (again.code, "it has already ended: cancelled" in again.err) == (1, True)
