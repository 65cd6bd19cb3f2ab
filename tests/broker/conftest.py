"""`serve`: starts brokers in separate processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_process import Serve, Starter


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Starter]:
    """Starts brokers on free ports, in the test's own folder."""
    started: list[Serve] = []

    def start(*options: str, **how: Any) -> Serve:
        started.append(Serve(tmp_path, *(() if "--port" in options else ("--port", "0")), *options, **how))
        return started[-1]

    yield start
    for broker in started:
        broker.kill_if_running()
