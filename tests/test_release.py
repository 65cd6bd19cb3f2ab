"""When `make release` refuses. What it builds and runs needs a network; `make release` itself tests that."""

from __future__ import annotations

from pathlib import Path

import pytest

from release import problems, reminders

CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2027-01-31)\n\n### Added\n\n## 0.1.0\n\n## 1.1.0rc1\n"


@pytest.mark.parametrize("version", ["0.2.0", "0.1.0"])
def test_a_version_with_a_section_in_the_changelog_is_released(version: str) -> None:
    assert problems(version, CHANGELOG, "", dry=False) == []


@pytest.mark.parametrize("version", ["0.3.0", "0.2.0rc1", "1.1.0"])
def test_a_version_without_a_section_is_not(version: str) -> None:
    reasons = problems(version, CHANGELOG, "", dry=False)
    assert reasons[-1].startswith("CHANGELOG.md has no section for this version")


def test_a_development_version_and_a_changed_tree_are_refused_unless_it_is_a_dry_run() -> None:
    first, second = problems("0.2.0.dev0", CHANGELOG, " M README.md\n", dry=False)
    assert first.startswith("0.2.0.dev0 is not the version of a release")
    assert second.endswith("\n M README.md")
    assert problems("0.2.0.dev0", CHANGELOG, " M README.md\n", dry=True) == []


def test_a_dry_run_of_a_development_version_needs_the_section_unreleased() -> None:
    (reason,) = problems("0.2.0.dev0", CHANGELOG.replace("Unreleased", "0.3.0"), "", dry=True)
    assert reason == "CHANGELOG.md has no section for this version: ## Unreleased"


def test_a_version_without_data_for_upgrade_tests_is_released_with_a_reminder(tmp_path: Path) -> None:
    (tmp_path / "0.1.0").mkdir()
    assert reminders("0.1.0", tmp_path) == []
    (reminder,) = reminders("0.2.0", tmp_path)
    assert "tests/upgrade/data has no folder 0.2.0" in reminder
