"""When Spark ends the process in which the source plans, the user sees nothing of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

# Spark's runner: reads the next call, stops the reader, and fails to report why to a Java that is gone.
RUNNER: Final = """
import sys
from semel.spark.source.datasource import SqsStreamReader

class Reader(SqsStreamReader):
    def __init__(self):
        self._made = None

reader = Reader()
try:
    try:
        raise {first}
    finally:
        reader.stop()
except BaseException:
    raise BrokenPipeError("nobody listens")
"""


@pytest.mark.parametrize(("first", "has_traceback"), [("EOFError()", False), ("ValueError('a mistake')", True)])
def test_a_connection_that_java_has_closed_is_no_failure_but_others_are(first: str, has_traceback: bool) -> None:
    process = subprocess.run(
        [sys.executable, "-c", RUNNER.format(first=first)], capture_output=True, text=True, check=False, timeout=120
    )
    assert process.returncode == 1
    assert ("Traceback" in process.stderr) is has_traceback, process.stderr
