"""The site of `make docs`: how pages that were written for GitHub are changed, and that all of them are included."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from pages import Page

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
REPOSITORY: Final = "https://github.com/semel-project/semel"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def for_site(hooks: ModuleType, text: str, page: str = "reference/ledger.md") -> str:
    return str(hooks.for_site(text, page, REPOSITORY))


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("../../src/semel/ledger/rules.py", f"{REPOSITORY}/blob/main/src/semel/ledger/rules.py"),
        ("../../tests/ledger", f"{REPOSITORY}/tree/main/tests/ledger"),
        ("../../bench/RESULTS.md#behaviour", f"{REPOSITORY}/blob/main/bench/RESULTS.md#behaviour"),
        ("../images/failures/draw.py", f"{REPOSITORY}/blob/main/docs/images/failures/draw.py"),
        ("consumer.md#settings", "consumer.md#settings"),
        ("../images/doctor.png", "../images/doctor.png"),
        ("https://example.com/a", "https://example.com/a"),
        ("#using-it", "#using-it"),
    ],
)
def test_a_link_to_what_is_not_a_page_leads_to_the_repository(hooks: ModuleType, link: str, address: str) -> None:
    assert for_site(hooks, f"see [this]({link}).") == f"see [this]({address})."


def test_a_link_in_a_block_stays_as_it_is(hooks: ModuleType) -> None:
    block = "```text\n[x](../../README.md)\n- item\n```\n"
    assert for_site(hooks, block) == block


def test_lists_and_tables_are_written_as_python_markdown_reads_them(hooks: ModuleType) -> None:
    assert for_site(hooks, "All of:\n- a\n  more\n- b\n  - c") == "All of:\n\n- a\n  more\n- b\n    - c"
    assert for_site(hooks, r"| `a\|b` | c \| d |") == r"| `a|b` | c \| d |"


def test_headings_have_the_anchors_of_github(hooks: ModuleType) -> None:
    for title in ('Pipelines and `format("sqs")` on Spark', "[schema] and [rejects]", "What happens when …", "A_b - c"):
        heading = title.replace("`", "")  # MkDocs gives the text of a heading
        assert hooks.slug(heading, "-") in Page(Path("page.md"), f"# {title}\n").anchors


def test_what_a_page_would_load_from_another_host_is_noticed(hooks: ModuleType) -> None:
    loaded = [
        '<script src="https://a/x.js">',
        '<img alt="x" src="//b/y.png">',
        '<link rel="preconnect" href="https://c">',
    ]
    assert hooks.loaded_from_elsewhere("".join(loaded)) == ["https://a/x.js", "//b/y.png", "https://c"]
    assert hooks.loaded_from_elsewhere('<a href="https://a">x</a><script src="../x.js"></script>') == []


def test_the_navigation_of_the_site_has_every_page() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([\w/-]+\.md)$", settings.partition("\nnav:\n")[2], re.MULTILINE)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == {page for page in pages if not re.match(r"explanation/decisions/\d", page)}


def test_the_site_names_the_repository_of_the_package() -> None:
    for name in ("mkdocs.yml", "pyproject.toml"):
        assert REPOSITORY in (ROOT / name).read_text(encoding="utf-8")
