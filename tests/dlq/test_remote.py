"""The desk through a dashboard: the same answers as the desk itself, and errors that name the way out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dashboard.serving import Shop, Site, shop
from semel.cli import main
from semel.dlq.job_control import JobNotRunning
from semel.dlq.jobs import Job, State
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.remote import RemoteDeadLetterService, RemoteError
from semel.dlq.selection import SelectionError
from semel.dlq.service import DeadLetterService, Key, NoSuchMessage
from semel.errors import SemelError
from semel.sqs.client.messages import Attribute

DLQ = "orders-dlq"
TOKEN = "a-token-of-some-length"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Shop]:
    with shop(tmp_path) as found:
        yield found


@pytest.fixture
def site(place: Shop) -> Iterator[Site]:
    with place.dashboard(token=TOKEN) as found:
        yield found


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


def test_looking_gives_the_same_values_as_the_desk_itself(
    place: Shop, remote: RemoteDeadLetterService, tmp_path: Path
) -> None:
    place.bury(5)
    place.dead.send("plain", attributes={"raw": b"\x00\xff", "n": 5})
    service = DeadLetterService(place.client, state=tmp_path)
    assert [replace(one, oldest_age=None) for one in remote.queues()] == [
        replace(one, oldest_age=None) for one in service.queues()
    ]
    assert remote.queue(DLQ).sources == ("orders",)
    found = remote.messages(DLQ, "", 3, bodies=True)
    assert found == service.messages(DLQ, "", 3, bodies=True)
    rest = remote.messages(DLQ, "", 3, found.next)
    assert rest.messages[-1].attributes["raw"] == Attribute("Binary", b"\x00\xff")
    assert remote.groups(DLQ) == service.groups(DLQ)
    assert remote.impact(DLQ, "$.order > 1") == service.impact(DLQ, "$.order > 1")
    one = found.messages[0]
    assert remote.message(DLQ, one.id) == service.message(DLQ, one.id)
    assert len(list(remote.lines(DLQ, "$.order < 2"))) == 2
    file = tmp_path / "all.jsonl"
    assert remote.export(DLQ, to=file, all=True).count == len(file.read_bytes().splitlines()) == 6


def test_acting_happens_there_and_in_its_log(place: Shop, remote: RemoteDeadLetterService, tmp_path: Path) -> None:
    ids = place.bury(12)
    job = ended(remote, remote.redrive(RedrivePlan(queue=DLQ, canary=0, where="$.order < 3")))
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
    assert [one.id for one in remote.jobs()] == [back.id, dropped.id, job.id]
    actions = {entry.action for entry in remote.audit_entries("outcome = done")}
    assert {"redrive", "resend", "delete", "restore", "export", "annotate"} <= actions
    with pytest.raises(JobNotRunning, match="it has already ended: done"):
        remote.control(job.id, "cancel")


def test_a_drop_through_a_dashboard_names_both_places_and_drops_what_was_seen(
    place: Shop,
    site: Site,
    remote: RemoteDeadLetterService,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place.bury(3)
    assert remote.address(remote.queue(DLQ)) == (
        f"{place.broker.url}, account 000000000000, through the dashboard at {site.url}"
    )
    monkeypatch.setenv("SEMEL_STATE", str(place.state / "own"))
    through = ["--via", site.url, "--token", TOKEN]
    assert main(["dlq", "drop", DLQ, "--where", "$.order < 2", "--yes", *through]) == 0
    said = capsys.readouterr().err
    assert f"drop of 2 messages in orders-dlq\n  at {remote.address(remote.queue(DLQ))}\n" in said
    assert main(["dlq", "drop", "orders", "--all", "--yes", *through]) == 2
    assert "--any-queue" in capsys.readouterr().err
    seen = remote.impact(DLQ, all=True).shown
    later = place.bury(2)
    assert ended(remote, remote.delete(DLQ, all=True, shown=seen)).counts.deleted == 1
    assert [one.id for one in remote.messages(DLQ).messages] == later
    with pytest.raises(SelectionError):
        remote.delete(DLQ)
    with pytest.raises(SelectionError):
        remote.delete(DLQ, ids=[])


@pytest.mark.slow
def test_mistakes_are_told_as_the_desk_tells_them(
    place: Shop, site: Site, remote: RemoteDeadLetterService, tmp_path: Path
) -> None:
    place.bury(1)
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
    place.bury(4)
    monkeypatch.setenv("SEMEL_DASHBOARD", site.url)
    monkeypatch.setenv("SEMEL_TOKEN", TOKEN)
    monkeypatch.setenv("SEMEL_STATE", str(place.state / "own"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:1")
    assert main(["dlq", "ls"]) == 0
    assert main(["dlq", "list", DLQ, "--group-by", "error"]) == 0
    capsys.readouterr()
    assert main(["dlq", "redrive", DLQ, "--all", "--limit", "2", "--json", "--quiet"]) == 0
    job = json.loads(capsys.readouterr().out)
    assert (job["state"], job["counts"]["sent"]) == ("done", 2)
    assert main(["dlq", "jobs", job["id"], "--cancel"]) == 1
    assert "it has already ended: done" in capsys.readouterr().err
    assert main(["dlq", "watch", "--once"]) == 3
    assert main(["mark", "deployed"]) == 0
    assert main(["audit", "--where", "action = redrive"]) == 0
    assert "redrive" in capsys.readouterr().out
