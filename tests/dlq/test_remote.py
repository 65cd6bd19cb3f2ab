"""The dead-letter service through a dashboard: the same methods, the same values, and errors that give advice."""

from __future__ import annotations

import inspect
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dashboard.serving import Shop, Site, shop
from semel.cli import main
from semel.dlq.jobs import Job, JobNotRunning, NoSuchJob, State
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.remote_service import RETRY_FOR, RemoteDeadLetterService, RemoteError
from semel.dlq.selection import SelectionError
from semel.dlq.service import DeadLetterService, Key, NoSuchMessage
from semel.errors import SemelError
from semel.sqs.client.messages import Attribute

DLQ = "orders-dlq"
TOKEN = "a-token-of-some-length"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Shop]:
    with shop(tmp_path) as place:
        yield place


@pytest.fixture
def site(place: Shop) -> Iterator[Site]:
    with place.dashboard(token=TOKEN) as site:
        yield site


@pytest.fixture
def remote(site: Site) -> RemoteDeadLetterService:
    return RemoteDeadLetterService(f"{site.url}/", TOKEN)


def ended(remote: RemoteDeadLetterService, job: Job) -> Job:
    for _ in range(600):
        job = remote.job(job.id)
        if job.state.ended:
            return job
        job.wait(0.1)
    raise AssertionError(job.to_json())


# Of the service only: the name of the user and the ledger belong to the process that has the queues.
LOCAL = {"by", "ledger"}


def public(kind: type) -> dict[str, Any]:
    names = (name for name in dir(kind) if not name.startswith("_") and name not in LOCAL)
    return {name: getattr(kind, name) for name in names}


def test_both_services_have_the_same_public_names() -> None:
    assert set(public(RemoteDeadLetterService)) == set(public(DeadLetterService))


@pytest.mark.parametrize(
    "name", [name for name, value in public(DeadLetterService).items() if inspect.isfunction(value)]
)
def test_both_services_have_the_same_parameters_and_defaults(name: str) -> None:
    assert inspect.signature(getattr(RemoteDeadLetterService, name)) == inspect.signature(
        getattr(DeadLetterService, name)
    )


def test_reading_returns_the_same_values_as_the_service_itself(
    place: Shop, remote: RemoteDeadLetterService, tmp_path: Path
) -> None:
    place.dead_letter(5)
    place.dead.send("plain", attributes={"raw": b"\x00\xff", "n": 5})
    service = DeadLetterService(place.client, state=tmp_path)
    assert [replace(queue, oldest_age=None) for queue in remote.queues()] == [
        replace(queue, oldest_age=None) for queue in service.queues()
    ]
    assert remote.queue(DLQ).sources == ("orders",)
    page = remote.messages(DLQ, "", 3, bodies=True)
    assert page == service.messages(DLQ, "", 3, bodies=True)
    rest = remote.messages(DLQ, "", 3, page.next)
    assert rest.messages[-1].attributes["raw"] == Attribute("Binary", b"\x00\xff")
    assert remote.groups(DLQ) == service.groups(DLQ)
    assert remote.impact(DLQ, "$.order > 1") == service.impact(DLQ, "$.order > 1")
    message = page.messages[0]
    assert remote.message(DLQ, message.id) == service.message(DLQ, message.id)
    assert len(list(remote.lines(DLQ, "$.order < 2"))) == 2
    file = tmp_path / "all.jsonl"
    assert remote.export(DLQ, to=file, all=True).count == len(file.read_bytes().splitlines()) == 6


