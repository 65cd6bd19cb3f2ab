"""Which Pythons `make test-pythons` finds, and how it reports those that are missing."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import matrix


def fake_python(path: Path, version: str) -> Path:
    """A program that answers as a Python of this version does; without a version, as a shim that leads nowhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n" if version else "#!/bin/sh\necho not found >&2\nexit 127\n")
    path.chmod(0o755)
    return path


def test_a_shim_that_leads_nowhere_is_skipped_and_the_newest_patch_of_pyenv_is_taken(tmp_path: Path) -> None:
    own = fake_python(tmp_path / "own", "3.11.7")
    fake_python(tmp_path / "shims" / "python3.12", "")
    for patch in ("3.12.1", "3.12.9", "3.12.10", "3.13.0"):
        fake_python(tmp_path / "pyenv" / "versions" / patch / "bin" / "python", patch)
    environ = {"PATH": str(tmp_path / "shims"), "PYENV_ROOT": str(tmp_path / "pyenv")}
    assert matrix.find_python("3.11", environ, own) == matrix.Python(own, "3.11.7")
    newest = tmp_path / "pyenv" / "versions" / "3.12.10" / "bin" / "python"
    assert matrix.find_python("3.12", environ, own) == matrix.Python(newest, "3.12.10")
    assert matrix.find_python("3.14", environ, own) is None


def test_a_python_on_the_path_is_found(tmp_path: Path) -> None:
    there = fake_python(tmp_path / "bin" / "python3.14", "3.14.2")
    environ = {"PATH": f"/nowhere:{there.parent}", "HOME": str(tmp_path)}
    assert matrix.find_python("3.14", environ, Path("/nowhere/python")) == matrix.Python(there, "3.14.2")


def test_a_missing_python_is_reported_and_a_run_that_tested_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {"3.11": matrix.Python(Path("/usr/bin/python3.11"), "3.11.7"), "3.14": None}
    monkeypatch.setattr(matrix, "find_python", lambda minor, *rest: outcomes[minor])
    monkeypatch.setattr(matrix, "install", lambda *arguments: True)
    monkeypatch.setattr(matrix, "run_tests", lambda name, *rest: matrix.Result(name, "passed, 1 s"))
    assert matrix.main(["pythons", "--version=3.11", "--version=3.14"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Python 3.11.7: passed, 1 s",
        "Python 3.14: not on this machine: not tested",
    ]
    assert matrix.main(["pythons", "--version=3.14"]) == 1
    monkeypatch.setattr(matrix, "run_tests", lambda name, *rest: matrix.Result(name, "FAILED", failed=True))
    assert matrix.main(["pythons", "--version=3.11"]) == 1


def test_an_environment_that_cannot_be_installed_is_a_failure_and_the_next_version_is_tested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "find_python", lambda minor, *rest: matrix.Python(Path("/nowhere"), f"{minor}.0"))
    monkeypatch.setattr(matrix, "install", lambda environment, python: environment.name == ".venv-3.13")
    monkeypatch.setattr(matrix, "run_tests", lambda name, *rest: matrix.Result(name, "passed, 1 s"))
    assert matrix.main(["pythons", "--version=3.12", "--version=3.13"]) == 1
    failed, passed = capsys.readouterr().out.splitlines()[-2:]
    assert failed.startswith("Python 3.12.0: FAILED")
    assert passed == "Python 3.13.0: passed, 1 s"


def test_the_tests_to_run_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(matrix, "install", lambda *arguments: True)
    monkeypatch.setattr(matrix, "find_python", lambda *arguments: matrix.Python(Path("/usr/bin/python3"), "3.11.7"))

    def run_tests(name: str, environment: Path, tests: Sequence[str], workers: int) -> matrix.Result:
        ran.append((tuple(tests), workers))
        return matrix.Result(name, "passed")

    monkeypatch.setattr(matrix, "run_tests", run_tests)
    matrix.main(["pythons", "--workers", "2", "--version=3.11", "tests/messages", "tests/sqs"])
    matrix.main(["pythons", "--version=3.11"])
    assert ran == [(("tests/messages", "tests/sqs"), 2), (matrix.DEFAULT_TESTS["pythons"], 3)]


def test_the_package_names_only_versions_that_are_tested() -> None:
    project: dict[str, Any] = tomllib.loads((matrix.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [text.rpartition(" ")[2] for text in project["classifiers"] if text.startswith("Programming Language")]
    assert set(named) <= set(matrix.PYTHONS)
    assert project["requires-python"] == f">={matrix.PYTHONS[0]}"
    assert f"pyspark>={matrix.SPARKS[0]}" in project["optional-dependencies"]["spark"]
