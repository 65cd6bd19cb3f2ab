"""One run with one store: the storm, then the evidence, then the checks. The folder is kept if something is wrong."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from process_crashes import checks, evidence, fleet, plan
from process_crashes.evidence import Evidence
from process_crashes.fleet import WORKER, Fleet
from process_crashes.plan import Fault
from process_crashes.storm import Notify, Storm
from semel import Ledger

RATE: Final = 60.0  # messages a second
_QUIET_END: Final = 2.0  # seconds at the end of a storm without new faults
_TAIL: Final = 5  # lines of a log


@dataclass(slots=True)
class Result:
    store: str
    seed: int
    seconds: float
    folder: Path
    survived: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    messages: int = 0
    effects: int = 0
    deliveries: int = 0
    duplicates: int = 0  # deliveries of keys that were done, deleted without being run
    fenced: int = 0  # outcomes of overtaken workers, refused
    repeated: int = 0  # effects beyond the first of a key, in lease mode
    drain_seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.complaints


def run(
    store: str,
    *,
    seed: int,
    seconds: float,
    notify: Notify = lambda _text: None,
    parent: Path | None = None,
    rate: float = RATE,
    worker_command: tuple[str, ...] = WORKER,
    faults: list[Fault] | None = None,
    keep: bool = False,
) -> Result:
    """`faults`: use these instead of those of the seed. `keep`: keep the folder even if nothing is wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"semel-process-crashes-{store}-", dir=parent))
    result = Result(store, seed, seconds, folder)
    began = time.monotonic()
    with fleet.running(store, folder, rate=rate, worker_command=worker_command) as running:
        if faults is None:
            faults = plan.draw(seed, seconds - _QUIET_END, has_server=running.store.port is not None)
        outcome = Storm(running, faults, seconds, notify).run()
        result.survived, result.drain_seconds = outcome.counts, outcome.drain_seconds
        result.complaints = [*outcome.complaints, *_unexpected_ends(running)]
        run_evidence = evidence.gather(folder, running.store.rows())
        with Ledger.connect(running.store.url(None)) as ledger:
            result.complaints += checks.complaints(run_evidence, ledger)
    _count(result, run_evidence)
    result.seconds = time.monotonic() - began
    if result.passed and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        run_evidence.write(folder)
        (folder / "complaints.txt").write_text("\n".join([f"seed {seed}", *result.complaints]) + "\n")
    return result


def _count(result: Result, run_evidence: Evidence) -> None:
    verdicts = checks.verdicts(run_evidence)
    result.messages = len(run_evidence.accepted)
    result.effects = sum(verdict.counts.effects for verdict in verdicts)
    result.repeated = sum(verdict.counts.repeated_effects for verdict in verdicts)
    result.deliveries = run_evidence.steps["received"]
    result.duplicates, result.fenced = run_evidence.steps["duplicate"], run_evidence.steps["fenced"]


def _unexpected_ends(running: Fleet) -> list[str]:
    """Processes that ended when they should not. One that gives up at its start because the broker or the ledger is
    away is allowed: a supervisor would start it again."""
    return [
        f"{process.name} ended by itself with exit code {code}: {process.log(life)}"
        for process in running.processes
        for life, code in process.own_ends
        if code != 1 or b"Traceback" in process.log(life).read_bytes()
    ]


def last_lines(folder: Path) -> str:
    """For a report: the end of the last log of every process that wrote one. The other logs are in the folder."""
    newest: dict[str, Path] = {}
    for log in sorted((folder / "logs").glob("*.log"), key=lambda log: log.stat().st_mtime):
        if log.stat().st_size:
            newest[log.stem.rpartition("-")[0]] = log
    parts = []
    for log in newest.values():
        lines = log.read_text(errors="replace").splitlines()[-_TAIL:]
        parts.append("\n".join([f"--- {log.name}", *(line[:300] for line in lines)]))
    return "\n".join(parts)
