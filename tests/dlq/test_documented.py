"""docs/how-to/dead-letters.md names every field and every command. Its examples are executed with the other pages."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from dlq.dead_letters import message
from semel.cli import build_parser
from semel.dlq.audit import FIELDS as AUDITED
from semel.dlq.filter.fields import FIELDS
from semel.dlq.snapshots import line

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "dead-letters.md").read_text()


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (subparsers,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(subparsers.choices)


def test_every_field_is_in_the_guide() -> None:
    table = PAGE.split("| field |")[1].split("| sign |")[0]
    assert [name for name in FIELDS if f"`{name}`" not in table] == []
    assert " ".join(AUDITED) in PAGE


def test_every_command_is_in_the_guide() -> None:
    dlq = commands(commands(build_parser())["dlq"])
    table = PAGE.split("| command |")[1].split("All take")[0]
    assert set(re.findall(r"^\| `semel dlq (\w+)", table, re.MULTILINE)) == set(dlq)


def test_every_member_of_a_snapshot_is_in_the_guide() -> None:
    table = PAGE.split("| member |")[1].split("## Watch")[0]
    assert [name for name in json.loads(line(message(), at=1.0)) if f"`{name}`" not in table] == []