def test_actions_happen_there_and_are_in_its_audit_log(
    place: Shop, remote: RemoteDeadLetterService, tmp_path: Path
) -> None:
    ids = place.dead_letter(12)
    job = ended(remote, remote.redrive(RedrivePlan(queue=DLQ, where="$.order < 3", canary=0)))
    assert (job.state, job.counts.sent) == (State.DONE, 3)
    sent = remote.resend(DLQ, ids[3], body="{}", attributes={"raw": b"\x01", "text": "x"}, key=Key.NEW)
    assert (sent.queue, sent.deleted, len(sent.key)) == ("orders", True, 32)
    assert remote.resend(DLQ, ids[4], key="mine").key == "mine"
    file = tmp_path / "kept.jsonl"
    remote.export(DLQ, "$.order >= 8", file)
    dropped = ended(remote, remote.delete(DLQ, "$.order >= 8"))
    assert (dropped.counts.deleted, "snapshot" in dropped.result) == (4, True)
    back = ended(remote, remote.restore(file))
    assert (back.state, back.counts.sent) == (State.DONE, 4)
    assert remote.annotate("deployed").text == "deployed"
    assert [mark.text for mark in remote.annotations()] == ["deployed"]
    assert [listed_job.id for listed_job in remote.jobs()] == [back.id, dropped.id, job.id]
    actions = {entry.action for entry in remote.audit_entries("outcome = done")}
    assert {"redrive", "resend", "delete", "restore", "export", "annotate"} <= actions
    with pytest.raises(JobNotRunning, match="it has already ended: done"):
        remote.control(job.id, "cancel")


