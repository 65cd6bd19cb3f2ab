"""`semel demo`, as `make demo` runs it, with fewer orders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.cli import main
from semel.demo.audit import audit, told
from semel.demo.producer import Sent

FAULTS = {"duplicate": 3, "lost-delete": 2}


@pytest.mark.timeout(600)
def test_the_demo_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """A kill -9 in the middle, faults in the broker, poison and a producer that sends twice: the real thing."""
    command = [
        sys.executable,
        "-m",
        "semel.cli",
        "demo",
        "--orders",
        "6000",
        "--json",
        "--keep",
        str(tmp_path / "demo"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert found["passed"]
    assert (found["orders"], found["rows"], found["lost"], found["doubled"]) == (6_000, 6_000, 0, 0)
    assert found["poison"] > 0
    assert found["delivered"] > found["sent"] > 6_000
    assert found["euros_sent"] == found["euros_in_table"]


def table(folder: Path, *ids: str) -> Path:
    pq.write_table(pa.table({"id": list(ids), "euros": [10] * len(ids)}), folder / "part.parquet")
    return folder


def test_the_audit_sees_what_is_lost_and_what_is_doubled(tmp_path: Path) -> None:
    sent = Sent(ids={"a", "b", "c"}, euros=30, again=1, poison=1)
    found = audit(sent, table(tmp_path, "a", "b", "b"), delivered=12, faults=FAULTS, dead_letters=1)
    assert (found.lost, found.doubled, found.passed) == (1, 1, False)
    assert found.duplicates == 12 - 3 - 1
    assert found.driver_killed == found.duplicates - 1 - 3 - 2
    assert any("lost" in line and line.rstrip().endswith("1") for line in told(found))


def test_the_audit_misses_no_dead_letter(tmp_path: Path) -> None:
    sent = Sent(ids={"a"}, euros=10, poison=2)
    assert not audit(sent, table(tmp_path, "a"), delivered=3, faults={}, dead_letters=1).passed
    assert audit(sent, table(tmp_path, "a"), delivered=3, faults={}, dead_letters=2).passed


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert main(["demo", "--keep", str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err


def test_too_few_orders_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--orders", "3"]) == 2
    assert "--orders" in capsys.readouterr().err
