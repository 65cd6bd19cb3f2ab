"""A job in another process is paused, resumed and cancelled from here, or the answer says plainly that it cannot be."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboard.serving import Answer, Shop, Site, shop
from dashboard.test_terminal import Screen
from semel.cli import main
from semel.dashboard.services import Services
from semel.dashboard.terminal.dialogs import Question
from semel.dashboard.terminal.terminal_app import Top
from semel.dlq.jobs import Job, Jobs, State
from semel.dlq.jobs.job_control import HEARTBEAT_TIMEOUT, JobNotRunning
from semel.dlq.service import DeadLetterService
from waiting import until

MANY = 120


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for name in ("SEMEL_DASHBOARD", "SEMEL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with shop(tmp_path / "state") as place:
        monkeypatch.setenv("SEMEL_STATE", str(place.state))
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", place.broker.url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield place


class Elsewhere:
    """A redrive in a process of its own, slow enough to be met."""

    def __init__(self, process: subprocess.Popen[str], jobs: Jobs, id: str) -> None:
        self.process, self._jobs, self.id = process, jobs, id

    @property
    def job(self) -> Job:
        return self._jobs.get(self.id)

    def becomes(self, state: State) -> Job:
        until(lambda: self.job.state is state, f"{state} of a job that is {self.job.state}")
        return self.job


@contextmanager
def redrive_elsewhere(place: Shop) -> Iterator[Elsewhere]:
    place.dead_letter(MANY)
    arguments = ["dlq", "redrive", "orders-dlq", "--where", "key exists", "--no-canary", "--rate", "4", "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "semel.cli", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        jobs = Jobs(place.state / "jobs")
        (job,) = until(lambda: [job for job in jobs.all() if job.counts.sent], "the start of the redrive")
        yield Elsewhere(process, jobs, job.id)
    finally:
        process.kill()
        process.communicate()


def audited(place: Shop, action: str) -> list[str]:
    """Outcomes, the oldest first."""
    service = DeadLetterService(place.client, state=place.state)
    return [entry.outcome for entry in reversed(service.audit_entries(f'action = "{action}"'))]


def press(site: Site, path: str) -> Answer:
    """A button of a page."""
    return site.form(path, {})


def everywhere(place: Shop) -> list[int]:
    return [len(place.broker.peek(queue, limit=1_000)) for queue in ("orders-dlq", "orders")]


def test_a_redrive_of_another_process_is_paused_resumed_and_cancelled_from_the_command_line(
    place: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    with redrive_elsewhere(place) as there:
        assert main(["jobs", "pause", there.id]) == 0
        assert f"pause job {there.id}: " in capsys.readouterr().out
        there.becomes(State.PAUSED)
        before = everywhere(place)
        assert main(["jobs", "resume", there.id]) == 0
        until(lambda: everywhere(place) != before, "a redrive that goes on")
        assert main(["jobs", "cancel", there.id, "--output", "json"]) == 0
        shown = json.loads(capsys.readouterr().out.partition("\n")[2])
        assert (shown["id"], shown["acknowledged"]) == (there.id, True)
        assert there.process.wait(60) == 4
        job = there.becomes(State.CANCELLED)
    assert [line.text.partition(" asked to ")[2] for line in job.messages][:3] == ["pause it", "resume it", "cancel it"]
    assert sum(everywhere(place)) == MANY
    assert everywhere(place)[0] > 0, "it was cancelled before its end"
    assert audited(place, "pause job")[0] == audited(place, "cancel job")[0] == "asked"
    assert audited(place, "cancel job")[1].startswith("acknowledged")
    assert not list((place.state / "jobs").glob("*.control"))


def test_a_job_whose_process_is_gone_cannot_be_cancelled_and_nobody_says_that_it_was(
    place: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    with redrive_elsewhere(place) as there:
        there.process.kill()
        there.process.wait()
        assert main(["jobs", "cancel", there.id]) == 1
    assert "its process is gone" in capsys.readouterr().err
    begun, failed = audited(place, "cancel job")
    assert (begun, failed.startswith("failed: ")) == ("asked", True)
    with place.dashboard() as site:
        answer = site.post(f"/api/v1/jobs/{there.id}/cancel")
        assert (answer.status, "its process is gone" in answer.json()["error"]) == (409, True)
        page = press(site, f"/jobs/{there.id}/pause")
        assert (page.status, "its process is gone" in page.text) == (409, True)
    assert not list((place.state / "jobs").glob("*.control"))


def test_a_job_that_has_not_answered_is_said_to_have_been_asked_and_obeys_later(place: Shop) -> None:
    with redrive_elsewhere(place) as there:
        os.kill(there.process.pid, signal.SIGSTOP)
        try:
            control = Jobs(place.state / "jobs").control(there.id, "cancel", "ann", patience=0)
            assert (control.acknowledged, str(control)) == (
                False,
                "asked to cancel; the job has not acknowledged it yet",
            )
            # Nothing that is asked afterwards takes its place.
            Jobs(place.state / "jobs").control(there.id, "resume", "ann", patience=0)
        finally:
            os.kill(there.process.pid, signal.SIGCONT)
        assert there.process.wait(60) == 4
        assert there.job.state is State.CANCELLED
    assert sum(everywhere(place)) == MANY


@pytest.mark.parametrize(
    ("action", "answer"), [("pause", "paused"), ("cancel", "acknowledged; the job has ended: cancelled")]
)
def test_a_request_is_answered_when_the_job_has_obeyed(tmp_path: Path, action: str, answer: str) -> None:
    begun, checkpoint = threading.Event(), threading.Event()

    def work(job: Job) -> None:
        begun.set()
        checkpoint.wait(60)
        job.checkpoint()

    job = Jobs(tmp_path).start("redrive", "dead", work)
    assert begun.wait(60)
    with ThreadPoolExecutor(1) as pool:
        control = pool.submit(Jobs(tmp_path).control, job.id, action, "ann", patience=60)
        until(lambda: b'"acknowledged":["' in (tmp_path / f"{job.id}.json").read_bytes(), "the acknowledgement")
        with pytest.raises(TimeoutError):
            control.result(timeout=0.3)
        checkpoint.set()
        assert str(control.result()) == answer
    job.cancel()
    assert job.wait(60)


@pytest.mark.slow
def test_the_api_and_the_page_say_asked_until_the_job_has_acknowledged_it(place: Shop) -> None:
    with redrive_elsewhere(place) as there, place.dashboard() as site:
        os.kill(there.process.pid, signal.SIGSTOP)
        answer = site.post(f"/api/v1/jobs/{there.id}/pause")
        assert (answer.status, answer.json()["acknowledged"]) == (202, False)
        pressed = press(site, f"/jobs/{there.id}/cancel")
        assert pressed.status == 303
        assert "Asked to cancel; the job has not acknowledged it yet." in site.get(pressed.headers["location"]).text
        assert audited(place, "cancel job") == ["asked", "asked to cancel; the job has not acknowledged it yet"]
        there.process.kill()
        there.process.wait()
        assert site.post(f"/api/v1/jobs/{there.id}/cancel").status == 409
    assert not list((place.state / "jobs").glob("*.control"))


@pytest.mark.slow
def test_a_job_of_another_process_is_paused_and_cancelled_over_the_api_and_on_its_page(place: Shop) -> None:
    with redrive_elsewhere(place) as there, place.dashboard() as site:
        answer = site.post(f"/api/v1/jobs/{there.id}/pause")
        assert (answer.status, answer.json()["acknowledged"]) == (200, True)
        there.becomes(State.PAUSED)
        assert "Resume" in site.get(f"/jobs/{there.id}").text
        assert press(site, f"/jobs/{there.id}/cancel").status == 303
        assert there.process.wait(60) == 4
        assert site.api(f"jobs/{there.id}")["state"] == "cancelled"
        late = site.post(f"/api/v1/jobs/{there.id}/cancel")
        assert (late.status, "it has already ended: cancelled" in late.json()["error"]) == (409, True)


@pytest.mark.slow
def test_a_job_of_another_process_is_paused_and_cancelled_in_top(place: Shop) -> None:
    async def story(screen: Screen) -> None:
        await screen.go("4")
        await screen.until(lambda: screen.rows("jobs") and screen.rows("jobs")[0][3] == "running")
        await screen.press("p")
        await screen.until(lambda: screen.rows("jobs")[0][3] == "paused")
        await screen.press("x")
        await screen.until(lambda: isinstance(screen.top.screen, Question))
        await screen.press("y")
        await screen.until(lambda: screen.rows("jobs")[0][3] == "cancelled")

    async def run(services: Services) -> None:
        top = Top(services, can_act=True, every=0.5)
        async with top.run_test(size=(180, 50)) as pilot:
            screen = Screen(top, pilot)
            await screen.until(lambda: top.board.note, "the first board")
            await story(screen)

    with redrive_elsewhere(place) as there:
        services = Services.of(place.settings(), client=place.client)
        try:
            asyncio.run(run(services))
        finally:
            services.close()
        assert there.process.wait(60) == 4


@pytest.mark.parametrize(
    ("silent_for", "state"),
    [(HEARTBEAT_TIMEOUT - 5, State.RUNNING), (HEARTBEAT_TIMEOUT + 5, State.INTERRUPTED)],
)
def test_a_job_of_a_killed_container_is_interrupted_once_its_heartbeat_is_old(
    tmp_path: Path, silent_for: float, state: State
) -> None:
    """The same state folder on a volume, another host name, and a process that cannot be looked up from here."""
    code = (
        "import pathlib, socket; socket.gethostname = lambda: 'a-container'\n"
        "from semel.dlq.jobs import Jobs\n"
        f"jobs = Jobs(pathlib.Path({str(tmp_path)!r}))\n"
        "def work(job):\n    print(job.id, flush=True); job.sleep(600)\n"
        "jobs.start('redrive', 'dead', work).wait()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    id = process.stdout.readline().strip()
    process.kill()
    process.communicate()
    heartbeat = json.loads((tmp_path / f"{id}.json").read_text())["process"]["heartbeat"]
    jobs = Jobs(tmp_path, clock=lambda: heartbeat + silent_for)
    assert jobs.get(id).state is jobs.all()[0].state is state
    if state is State.INTERRUPTED:
        for action in ("pause", "resume", "cancel"):
            with pytest.raises(JobNotRunning, match="its process is gone"):
                jobs.control(id, action)
        assert not list(tmp_path.glob("*.control"))
        assert jobs.wait(id, 0).state is State.INTERRUPTED


def test_a_job_that_waits_goes_on_to_show_that_it_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.dlq.jobs.job_store.HEARTBEAT", 0.0)
    now = [1_000.0]
    jobs = Jobs(tmp_path, clock=lambda: now[0])
    job = jobs.start("redrive", "dead", lambda job: job.sleep(600))
    job.pause()
    until(lambda: jobs.get(job.id).state is State.PAUSED)
    now[0] += 10_000
    note = tmp_path / f"{job.id}.json"
    until(lambda: json.loads(note.read_text())["process"]["heartbeat"] == now[0], "a heartbeat")
    jobs.close()
