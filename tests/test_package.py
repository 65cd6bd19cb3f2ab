"""What a user downloads: the wheel, the source archive, and the text of the package page."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from typing import Final

import pytest

from semel.version import __version__

ROOT: Final = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[zipfile.ZipFile, set[str]]:
    """The wheel, and the names of the files in the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        return zipfile.ZipFile(wheel), {name.partition("/")[2] for name in archive.getnames()}


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_has_every_file_of_both_packages(archives: tuple[zipfile.ZipFile, set[str]]) -> None:
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True)
    if not tracked.stdout:
        pytest.skip("not a git checkout")
    expected = {name.removeprefix("src/") for name in tracked.stdout.splitlines() if (ROOT / name).exists()}
    assert expected <= set(archives[0].namelist())


def test_the_source_archive_can_be_tested_and_read(archives: tuple[zipfile.ZipFile, set[str]]) -> None:
    wanted = {
        "Makefile",
        "constraints.txt",
        "docs/reference/consumer.md",
        "tests/conftest.py",
        "examples/orders.py",
        "CONTRIBUTING.md",
    }
    assert wanted <= archives[1]


def test_every_link_and_image_of_the_package_page_is_a_whole_address(
    archives: tuple[zipfile.ZipFile, set[str]],
) -> None:
    page = metadata(archives[0])
    text = str(page.get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert {url.partition(",")[0] for url in page.get_all("Project-URL", [])} >= {"Documentation", "Repository"}


def test_the_package_its_command_and_the_wheel_have_one_version(archives: tuple[zipfile.ZipFile, set[str]]) -> None:
    wheel = archives[0]
    assert metadata(wheel)["Version"] == __version__
    command = [sys.executable, "-m", "semel", "--version"]
    environment = os.environ | {"PYTHONPATH": str(wheel.filename)}
    said = subprocess.run(
        command, cwd=Path(str(wheel.filename)).parent, env=environment, capture_output=True, text=True
    )
    assert (said.stdout, said.stderr) == (f"semel {__version__}\n", "")


def test_the_version_is_written_in_one_place() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in settings["project"]
    assert settings["tool"]["hatch"]["version"] == {"path": "src/semel/version.py"}
