"""Crash points kill only where a test has registered the killer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from semel.spark import crash_points
from semel.testing import spark_crash_points
from semel.testing.spark_crash_points import VARIABLE, Killer

CRASH_SITE: Final = Path(__file__).parents[1] / "spark" / "crash_site"
PROGRAM: Final = 'from semel.spark import crash_points; crash_points.reached("after-seal"); print("alive")'


def reached(tmp_path: Path, python_path: str, point: str = "after-seal") -> subprocess.CompletedProcess[str]:
    """In a process group of its own, which the variable says is to be killed."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {VARIABLE: f"point={point};group=0;once={tmp_path}/once", "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
        timeout=60,
    )


def test_the_variable_alone_kills_nothing(tmp_path: Path) -> None:
    ended = reached(tmp_path, "")
    assert (ended.returncode, ended.stdout) == (0, "alive\n")


def test_with_the_killer_registered_a_process_dies_at_its_point_once(tmp_path: Path) -> None:
    assert reached(tmp_path, str(CRASH_SITE), "before-seal").returncode == 0
    assert reached(tmp_path, str(CRASH_SITE)).returncode == -signal.SIGKILL
    assert reached(tmp_path, str(CRASH_SITE)).returncode == 0


def test_nothing_is_killed_before_the_file_it_waits_for_exists(tmp_path: Path) -> None:
    killer = Killer("after-seal", 2**30, str(tmp_path / "once"), when=str(tmp_path / "when"))
    killer("after-seal")
    assert not (tmp_path / "once").exists()
    (tmp_path / "when").touch()
    killer("after-seal")
    assert (tmp_path / "once").exists()


def test_it_lingers_no_longer_than_until_a_file_exists(tmp_path: Path) -> None:
    (tmp_path / "until").touch()
    killer = Killer("after-seal", 2**30, str(tmp_path / "once"), linger=3_600, until=str(tmp_path / "until"))
    killer("after-seal")
    assert (tmp_path / "once").exists()


def test_an_unknown_point_is_refused_with_the_names_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_points, "on_point", None)
    monkeypatch.setenv(VARIABLE, "point=lunch;group=1;once=/x")
    with pytest.raises(ValueError, match=r"lunch.*before-seal, after-seal"):
        spark_crash_points.register()
    assert crash_points.on_point is None
