"""Path tricks: no queue name, address, job id, snapshot or link in a folder leads to a file elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from dashboard.serving import Shop
from intruders.targets import Target
from intruders.wire import ask, get
from semel import dashboard_token
from semel.dlq import snapshots
from semel.dlq.jobs import Jobs
from semel.dlq.jobs.job_store import NoSuchJob
from semel.errors import SemelError
from semel.telemetry import worker_registry
from suite import slow

TRICKS: Final = {
    "up": "../../../../etc/passwd",
    "up, encoded": "..%2f..%2f..%2fetc%2fpasswd",
    "up, encoded twice": "%252e%252e%252fetc%252fpasswd",
    "absolute": "/etc/passwd",
    "backslashes": "..\\..\\etc\\passwd",
    "NUL": "orders\0.json",
    "newline": "orders\n",
    "very long": "x" * 5_000,
    "a look-alike": "оrders",  # the first character is Cyrillic
    "full-width": "ｏrders",
    "a full-width slash": "..／..／etc／passwd",
    "combining": "o\u0301rders",
    "right to left": "orders\u202e",
    "half a character": "\ud800",
    "dots": "..",
    "nothing": " ",
}


@pytest.mark.parametrize("name", TRICKS.values(), ids=TRICKS)
def test_no_queue_has_such_a_name(place: Shop, servers: dict[str, Target], name: str) -> None:
    body = json.dumps({"QueueName": name}).encode()
    request = get("/", "127.0.0.1", "X-Amz-Target: AmazonSQS.CreateQueue", method="POST", body=body)
    assert ask(servers["broker"].port, request).statuses == [400]


@pytest.mark.parametrize("name", [*list(TRICKS.values())[:6], *slow(*list(TRICKS.values())[6:])], ids=TRICKS)
def test_no_address_of_the_dashboard_leads_to_a_file(servers: dict[str, Target], name: str) -> None:
    for form in (quote(name, safe="", errors="surrogatepass"), quote(name, safe="/", errors="surrogatepass")):
        for prefix in ("/static/", "/queues/", "/jobs/", "/api/v1/jobs/", "/dead-letters/", "/api/v1/queues/"):
            reply = ask(servers["dashboard"].port, get(f"{prefix}{form}"))
            assert reply.statuses[0] in (303, 307, 400, 404, 405, 409, 422, 431), (prefix, reply.data[:300])
            assert b"root:" not in reply.data


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder. Beside it is a file that must be neither changed nor shown."""
    (tmp_path / "precious.json").write_text('{"url": "http://127.0.0.1:1", "token": "precious"}')
    (tmp_path / "state").mkdir()
    yield tmp_path / "state"
    assert "precious" in (tmp_path / "precious.json").read_text()
    assert sorted(os.listdir(tmp_path)) == ["precious.json", "state"]


@pytest.mark.parametrize("name", [*TRICKS.values(), "../../precious"], ids=[*TRICKS, "precious"])
def test_no_job_id_leads_out_of_the_folder(state: Path, name: str) -> None:
    jobs = Jobs(state / "jobs")
    with pytest.raises(NoSuchJob):
        jobs.get(name)
    with pytest.raises(NoSuchJob):
        jobs.control(name, "cancel")


@pytest.mark.parametrize("name", TRICKS.values(), ids=TRICKS)
def test_no_name_of_a_queue_puts_its_snapshot_elsewhere(state: Path, name: str) -> None:
    path = snapshots.new_path(state, name, 0.0)
    assert path.resolve().parent == (state / "snapshots").resolve()
    assert path.name.isascii()


def test_a_snapshot_does_not_follow_a_link(state: Path) -> None:
    path = snapshots.new_path(state, "orders", 0.0)
    path.parent.mkdir()
    path.symlink_to(state.parent / "precious.json")
    with pytest.raises(SemelError, match="exists already"):
        snapshots.Writer(path)


def test_the_token_of_a_dashboard_replaces_a_link_and_does_not_follow_it(state: Path) -> None:
    (state / "dashboard-1.json").symlink_to(state.parent / "precious.json")
    dashboard_token.write(state, "http://127.0.0.1:1", "new")
    assert not (state / "dashboard-1.json").is_symlink()
    assert (state / "dashboard-1.json").stat().st_mode & 0o077 == 0


def test_an_entry_in_the_registry_that_is_a_link_or_blows_up_harms_nothing(state: Path) -> None:
    folder = state / worker_registry.FOLDER
    folder.mkdir()
    (folder / "link.json").symlink_to(state.parent / "precious.json")
    (folder / "loop.json").symlink_to(folder / "loop.json")
    (folder / "deep.json").write_text("[" * 60_000)
    (folder / "digits.json").write_text('{"pid": ' + "9" * 60_000 + "}")
    assert worker_registry.workers(state) == []
