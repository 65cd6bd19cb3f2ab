"""Runs the tests on every supported Python that this machine has, and on every supported PySpark.

`make test-pythons` and `make test-sparks` run this file. Each version gets its own environment in the root of the
repository (.venv-3.12, .venv-spark-4.2), which is kept for the next run. A Python that this machine does not have is
reported and skipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
SPARKS: Final = ("4.2", "4.3")
DEFAULT_TESTS: Final = {
    "pythons": ("tests/messages", "tests/sqs", "tests/ledger", "tests/consumer", "tests/broker"),
    "sparks": ("tests/spark",),
}
NOT_FOUND: Final = "not on this machine: not tested"
NOT_INSTALLED: Final = "FAILED (the development environment cannot be installed)"
_ASK_VERSION: Final = "import sys; print('.'.join(map(str, sys.version_info[:3])))"


@dataclass(frozen=True, slots=True)
class Python:
    path: Path
    version: str  # 3.12.1


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    outcome: str
    failed: bool = False


def find_python(minor: str, environ: Mapping[str, str], own: Path) -> Python | None:
    """The first Python of this minor version that works. pyenv also puts shims of inactive versions on the PATH; those
    do not work."""
    for candidate in _candidates(minor, environ, own):
        version = _version_of(candidate)
        if version is not None and version.rpartition(".")[0] == minor:
            return Python(candidate, version)
    return None


def _candidates(minor: str, environ: Mapping[str, str], own: Path) -> Iterator[Path]:
    yield own
    for folder in environ.get("PATH", "").split(os.pathsep):
        if folder and (path := Path(folder, f"python{minor}")).is_file():
            yield path
    pyenv = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/"), ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{minor}.*/bin/python"), key=_patch, reverse=True)


def _patch(path: Path) -> tuple[int, ...]:
    """3.12.10 is newer than 3.12.9; 3.12.0rc1 counts as 3.12."""
    return tuple(int(part) for part in path.parents[1].name.split(".") if part.isdigit())


def _version_of(python: Path) -> str | None:
    try:
        said = subprocess.run([python, "-I", "-c", _ASK_VERSION], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() if said.returncode == 0 else None


def install(environment: Path, python: Path, spark: str | None = None) -> bool:
    """Create or update the environment with the Makefile's rule; returns whether that worked."""
    stamp = f"{environment.name}/.dev"
    make = [os.environ.get("MAKE", "make"), "--no-print-directory", f"VENV={environment.name}", f"PYTHON={python}"]
    if subprocess.run([*make, stamp], cwd=ROOT, check=False).returncode != 0:
        return False
    if spark is None:
        return True
    what = ["pip", "install", "--quiet", f"pyspark=={spark}.*"]
    inside = str(environment / "bin" / "python")
    by_uv = [str(environment / "bin" / "uv"), *what, "--python", inside]
    # pip is the fallback for machines on which uv cannot reach a package index.
    return any(subprocess.run(command, check=False).returncode == 0 for command in (by_uv, [inside, "-m", *what]))


def run_tests(name: str, environment: Path, tests: Sequence[str], workers: int) -> Result:
    command = [str(environment / "bin" / "python"), "-m", "pytest", "-q", "-n", str(workers), *tests]
    began = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    outcome = "passed" if code == 0 else f"FAILED (pytest exited with {code})"
    return Result(name, f"{outcome}, {time.monotonic() - began:.0f} s", failed=code != 0)


def on_pythons(versions: Sequence[str], options: argparse.Namespace) -> Iterator[Result]:
    for minor in versions:
        python = find_python(minor, os.environ, Path(sys.executable))
        if python is None:
            yield Result(f"Python {minor}", NOT_FOUND)
            continue
        print(f"\nPython {python.version} ({python.path})", flush=True)
        name, environment = f"Python {python.version}", ROOT / f".venv-{minor}"
        if install(environment, python.path):
            yield run_tests(name, environment, options.tests, options.workers)
        else:
            yield Result(name, NOT_INSTALLED, failed=True)


def on_sparks(versions: Sequence[str], options: argparse.Namespace) -> Iterator[Result]:
    for minor in versions:
        environment = ROOT / f".venv-spark-{minor}"
        print(f"\nPySpark {minor}", flush=True)
        if not install(environment, Path(sys.executable), spark=minor):
            yield Result(f"PySpark {minor}", NOT_INSTALLED, failed=True)
            continue
        ask = [str(environment / "bin" / "python"), "-c", "import pyspark; print(pyspark.__version__)"]
        version = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
        yield run_tests(f"PySpark {version}", environment, options.tests, options.workers)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(DEFAULT_TESTS))
    parser.add_argument("tests", nargs="*", help="what pytest runs (default: some folders of the fast tier)")
    parser.add_argument("--version", action="append", help="only this version, such as 3.13; may be repeated")
    parser.add_argument("--workers", type=int, default=3, help="worker processes (default %(default)s)")
    options = parser.parse_intermixed_args(arguments)
    options.tests = options.tests or DEFAULT_TESTS[options.kind]
    if options.kind == "pythons":
        results = list(on_pythons(options.version or PYTHONS, options))
    else:
        results = list(on_sparks(options.version or SPARKS, options))
    print()
    for result in results:
        print(f"{result.name}: {result.outcome}")
    return exit_code(results)


def exit_code(results: Sequence[Result]) -> int:
    """A run that tested nothing has not passed."""
    tested = [result for result in results if result.outcome != NOT_FOUND]
    return 0 if tested and not any(result.failed for result in tested) else 1


if __name__ == "__main__":
    sys.exit(main())
