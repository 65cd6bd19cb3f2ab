"""docs/dead-letters.md says what there is: every field, every command, and examples that work."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from dlq.letters import letter
from semel.cli import build_parser
from semel.dlq.audit import FIELDS as AUDITED
from semel.dlq.filter_terms import FIELDS
from semel.dlq.filters import parse
from semel.dlq.snapshots import line

PAGE = (Path(__file__).parents[2] / "docs" / "dead-letters.md").read_text()


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found.choices)


def filters() -> list[str]:
    block = PAGE.split("No filter means every letter.")[1].split("|")[0]
    examples = [re.split(r" {3,}", text.strip())[0] for text in block.splitlines() if text.startswith("    ")]
    return examples + re.findall(r"--where '([^']+)'", PAGE)


@pytest.mark.parametrize("text", [text for text in filters() if "action =" not in text])
def test_every_filter_in_the_guide_is_one(text: str) -> None:
    assert str(parse(text))


def test_every_field_is_in_the_guide() -> None:
    table = PAGE.split("| field |")[1].split("| sign |")[0]
    assert [name for name in FIELDS if f"`{name}`" not in table] == []
    assert " ".join(AUDITED) in PAGE


def test_every_command_and_its_options_are_there() -> None:
    dlq = commands(commands(build_parser())["dlq"])
    table = PAGE.split("| command |")[1].split("All take")[0]
    assert set(re.findall(r"^\| `(\w+)", table, re.MULTILINE)) == set(dlq)
    for name, options in re.findall(r"^ +(?:\$ |[^a-z]*)semel dlq (\w+)(.*)$", PAGE, re.MULTILINE):
        known = {option for action in dlq[name]._actions for option in action.option_strings}
        assert set(re.findall(r"(?<= )--[a-z-]+", options)) <= known, (name, options)


def test_every_member_of_a_snapshot_is_in_the_guide() -> None:
    table = PAGE.split("| member |")[1].split("## Watch")[0]
    assert [name for name in json.loads(line(letter(), at=1.0)) if f"`{name}`" not in table] == []