def test_a_delete_through_a_dashboard_names_both_places_and_deletes_what_was_shown(
    place: Shop,
    site: Site,
    remote: RemoteDeadLetterService,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place.dead_letter(3)
    assert remote.address(remote.queue(DLQ)) == (
        f"{place.broker.url}, account 000000000000, through the dashboard at {site.url}"
    )
    monkeypatch.setenv("SEMEL_STATE", str(place.state / "own"))
    through = ["--dashboard", site.url, "--token", TOKEN]
    assert main(["dlq", "delete", DLQ, "--where", "$.order < 2", "--yes", *through]) == 0
    said = capsys.readouterr().err
    assert f"delete 2 messages in orders-dlq\n  at {remote.address(remote.queue(DLQ))}\n" in said
    assert main(["dlq", "delete", "orders", "--all", "--yes", *through]) == 2
    assert "--any-queue" in capsys.readouterr().err
    shown_messages = remote.impact(DLQ, all=True).shown
    later = place.dead_letter(2)
    assert ended(remote, remote.delete(DLQ, all=True, shown=shown_messages)).counts.deleted == 1
    assert [message.id for message in remote.messages(DLQ).messages] == later
    with pytest.raises(SelectionError):
        remote.delete(DLQ)
    with pytest.raises(SelectionError):
        remote.delete(DLQ, ids=[])


@pytest.mark.slow
def test_errors_are_those_of_the_service_itself(
    place: Shop, site: Site, remote: RemoteDeadLetterService, tmp_path: Path
) -> None:
    place.dead_letter(1)
    with pytest.raises(RemoteError, match="there is no field 'eror'"):
        remote.messages(DLQ, "eror = 5")
    with pytest.raises(NoSuchMessage, match="nobody"):
        remote.message(DLQ, "nobody")
    with pytest.raises(RemoteError, match="nowhere"):
        remote.queue("nowhere")
    with pytest.raises(SemelError, match="there is no job"):
        remote.job("nobody")
    with pytest.raises(RemoteError, match="--snapshot"):
        remote.delete(DLQ, all=True, snapshot=tmp_path / "x")
    for token in ("", "wrong"):
        with pytest.raises(RemoteError, match="--token or SEMEL_TOKEN"):
            RemoteDeadLetterService(site.url, token).queues()
    with pytest.raises(RemoteError, match=r"is a dashboard there\?|HTTP"):
        RemoteDeadLetterService(place.broker.url).queues()
    for url in ("ftp://x", "nonsense", "http://"):
        with pytest.raises(RemoteError, match="write http://host:9325"):
            RemoteDeadLetterService(url)


@pytest.mark.slow
def test_the_command_line_goes_through_a_dashboard(
    place: Shop, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.dead_letter(4)
    monkeypatch.setenv("SEMEL_DASHBOARD", site.url)
    monkeypatch.setenv("SEMEL_TOKEN", TOKEN)
    monkeypatch.setenv("SEMEL_STATE", str(place.state / "own"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:1")
    assert main(["dlq", "queues"]) == 0
    assert main(["dlq", "groups", DLQ]) == 0
    capsys.readouterr()
    assert main(["dlq", "redrive", DLQ, "--all", "--no-canary", "--limit", "2", "--output", "json", "--quiet"]) == 0
    job = json.loads(capsys.readouterr().out)
    assert (job["state"], job["counts"]["sent"]) == ("done", 2)
    assert main(["jobs", "cancel", job["id"]]) == 1
    assert "it has already ended: done" in capsys.readouterr().err
    assert main(["dlq", "watch", "--once"]) == 3
    assert main(["annotate", "deployed"]) == 0
    assert main(["audit", "--where", "action = redrive"]) == 0
    assert "redrive" in capsys.readouterr().out


class Proxy:
    """A TCP proxy before a dashboard; while it is `down`, it closes every connection without an answer."""

    def __init__(self, site: Site) -> None:
        self._target = (urlsplit(site.url).hostname, urlsplit(site.url).port)
        self.down = False
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.down:
                client.close()
                continue
            server = socket.create_connection(self._target)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def proxy(site: Site) -> Iterator[Proxy]:
    proxy = Proxy(site)
    yield proxy
    proxy.close()


def test_a_poll_that_fails_does_not_end_what_follows_a_job(place: Shop, site: Site, proxy: Proxy) -> None:
    now = [0.0]
    remote = RemoteDeadLetterService(proxy.url, TOKEN, clock=lambda: now[0])
    place.dead_letter(20)
    job = remote.redrive(RedrivePlan(queue=DLQ, where="key exists", rate=0.5, canary=0))
    proxy.down, proxy.connections = True, 0
    for seconds in (0, 0.5, 0.5, 1, 1, 2, 2, 8, 15, 14):  # backoff: 1, 2, 4, 8, 15 s
        now[0] += seconds
        assert not remote.job(job.id).state.ended
    assert proxy.connections == 6
    with pytest.raises(RemoteError, match=f"asked to pause; see it with: semel jobs show {job.id} --dashboard "):
        remote.control(job.id, "pause")
    proxy.down = False
    now[0] += 15
    assert remote.job(job.id).state in (State.RUNNING, State.PLANNED)
    proxy.down = True
    assert not remote.wait(job.id, 0).state.ended
    now[0] += RETRY_FOR
    with pytest.raises(RemoteError) as caught:
        remote.job(job.id)
    assert str(caught.value).endswith(
        f"job {job.id} may still be running there; see it with: semel jobs show {job.id} --dashboard {proxy.url}"
    )
    with pytest.raises(RemoteError, match="it is not known whether the job was started; see: semel jobs list --dash"):
        remote.redrive(RedrivePlan(queue=DLQ, where="key exists"))
    proxy.down = False
    remote.control(job.id, "cancel")
    assert ended(RemoteDeadLetterService(site.url, TOKEN), job).state is State.CANCELLED


def test_a_job_that_nobody_follows_is_not_retried(site: Site, proxy: Proxy) -> None:
    remote = RemoteDeadLetterService(proxy.url, TOKEN)
    with pytest.raises(NoSuchJob, match="there is no job"):
        remote.job("20261116-120000-a1b2c3")
    proxy.down = True
    with pytest.raises(RemoteError, match="no answer from the dashboard"):
        remote.job("20261116-120000-a1b2c3")


def test_an_answer_of_another_version_is_an_error_that_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = RemoteDeadLetterService(site.url, TOKEN)
    monkeypatch.setattr(remote, "_get", lambda *_: {"queues": [{"name": "orders-dlq"}]})
    with pytest.raises(RemoteError, match=r"is not understood .*is it of the same version"):
        remote.queues()
