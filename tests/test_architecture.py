"""The import rules that import-linter cannot express;
docs/explanation/decisions/0013-import-rules.md says which and why."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import semel

PACKAGE: Final = Path(semel.__file__).parent
PURE: Final = ("broker/engine/", "broker/protocol/")
IMPURE_CALLS: Final = frozenset({"open", "print", "input", "Random", "import_module", "__import__"})
IMPURE_NAMES: Final = re.compile(r"random(?!\.Random$)|urllib\.request")
# Packages that hand out names of others, each when it is first asked for.
MAY_NAME: Final = {
    "__init__.py": {"consumer", "errors", "ledger", "sqs"},
    "errors.py": {
        "broker", "consumer", "dlq", "doctor", "extras", "ledger", "messages", "spark", "sqs", "telemetry", "verify",
    },
    "lazy_imports.py": {"extras"},
    "testing": {"broker"},
}  # fmt: skip


def violations(source: str, file: str) -> Iterator[str]:
    """`file` is the path below the package."""
    tree = ast.parse(source)
    calls = {name for node in ast.walk(tree) if isinstance(node, ast.Call) and (name := _name(node.func))}
    if file.startswith(PURE):
        yield from (f"{file} calls {name}()" for name in sorted(calls & IMPURE_CALLS))
        yield from (f"{file} imports {name}" for name in _imported(tree) if IMPURE_NAMES.match(name))
        if any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree)):
            yield f"{file} waits"
    if calls & {"import_module", "__import__", "lazy_names"}:
        texts = [str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        named = {match[1] for text in texts if (match := re.match(r"semel\.(\w+)", text))}
        top = file.partition("/")[0]
        yield from (f"{file} names semel.{name}" for name in sorted(named - {top} - MAY_NAME.get(top, set())))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            yield from (f"{module}{alias.name}" for alias in node.names)


def test_the_engine_and_the_wire_are_pure_and_no_string_goes_round_the_layers() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 300
    assert [
        violation for file in files for violation in violations(file.read_text(), file.relative_to(PACKAGE).as_posix())
    ] == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("broker/engine/rules.py", "from random import random"),
        ("broker/engine/rules.py", "import random"),
        ("broker/engine/rules.py", "from random import Random\nrng = Random()"),
        ("broker/engine/rules.py", "text = open('file').read()"),
        ("broker/protocol/json.py", "from urllib.request import urlopen"),
        ("broker/protocol/json.py", "import urllib.request"),
        ("broker/protocol/json.py", "print('debug')"),
        ("broker/protocol/json.py", "async def answer(): ..."),
        ("consumer/poll.py", "import importlib\nimportlib.import_module('semel.broker')"),
        ("dlq/poll.py", "WHERE = 'semel.broker'\n__import__(WHERE)"),
        ("ledger/poll.py", "from importlib import import_module\nimport_module(f'semel.consumer.{name}')"),
        ("ledger/__init__.py", "WHERE = {'App': 'semel.consumer.app'}\n__getattr__, _ = lazy_names(__name__, WHERE)"),
    ],
)
def test_what_breaks_these_rules_is_noticed(file: str, source: str) -> None:
    assert len(list(violations(source, file))) == 1


def test_an_engine_may_name_the_type_of_its_random_source() -> None:
    assert list(violations("import sqlite3\nfrom random import Random\n", "broker/engine/rules.py")) == []
