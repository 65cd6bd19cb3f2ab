"""What a test run reports to the person who started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
_FAILING: Final = """
def test_of_a_process(tmp_path):
    (tmp_path / "worker.log").write_text("the last words of the worker")
    assert False
"""


def pytest_run(*arguments: str, **variables: str) -> str:
    command = [sys.executable, "-m", "pytest", *arguments]
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": "-p no:cacheprovider"} | variables
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=TESTS.parent).stdout


def test_a_failing_test_shows_its_folder_and_the_end_of_the_logs_of_its_processes(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(_FAILING)
    said = pytest_run("-c", str(TESTS.parent / "pyproject.toml"), "-p", "suite", str(tmp_path / "test_failing.py"))
    assert "folder of the test" in said
    assert "the last words of the worker" in said
    assert "slowest 15 durations" in said


def test_without_a_browser_the_tests_of_pages_are_skipped_with_a_loud_line_at_the_end(tmp_path: Path) -> None:
    pages = str(TESTS / "dashboard" / "test_pages_hostile.py")
    said = pytest_run(pages, "-k", "script", "--basetemp", str(tmp_path / "base"), PATH=str(tmp_path))
    assert "failed" not in said
    assert said.splitlines()[-2].startswith("NO BROWSER: 2 tests"), said
