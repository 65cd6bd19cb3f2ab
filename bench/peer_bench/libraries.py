"""The measured libraries from PyPI: each in its own environment under bench/.envs, created when it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from broker_bench.targets import HERE, Peer, Unavailable

LAST_WORDS = 400  # characters of a failed worker's standard error that are shown


class Library(Peer):
    """A library that a worker process imports, instead of a server."""

    def __init__(self, name: str, label: str, package: str, requirement: str) -> None:
        self.name, self.label, self.package, self.requirement = name, label, package, requirement

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    def command(self, port: int, folder: Path) -> list[str]:  # noqa: ARG002
        return [str(self.python)]


POWERTOOLS = Library("powertools", "Powertools", "aws-lambda-powertools", "aws-lambda-powertools[aws-sdk,redis]")
IDEMKIT = Library("idemkit", "idemkit", "idemkit", "idemkit[redis,postgres,dynamodb]")
CELERY = Library("celery", "Celery", "celery", "celery[sqs]")
DRAMATIQ = Library("dramatiq", "dramatiq_sqs", "dramatiq-sqs", "dramatiq_sqs")


def python_of(library: Library | None) -> Path:
    """The interpreter that has the library; for None, the interpreter of Semel."""
    return library.python if library else Path(sys.executable)


def prepare(wanted: Sequence[Library], report: Callable[[str], None]) -> dict[str, str]:
    """Install libraries; returns versions by name. One that is not available is left out, and the reason reported."""
    versions = {}
    for library in wanted:
        try:
            versions[library.name] = library.prepare(report)
            report(f"{library.label}: {versions[library.name]}")
        except Unavailable as error:
            report(f"{library.label} is left out: {error}")
    return versions


def environment(**more: str) -> dict[str, str]:
    """The environment of a worker: bench/ can be imported, and no AWS settings of the user are used."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return kept | {
        "PYTHONPATH": str(HERE),
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        **more,
    }


def run_worker(library: Library | None, module: str, options: dict[str, Any], patience: float) -> dict[str, Any]:
    """Run `python -m module OPTIONS` until it ends. The last line that it prints, if any, is its result as JSON."""
    command = [str(python_of(library)), "-m", module, json.dumps(options)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=environment(), check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{module} did not end within {patience:.0f} s") from None
    if run.returncode:
        raise Unavailable(f"{module} failed: {' '.join(run.stderr.split())[-LAST_WORDS:]}")
    lines = run.stdout.strip().splitlines()
    result: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return result
