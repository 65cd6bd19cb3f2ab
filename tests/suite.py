"""Distributes the tests over several processes (`pytest -n 3`). All tests of a file run in one process, and so do all
files that use the shared Spark. The longest files come first, so that no process runs one alone at the end.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

NO_BROWSER: Final = "no Chromium or Chrome on the PATH"
ADVICE: Final = "Install one to run them (Debian: apt-get install chromium)."
SPARK: Final = "spark"
LONG: Final = (
    "test_soak.py",
    "test_process_crashes.py",
    "test_pages.py",
    "test_spark_crashes.py",
    "test_spark_cluster.py",
    "test_demo.py",
    "test_once.py",
    "test_redrive_crashes.py",
)


_thorough = False


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background commands with SIGINT ignored, and all their processes inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    global _thorough
    _thorough = config.getoption("markexpr") != "not slow"


def slow(*values: Any) -> list[Any]:
    """Parameter values that are only tested in the slow tier."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def effort(*, fast: int, full: int) -> int:
    """The number of attempts of a test that searches for failures: `full` if the slow tier runs as well."""
    return full if _thorough else fast


class Shares(LoadFileScheduling):  # type: ignore[misc]
    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # keep the order of pytest_collection_modifyitems
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return SPARK if uses_spark(self.config.rootpath / file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares:
    return Shares(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # this is one of several processes
        items.sort(key=lambda item: (not uses_spark(item.path), place(item.path)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        report.sections.append(("folder of the test", str(folder)))
        report.sections += [(f"end of {log.relative_to(folder)}", end_of(log)) for log in sorted(folder.rglob("*.log"))]
    # xdist cannot transfer lone surrogates, which some tests log on purpose.
    report.sections = [(title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections]
    return report


def end_of(log: Path, size: int = 4_000) -> str:
    """The end of a log that a process of the test has written."""
    return log.read_bytes()[-size:].decode(errors="replace")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None, None, None]:
    """If tests of pages were skipped, report it at the very end of the run, where nobody overlooks it."""
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    pages = [report for report in skipped if isinstance(report.longrepr, tuple) and NO_BROWSER in report.longrepr[2]]
    if pages:
        terminalreporter.write_line(
            f"NO BROWSER: {len(pages)} tests of pages were skipped. {ADVICE}", red=True, bold=True
        )


@cache
def uses_spark(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return any(name in text for name in ("spark: SparkSession", "on_both_engines_at_once")) or (
        _thorough and "engine: Engine" in text  # the doctor's tests run on Spark in the slow tier
    )


def place(path: Path) -> int:
    return LONG.index(path.name) if path.name in LONG else len(LONG)
