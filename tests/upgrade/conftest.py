"""If old data can no longer be read, the test report says what to do about it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import pytest

ADVICE: Final = """\
What an earlier version of Semel has written can no longer be read, or is read as something else.
- Keep reading it: users have such data, and upgrade in place. Convert it when it is opened, as for example
  src/semel/ledger/sqlite/schema.py does. Do not make the data in tests/upgrade/data again, and do not change what the
  tests expect of it.
- If a format has got a new number on purpose, keep the old folders and add one next to them:
  PYTHONPATH=tests .venv/bin/python -m upgrade.make NAME
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("what to do", ADVICE))
    return report
