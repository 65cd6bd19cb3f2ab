"""`semel dashboard` and `semel broker --dashboard-port` as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel import dashboard_token
from waiting import until

PATIENCE = 60.0
TOKEN = "a-long-enough-token"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SEMEL_"))},
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def semel(tmp_path: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "semel.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "SEMEL_STATE": str(tmp_path), **environment},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def url_in(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return line.split()[-1]
    raise AssertionError(f"no line with {word!r}: {process.stderr.read() if process.stderr else ''}")


def asked(url: str, token: str = "") -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
        return json.load(answer)


def gone(url: str) -> bool:
    try:
        asked(f"{url}/health")
    except OSError:
        return True
    return False


def test_the_broker_has_a_dashboard_beside_it_that_ends_with_it(tmp_path: Path) -> None:
    with semel(tmp_path, "serve", "--ephemeral", "--port", "0", "--dashboard-port", "0") as process:
        broker = url_in(process, "SQS listening")
        dashboard = url_in(process, "dashboard at")
        token = dashboard_token.find(dashboard, tmp_path)
        assert token
        page = asked(f"{dashboard}/api/v1/queues", token)
        assert (page["endpoint"], page["is_ours"], page["rows"]) == (broker, True, [])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert gone(dashboard)
        assert process.stderr is not None
        assert f"semel: log in at {dashboard}/?token={token}\n" in process.stderr.read()
        assert dashboard_token.find(dashboard, tmp_path) is None


@pytest.mark.slow
def test_the_dashboard_does_not_outlive_a_broker_that_is_killed(tmp_path: Path) -> None:
    with semel(tmp_path, "broker", "--ephemeral", "--port", "0", "--dashboard-port", "0") as process:
        dashboard = url_in(process, "dashboard at")
        assert asked(f"{dashboard}/health")["status"] == "ok"
        process.kill()
        until(lambda: gone(dashboard), "the end of the dashboard with its broker")


@pytest.mark.slow
def test_beside_a_broker_that_checks_signatures_it_signs_and_asks_for_its_token(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("[ops]\naws_access_key_id = AKIAOPS\naws_secret_access_key = secret\n")
    options = ("--credentials", str(keys), "--dashboard-port", "0", "--dashboard-token", TOKEN)
    with semel(tmp_path, "broker", "--ephemeral", "--port", "0", *options) as process:
        dashboard = url_in(process, "dashboard at")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            asked(f"{dashboard}/api/v1/queues")
        assert asked(f"{dashboard}/api/v1/queues", TOKEN)["rows"] == []
        command = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if command.exists():
            children = [Path(f"/proc/{child}/cmdline").read_bytes() for child in command.read_text().split()]
            assert not any(TOKEN.encode() in line for line in children)


def test_a_port_that_is_taken_is_known_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        for arguments in (
            ("broker", "--ephemeral", "--port", "0", "--dashboard-port", port),
            ("dashboard", "--port", port),
        ):
            with semel(tmp_path, *arguments) as process:
                out, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, out) == (1, "")
            assert f"port {port}" in errors
            assert f"choose another with {arguments[-2]} " in errors
            assert "Traceback" not in errors


@pytest.mark.parametrize("command", [("dashboard",), ("broker", "--ephemeral", "--insecure", "--dashboard-port", "0")])
def test_beyond_this_machine_it_wants_a_token(tmp_path: Path, command: tuple[str, ...]) -> None:
    with semel(tmp_path, *command, "--host", "0.0.0.0", "--port", "0") as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert re.search("--dashboard-token" if command[0] == "broker" else "--token", errors)


def test_it_ends_well_when_it_is_told_to(tmp_path: Path) -> None:
    with semel(tmp_path, "dashboard", "--endpoint-url", "http://127.0.0.1:1", "--port", "0") as process:
        url = url_in(process, "dashboard at")
        token = dashboard_token.find(url, tmp_path)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, errors) == (0, "", f"semel: log in at {url}/?token={token}\n")


def test_without_the_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['fastapi'] = None; from semel.cli import main; sys.exit(main(['dashboard']))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert ran.returncode == 1
    assert "pip install 'semel[dashboard]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_what_is_shown_needs_nothing_of_the_extra() -> None:
    code = (
        "import sys\n"
        "for name in ('fastapi', 'starlette', 'uvicorn', 'jinja2', 'pydantic'): sys.modules[name] = None\n"
        "import semel.dashboard.views\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert ran.returncode == 0, ran.stderr
