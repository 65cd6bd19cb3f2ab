"""The table of attacks is complete: each kind has tests, these exist, and no test of this folder is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intruders.attacks import ATTACKS

HERE = Path(__file__).parent
TESTS = HERE.parents[1]


def names_in(file: Path) -> set[str]:
    return set(re.findall(r"^\s*def (test_\w+)", file.read_text(), re.MULTILINE))


@pytest.mark.parametrize("kind", ATTACKS)
def test_every_kind_of_attack_is_tried_by_tests_that_exist(kind: str) -> None:
    assert ATTACKS[kind]
    for file, names in ATTACKS[kind].items():
        assert set(names) <= names_in(TESTS / file), file


def test_no_test_of_this_folder_is_missing_in_the_table() -> None:
    listed = {(file, name) for files in ATTACKS.values() for file, names in files.items() for name in names}
    files = [file for file in HERE.glob("test_*.py") if file.name != Path(__file__).name]
    there = {(str(file.relative_to(TESTS)), name) for file in files for name in names_in(file)}
    assert there - listed == set()
