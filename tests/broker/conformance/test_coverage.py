"""Every rule and every section of the specification has a test in this suite."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path


def docstrings() -> Iterator[str]:
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.name != Path(__file__).name:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    yield ast.get_docstring(node) or ""


def test_every_rule_has_a_test() -> None:
    """By the numbers in the docstrings of the tests."""
    named = {
        int(number)
        for text in docstrings()
        for rules in re.findall(r"[Rr]ules? (\d+(?:(?:, | and )\d+)*)", text)
        for number in re.findall(r"\d+", rules)
    }
    assert named == set(range(1, 67))


def test_every_test_names_what_it_checks() -> None:
    """A rule or a section in every docstring."""
    assert [text for text in docstrings() if not re.search(r"[Rr]ules? \d|\b[12]\.[1-6]\b", text)] == []
