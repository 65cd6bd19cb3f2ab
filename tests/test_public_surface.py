"""What users may rely on is listed in a file, and changes only on purpose."""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
from importlib import import_module

import pytest

from public_surface import FILE, PACKAGES, ROOT, Definition, definition, members, public_definitions, public_names, text
from test_public_names import WITHOUT_EXTRAS


def test_the_public_surface_is_the_one_that_is_written_down() -> None:
    written, now = FILE.read_text(encoding="utf-8"), text()
    changes = [
        line
        for line in difflib.unified_diff(written.splitlines(), now.splitlines(), lineterm="", n=0)
        if line[:2] not in ("--", "++", "@@")
    ]
    assert written == now, (
        "the public surface has changed:\n  "
        + "\n  ".join(changes)
        + "\nIf that is intended, run `python tests/public_surface.py` and describe the change in CHANGELOG.md."
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_can_be_imported_and_completed(package: str) -> None:
    module = import_module(package)
    for name in public_names(package):
        assert getattr(module, name) is not None
        assert name in dir(module)
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        _ = module.absent


@pytest.mark.parametrize("package", sorted({*PACKAGES} - {"semel.spark"}))
def test_a_star_import_works_without_any_extra(package: str) -> None:
    code = f"{WITHOUT_EXTRAS}from {package} import *"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("package", ["semel.consumer", "semel.dlq", "semel.errors", "semel.ledger", "semel.telemetry"])
def test_importing_a_package_loads_none_of_its_names(package: str) -> None:
    code = f"import sys, {package}; print([name for name in sys.modules if name.startswith('{package}.')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"


def test_what_is_read_from_the_source_is_what_the_class_has() -> None:
    for full, public_definition in public_definitions().items():
        package, _, name = full.rpartition(".")
        if isinstance(public_definition.node, ast.ClassDef):
            owner = getattr(import_module(package), name)
            methods = [member for member, line in members(public_definition).items() if line.startswith(f".{member}(")]
            assert [member for member in methods if not callable(getattr(owner, member, None))] == []


def test_private_and_internal_methods_are_no_part_of_the_surface() -> None:
    client = definition("semel", "Client")
    assert isinstance(client, Definition)
    assert {"__init__", "queue", "create_queue", "endpoint", "close"} <= members(client).keys()
    assert {"perform", "_attempt"}.isdisjoint(members(client))


def test_documentation_and_examples_import_public_names_only() -> None:
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    imports = [
        (file.name, package, name)
        for file in files
        for package, names in re.findall(r"^from (semel[\w.]*) import ([\w, ]+)", file.read_text("utf-8"), re.MULTILINE)
        for name in re.split(r", *", names.strip())
    ]
    assert len(imports) > 50
    assert [each for each in imports if each[1] not in PACKAGES or each[2] not in public_names(each[1])] == []
