"""Runs a command and sends Ctrl-C as a terminal would: what it prints, how it ends, and which processes remain."""

from __future__ import annotations

import os
import resource
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
    cpu: float  # seconds of CPU time that the command itself took in between, whatever else the machine does
    output: str
    left: tuple[str, ...]  # command lines of processes that are still running


def starts_java(output: str, processes: Sequence[psutil.Process]) -> bool:
    """True as soon as the command has launched Java."""
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
        interrupted, before = time.monotonic(), psutil.Process(process.pid).cpu_times()
        os.killpg(process.pid, signal.SIGINT)
        code, usage = _wait(process)
        seconds = time.monotonic() - interrupted
        cpu = usage.ru_utime + usage.ru_stime - before.user - before.system
        while (left := _processes(process.pid)) and time.monotonic() < interrupted + seconds + 3:
            time.sleep(0.1)  # Spark's launch script has a short-lived child
        lines = tuple(map(_command_line, left))
        return Ended(code, seconds, cpu, log.read_text(errors="replace"), lines)
    finally:
        for survivor in _processes(process.pid):
            survivor.kill()


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, resource.struct_rusage]:
    deadline = time.monotonic() + PATIENCE
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.01)


def _processes(session: int) -> list[psutil.Process]:
    """All processes of a session, except zombies."""
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
