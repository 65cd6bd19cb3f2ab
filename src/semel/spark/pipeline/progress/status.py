"""`status.json` in the checkpoint, replaced at each batch, and what `semel pipeline status` prints of it.

The rule: reading it needs neither Spark nor SQS nor the pipeline's process; if that process is gone, the text says so.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TextIO

import orjson

from semel import durations
from semel.errors import SemelError
from semel.spark.pipeline.config import Pipeline
from semel.spark.pipeline.progress.display import Output, as_lines, json_values
from semel.spark.pipeline.progress.figures import clean
from semel.spark.pipeline.progress.snapshot import Snapshot, State
from semel.spark.segments.storage import Store, open_store

if TYPE_CHECKING:
    from semel.spark.pipeline.progress.totals import Progress  # it needs pyarrow; reading a status does not

log: Final = logging.getLogger("semel.spark")

STATUS: Final = "status.json"
BEAT: Final = 10.0  # seconds between two writes while nothing happens
SILENT: Final = 60.0  # after this time without a write, a driver on another machine counts as gone


class StatusFile:
    """Written by the driver. A status that cannot be written is a warning, never the end of a pipeline."""

    def __init__(self, store: Store, progress: Progress) -> None:
        self._store, self._progress = store, progress
        self._written_at = 0.0
        self._lock = threading.Lock()  # an older snapshot must not replace a newer one

    def write(self) -> None:
        with self._lock:
            self._written_at = time.monotonic()
            try:
                self._store.put(STATUS, self._progress.snapshot().encode())
            except (SemelError, OSError) as error:
                log.warning("%s/%s cannot be written: %s", self._store.url, STATUS, error)

    def beat(self) -> None:
        """Called often; writes if the last write is BEAT seconds ago."""
        if time.monotonic() - self._written_at >= BEAT:
            self.write()


def read(store: Store) -> Snapshot | None:
    """None if there is no status, or it cannot be read: it holds figures only, which a run does not need."""
    data = store.read(STATUS)
    if data is None:
        return None
    try:
        return Snapshot.decode(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s/%s cannot be read: %s", store.url, STATUS, error)
        return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state in words, and whether it runs or ended without an error."""

    text: str
    healthy: bool


def verdict(snapshot: Snapshot, now: float, *, host: str, alive: bool) -> Verdict:
    """`alive`: whether this machine has a process of that number."""
    state, process = snapshot.state, f"pid {snapshot.pid} on {snapshot.host}"
    ago = durations.text(int(now - snapshot.updated))
    if state.ended:
        return Verdict(f"{state} {ago} ago", state is not State.FAILED)
    if snapshot.host == host and not alive:
        text = f"died: {process} is gone; {ago} ago it was {state}. Start it again: it continues where it stopped"
        return Verdict(text, False)
    if now - snapshot.updated > SILENT:
        text = f"{state}, but {process} has written no status for {ago}. Does it hang, or has it died?"
        return Verdict(text, False)
    return Verdict(f"{state} ({process})", True)


def show(pipeline: Pipeline, *, output: str = "table", stream: TextIO | None = None) -> bool:
    """Print the status as table, json or jsonl. Returns whether it runs, waits or ended without an error."""
    out = Output(sys.stdout if stream is None else stream)
    snapshot = read(open_store(pipeline.checkpoint))
    if snapshot is None:
        text = f"{pipeline.name} has not run yet: there is no {STATUS} in {pipeline.checkpoint}"
        never = orjson.dumps({"pipeline": pipeline.name, "state": "never ran"}).decode()
        out.write(f"{text if output == 'table' else never}\n")
        return False
    now = time.time()
    judged = verdict(snapshot, now, host=socket.gethostname(), alive=_alive(snapshot.pid))
    if output != "table":
        values = {**json_values(snapshot), "trace": snapshot.trace, "verdict": judged.text}
        out.write(orjson.dumps(values, option=orjson.OPT_INDENT_2 if output == "json" else None).decode() + "\n")
        return judged.healthy
    width = shutil.get_terminal_size().columns
    lines = as_lines(replace(snapshot, updated=max(now, snapshot.updated)), width, heading=False)
    out.write("\n".join([f"{pipeline.name}: {judged.text}", *lines, *_addresses(snapshot, pipeline)]) + "\n")
    return judged.healthy


def _addresses(snapshot: Snapshot, pipeline: Pipeline) -> list[str]:
    rows = {"from": ", ".join(pipeline.source.queues), "into": snapshot.sink, "checkpoint": pipeline.checkpoint}
    if snapshot.health and not snapshot.state.ended:
        rows["health"] = f"{snapshot.health}/health"
    return [f"  {label:<11}{clean(text)}" for label, text in rows.items()]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists and belongs to somebody else
        return True
    return True
