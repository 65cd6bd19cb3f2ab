"""The doctor's last examination, and the next one in the background: a page never waits for it.

Without attempt logs it only asks SQS, our broker's history and the ledger, which takes a second. With logs it starts
Spark, so it runs only when somebody says so, and one at a time.
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

from semel.dashboard.data.model import DoctorPage, FindingRow, Level, RecommendationRow
from semel.dashboard.settings import Settings
from semel.doctor.model import Diagnosis, Severity
from semel.errors import SemelError

MOST_QUEUES: Final = 100
_LEVELS: Final = {Severity.CRITICAL: Level.CRITICAL, Severity.WARNING: Level.WARNING, Severity.INFO: Level.INFO}
log = logging.getLogger("semel.dashboard")


class DoctorJob:
    """`queues` names those to look at, `history` is what our broker remembers of them. Thread-safe."""

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
        self._diagnosis: Diagnosis | None = None
        self._step = ""
        self._running = False
        self._thread: threading.Thread | None = None

    @property
    def diagnosis(self) -> Diagnosis | None:
        return self._diagnosis

    def page(self) -> DoctorPage:
        """The last one. The first look starts one, if that needs no Spark."""
        if self._thread is None and not self._settings.attempt_logs:
            self.start()
        with self._lock:
            return replace(self._page, running=self._running, step=self._step)

    def start(self) -> bool:
        """Examine in the background; False if that is being done already."""
        with self._lock:
            if self._running:
                return False
            self._running, self._step = True, "beginning"
            self._thread = threading.Thread(target=self._examine, name="semel-doctor", daemon=True)
            self._thread.start()
            return True

    def wait(self, timeout: float) -> bool:
        """Whether none is running, by then."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return not self._running

    def _examine(self) -> None:
        began = time.monotonic()
        error: str | None = None
        diagnosis: Diagnosis | None = None
        notes: tuple[str, ...] = ()
        try:
            names = sorted(self._queues())
            if len(names) > MOST_QUEUES:
                notes = (f"{len(names) - MOST_QUEUES} queues were not looked at: {MOST_QUEUES} is the most.",)
            diagnosis = self._ask(tuple(names[:MOST_QUEUES]))
        except SemelError as problem:
            error = str(problem)
        except Exception as problem:
            log.exception("the doctor failed")
            error = f"{type(problem).__name__}: {problem}"
        with self._lock:
            self._page = self._told(diagnosis, error, notes, time.monotonic() - began)
            self._diagnosis = diagnosis or self._diagnosis
            self._running, self._step = False, ""

    def _ask(self, names: tuple[str, ...]) -> Diagnosis:
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
            )
            return diagnose(request, say=self._say, now=self._clock())

    def _metrics(self, folder: Path) -> tuple[str, ...]:
        """The past that our broker remembers, as the doctor reads metrics: a file."""
        told = self._history()
        if not told or not told.get("queues"):
            return ()
        file = folder / "history.json"
        file.write_text(json.dumps(told))
        return (str(file),)

    def _say(self, step: str) -> None:
        self._step = step

    def _told(self, diagnosis: Diagnosis | None, error: str | None, notes: tuple[str, ...], took: float) -> DoctorPage:
        if diagnosis is None:
            return DoctorPage(
                running=False, made_at=self._page.made_at, error=error, with_logs=bool(self._settings.attempt_logs)
            )
        return DoctorPage(
            running=False,
            made_at=diagnosis.made_at,
            took=round(took, 3),
            findings=tuple(
                FindingRow(
                    rule=finding.rule,
                    level=_LEVELS[finding.severity],
                    queue=finding.queue,
                    observed=finding.observed,
                    why=finding.why,
                    remedy=finding.remedy.text,
                    commands=tuple(finding.remedy.cli),
                    terraform=finding.remedy.terraform,
                )
                for finding in diagnosis.findings
            ),
            recommendations=tuple(
                RecommendationRow(one.queue, one.setting, one.value, one.now, one.reasons, one.changes)
                for one in diagnosis.recommendations
            ),
            notes=(*notes, *diagnosis.notes),
            with_logs=bool(self._settings.attempt_logs),
            report="/doctor/report",
        )
