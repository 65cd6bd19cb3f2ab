"""The page about the rules matches the rules."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import semel.doctor.rules
from semel.cli import doctor
from semel.doctor.rules import ALL

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "doctor-rules.md"


def test_each_rule_is_on_the_page_as_it_is_and_no_other() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    rows = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    assert rows == [(f"`{rule.name}`", rule.severity.word, rule.title, rule.needs, rule.remedy) for rule in ALL]


def test_each_option_that_a_rule_names_in_brackets_is_an_option_of_the_command() -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    doctor.add_to(commands)
    known = {name for action in commands.choices["doctor"]._actions for name in action.option_strings}
    folder = Path(semel.doctor.rules.__file__).parent
    named = {name for file in folder.glob("*.py") for name in re.findall(r"\((--[a-z-]+)\)", file.read_text("utf-8"))}
    assert named, "no rule names an option: the expression finds nothing"
    assert named <= known
