"""Waiting for another thread or process, and a free port."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE: Final = 60.0


def until(condition: Callable[[], Any], what: str = "it", process: subprocess.Popen[str] | None = None) -> Any:
    """Wait until `condition` is true and return its value; fails after a minute, or if the process ends."""
    ends = time.monotonic() + PATIENCE
    while not (answer := condition()):
        assert time.monotonic() < ends, f"{what} did not happen within {PATIENCE:g} s"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.005)
    return answer


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
