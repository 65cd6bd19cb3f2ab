"""What users may rely on: the public names of Semel with their signatures, parsed from the source.

    python tests/public_surface.py

rewrites tests/public_surface.txt. The result depends neither on the Python version nor on the installed extras.

A name is public if it is in the `__all__` of a package below (or in `_WHERE`, if it needs an extra). Its methods and
attributes are public too, except those with a leading underscore and those whose docstring begins with "Internal".
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src"
FILE: Final = Path(__file__).with_suffix(".txt")
# A name that several packages export belongs to the first of them.
PACKAGES: Final = (
    "semel",
    "semel.consumer",
    "semel.ledger",
    "semel.sqs",
    "semel.broker",
    "semel.testing",
    "semel.verify",
    "semel.dlq",
    "semel.telemetry",
    "semel.spark",
    "semel.doctor",
    "semel.messages",
    "semel.errors",
)
# Special methods that users call.
SPECIAL: Final = ("__call__", "__enter__", "__getitem__", "__iter__", "__len__")
# Base classes that are irrelevant for users.
UNTOLD: Final = ("ABC", "Protocol", "Generic")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = ast.ClassDef | Function | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Definition:
    """Where a name is defined."""

    module: str
    name: str
    node: Node

    @property
    def docstring(self) -> str:
        return docstring(self.node)


def docstring(node: ast.AST) -> str:
    return ast.get_docstring(node) or "" if isinstance(node, ast.ClassDef | Function) else ""


def is_internal(node: ast.AST) -> bool:
    return docstring(node).startswith("Internal")


def public_names(package: str) -> list[str]:
    module = import_module(package)
    # Names that need an extra are not part of `__all__`, so that a star import works everywhere.
    return sorted({*module.__all__, *getattr(module, "_WHERE", ())} - {"__version__"})


# From a name to its definition.


@cache
def tree(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def definition(module: str, name: str) -> Definition | None:
    """Follows imports, also those under TYPE_CHECKING; None if the name is not defined in Semel."""
    for node in statements(tree(module)):
        match node:
            case ast.ClassDef(name=defined) | ast.FunctionDef(name=defined) | ast.AsyncFunctionDef(name=defined):
                if defined == name:
                    return Definition(module, name, node)
            case ast.Assign(targets=[ast.Name(id=defined)]) | ast.AnnAssign(target=ast.Name(id=defined)):
                if defined == name:
                    return Definition(module, name, node)
                if defined == "_WHERE" and isinstance(node.value, ast.Dict):  # semel.errors imports nothing
                    where = ast.literal_eval(node.value)
                    if module == "semel.errors" and name in where:
                        return definition(where[name], name)
            case ast.ImportFrom(module=str(origin), names=aliases) if origin.startswith("semel"):
                for alias in aliases:
                    if (alias.asname or alias.name) == name:
                        return definition(origin, alias.name)
    return None


def statements(module: ast.Module) -> Iterator[ast.stmt]:
    for node in module.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body
        else:
            yield node


def public_definitions() -> dict[str, Definition]:
    """Every definition once, by its full public name."""
    known: dict[tuple[str, str], str] = {}
    result = {}
    for package in PACKAGES:
        for name in public_names(package):
            public_definition = definition(package, name)
            if public_definition is None:
                raise LookupError(f"{package}.{name} is in __all__, and nothing in Semel defines it")
            if (
                known.setdefault((public_definition.module, public_definition.name), f"{package}.{name}")
                == f"{package}.{name}"
            ):
                result[f"{package}.{name}"] = public_definition
    return result


def bases(owner: Definition) -> list[Definition]:
    """The base classes that Semel defines."""
    assert isinstance(owner.node, ast.ClassDef)
    names = [ast.unparse(base).partition("[")[0] for base in owner.node.bases]
    return [base for name in names if (base := definition(owner.module, name)) is not None]


def is_error(owner: Definition) -> bool:
    if owner.name == "SemelError":
        return True
    return isinstance(owner.node, ast.ClassDef) and any(is_error(base) for base in bases(owner))


def only_raised(owner: Definition) -> bool:
    """Whether it is an error that users catch but do not raise, so its constructor is not public."""
    return is_error(owner) and owner.module != "semel.consumer.outcomes"


# From a definition to lines.


def surface() -> list[str]:
    definitions = public_definitions()
    names = {(definition.module, definition.name): full for full, definition in definitions.items()}
    lines = []
    for package in PACKAGES:
        lines.append(f"# {package}")
        for name in public_names(package):
            public_definition = definition(package, name)
            assert public_definition is not None
            full = f"{package}.{name}"
            known_as = names[public_definition.module, public_definition.name]
            lines += described(full, public_definition) if known_as == full else [f"{full} = {known_as}"]
        lines.append("")
    return lines[:-1]


def described(full: str, definition: Definition) -> list[str]:
    match definition.node:
        case ast.ClassDef():
            return described_class(full, definition)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [function_line(full, definition.node)]
        case ast.AnnAssign():
            return [full]
        case ast.Assign(value=value):
            return [f"{full} = {ast.unparse(value)}"]


def described_class(full: str, owner: Definition) -> list[str]:
    assert isinstance(owner.node, ast.ClassDef)
    shown = [base for each in owner.node.bases if (base := ast.unparse(each)).partition("[")[0] not in UNTOLD]
    inherited = {line for base in bases(owner) for line in members(base).values()}
    own = [line for line in members(owner).values() if line not in inherited or not is_public(owner)]
    return [f"class {full}" + (f"({', '.join(shown)})" if shown else ""), *(f"{full}{line}" for line in own)]


@cache
def _public() -> frozenset[tuple[str, str]]:
    return frozenset((definition.module, definition.name) for definition in public_definitions().values())


def is_public(owner: Definition) -> bool:
    """Whether all its base classes are public, so that inherited members are listed there."""
    return all((base.module, base.name) in _public() for base in bases(owner))


def members(owner: Definition) -> dict[str, str]:
    """The members of a class and its base classes in Semel: for each name, the line without the name of the class."""
    assert isinstance(owner.node, ast.ClassDef)
    lines: dict[str, str] = {}
    for base in reversed(bases(owner)):
        lines |= members(base)
    fields = [
        node
        for node in owner.node.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_"
    ]
    if writes_constructor(owner.node) and fields:
        keywords = any("kw_only=True" in ast.unparse(each) for each in owner.node.decorator_list)
        lines["__init__"] = f"({'*, ' if keywords else ''}{', '.join(ast.unparse(field) for field in fields)})"
    elif fields:
        lines |= {ast.unparse(field.target): f".{ast.unparse(field)}" for field in fields}
    for node in owner.node.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name[0] != "_":
                lines[name] = f".{ast.unparse(node)}"
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name == "__init__":
                    attributes = sorted(set(assigned(node)) - lines.keys())
                    lines |= {attribute: f".{attribute}" for attribute in attributes}
                if is_internal(node) or (name == "__init__" and only_raised(owner)):
                    lines.pop(name, None)
                elif name == "__init__":
                    lines[name] = function_line("", node).removesuffix(" -> None")
                elif name[0] != "_" or name in SPECIAL:
                    _add_method(lines, node)
    return lines


def _add_method(lines: dict[str, str], node: Function) -> None:
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    if marks & {"property", "cached_property"}:
        lines[node.name] = f".{node.name}" + (f": {ast.unparse(node.returns)}" if node.returns else "")
    elif "overload" in marks:
        earlier = f"{lines[node.name]}\n" if "\n" in lines.get(node.name, "") else ""
        lines[node.name] = f"{earlier}{function_line(f'.{node.name}', node)}\n"
    elif not lines.get(node.name, "").endswith("\n"):
        lines[node.name] = function_line(f".{node.name}", node)


def writes_constructor(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(mark).partition("(")[0] for mark in node.decorator_list]
    names = [ast.unparse(base) for base in node.bases]
    return bool({*marks} & {"dataclass", "value"} or {*names} & {"NamedTuple", "msgspec.Struct"})


def assigned(constructor: Function) -> Iterator[str]:
    """Public attributes that `__init__` sets."""
    for node in ast.walk(constructor):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()) if name[0] != "_":
                yield name


def function_line(name: str, node: Function) -> str:
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    parameters = ast.unparse(node.args)
    if name in ("", f".{node.name}") and "staticmethod" not in marks:  # self or cls
        parameters = parameters.partition(", ")[2] if ", " in parameters else ""
        parameters = parameters.removeprefix("/, ")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if any(mark.endswith("contextmanager") for mark in marks):
        returns = returns.replace("Iterator", "AbstractContextManager")
    return f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}{name}({parameters}){returns}"


def text() -> str:
    lines = [part for line in surface() for part in _parts(line)]
    return "\n".join(lines) + "\n"


def _parts(line: str) -> list[str]:
    """A line, or one for each overload."""
    if "\n" not in line:
        return [line]
    first, *others = line.rstrip("\n").split("\n.")
    full = first[: first.index("(")].rpartition(".")[0]
    return [first.rstrip("\n"), *(f"{full}.{other}".rstrip("\n") for other in others)]


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"wrote {FILE.name}: {len(text().splitlines())} lines\n")
