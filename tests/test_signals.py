"""A signal that arrives while the main thread holds the lock that is needed to wake other threads: nothing hangs."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

# Each has an event that signals set, and something to enter that makes them.
WORKER: Final = """
from semel.signals import OnSignals
event = threading.Event()
entered = OnSignals(event.set)
"""
PIPELINE: Final = """
from semel.spark.pipeline.stop_request import Stop, on_signals
stop = Stop()
event, entered = stop._wake, on_signals(stop)
"""
PROGRAM: Final = """
import os, signal, threading
{made}
with entered:
    with event._cond:
        os.kill(os.getpid(), signal.SIGTERM)
    assert event.wait(60)
print("ended")
"""


@pytest.mark.parametrize("made", [WORKER, PIPELINE], ids=["worker", "pipeline"])
def test_a_signal_in_the_middle_of_a_wait_is_heard_and_nothing_hangs(made: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(made=made)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (process.stdout, process.returncode) == ("ended\n", 0), process.stderr
