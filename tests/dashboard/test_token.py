"""The token that a dashboard generates for itself, and how commands of the same user find it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboard.serving import Shop, shop
from semel import dashboard_token
from semel.cli import main
from semel.dlq.remote_service import RemoteDeadLetterService, RemoteError
from waiting import PATIENCE

URL = "http://127.0.0.1:9325"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("state")) as place:
        yield place


@contextmanager
def dashboard(place: Shop, state: Path, *arguments: str) -> Iterator[str]:
    """As a process; yields its address."""
    access = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "semel.cli", "dashboard", "--endpoint-url", place.broker.url, "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **access, "SEMEL_STATE": str(state)},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_command_of_the_same_user_needs_no_token(
    place: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (id,) = place.dead_letter(1)
    with dashboard(place, tmp_path) as url:
        (file,) = tmp_path.glob("dashboard-*.json")
        assert file.name == f"dashboard-{url.rpartition(':')[2]}.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        monkeypatch.setenv("SEMEL_STATE", str(tmp_path))
        assert main(["dlq", "show", "orders-dlq", id, "--dashboard", url]) == 0
        assert id in capsys.readouterr().out
        monkeypatch.setenv("SEMEL_STATE", str(tmp_path / "other"))
        with pytest.raises(RemoteError, match="needs a token"):
            RemoteDeadLetterService(url).queues()
    assert not list(tmp_path.glob("*dashboard-*"))


def test_a_token_of_the_user_is_not_written_down(place: Shop, tmp_path: Path) -> None:
    with dashboard(place, tmp_path, "--token", "operator-token") as url:
        assert dashboard_token.find(url, tmp_path) is None
        assert not list(tmp_path.glob("*dashboard-*"))


def test_the_token_is_for_its_own_address_only(tmp_path: Path) -> None:
    dashboard_token.write(tmp_path, URL, "secret")
    assert dashboard_token.find(URL, tmp_path) == dashboard_token.find(f"{URL}/", tmp_path) == "secret"
    hosts = (
        "evil.example:9325",
        "localhost:9325",
        "127.0.0.1",
        "127.0.0.1:9326",
        "127.0.0.1:9325@evil.example",
        "[::1",
    )
    for other in (*(f"http://{host}" for host in hosts), "https://127.0.0.1:9325", "http://h:x"):
        assert dashboard_token.find(other, tmp_path) is None, other


def test_a_dashboard_replaces_the_file_of_one_that_was_killed_and_removes_only_its_own(tmp_path: Path) -> None:
    file = tmp_path / "dashboard-9325.json"
    file.write_text(json.dumps({"url": URL, "token": "earlier"}))
    file.chmod(0o644)
    dashboard_token.write(tmp_path, URL, "later")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    dashboard_token.remove(tmp_path, URL, "earlier")
    assert dashboard_token.find(URL, tmp_path) == "later"
    dashboard_token.remove(tmp_path, URL, "later")
    assert not file.exists()
    dashboard_token.remove(tmp_path, URL, "later")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": "http://127.0.0.1:9325"}', "\xff"])
def test_a_file_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "dashboard-9325.json").write_text(content)
    assert dashboard_token.find(URL, tmp_path) is None
    assert dashboard_token.find(URL, tmp_path / "no such folder") is None


def test_finding_the_token_needs_nothing_of_the_dashboard() -> None:
    code = (
        "import sys, semel.dashboard_token; print([name for name in sys.modules if 'fastapi' in name or 'dlq' in name])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
