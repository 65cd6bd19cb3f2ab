"""One word for one thing: docs/explanation/glossary.md explains our words, and the words in its last table are
not used."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "semel"
GLOSSARY: Final = ROOT / "docs" / "explanation" / "glossary.md"
HEADING: Final = "## Words we do not use"
MODULES: Final = "## Modules of one name"
# Names that others rely on, or that are not ours.
EXEMPT_NAMES: Final = {
    "cli/command.py": {"FOUND"},  # an exit code: something was found
    "verify/verdict.py": {"found"},  # a field of the public verdict, and a key of its JSON
    "doctor/logs/remote_files.py": {"tell"},  # the interface of a Python stream
}
EXEMPT_FILES: Final = ("broker/engine/upgrade.py",)  # the tables of version 1 had these names


class Name(NamedTuple):
    file: str
    line: int  # 0: the name of the file itself
    text: str

    @property
    def words(self) -> str:
        return words_of(self.text)


@cache
def words_of(name: str) -> str:
    """`DeadLetterSender` and `_dead_letter` as words, each between spaces."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return f" {' '.join(parts).lower()} "


class Ban(NamedTuple):
    words: tuple[str, ...]
    instead: str
    where: str

    @property
    def in_names(self) -> bool:
        return self.where.startswith("names")

    @property
    def whole_names(self) -> bool:
        return self.where.startswith("whole names")

    @property
    def in_text(self) -> bool:
        return "text" in self.where

    @property
    def folder(self) -> str:
        """Only there; "" is everywhere."""
        match = re.search(r"`([\w/.]+)`", self.where)
        return match[1] if match else ""


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def bans() -> list[Ban]:
    table = rows(GLOSSARY.read_text(encoding="utf-8").partition(HEADING)[2])
    return [Ban(tuple(re.findall(r"`([^`]+)`", words)), instead, where) for words, instead, where in table]


def terms() -> list[list[str]]:
    return rows(GLOSSARY.read_text(encoding="utf-8").partition(MODULES)[0])


def shared_names() -> list[str]:
    """The names that several modules may have."""
    table = rows(GLOSSARY.read_text(encoding="utf-8").partition(MODULES)[2].partition(HEADING)[0])
    return [name for names, _ in table for name in re.findall(r"`(\w+)`", names)]


# What is looked at.


@cache
def names() -> tuple[Name, ...]:
    """Of files, and what the source defines: functions, classes, arguments, variables."""
    return tuple(name for file in sorted(SOURCE.rglob("*.py")) for name in names_in(file, SOURCE))


def names_in(file: Path, root: Path) -> Iterator[Name]:
    path = file.relative_to(root).as_posix()
    yield Name(path, 0, path.removesuffix(".py").rpartition("/")[2])
    yield from (Name(path, line, text) for text, line in defined(file.read_text(encoding="utf-8")))


def defined(source: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=text, ctx=ast.Store()) | ast.Attribute(attr=text, ctx=ast.Store()):
                yield text, node.lineno
            case ast.FunctionDef(name=text) | ast.AsyncFunctionDef(name=text) | ast.ClassDef(name=text):
                yield text, node.lineno
            case ast.arg(arg=text) | ast.alias(asname=str(text)) | ast.ExceptHandler(name=str(text)):
                yield text, node.lineno
            case ast.MatchAs(name=str(text)) | ast.MatchStar(name=str(text)):
                yield text, node.lineno


@cache
def names_elsewhere() -> tuple[Name, ...]:
    """Of tests, benchmarks and examples. docs/explanation/guarantees.md quotes the tests."""
    files = [file for folder in ("tests", "bench", "examples", "docs") for file in (ROOT / folder).rglob("*.py")]
    own = [file for file in sorted(files) if not any(part.startswith(".") for part in file.relative_to(ROOT).parts)]
    return tuple(name for file in own for name in names_in(file, ROOT))


@cache
def texts() -> dict[str, str]:
    """What people read: source with its comments and messages, templates, SQL, pages. Not the words that we do not use,
    nor the changelog, which names what was renamed."""
    files = [file for ending in ("py", "html", "sql", "js") for file in SOURCE.rglob(f"*.{ending}")]
    files += [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    content = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in sorted(files)}
    glossary = GLOSSARY.relative_to(ROOT).as_posix()
    content[glossary] = content[glossary].partition(HEADING)[0]
    return {name: text for name, text in content.items() if not name.endswith(EXEMPT_FILES)}


