"""`status.json` in the checkpoint, replaced whole at each batch, and what `semel pipeline status` says of it.

The rule: it is read without Spark, without SQS and without the pipeline's own process, and says so if that is gone.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

import orjson

from semel.errors import SemelError
from semel.spark.pipeline.config import Pipeline
from semel.spark.pipeline.progress.display import machine_readable
from semel.spark.pipeline.progress.figures import duration, render
from semel.spark.pipeline.progress.snapshot import Snapshot, State
from semel.spark.segments.storage import Store, open_store

if TYPE_CHECKING:
    from semel.spark.pipeline.progress.totals import Progress  # which needs pyarrow; whoever only looks does not

log: Final = logging.getLogger("semel.spark")

STATUS: Final = "status.json"
BEAT: Final = 10.0  # seconds between two writes while nothing happens
SILENT: Final = 60.0  # without a write for so long, a driver on another machine is taken for gone

RUNNING, FAILED, NEVER_RAN = 0, 1, 3  # exit codes; 0 also for a pipeline that ended well


class StatusFile:
    """Written by the driver. A status that cannot be written is a warning, never the end of a pipeline."""

    def __init__(self, store: Store, board: Progress) -> None:
        self._store, self._board = store, board
        self._written = 0.0
        self._lock = threading.Lock()  # else a snapshot of before a batch could replace the one of after it

    def write(self) -> None:
        with self._lock:
            self._written = time.monotonic()
            try:
                self._store.put(STATUS, self._board.snapshot().encode())
            except (SemelError, OSError) as error:
                log.warning("%s/%s cannot be written: %s", self._store.url, STATUS, error)

    def beat(self) -> None:
        """Called often; writes if it was not written for a while."""
        if time.monotonic() - self._written >= BEAT:
            self.write()


def read(store: Store) -> Snapshot | None:
    """None if there is none, or none that can be read: then there is only less to tell."""
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
    """`state` in words, and the exit code that goes with it."""

    text: str
    code: int


def verdict(found: Snapshot, now: float, *, host: str, alive: bool) -> Verdict:
    """`alive`: whether this machine has a process of that number."""
    who, ago = f"pid {found.pid} on {found.host}", duration(now - found.updated)
    if found.state is State.FAILED:
        return Verdict(f"failed {ago} ago", FAILED)
    if found.state.ended:
        return Verdict(f"{found.state} {ago} ago", RUNNING)
    if found.host == host and not alive:
        return Verdict(
            f"died: {who} is gone and was {found.state} {ago} ago. Start it again, it goes on where it was", FAILED
        )
    if now - found.updated > SILENT:
        return Verdict(
            f"{found.state}, but {who} has not been heard of for {ago}. Does it hang, or has it died?", FAILED
        )
    return Verdict(f"{found.state} ({who})", RUNNING)


def show(pipeline: Pipeline, *, as_json: bool = False, stream: TextIO | None = None) -> int:
    """Print how a pipeline does, or did. Returns the exit code: 0 runs or ended well, 1 failed or died, 3 never ran."""
    out = sys.stdout if stream is None else stream
    found = read(open_store(pipeline.checkpoint))
    if found is None:
        text = f"{pipeline.name} has not run yet: there is no {STATUS} in {pipeline.checkpoint}"
        print(orjson.dumps({"pipeline": pipeline.name, "state": "never ran"}).decode() if as_json else text, file=out)
        return NEVER_RAN
    said = verdict(found, time.time(), host=socket.gethostname(), alive=_alive(found.pid))
    if as_json:
        told = {**machine_readable(found), "trace": found.trace, "verdict": said.text}
        print(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode(), file=out)
        return said.code
    width = shutil.get_terminal_size().columns
    plain = "utf" not in (getattr(out, "encoding", None) or "utf-8").lower()
    _, *lines = render(found, width, ascii_only=plain)
    print("\n".join([f"{pipeline.name}: {said.text}", *lines, *_places(found, pipeline)]), file=out)
    return said.code


def _places(found: Snapshot, pipeline: Pipeline) -> list[str]:
    lines = [f"  {'from':<11}{', '.join(pipeline.source.queues)}", f"  {'into':<11}{found.sink}"]
    lines.append(f"  {'checkpoint':<11}{pipeline.checkpoint}")
    if found.health and not found.state.ended:
        lines.append(f"  {'health':<11}{found.health}/health")
    return lines


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is there, and somebody else's
        return True
    return True
