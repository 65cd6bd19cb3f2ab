"""How long each tier of the tests takes, and where the time goes. `make bench-tests` runs both tiers in turn.

The time by folder is that of set-up, call and tear-down of each test, summed over the worker processes. CPU is that of
all processes that the run started and waited for.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[1]
TIERS: Final = {"fast": "not slow", "all": ""}


@dataclass(frozen=True, slots=True)
class Run:
    tests: int
    failed: int
    wall: float
    cpu: float
    seconds: dict[str, float]  # by folder


def measure(marker: str, workers: int) -> Run:
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-m", marker, f"--junitxml={report.name}"]
        began, before = time.monotonic(), os.times()
        subprocess.run(command, cwd=ROOT, check=False)
        after = os.times()
        cases = list(ElementTree.parse(report.name).iter("testcase"))
    seconds: dict[str, float] = defaultdict(float)
    for case in cases:
        seconds[folder_of(case.get("classname", ""))] += float(case.get("time", "0"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(len(cases), failed, time.monotonic() - began, cpu, seconds)


def folder_of(classname: str) -> str:
    """tests.spark.test_source -> tests/spark; a file directly in tests/ is shown by its own name."""
    return "/".join(classname.split(".")[:2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python bench/tiers.py --tier fast")
    parser.add_argument("--tier", choices=list(TIERS), action="append", help="only this tier; may be repeated")
    parser.add_argument("--workers", type=int, default=3, help="worker processes (default %(default)s)")
    options = parser.parse_args()
    runs = {tier: measure(TIERS[tier], options.workers) for tier in options.tier or TIERS}
    for tier, run in runs.items():
        minutes = f"{run.wall / 60:.1f} min, CPU {run.cpu / 60:.1f} min"
        print(f"\n{tier} tier: {run.tests:,} tests, {run.failed} failed, {minutes}")
        total = sum(run.seconds.values())
        for folder, seconds in sorted(run.seconds.items(), key=lambda row: -row[1]):
            print(f"  {folder:<28} {seconds:7.0f} s {seconds / total:6.0%}")
    return 1 if any(run.failed for run in runs.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
