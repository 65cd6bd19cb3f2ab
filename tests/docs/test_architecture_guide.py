"""docs/explanation/architecture.md names files, classes, functions and tests that exist, and its generated parts are
current."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import import_rules
import pytest
from import_rules import PAGE, ROOT

TEXT: Final = re.sub(
    r"^```.*?^```$", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
)  # no drawings
SOURCE: Final = ROOT / "src" / "semel"
_UNDER: Final = re.compile(r"(?:file|folder) (?:under|in) `([\w/]+)/`")
_FILE: Final = re.compile(r"`([\w/]+\.(?:py|sql))`")
_FOLDER: Final = re.compile(r"`([\w/]+/)`")


class Named(NamedTuple):
    base: Path  # where the table says that its files are; the repository outside of such a table
    name: str


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|\n"))]


def named(text: str, pattern: re.Pattern[str]) -> Iterator[Named]:
    """What the page names, each with the folder of the table and column that it is in."""
    column, base = -1, ROOT
    for line in text.splitlines():
        under = [(place, match[1]) for place, cell in enumerate(cells(line)) if (match := _UNDER.search(cell))]
        if under:
            column, base = under[0][0], folder_of(under[0][1])
            continue
        if not line.startswith("|"):
            column = -1
        for place, cell in enumerate(cells(line)):
            yield from (Named(base if place == column else ROOT, name) for name in pattern.findall(cell))


def folder_of(name: str) -> Path:
    return SOURCE / name if (SOURCE / name).is_dir() else ROOT / name


@cache
def paths() -> frozenset[str]:
    """Of all files and folders, without the repository's own."""
    every = (path for top in ("src", "tests", "bench") for path in (ROOT / top).rglob("*") if path.suffix != ".pyc")
    return frozenset(f"/{path.relative_to(ROOT).as_posix()}{'/' if path.is_dir() else ''}" for path in every)


def is_there(item: Named) -> bool:
    if item.base != ROOT:
        return (item.base / item.name).exists()
    return any(path.endswith(f"/{item.name}") for path in paths())


def section(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading."""
    text = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [cells(line) for line in lines[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def defines(file: Path, name: str) -> bool:
    """Whether the file has this function, class, or method or attribute of a class."""
    first, _, rest = name.partition(".")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == first:
            return not rest or rest in members(node)
    return False


def members(node: ast.AST) -> set[str]:
    """Methods, class attributes, slots, and what is assigned to self."""
    parts = list(ast.walk(node))
    functions = {part.name for part in parts if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
    names = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    attributes = {part.attr for part in parts if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)}
    return functions | names | attributes


@cache
def members_by_class() -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                known.setdefault(node.name, set()).update(members(node))
    return known


def test_what_is_generated_is_what_the_contracts_say() -> None:
    """`python tests/docs/import_rules.py` makes it so."""
    assert import_rules.in_page(TEXT) == import_rules.block()


def test_the_generated_table_follows_a_change_of_the_contracts(tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    swapped = text.replace('allowed_importers = ["semel.cli", "semel.testing"]', 'allowed_importers = ["semel.dlq"]')
    assert swapped != text
    (tmp_path / "pyproject.toml").write_text(swapped, encoding="utf-8")
    lines = import_rules.block(tmp_path).splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `") and "`broker`" in line] == ["dlq/"]


@pytest.mark.parametrize("pattern", [_FILE, _FOLDER], ids=["files", "folders"])
def test_every_file_and_folder_that_the_guide_names_exists(pattern: re.Pattern[str]) -> None:
    items = list(named(TEXT, pattern))
    assert len(items) > 10
    assert [item.name for item in items if not is_there(item)] == []


def test_a_file_that_is_not_in_the_folder_of_its_table_is_noticed() -> None:
    table = "| | file under `consumer/` | |\n|---|---|---|\n| 1 | `receiver.py`, `planner.py` | `planner.py` |\n"
    assert [is_there(item) for item in named(table, _FILE)] == [True, False, True]


def test_every_member_of_a_class_that_the_guide_names_exists() -> None:
    names = [name for text in code(TEXT) for name in re.findall(r"^[A-Z]\w+\.[a-z_]\w*$", text)]
    assert len(names) > 10
    known = members_by_class()
    assert [name for name in names if name.split(".")[1] not in known.get(name.split(".")[0], set())] == []


def test_each_of_the_nine_rules_has_files_and_a_test_that_the_page_on_guarantees_names() -> None:
    rows = section("The nine rules")
    assert [row[0] for row in rows] == [str(number) for number in range(1, 10)]
    guarantees = (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")
    for _, rule, where, tests in rows:
        assert _FILE.search(where), rule
        assert code(tests), rule
        assert [name for name in code(tests) if f"`{name}`" not in guarantees] == []


def test_the_answers_to_the_twelve_questions_are_where_the_guide_says() -> None:
    rows = section("Twelve questions")
    assert len(rows) == 12
    for question, file, function, answer in rows:
        assert question.endswith("?")
        assert answer.endswith(".")
        assert defines(SOURCE / code(file)[0], code(function)[0]), question
