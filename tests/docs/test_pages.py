"""Everything that README.md, docs/ and the pages next to README.md show works when it is typed."""

from __future__ import annotations

import fcntl
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from page_runner import PageRunner
from pages import Page, name_problems

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [
    path.relative_to(ROOT).as_posix() for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md")))
]
# What a newcomer types first; all others are executed in the second tier.
FAST: Final = ("README.md", "docs/reference/consumer.md", "docs/how-to/testing.md", "docs/reference/pipeline.md")
EXECUTED: Final = [
    pytest.param(page, marks=() if page in FAST else pytest.mark.slow)
    for page in PAGES
    if any(block.not_executed is None and block.language != "text" for block in Page.read(ROOT / page).blocks)
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", EXECUTED)
def test_a_page_does_what_it_shows(page: str, tmp_path: Path, wheel: Path, request: pytest.FixtureRequest) -> None:
    read = Page.read(ROOT / page)
    assert not read.block_problems()
    PageRunner(read, tmp_path, wheel, dict(servers(read, request))).run()
    shutil.rmtree(tmp_path / "environment")  # hundreds of megabytes, of which a failure's are kept


def servers(page: Page, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """What a page takes to be running already: by the address on the page, the address of one that is."""
    if "postgresql://localhost/shop" in page.text:
        url = request.getfixturevalue("postgres_server").url
        database = f"page_{secrets.token_hex(4)}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database}")
        yield "postgresql://localhost/shop", f"{url.rpartition('/')[0]}/{database}"
    if "redis://localhost" in page.text:
        yield "redis://localhost", request.getfixturevalue("redis_server").url


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_is_executed_or_says_why_not(page: str) -> None:
    read = Page.read(ROOT / page)
    assert not read.block_problems(), "\n".join(read.block_problems())
    for block in read.blocks:
        if block.not_executed is not None:
            print(f"{page}:{block.line}: not executed: {block.not_executed}")


def test_the_python_on_a_page_imports_the_names_it_uses(tmp_path: Path) -> None:
    problems = name_problems([Page.read(ROOT / page) for page in PAGES], tmp_path)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_images_lead_somewhere(page: str) -> None:
    problems = Page.read(ROOT / page).link_problems()
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Built once from a copy of the source tree, for all processes of this run."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    with (folder / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "wheel").exists():
            unwanted = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "semel-data", "tests")
            shutil.copytree(ROOT, folder / "source", ignore=unwanted)
            command = [
                sys.executable,
                "-m",
                "hatchling",
                "build",
                "--target",
                "wheel",
                "--directory",
                str(folder / "wheel"),
            ]
            subprocess.run(command, cwd=folder / "source", check=True, stdout=subprocess.DEVNULL)
    (built,) = (folder / "wheel").glob("*.whl")
    return built
