"""The errors of Semel: all in one tree, all importable from semel.errors, each with advice on what to do."""

from __future__ import annotations

import ast
import re
from typing import Final

import pytest

import semel.errors
from public_surface import SOURCE, Definition, bases, is_error

# Programs, not libraries: nobody imports an error from there.
PROGRAMS: Final = ("cli", "dashboard", "demo")
# What a sentence that says what to do begins with.
IMPERATIVES: Final = re.compile(
    "Allow|Ask|Call|Catch|Change|Check|Choose|Copy|Correct|Delete|Do|Fix|Follow|Give|Install|List|Look|Raise|Read|Receive|"
    "Remove|Renew|Restore|Run|Select|Set|Start|Stop|Try|Undo|Use|Wait|Write"
)
_LINE: Final = re.compile(r"(?P<indent>[ │├└─]*)(?P<name>\w+)(?: \((?P<also>[\w, ]+)\))?  +(?P<advice>[A-Z].+)")


def defined() -> dict[str, Definition]:
    """Every error class that is not private, by its name."""
    owners: dict[str, Definition] = {}
    for file in sorted((SOURCE / "semel").rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        if len(parts) > 1 and parts[1] in PROGRAMS:
            continue
        module = ".".join(parts).removesuffix(".__init__")
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owner = Definition(module, node.name, node)
                if is_error(owner):
                    assert node.name not in owners, f"two errors have the name {node.name}"
                    owners[node.name] = owner
    return owners


def drawn() -> dict[str, re.Match[str]]:
    lines = (semel.errors.__doc__ or "").splitlines()
    return {match["name"]: match for line in lines if (match := _LINE.fullmatch(line))}


ERRORS: Final = defined()


def test_the_tree_has_every_error_below_its_base_class() -> None:
    assert len(ERRORS) > 80
    assert drawn().keys() == ERRORS.keys()
    path: list[str] = []
    for name, match in drawn().items():
        depth = (len(match["indent"]) - 2) // 3
        path[depth:] = [name]
        parents = [base.name for base in bases(ERRORS[name])]
        shown = ([path[depth - 1]] if depth else []) + (match["also"].split(", ") if match["also"] else [])
        assert shown == parents, name


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_an_error_says_what_to_do_next(name: str) -> None:
    advice = drawn()[name]["advice"]
    assert IMPERATIVES.fullmatch(re.split(r"\W", advice)[0])
    assert advice.endswith(".")
    assert advice in " ".join(ERRORS[name].docstring.split())


def test_every_error_can_be_imported_from_semel_errors() -> None:
    for name, owner in ERRORS.items():
        error = getattr(semel.errors, name)
        assert issubclass(error, semel.errors.SemelError)
        assert error.__module__ == owner.module
        assert name in dir(semel.errors)


def test_type_checkers_know_every_error() -> None:
    stub = ast.parse((SOURCE / "semel" / "errors.pyi").read_text(encoding="utf-8"))
    imported = {
        alias.asname: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    classes = {node.name: "semel.errors" for node in stub.body if isinstance(node, ast.ClassDef)}
    assert imported | classes == {name: owner.module for name, owner in ERRORS.items()}
