"""Real processes are killed, stopped, restarted and cut off for half a minute with each store. Broken workers must be
caught.

`make proof-crashes` does the same for 15 minutes.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Final

import pytest

from process_crashes import run, stores
from process_crashes.plan import PRODUCERS, WORKERS, Fault, Kind, draw
from semel.cli import main as semel_command

SECONDS: Final = 35.0
pytestmark = pytest.mark.timeout(400)


def _seed() -> int:
    seed = int(os.environ.get("SEMEL_PROOF_SEED", Random().getrandbits(32)))
    print(f"SEMEL_PROOF_SEED={seed} repeats the faults of this run")
    return seed


@pytest.mark.slow
@pytest.mark.parametrize("store", stores.NAMES)
def test_whatever_happens_to_real_processes_nothing_is_lost_doubled_or_reordered(store: str, tmp_path: Path) -> None:
    result = run.run(store, seed=_seed(), seconds=SECONDS, parent=tmp_path)
    assert result.passed, "\n".join([*result.complaints[:20], run.last_lines(result.folder)])
    assert result.messages > 100
    assert sum(result.survived.values()) > 10


@pytest.mark.slow
@pytest.mark.parametrize(("worker", "finding"), [("plain", "doubled:"), ("hasty", "lost:")])
def test_a_worker_without_a_ledger_is_caught(worker: str, finding: str, tmp_path: Path) -> None:
    """A boto3 loop that deletes after its effect doubles some effects; one that deletes before it loses some."""
    kills = [Fault(8.0 + 4 * n, Kind.KILL_WORKER, victim=n % WORKERS) for n in range(5)]
    command = ("process_crashes.broken_worker", worker)
    result = run.run("sqlite", seed=0, seconds=27, parent=tmp_path, rate=30, worker_command=command, faults=kills)
    assert result.survived[Kind.KILL_WORKER] == len(kills)
    assert any(text.startswith(finding) for text in result.complaints), result.complaints[:20]
    # `semel verify` finds the same in the folder.
    assert semel_command(["verify", "--quiet", str(result.folder / "exactly-once.jsonl")]) == 3


def test_a_seed_decides_what_happens_when() -> None:
    plan = draw(7, 600, has_server=True)
    assert plan == draw(7, 600, has_server=True)
    assert plan != draw(8, 600, has_server=True)
    assert {fault.kind for fault in plan} == set(Kind) - {Kind.FILL_LEDGER_DISK}
    assert {fault.kind for fault in draw(7, 600, has_server=False)} == set(Kind) - {Kind.RESTART_STORE}
    assert all(fault.victim < (PRODUCERS if fault.kind is Kind.KILL_PRODUCER else WORKERS) for fault in plan)