# How a word is found.


def names_with(ban: Ban, where: Iterable[Name]) -> list[str]:
    hits = []
    for name in where:
        if not name.file.startswith(ban.folder) or name.file in EXEMPT_FILES:
            continue
        if name.text in EXEMPT_NAMES.get(name.file, set()):
            continue
        if ban.whole_names:
            hit = name.text.strip("_").lower() in ban.words
        else:
            hit = any(f" {word} " in name.words.replace(" dead letter", " ") for word in ban.words)
        if hit:
            hits.append(f"{name.file}:{name.line}: {name.text}; we say: {ban.instead}")
    return hits


def text_with(ban: Ban, where: dict[str, str]) -> list[str]:
    words = "|".join(re.escape(word).replace(r"\ ", "[ _-]") for word in ban.words)
    pattern = re.compile(rf"(?<![a-z])(?:{words})(?![a-z])", re.IGNORECASE)
    return [
        f"{name}:{number}: {match[0]}; we say: {ban.instead}"
        for name, text in where.items()
        for number, line in enumerate(text.splitlines(), 1)
        for match in pattern.finditer(line)
    ]


@pytest.mark.parametrize("ban", bans(), ids=lambda ban: ban.words[0])
def test_no_name_and_no_text_has_a_word_that_we_do_not_use(ban: Ban) -> None:
    assert ban.words
    every_name = (*names(), *names_elsewhere())
    if ban.where == "file names":
        assert names_with(ban._replace(where="names"), [name for name in every_name if not name.line]) == []
        return
    assert ban.in_names or ban.whole_names
    assert names_with(ban, every_name) == []
    if ban.in_text:
        assert text_with(ban, texts()) == []


def test_modules_share_a_name_only_if_the_glossary_says_what_it_means_in_all_of_them() -> None:
    count = Counter(file.stem for file in SOURCE.rglob("*.py") if not file.stem.startswith("__"))
    assert sorted(shared_names()) == sorted(name for name, modules in count.items() if modules > 1)


def test_terms_are_in_order_explained_once_and_their_files_exist() -> None:
    known = [term for term, *_ in terms()]
    assert len(known) > 80
    assert known == sorted(known, key=lambda term: (term.replace("-", " ").split(",")[0].lower(), term))
    assert len(set(known)) == len(known)
    for term, meaning, where in terms():
        assert meaning.endswith("."), term
        files = re.findall(r"`([\w/.]+\.(?:py|sql))`", where)
        assert files or "](" in where, term
        assert [file for file in files if not (SOURCE / file).exists()] == []


@pytest.mark.parametrize(
    ("ban", "text", "expected"),
    [
        (Ban(("letter",), "", "names"), "LetterBox", True),
        (Ban(("letter",), "", "names"), "DeadLetterBox", False),
        (Ban(("in hand",), "", "names, text"), "messages_in_hand", True),
        (Ban(("in hand",), "", "names, text"), "handled", False),
        (Ban(("say",), "", "whole names"), "_say", True),
        (Ban(("say",), "", "whole names"), "says_no_site", False),
        (Ban(("keep",), "", "names in `ledger/`"), "keep_days", False),
        (Ban(("keep",), "", "names in `telemetry/`"), "keep_days", True),
    ],
)
def test_a_word_is_noticed_in_a_name(ban: Ban, text: str, expected: bool) -> None:
    assert bool(names_with(ban, [Name("telemetry/log.py", 1, text)])) is expected


def test_a_word_is_noticed_in_a_text() -> None:
    ban = Ban(("heal", "in hand"), "", "names, text")
    assert len(text_with(ban, {"a.md": 'a metric "heal_total"\nHealth, unhealed\nwhat is in hand, or in-hand'})) == 3


def test_every_way_to_define_a_name_is_seen() -> None:
    source = """
import json as a
def b(c, *, d): pass
class E:
    f: int = 1
for g in (h := ()): pass
try: pass
except OSError as i: pass
match h:
    case [j, *k]: pass
m = [n for n in h]
m.o = 1
"""
    assert sorted(text.lower() for text, _ in defined(source)) == list("abcdefghijkmno")
