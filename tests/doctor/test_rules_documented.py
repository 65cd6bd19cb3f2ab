"""The page about the rules matches the rules."""

from __future__ import annotations

from pathlib import Path

from semel.doctor.rules import ALL

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "doctor-rules.md"


def test_each_rule_is_on_the_page_as_it_is_and_no_other() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    rows = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    assert rows == [(f"`{rule.name}`", rule.severity.word, rule.title, rule.needs, rule.remedy) for rule in ALL]
