"""Parses a page of the documentation: its blocks, its links, and what is wrong with them. docs/documentation.md has the
conventions. Nothing is executed here; page_runner.py does that.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

_MARKDOWN: Final = MarkdownIt("commonmark").enable("table")
_COMMENT: Final = re.compile(r"<!--\s*(?P<word>[\w ]+?)\s*:\s*(?P<value>.*?)\s*-->", re.DOTALL)
_FILE: Final = re.compile(r"(?:#|--|//) (?P<name>[\w./-]+\.\w+)(?:\s.*)?")
_TEST: Final = re.compile(r"^\s*(?:async )?def test_", re.MULTILINE)
_ANCHOR: Final = re.compile(r"""<\w+[^>]*\b(?:id|name)=["']([^"']+)""")
_SOURCE: Final = re.compile(r"""<(?:a|img|source)\b[^>]*\b(?:href|src|srcset)=["']([^"']+)""")
_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Command:
    line: int
    text: str
    shown: tuple[str, ...]  # the output that the page shows; empty if it shows none

    @property
    def in_background(self) -> bool:
        return self.text.split(" #")[0].rstrip().endswith("&")

    @property
    def is_exit_code(self) -> bool:
        return self.text.split(" #")[0].rstrip() == "echo $?"


@dataclass(frozen=True, slots=True)
class Block:
    line: int  # of the opening fence
    language: str
    text: str
    not_executed: str | None  # the reason

    @property
    def file(self) -> str | None:
        """A block is a file if its first line is a comment with the file's name."""
        named = _FILE.fullmatch(self.text.split("\n", 1)[0].rstrip())
        return named["name"] if named and self.language != "console" else None

    @property
    def has_tests(self) -> bool:
        return self.language == "python" and _TEST.search(self.text) is not None

    def commands(self) -> Iterator[Command]:
        lines = list(enumerate(self.text.splitlines(), self.line + 1))
        while lines:
            number, line = lines.pop(0)
            if not line.startswith("$ "):
                continue
            text = line[2:]
            while text.endswith("\\") and lines:
                text += "\n" + lines.pop(0)[1]
            shown = []
            while lines and not lines[0][1].startswith("$ "):
                shown.append(lines.pop(0)[1])
            yield Command(number, text, tuple(line for line in shown if line.strip()))


@dataclass(frozen=True)
class Page:
    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path, path.read_text(encoding="utf-8"))

    @cached_property
    def _tokens(self) -> list[Token]:
        return _MARKDOWN.parse(self.text)

    @cached_property
    def blocks(self) -> list[Block]:
        blocks = []
        for before, token in zip([None, *self._tokens], self._tokens, strict=False):
            if token.type == "fence":
                mark = _COMMENT.search(before.content) if before and before.type == "html_block" else None
                reason = mark["value"] if mark and mark["word"] == "not executed" else None
                blocks.append(Block(_line(token), token.info.strip(), token.content, reason))
        return blocks

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors that GitHub generates from headings, and those that the page defines itself."""
        anchors = set(_ANCHOR.findall(self.text))
        count: Counter[str] = Counter()
        for token, inline in zip(self._tokens, self._tokens[1:], strict=False):
            if token.type == "heading_open":
                title = "".join(
                    child.content for child in inline.children or [] if child.type in ("text", "code_inline")
                )
                slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
                anchors.add(f"{slug}-{count[slug]}" if count[slug] else slug)
                count[slug] += 1
        return anchors

    @cached_property
    def links(self) -> list[tuple[int, str]]:
        """The targets of links and images, with their line numbers."""
        links = []
        for token in self._tokens:
            for child in [token, *(token.children or [])]:
                target = child.attrGet("href") or child.attrGet("src")
                targets = [str(target)] if target else []
                if child.type in ("html_block", "html_inline"):
                    targets += _SOURCE.findall(child.content)
                links += [(_line(token), target) for target in targets]
        return links

    def block_problems(self) -> list[str]:
        """Blocks that would not be executed, or cannot be."""
        problems = []
        for token, after in zip(self._tokens, [*self._tokens[1:], None], strict=False):
            if token.type == "code_block":
                problems.append((_line(token), "an indented block is not executed: use a fence with a language"))
            mark = _COMMENT.search(token.content) if token.type == "html_block" else None
            if mark and mark["word"] == "not executed":
                if not mark["value"]:
                    problems.append((_line(token), "`not executed` without a reason"))
                if after is None or after.type != "fence":
                    problems.append((_line(token), "`not executed` belongs directly before a fenced block"))
        executed = [block for block in self.blocks if block.not_executed is None]
        for number, block in enumerate(executed):
            if problem := _problem(block):
                problems.append((block.line, problem))
            if block.file and not any(_uses(later, Path(block.file).stem) for later in executed[number + 1 :]):
                problems.append((block.line, f"no later block uses {block.file}, so it is not executed"))
        return [f"{self.path}:{line}: {problem}" for line, problem in sorted(problems)]

    def link_problems(self) -> list[str]:
        return [f"{self.path}:{line}: {problem}" for line, link in self.links if (problem := self._link_problem(link))]

    def _link_problem(self, link: str) -> str | None:
        if _ELSEWHERE.match(link):
            return None
        name, _, anchor = unquote(link).partition("#")
        path = self.path.parent / name
        if name and not path.exists():
            return f"{link} leads to nothing: there is no file {name}"
        if anchor and (not name or path.suffix == ".md"):
            target = _read(path) if name else self
            if anchor not in target.anchors:
                return f"{link} leads to nothing: {target.path.name} has no heading for #{anchor}"
        return None


def name_problems(pages: Sequence[Page], folder: Path) -> list[str]:
    """Syntax errors, undefined names and unused imports in the Python blocks of pages, as ruff sees them."""
    sources = {}
    for page in pages:
        for block in page.blocks:
            if block.language == "python":
                path = folder / f"{page.path.stem}_{block.line}.py"
                path.write_text(block.text, encoding="utf-8")
                sources[str(path)] = (page, block)
    if not sources:
        return []
    options = ["--isolated", "--no-cache", "--select=E9,F", "--output-format=json"]
    command = [sys.executable, "-m", "ruff", "check", *options, *sources]
    findings = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    problems = [(*sources[item["filename"]], item["location"]["row"], item["message"]) for item in findings]
    return [f"{page.path}:{block.line + row}: {message}" for page, block, row, message in problems]


def _problem(block: Block) -> str | None:
    if block.language == "console":
        if not block.text.startswith("$ "):
            return "a console block begins with a command: `$ command`"
        if any(command.in_background and not command.shown for command in block.commands()):
            return "a command in the background shows the line that says it is ready"
    elif block.language == "text":
        if re.search(r"^\s*\$ ", block.text, re.MULTILINE):
            return "commands belong in a console block"
    elif block.language != "python" and block.file is None:
        return (
            f"a block in {block.language or 'no language'} is not executed: name its file in a comment on its first "
            "line, or put `<!-- not executed: REASON -->` before it"
        )
    return None


def _uses(block: Block, name: str) -> bool:
    return block.language != "text" and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", block.text) is not None


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0


@cache
def _read(path: Path) -> Page:
    return Page.read(path)
