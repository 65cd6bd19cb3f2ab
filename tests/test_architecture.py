"""Who may import whom. Every file of the package is parsed: imports inside functions and type-checking blocks count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import semel

PACKAGE: Final = Path(semel.__file__).parent


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The house from top to bottom: a room may import the rooms of the floors below its own, none beside it, none above.
# Spark stands above the consumer: it runs the same handlers, and has its keys and its attempt log. The doctor stands
# above Spark: it has the same session and the same Java.
FLOORS: Final = (
    ("cli",),
    ("demo", "dashboard"),
    ("doctor", "dlq"),
    ("spark",),
    ("consumer",),
    ("ledger",),
    ("sqs",),
)
# At the very bottom, for everybody: the package's own file (""), the errors, and the optional packages.
GROUND: Final = frozenset({"", "errors", "extras"})


def _floors() -> dict[str, frozenset[str]]:
    # The package's own file hands the public names out, and loads their rooms when they are asked for.
    allowed = {"": frozenset({"errors", "extras", "consumer", "ledger", "sqs"}), "errors": frozenset[str]()}
    allowed |= {"extras": frozenset({"errors"})}
    below = GROUND
    for floor in reversed(FLOORS):
        allowed |= dict.fromkeys(floor, below)
        below |= frozenset(floor)
    return allowed


# Beside the floors: the broker, which only the command line and the tests may know, and what is for tests.
MAY_IMPORT: Final = _floors() | {
    "broker": GROUND | {"sqs"},
    "testing": GROUND | {"broker", "consumer", "ledger", "sqs"},
    "cli": _floors()["cli"] | {"broker"},
}
ROOMS: Final = frozenset(MAY_IMPORT) - GROUND

# The engine takes time and randomness as arguments, and does no I/O but to the database that it is given.
IMPURE: Final = words(
    "asyncio concurrent ctypes datetime http httptools logging multiprocessing os queue sched secrets select selectors "
    "signal socket socketserver ssl subprocess sys threading time urllib uuid uvloop _thread"
)
# The wire is bytes to calls and back.
DOES_IO: Final = (IMPURE - {"urllib"}) | words("io pathlib random shutil sqlite3 tempfile urllib.request")


def imports(source: Path, package: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of all that a file imports; `from a import b` is a.b, as b may be a module."""
    parts = ("semel", *source.relative_to(package).with_suffix("").parts)
    here = parts[:-1]  # the package that a relative import starts from
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"), str(source))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = here[: len(here) - node.level + 1] if node.level else ()
            base = ".".join((*start, *filter(None, [node.module])))
            yield from ((node.lineno, f"{base}.{name.name}") for name in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from ((node.lineno, name) for name in names if isinstance(name, str))


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def room_of(name: str) -> str | None:
    """The room that a dotted name leads into; "" is the package's own file, None is another library."""
    first, *rest = name.split(".")
    if first != "semel":
        return None
    # A name of the package's own file that is no room, such as __version__.
    return rest[0] if rest and (rest[0] in MAY_IMPORT or len(rest) > 1) else ""


def within(name: str, modules: frozenset[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def wrong_directions(package: Path) -> list[str]:
    """Every import that goes up, sideways, or into the broker from where it may not be known."""
    wrong = []
    for source in sorted(package.rglob("*.py")):
        inside = source.relative_to(package)
        room = "" if inside.name == "__init__.py" and len(inside.parts) == 1 else inside.parts[0].removesuffix(".py")
        if inside.parts == ("__main__.py",):
            room = "cli"
        if room not in MAY_IMPORT:
            wrong.append(f"{inside}: the plan of the house has no room {room!r}")
            continue
        for line, name in imports(source, package):
            target = room_of(name)
            if target is not None and target != room and target not in MAY_IMPORT[room]:
                wrong.append(f"{inside}:{line}: {room or 'the package'} must not import {name}")
            if target == "" and room != "" and name not in ("semel", "semel.__version__"):
                wrong.append(f"{inside}:{line}: {room} takes {name} from where users do, not from its room")
    return wrong


def impurities(package: Path) -> list[str]:
    """Whatever in the engine reaches for time, chance, threads, the network, or the rest of the broker."""
    wrong = []
    for source in sorted((package / "broker" / "engine").rglob("*.py")):
        inside = source.relative_to(package)
        for line, name in imports(source, package):
            elsewhere = within(name, frozenset({"semel.broker"})) and not within(
                name, frozenset({"semel.broker.engine"})
            )
            if within(name, IMPURE) or elsewhere:
                wrong.append(f"{inside}:{line}: the engine must not import {name}")
            if within(name, frozenset({"random"})) and name != "random.Random":
                wrong.append(f"{inside}:{line}: the engine takes its random source as an argument, and imports {name}")
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _called(node) in ("Random", "open", "print", "input"):
                wrong.append(f"{inside}:{node.lineno}: the engine must not call {_called(node)}()")
    return wrong


def wire_io(package: Path) -> list[str]:
    """Whatever in the wire could do I/O or belongs to another part of the broker."""
    source = package / "broker" / "wire.py"
    wrong = [
        f"wire.py:{line}: the wire must not import {name}"
        for line, name in imports(source, package)
        if within(name, DOES_IO) or room_of(name) == "broker"
    ]
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            wrong.append(f"wire.py:{node.lineno}: the wire must not wait")
        if isinstance(node, ast.Call) and _called(node) in ("open", "print", "input"):
            wrong.append(f"wire.py:{node.lineno}: the wire must not call {_called(node)}()")
    return wrong


# The promises.


def test_imports_go_from_top_to_bottom_only() -> None:
    assert wrong_directions(PACKAGE) == []


def test_the_engine_is_pure() -> None:
    assert impurities(PACKAGE) == []


def test_the_wire_does_no_io() -> None:
    assert wire_io(PACKAGE) == []


def test_the_whole_package_was_looked_at() -> None:
    found = {source.relative_to(PACKAGE).parts[0] for source in PACKAGE.rglob("*.py")}
    assert {"__init__.py", "errors.py", "sqs", "broker", "cli", "testing"} <= found
    assert len(list((PACKAGE / "broker" / "engine").glob("*.py"))) > 1


def test_every_room_of_the_plan_has_a_rule_also_if_it_is_not_built_yet() -> None:
    assert words("sqs broker ledger consumer spark doctor dlq dashboard demo testing cli") == ROOMS


def test_only_the_command_line_and_what_is_for_tests_may_know_the_broker() -> None:
    assert {room for room, allowed in MAY_IMPORT.items() if "broker" in allowed} == {"cli", "testing"}


# The checks can fail.


def build(folder: Path, **files: str) -> Path:
    """A made-up package: `broker__engine__x="import time"` is the file broker/engine/x.py."""
    package = folder / "semel"
    for name, text in {"__init__": "", **files}.items():
        path = package.joinpath(*name.split("__")) if not name.startswith("__") else package / name
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


FORBIDDEN: Final = sorted(
    (room, target) for room, allowed in MAY_IMPORT.items() for target in ROOMS if target not in allowed | {room}
)
ALLOWED: Final = sorted((room, target) for room, allowed in MAY_IMPORT.items() for target in allowed)


@pytest.mark.parametrize(("room", "target"), FORBIDDEN)
def test_each_wrong_direction_is_noticed(tmp_path: Path, room: str, target: str) -> None:
    name = {"": "__init__", "errors": "errors"}.get(room, f"{room}__some_file")
    package = build(tmp_path, **{name: f"import os\nfrom semel.{target}.some_file import something\n"})
    (found,) = wrong_directions(package)
    assert f"must not import semel.{target}.some_file.something" in found
    assert ":2:" in found


@pytest.mark.parametrize(("room", "target"), ALLOWED)
def test_each_right_direction_is_accepted(tmp_path: Path, room: str, target: str) -> None:
    name = {"": "__init__", "errors": "errors"}.get(room, f"{room}__some_file")
    text = f"from semel.{target}.some_file import x\n" if target else "from semel import __version__\n"
    assert wrong_directions(build(tmp_path, **{name: text})) == []


@pytest.mark.parametrize(
    "text",
    [
        "import semel.broker",
        "import json, semel.broker as address",
        "from semel import broker",
        "from semel.broker import running",
        "from semel.broker.engine.state import Queue",
        "from .. import broker",
        "from ..broker import running",
        "from ..broker.engine import Engine",
        "def later():\n    from semel.broker import running",
        "class Some:\n    async def later(self):\n        import semel.broker.engine",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from semel.broker import EmbeddedBroker",
        "try:\n    import semel.broker\nexcept ImportError:\n    pass",
        "import importlib\nimportlib.import_module('semel.broker')",
        "from importlib import import_module\nimport_module('semel.broker.engine')",
        "__import__('semel.broker')",
    ],
)
def test_no_way_to_import_goes_unnoticed(tmp_path: Path, text: str) -> None:
    (found,) = wrong_directions(build(tmp_path, consumer__poll=text))
    assert "consumer must not import semel.broker" in found


def test_a_relative_import_is_followed_from_a_package_file_and_from_deep_down(tmp_path: Path) -> None:
    package = build(
        tmp_path,
        ledger____init__="",
        ledger__stores__redis="from ...sqs import limits\nfrom ..claims import Claim\nfrom ... import consumer\n",
    )
    (package / "sqs").mkdir()
    (package / "sqs" / "__init__.py").write_text(
        "from . import limits\nfrom .. import errors\nfrom ..ledger import x\n"
    )
    found = wrong_directions(package)
    assert found == [
        "ledger/stores/redis.py:3: ledger must not import semel.consumer",
        "sqs/__init__.py:3: sqs must not import semel.ledger.x",
    ]


def test_rooms_on_the_same_floor_do_not_know_each_other(tmp_path: Path) -> None:
    package = build(tmp_path, spark__pipeline="from semel.doctor import cures", dlq__look="import semel.dlq.edit")
    assert wrong_directions(package) == ["spark/pipeline.py:1: spark must not import semel.doctor.cures"]


def test_a_public_name_is_no_way_round_the_floors(tmp_path: Path) -> None:
    package = build(tmp_path, ledger__claims="from semel import App, __version__\nimport semel\n")
    assert wrong_directions(package) == [
        "ledger/claims.py:1: ledger takes semel.App from where users do, not from its room"
    ]


def test_a_room_that_is_not_in_the_plan_is_noticed(tmp_path: Path) -> None:
    package = build(tmp_path, attic__box="", helpers="", consumer__poll="import semel.attic.box")
    assert wrong_directions(package) == [
        "attic/box.py: the plan of the house has no room 'attic'",
        "consumer/poll.py:1: consumer must not import semel.attic.box",
        "helpers.py: the plan of the house has no room 'helpers'",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import http.client",
        "from time import monotonic",
        "from urllib.request import urlopen",
        "def later():\n    import time",
        "from random import random",
        "import random",
        "from random import Random\nrng = Random()",
        "print('debug')",
        "text = open('file').read()",
        "from semel.broker import wire",
        "from semel.broker.clock import Clock",
        "from ..faults import Faults",
        "from .. import server",
        "import semel.broker",
    ],
)
def test_an_impure_engine_is_noticed(tmp_path: Path, text: str) -> None:
    (found,) = impurities(build(tmp_path, broker__engine__rules=text))
    assert found.startswith("broker/engine/rules.py:")


def test_each_module_that_is_impure_or_does_io_is_noticed(tmp_path: Path) -> None:
    rules = "".join(f"import {name}\n" for name in sorted(IMPURE))
    wire = "".join(f"import {name}\n" for name in sorted(DOES_IO))
    package = build(tmp_path, broker__engine__rules=rules, broker__wire=wire)
    assert len(impurities(package)) == len(IMPURE)
    assert len(wire_io(package)) == len(DOES_IO)


def test_an_engine_may_name_its_random_source_and_use_its_own_files(tmp_path: Path) -> None:
    text = "import sqlite3\nfrom random import Random\nfrom . import state\nfrom semel.broker.engine import groups\n"
    package = build(tmp_path, broker__engine__rules=text + "from ...sqs import limits\n")
    assert impurities(package) == []
    assert wrong_directions(package) == []


@pytest.mark.parametrize(
    "text",
    [
        "import socket",
        "from urllib.request import urlopen",
        "from semel.broker.engine import Engine",
        "from . import server",
        "def read():\n    return open('file')",
        "async def answer(): ...",
    ],
)
def test_a_wire_that_does_io_is_noticed(tmp_path: Path, text: str) -> None:
    (found,) = wire_io(build(tmp_path, broker__wire=text))
    assert found.startswith("wire.py:")
