"""What the operating system reports: CPU and memory of a process and its children, machine, disk. Linux only."""

from __future__ import annotations

import datetime
import os
import platform
import sqlite3
import statistics
import time
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


def family(pid: int) -> list[int]:
    """The process and all its living descendants."""
    pids = [pid]
    for member in pids:
        try:
            for task in (PROC / str(member) / "task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # the process has ended
    return pids


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, its children, and the children it has already waited for."""
    ticks = 0
    for member in family(pid):
        try:
            fields = (PROC / str(member) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks * TICK


def memory_mb(pid: int) -> tuple[float, float]:
    """Current and peak resident memory of the process and its children, in MB (10^6 bytes)."""
    now = peak = 0
    for member in family(pid):
        try:
            lines = (PROC / str(member) / "status").read_text().splitlines()
        except OSError:
            continue
        sizes = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
        now += int(sizes.get("VmRSS", 0))
        peak += int(sizes.get("VmHWM", 0))
    return now * 1024 / 1e6, peak * 1024 / 1e6


def busy_seconds() -> float:
    """CPU seconds that this machine has used since it started, including stolen time."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, (PROC / "stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * TICK


def fdatasync_ms(folder: Path, times: int = 100) -> tuple[float, float]:
    """Median and 99th percentile of appending 4 KiB to a file and syncing it, in milliseconds."""
    path = folder / "fdatasync"
    took = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(b"\0" * 4096)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1e3)
    path.unlink()
    took.sort()
    return statistics.median(took), took[int(times * 0.99) - 1]


def in_memory(folder: Path) -> bool:
    """Whether the folder is on a file system in memory, where a sync costs nothing and proves nothing."""
    best = max(
        (line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()),
        key=lambda mount: len(mount[0]) if folder.resolve().is_relative_to(mount[0]) else -1,
    )
    return best[1] in ("tmpfs", "ramfs")


def description() -> dict[str, str]:
    """The machine in a few lines, for the report."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in (PROC / "cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    memory = int((PROC / "meminfo").read_text().split()[1]) * 1024 / 1e9
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": f"{cpu}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory:.0f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
