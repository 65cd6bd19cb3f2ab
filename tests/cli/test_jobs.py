"""`semel jobs`: jobs of any process that shares the state folder, and how long they are waited for."""

from __future__ import annotations

import http.server
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.shell import DLQ, Shell, Terminal
from semel.cli.follow import follow
from semel.cli.service import LocalRecords
from semel.dlq.jobs import Job, Jobs, JobStopped, State
from semel.dlq.remote import RemoteDeadLetterService
from semel.errors import SemelError


def stopped(_job: Job) -> None:
    raise JobStopped("2 of 3 canary messages failed")


def failed(_job: Job) -> None:
    raise SemelError("the queue is gone")


def run(work: Any) -> Job:
    job = LocalRecords()._jobs.start("redrive", DLQ, work, {"queue": DLQ, "where": "n > 1"}, who="ann")
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
    assert {one["id"] for one in shell("jobs", "list", "--output", "jsonl").lines} == {done.id, halted.id}
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
    records = LocalRecords()
    job = records._jobs.start("redrive", DLQ, lambda job: job.sleep(600))
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


# Through a dashboard that fails.


@contextmanager
def dashboard(answers: list[int], job: Job) -> Iterator[str]:
    """A server that answers with these HTTP statuses, one a request, and with the job where that is 200."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = answers.pop(0) if len(answers) > 1 else answers[0]
            content = json.dumps(job.to_json() if status == 200 else {"error": "out of memory"}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_poll_that_fails_is_repeated(tmp_path: Path) -> None:
    job = Jobs(tmp_path).create("redrive", DLQ).run(lambda job: job.add(sent=3))
    slept: list[float] = []
    with dashboard([503, 500, 200], job) as url:
        said = io.StringIO()
        found = follow(RemoteDeadLetterService(url), job, stream=said, sleep=slept.append)
    assert (found.job.state, found.job.counts.sent, slept) == (State.DONE, 3, [0.5, 1.0])
    assert "out of memory; trying again in 0.5 s" in said.getvalue()


def test_giving_up_names_the_job_and_the_command_that_shows_it(tmp_path: Path) -> None:
    job = Jobs(tmp_path).create("redrive", DLQ)
    slept: list[float] = []
    with dashboard([503], job) as url, pytest.raises(SemelError) as raised:
        follow(RemoteDeadLetterService(url), job, quiet=True, sleep=slept.append)
    assert f"semel jobs show {job.id} --dashboard {url}" in str(raised.value)
    assert sum(slept) > 60
    with dashboard([404], job) as url, pytest.raises(SemelError, match="out of memory"):
        follow(RemoteDeadLetterService(url), job, quiet=True, sleep=slept.append)
    job.end(State.CANCELLED)
