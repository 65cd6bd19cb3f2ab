"""A command that gets Ctrl-C as from a terminal: what it prints, how it ends, and what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

PATIENCE: Final = 120.0


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    seconds: float  # from Ctrl-C to the end
    output: str
    left: tuple[str, ...]  # command lines of processes that are still there


def starts_java(output: str, processes: Sequence[psutil.Process]) -> bool:
    """True from the moment that the command has launched Java."""
    return any("spark-submit" in line or "SparkSubmit" in line for line in map(_command_line, processes))


def interrupt(command: Sequence[str], folder: Path, when: Callable[[str, Sequence[psutil.Process]], bool]) -> Ended:
    """Run the command, send SIGINT to its process group as soon as `when(output, its processes)`, and wait for it."""
    log = folder / "output"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        started = time.monotonic()
        while not when(log.read_text(errors="replace"), _processes(process.pid)):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < started + PATIENCE, log.read_text(errors="replace")
            time.sleep(0.02)
        interrupted = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(PATIENCE)
        seconds = time.monotonic() - interrupted
        while (left := _processes(process.pid)) and time.monotonic() < interrupted + seconds + 3:
            time.sleep(0.1)  # Spark's launch script has a short-lived child
        lines = tuple(map(_command_line, left))
        return Ended(code, seconds, log.read_text(errors="replace"), lines)
    finally:
        for survivor in _processes(process.pid):
            survivor.kill()


def _processes(session: int) -> list[psutil.Process]:
    """All processes of a session but those that are over and only wait to be reaped."""
    processes = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            pass
    return processes


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
