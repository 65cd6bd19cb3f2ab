"""Fuzzes every target for its share of the time: `python -m fuzz --minutes 10 [--target NAME] [--jobs 2]`.

Inputs that reach new code are kept in the folder, so the next run continues from there. An input that breaks a promise
is saved, the command that reproduces it is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fuzz import table

LEAST_SECONDS: Final = 2
_RUNS: Final = re.compile(r"number_of_executed_units:\s*(\d+)")
_COVERAGE: Final = re.compile(r"cov: (\d+)")
_SHOWN: Final = 40  # last lines of a failure


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failures`: the inputs that broke something. `problem`: what the process printed, if it failed."""

    name: str
    inputs: int
    coverage: tuple[int, int]
    seconds: float
    failures: list[Path]
    problem: str = ""


def main() -> int:
    options = _options()
    if options.reproduce:
        return _reproduce(*options.reproduce)
    if find_spec("atheris") is None:
        print("atheris is not installed: it has wheels for Linux on x86-64 only", file=sys.stderr)
        return 2
    names = options.target or list(table.NAMES)
    seconds = max(LEAST_SECONDS, int(options.minutes * 60 * options.jobs / len(names)))
    print(f"{len(names)} targets, {seconds} s each, {options.jobs} at a time; inputs are kept in {options.folder}")
    outcomes = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(lambda name: _run(name, seconds, options.folder), names):
            outcomes.append(outcome)
            print(_line(outcome), flush=True)
    return _report(outcomes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration, all targets together")
    parser.add_argument("--target", action="append", choices=table.NAMES, metavar="NAME", help="only this one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="where inputs are kept")
    parser.add_argument("--reproduce", nargs=2, metavar=("NAME", "FILE"), help="run one input and show what it breaks")
    return parser.parse_args()


def _reproduce(name: str, file: str) -> int:
    table.target(name)(Path(file).read_bytes())
    print(f"{name}: nothing breaks")
    return 0


def _run(name: str, seconds: int, folder: Path) -> Outcome:
    began = time.time()
    command = [sys.executable, "-m", "fuzz.child", name, str(seconds), str(folder)]
    # A child ends without cleaning up: the files that it leaves are removed with its temporary folder.
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="semel-fuzz-", dir=shared) as scratch:
        place = {**os.environ, "TMPDIR": scratch}
        child = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=place)
    printed = child.stdout + child.stderr
    runs, coverage = _RUNS.findall(printed), [int(count) for count in _COVERAGE.findall(printed)] or [0]
    new = [path for path in table.files(folder / "failures" / name) if path.stat().st_mtime >= began - 1]
    problem = "" if child.returncode == 0 else _problem(printed) or f"exit {child.returncode}"
    inputs = int(runs[-1]) if runs else 0
    return Outcome(name, inputs, (coverage[0], coverage[-1]), time.time() - began, new, problem)


def _problem(printed: str) -> str:
    """The Python exception, or what was printed last."""
    _, heading, exception = printed.partition("=== Uncaught Python exception: ===")
    lines = exception.partition("\nINFO: Instrumenting")[0].splitlines() if heading else printed.splitlines()
    return "\n".join(lines[-_SHOWN:])


def _line(outcome: Outcome) -> str:
    first, last = outcome.coverage
    state = "FAILED" if outcome.problem else "ok"
    rate = outcome.inputs / outcome.seconds if outcome.seconds else 0
    return (
        f"{outcome.name:24} {outcome.inputs:>10,} inputs {rate:>8,.0f}/s   coverage {first:>5,} -> {last:>5,}   {state}"
    )


def _report(outcomes: list[Outcome]) -> int:
    failed = [outcome for outcome in outcomes if outcome.problem]
    for outcome in failed:
        print(f"\n{outcome.name} FAILED:\n{outcome.problem}")
        for path in outcome.failures:
            print(f"  to reproduce: python -m fuzz --reproduce {outcome.name} {path}")
    total = sum(outcome.inputs for outcome in outcomes)
    print(f"\n{total:,} inputs over {len(outcomes)} targets; {len(failed)} targets failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
