"""`semel doctor` as a user runs it: a new process each time, with its total time and its peak memory.

The rule: no code of the doctor is imported here. Peak memory is that of the process and all its children together.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Self

import psutil

SEMEL: Final = str(Path(sys.executable).parent / "semel")
SAMPLE_EVERY: Final = 0.05  # seconds
CHILDREN_EVERY: Final = 10  # samples: finding children takes longer than asking for their memory
LIMIT: Final = 1_800.0  # seconds for one command

Counts = dict[str, dict[str, int]]  # queue -> cause -> duplicates


class CommandFailed(Exception):
    """The command failed or did not end; the text has its last output."""


@dataclass(frozen=True)
class Run:
    seconds: float
    peak: float  # bytes
    messages: dict[str, int]  # by queue
    causes: Counts


def run(log: Path, report: Path, *options: str) -> Run:
    """Run the doctor on `log`; `report` is the file that the command writes."""
    command = [SEMEL, "doctor", "--log", str(log), "--output", "json", "--report", str(report)]
    command += ["--quiet", "--fail-on", "never", *options]
    with TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, text=True)
        try:
            peak = _peak(process, start + LIMIT)
            seconds = time.perf_counter() - start
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise CommandFailed(f"semel doctor ended with {process.returncode}: {_last_line(errors)}")
    behaviours = [case["behaviour"] for case in json.loads(report.read_text())["queues"] if case["behaviour"]]
    return Run(
        seconds,
        peak,
        {behaviour["queue"]: behaviour["messages"] for behaviour in behaviours},
        {
            behaviour["queue"]: {cause["cause"]: cause["duplicates"] for cause in behaviour["causes"]}
            for behaviour in behaviours
        },
    )


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    return (errors.read().strip().splitlines() or ["it printed no error"])[-1]


def _peak(process: subprocess.Popen[str], until: float) -> float:
    """Wait for the end of the process; returns the peak of the total memory."""
    root = psutil.Process(process.pid)
    family: Sequence[psutil.Process] = [root]
    peak, samples = 0.0, 0
    while time.perf_counter() < until:
        try:
            process.wait(SAMPLE_EVERY)
        except subprocess.TimeoutExpired:
            if samples % CHILDREN_EVERY == 0:
                family = [root, *_children(root)]
            samples += 1
            peak = max(peak, sum(map(_memory, family)))
        else:
            break
    return peak


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _memory(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss)
    except psutil.Error:
        return 0.0


class Watch:
    """`semel doctor --watch` on a folder, and the findings that it prints. Leaving the block stops it."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [SEMEL, "doctor", "--log", str(folder), "--watch", "--output", "json", "--interval", "1s"]
        command += ["--window", "30d", "--quiet", *options]
        self._errors = TemporaryFile("w+")  # noqa: SIM115 - closed with the block
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        self._findings: queue.SimpleQueue[tuple[float, dict[str, Any]] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._findings.put((time.perf_counter(), json.loads(line)["finding"]))
        self._findings.put(None)

    def finding(self, queue_name: str = "", limit: float = LIMIT) -> float:
        """Wait for a finding about a queue whose name starts with `queue_name`; returns the time of the finding."""
        until = time.perf_counter() + limit
        while True:
            try:
                line = self._findings.get(timeout=max(0.0, until - time.perf_counter()))
            except queue.Empty:
                raise CommandFailed(f"semel doctor --watch printed no finding within {limit:.0f} s") from None
            if line is None:
                code = self._process.wait()
                raise CommandFailed(f"semel doctor --watch ended with {code}: {_last_line(self._errors)}")
            at, finding = line
            if finding["queue"].startswith(queue_name):
                return at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        self._errors.close()
