"""Every public name has a docstring with an example, and the examples are executed.

An example runs as a user's script would: in an empty folder, with SQS at the address in the environment. One that needs
PostgreSQL, Redis, AWS or Spark is marked `# doctest: +SKIP` and only compiled.
"""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from public_surface import Definition, Function, bases, is_error, is_internal, members, public_definitions
from semel.broker import running

# Names that have no example yet. The list only shrinks.
NO_EXAMPLE_YET: Final[frozenset[str]] = frozenset()
NEED_A_SERVER: Final = frozenset({"semel.DynamoLedger", "semel.PostgresLedger", "semel.RedisLedger"})
DEFINITIONS: Final = {
    name: definition
    for name, definition in public_definitions().items()
    if isinstance(definition.node, ast.ClassDef | Function)
}
EXAMPLES: Final = {name: definition for name, definition in DEFINITIONS.items() if ">>>" in definition.docstring}


def needs_an_example(name: str) -> bool:
    """All do but errors that are only caught: what those need is advice, see test_error_family.py."""
    return not is_error(DEFINITIONS[name]) or name.count(".") == 1


def example_of(name: str) -> doctest.DocTest:
    definition = EXAMPLES[name]
    return doctest.DocTestParser().get_doctest(
        definition.docstring, {}, name, definition.module, definition.node.lineno
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for setting in ("AWS_PROFILE", "SEMEL_LEDGER", "SEMEL_ATTEMPT_LOG", "SEMEL_DRAIN"):
        monkeypatch.delenv(setting, raising=False)
    with running() as broker:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", broker.url)
        monkeypatch.setenv("AWS_REGION", broker.region)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("SEMEL_STATE", str(tmp_path / "state"))
        yield tmp_path


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_does_what_it_shows(name: str, folder: Path) -> None:
    example = example_of(name)
    for part in example.examples:
        compile(part.source, name, "single")
    problems: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=problems.append)
    assert not problems, "".join(problems)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_is_executed_unless_it_needs_a_server(name: str) -> None:
    skipped = any(doctest.SKIP in part.options for part in example_of(name).examples)
    assert skipped == (name in NEED_A_SERVER or name.startswith("semel.spark."))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_is_short_and_imports_what_it_uses(name: str) -> None:
    example = example_of(name)
    assert sum(part.source.count("\n") for part in example.examples) <= 12
    assert any("import" in part.source for part in example.examples)


def test_every_public_name_has_an_example() -> None:
    missing = {name for name in DEFINITIONS if needs_an_example(name) and name not in EXAMPLES}
    assert missing == NO_EXAMPLE_YET


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_every_public_name_and_method_has_a_docstring(name: str) -> None:
    definition = DEFINITIONS[name]
    assert definition.docstring.rstrip('"').strip(), name
    if isinstance(definition.node, ast.ClassDef):
        listed = members(definition).keys()
        assert [
            method for method in methods(definition) if method in listed and not explained(definition, method)
        ] == []


def methods(owner: Definition) -> dict[str, Function]:
    """Public methods and properties by name, those of base classes included."""
    assert isinstance(owner.node, ast.ClassDef)
    base_methods: dict[str, Function] = {}
    for base in reversed(bases(owner)):
        base_methods |= methods(base)
    own = [node for node in owner.node.body if isinstance(node, Function)]
    return base_methods | {node.name: node for node in own if node.name[0] != "_" and not is_internal(node)}


def explained(owner: Definition, method: str) -> bool:
    """Whether the method has a docstring, or overrides one that has."""
    node = methods(owner).get(method)
    if node is not None and ast.get_docstring(node):
        return True
    return any(explained(base, method) for base in bases(owner))
