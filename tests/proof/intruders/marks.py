"""Finds leaks: secrets and bodies that contain a mark, programs that are run with them, and a search for the marks in
everything that these programs wrote."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from intruders.targets import SEMEL

BODY: Final = "marked-body-7f3a"
PASSWORD: Final = "marked-password-66"
SECRET_KEY: Final = "marked-secret-key-9c1"
SESSION: Final = "marked-session-token-55"
CONTROL: Final = "marked-control-token-88"
DASHBOARD: Final = "marked-dashboard-token-31"
MARKS: Final = (BODY, PASSWORD, SECRET_KEY, SESSION, CONTROL, DASHBOARD)
TESTS: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    output: str
    errors: str

    def leaks(self, folder: Path) -> dict[str, str]:
        """The places where a mark occurs in the program's output or files, each with an excerpt."""
        return leaks({"stdout": self.output, "stderr": self.errors, **dict(files(folder))})


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Every secret is in an environment variable, where a careful user puts it."""
    known = {
        "AWS_ACCESS_KEY_ID": "AKIAMARKED",
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_SESSION_TOKEN": SESSION,
        "AWS_REGION": "us-east-1",
        "SEMEL_CONTROL_TOKEN": CONTROL,
        "SEMEL_TOKEN": DASHBOARD,
        "SEMEL_STATE": str(folder / "state"),
        "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS / "proof"))),
        "COVERAGE_PROCESS_START": "",
    }
    return {**os.environ, **known, **more}


def run(folder: Path, *arguments: str, timeout: float = 60, **variables: str) -> Ran:
    """Run a `semel` command until it ends, or until the timeout."""
    process = subprocess.Popen(
        [SEMEL, *arguments],
        cwd=folder,
        env=environment(folder, **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, errors = process.communicate(timeout=60)
    return Ran(process.returncode, output, errors)


def files(folder: Path) -> Iterator[tuple[str, str]]:
    """All files below the folder, except the ledger, which is a database of the user's choice."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith("ledger.db"):
            yield str(file.relative_to(folder)), file.read_bytes().decode("latin-1")


def leaks(texts: Mapping[str, str], marks: tuple[str, ...] = MARKS) -> dict[str, str]:
    excerpts = {}
    for name, text in texts.items():
        for mark in marks:
            if (at := text.find(mark)) >= 0:
                excerpts[f"{mark} in {name}"] = text[max(0, at - 200) : at + 100]
    return excerpts
