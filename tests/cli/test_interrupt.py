"""The first Ctrl-C ends a command and every process that it started, without a traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PATIENCE: Final = 60.0
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SEMEL_"))}

pytestmark = pytest.mark.slow


@pytest.fixture
def silence() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """In a session of its own, as from a shell: Ctrl-C goes to all of its processes."""
    return subprocess.Popen(
        [sys.executable, "-m", "semel", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=ENVIRONMENT | {"SEMEL_STATE": str(folder)},
        start_new_session=True,
    )


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and what it said. No process of its session may be left."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        out, errors = process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    return process.returncode, out + errors


@pytest.mark.parametrize(
    ("command", "ready"),
    [
        ("broker --ephemeral --port 0", "queues are kept"),
        ("broker --ephemeral --port 0 --dashboard-port 0 --dashboard-token a-long-enough-token", "dashboard at"),
        ("dashboard --port 0 --open --endpoint-url URL", "dashboard at"),
    ],
)
def test_a_server_ends_with_130_on_the_first_ctrl_c(tmp_path: Path, silence: str, command: str, ready: str) -> None:
    process = started(tmp_path, *command.replace("URL", silence).split())
    assert process.stdout is not None
    assert any(ready in line for line in process.stdout)
    code, said = interrupted(process)
    assert (code, [line for line in said.splitlines() if "/?token=" not in line]) == (130, [])


@pytest.mark.parametrize(
    "command",
    [
        "dlq queues --endpoint-url URL",
        "dlq list orders-dlq --endpoint-url URL",
        "dlq redrive orders-dlq --all --endpoint-url URL",
        "audit --dashboard URL",
        "annotate deployed --dashboard URL",
    ],
)
def test_a_command_that_waits_for_an_answer_ends_on_the_first_ctrl_c(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = started(tmp_path, *command.replace("URL", url).split())
        connection, _ = listener.accept()  # by now it waits, or is just about to
        with connection:
            connection.recv(1)
            code, said = interrupted(process)
    assert (code, said) == (130, "")


def test_top_ends_on_the_first_ctrl_c(tmp_path: Path, silence: str) -> None:
    import pty

    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "semel", "top", "--endpoint-url", silence],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=tmp_path,
            env=ENVIRONMENT | {"SEMEL_STATE": str(tmp_path), "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(theirs)
        shown = _read_until(ours, "Queues")
        os.write(ours, b"\x03")  # a terminal in raw mode hands Ctrl-C on as a character
        shown += _read_until(ours, None)
        assert process.wait(PATIENCE) == 130
        assert "Traceback" not in shown
    finally:
        os.close(ours)


def _read_until(terminal: int, text: str | None) -> str:
    """Up to this text, or to the end."""
    shown = ""
    while text is None or text not in shown:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # Linux's way to say that nobody writes any more
            part = b""
        if not part:
            break
        shown += part.decode(errors="replace")
    return shown
