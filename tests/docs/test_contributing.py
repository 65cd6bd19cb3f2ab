"""The pages for contributors name rules, files and identifiers that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("CONTRIBUTING.md", "SECURITY.md", ".github/pull_request_template.md", ".pre-commit-config.yaml")
_RULE: Final = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
_FILE: Final = re.compile(r"(?<![\w/.-])(?:(?:src|tests|bench|docs|\.github)/[\w./-]*|[\w-]+\.(?:md|toml|txt|yaml))")
_NAME_IN_FILE: Final = re.compile(r"`(\w+)`\s+in\s+`([\w./-]+\.py)`")


def problems(page: str, root: Path) -> Iterator[str]:
    """NAME in a path stands for a name that the reader chooses; `make bench-…` for several rules."""
    rules = set(_RULE.findall((root / "Makefile").read_text(encoding="utf-8")))
    for rule in re.findall(r"(?:`|\$ )make ([a-z][a-z-]*[a-z])", page):
        if rule not in rules:
            yield f"there is no rule {rule}"
    for name in _FILE.findall(page):
        if "NAME" not in name and not (root / name.rstrip(".")).exists():
            yield f"there is no {name}"
    for name, path in _NAME_IN_FILE.findall(page):
        if not re.search(rf"\b{name}\b", (root / path).read_text(encoding="utf-8")):
            yield f"there is no {name} in {path}"


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_for_contributors_names_exists(page: str) -> None:
    assert list(problems((ROOT / page).read_text(encoding="utf-8"), ROOT)) == []


def test_the_page_for_contributors_names_enough_for_this_to_mean_something() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(set(_FILE.findall(page))) > 40
    assert len(_NAME_IN_FILE.findall(page)) >= 6


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("run `make absent`", "there is no rule absent"),
        ("$ make check-it", "there is no rule check-it"),
        ("see `tests/absent/test_x.py`", "there is no tests/absent/test_x.py"),
        ("see `ABSENT.md`.", "there is no ABSENT.md"),
        ("an entry in `ABSENT` in\n   `tests/suite.py`", "there is no ABSENT in tests/suite.py"),
    ],
)
def test_what_does_not_exist_is_noticed(page: str, problem: str) -> None:
    assert list(problems(page, ROOT)) == [problem]
