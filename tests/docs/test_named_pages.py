"""A page that is named in help, an error or a comment exists, and docs/index.md links to every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pages import Page

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
DECISIONS: Final = DOCS / "explanation" / "decisions"
_PAGE: Final = re.compile(r"(?<![\w/.-])docs/[\w./-]+\.md\b")
_QUOTED: Final = re.compile(r"'(?P<heading>[^'\n]+)' in (?P<page>docs/[\w./-]+\.md)")


def missing(text: str, root: Path = ROOT) -> list[str]:
    return [name for name in _PAGE.findall(text) if not (root / name).is_file()]


def sources() -> Iterator[Path]:
    for folder in ("src", "tests", "bench", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            outside = {".envs", ".data", "__pycache__"} & set(path.relative_to(ROOT).parts)
            if path.is_file() and not outside and path.suffix in {".py", ".html", ".md", ".toml", ".sql", ".js"}:
                yield path
    yield from (ROOT / "Makefile", ROOT / "pyproject.toml")


def test_every_page_that_the_code_names_exists() -> None:
    named = 0
    problems = []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        named += len(_PAGE.findall(text))
        problems += [f"{path.relative_to(ROOT)} names {name}" for name in missing(text)]
    assert named > 30
    assert not problems, "\n".join(problems)


def test_every_heading_that_an_error_names_exists() -> None:
    """Errors are made of strings over several lines, which are joined here before they are read."""
    quoted = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        joined = re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        quoted += [(match["heading"], match["page"]) for match in _QUOTED.finditer(joined)]
    assert quoted
    for heading, page in quoted:
        assert re.search(rf"^#+ {re.escape(heading)}$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE), (
            heading
        )


@pytest.mark.parametrize("text", ["see docs/" + "absent.md.", "`x > docs/" + "reference/absent.md`"])
def test_a_page_that_is_missing_is_noticed(text: str) -> None:
    assert len(missing(text)) == 1


def linked(page: Path) -> set[Path]:
    links = (link.partition("#")[0] for _, link in Page.read(page).links if "://" not in link)
    return {(page.parent / link).resolve() for link in links if link}


@pytest.mark.parametrize(
    ("index", "pages"),
    [
        (DOCS / "index.md", [path for path in DOCS.rglob("*.md") if DECISIONS not in path.parents]),
        (DECISIONS / "README.md", list(DECISIONS.glob("*.md"))),
    ],
    ids=["documentation", "decisions"],
)
def test_an_index_leads_to_every_page(index: Path, pages: list[Path]) -> None:
    unlisted = {path.resolve() for path in pages} - linked(index) - {index.resolve()}
    assert len(pages) > 10
    assert not unlisted, sorted(str(path.relative_to(ROOT)) for path in unlisted)
