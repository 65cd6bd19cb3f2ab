"""The doctor's last diagnosis, and the next one in the background: a page never waits for it.

One diagnosis runs at a time. It starts at the first request, on demand, and at a request when the last one is some
minutes old. If the attempt logs cannot be read, the page says why, and everything else is examined anyway.
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from semel.dashboard.settings import Settings
from semel.dashboard.views.model import DoctorPage
from semel.doctor.model import Diagnosis
from semel.errors import SemelError

MAX_QUEUES: Final = 100
GOOD_FOR: Final = 300.0  # seconds
RETRY_AFTER: Final = 60.0  # if it failed, or the attempt logs could not be read
SHARE: Final = 20  # where logs are large, at most a twentieth of the time goes into unrequested diagnoses
log = logging.getLogger("semel.dashboard")


class DoctorJob:
    """`queues`: the names of the queues to examine; `history`: the broker's history of them. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        queues: Callable[[], Sequence[str]],
        history: Callable[[], Mapping[str, Any] | None] = lambda: None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._queues, self._history, self._clock = settings, queues, history, clock
        self._lock = threading.Lock()
        self._page = DoctorPage(running=False, with_logs=bool(settings.attempt_logs))
        self.diagnosis: Diagnosis | None = None
        self._step = ""
        self._running = False
        self._due_at = 0.0
        self._thread: threading.Thread | None = None

    def page(self) -> DoctorPage:
        """The last diagnosis. Starts the next one if it is due."""
        with self._lock:
            if not self._running and self._clock() >= self._due_at:
                self._begin()
            return replace(self._page, running=self._running, step=self._step)

    def start(self) -> bool:
        """Starts a diagnosis in the background; False if one is already running."""
        with self._lock:
            if self._running:
                return False
            self._begin()
            return True

    def _begin(self) -> None:
        self._running, self._step = True, "beginning"
        self._thread = threading.Thread(target=self._examine, name="semel-doctor", daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Waits for the running diagnosis; False if it still runs after the timeout."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return not self._running

    def _examine(self) -> None:
        began = time.monotonic()
        diagnosis, page = self.diagnosis, self._page
        try:
            names = sorted(self._queues())
            notes: tuple[str, ...] = ()
            if len(names) > MAX_QUEUES:
                notes = (f"{len(names) - MAX_QUEUES} queues were not examined: the maximum is {MAX_QUEUES}.",)
            diagnosis, problem = self._diagnose(tuple(names[:MAX_QUEUES]))
            page = DoctorPage(
                running=False,
                made_at=diagnosis.made_at,
                findings=diagnosis.findings,
                recommendations=diagnosis.recommendations,
                notes=(*notes, *diagnosis.notes),
                with_logs=page.with_logs,
                report="/doctor/report",
            )
        except Exception as error:  # noqa: BLE001  the page shows it
            problem = _reason(error)
        took = time.monotonic() - began
        with self._lock:
            self._page = replace(page, error=problem, took=round(took, 3))
            self.diagnosis = diagnosis
            self._due_at = self._clock() + max(GOOD_FOR if problem is None else RETRY_AFTER, SHARE * took)
            self._running, self._step = False, ""

    def _diagnose(self, names: tuple[str, ...]) -> tuple[Diagnosis, str | None]:
        """The diagnosis; and if the attempt logs could not be read for it, why."""
        from semel.doctor.diagnosis import Request, diagnose

        settings = self._settings
        with tempfile.TemporaryDirectory(prefix="semel-doctor-") as folder:
            request = Request(
                logs=settings.attempt_logs,
                queues=names,
                endpoint_url=settings.endpoint_url,
                region=settings.region,
                profile=settings.profile,
                metrics=self._metrics(Path(folder)),
                ledger=settings.ledger,
                engine="duckdb",
            )
            try:
                return diagnose(request, on_progress=self._set_step, now=self._clock()), None
            except Exception as error:
                if not request.logs:
                    raise
                problem = f"The attempt log was not read: {_reason(error).removeprefix('--log ')}"
                return diagnose(replace(request, logs=()), on_progress=self._set_step, now=self._clock()), problem

    def _metrics(self, folder: Path) -> tuple[str, ...]:
        """The broker's history as a file, which is how the doctor reads metrics."""
        history = self._history()
        if not history or not history.get("queues"):
            return ()
        file = folder / "history.json"
        file.write_text(json.dumps(history))
        return (str(file),)

    def _set_step(self, step: str) -> None:
        self._step = step


def _reason(error: Exception) -> str:
    if isinstance(error, SemelError):
        return str(error)
    log.error("the doctor failed", exc_info=error)
    return f"{type(error).__name__}: {error}"
