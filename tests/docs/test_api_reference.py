"""docs/reference/api.md matches the code."""

from __future__ import annotations

from importlib import import_module

import api_reference
import pytest
from pages import Page

import semel

PAGE = api_reference.PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_the_code_says() -> None:
    assert api_reference.in_page(PAGE) == api_reference.block(), "run python tests/docs/api_reference.py"


@pytest.mark.parametrize("module", api_reference.MODULES)
def test_every_public_name_has_its_place(module: str) -> None:
    anchors = Page.read(api_reference.PAGE).anchors
    names = api_reference.public_names(import_module(module))
    assert names
    assert {name.lower() for name in names} <= anchors


def test_names_that_need_an_extra_are_described() -> None:
    assert {"PostgresLedger", "RedisLedger"} <= set(api_reference.public_names(semel))


def test_what_is_left_out_exists() -> None:
    kinds = {"App": semel.App, "Client": semel.Client}
    kinds |= {name: getattr(semel.sqs, name) for name in ("Cancel", "Entry", "Queue", "Received")}
    assert kinds.keys() == api_reference.INTERNAL.keys()
    for name, members in api_reference.INTERNAL.items():
        for member in members.split():
            assert hasattr(kinds[name], member), f"{name}.{member}"


def test_nothing_on_the_page_is_different_in_another_process() -> None:
    assert " at 0x" not in PAGE
    assert "<function" not in PAGE


@pytest.mark.parametrize(
    ("doc", "markdown"),
    [
        ("Of <this> and *args, `a < b`.", r"Of &lt;this> and \*args, `a < b`."),
        ("Like:\n\n>>> 1 + 1\n2\n\nThen.", "Like:\n\n```text\n>>> 1 + 1\n2\n```\n\nThen."),
        ("Like::\n\n    a = 1\n\n    b = 2\n\nThen.", "Like:\n\n```text\na = 1\n\nb = 2\n```\n\nThen."),
        ("Like:\n\n```python\na = 1\n```\n\nThen.", "Like:\n\n```text\na = 1\n```\n\nThen."),
    ],
)
def test_a_docstring_becomes_markdown_that_no_page_executes(doc: str, markdown: str) -> None:
    lines = "\n".join(api_reference._prose(doc))
    assert lines.replace("\n\n\n", "\n\n").strip() == markdown
