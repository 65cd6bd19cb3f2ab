"""The records of the operators' work in the state folder: jobs, audit log, annotations. They need no endpoint."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from semel.dlq.audit import Audit, AuditEntry, somebody
from semel.dlq.jobs import Control, Job, Jobs
from semel.state_folder import state_folder
from semel.telemetry import annotation_log
from semel.telemetry.annotation_log import Annotation


class OperatorRecords:
    """The records as one user sees and changes them; any process of this user writes into the same folder."""

    remote: Final = False

    def __init__(
        self,
        *,
        audit: Audit | None = None,
        who: str = "",
        state: Path | None = None,
        jobs: Jobs | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.state = state if state is not None else state_folder()
        self.audit = audit if audit is not None else Audit.at(self.state, clock=clock)
        self.who = who or somebody()
        self._jobs = jobs if jobs is not None else Jobs(self.state / "jobs", clock=clock)
        self._clock = clock

    def by(self, who: str) -> Self:
        """The same object in another user's name; everything else is shared."""
        other = copy.copy(self)
        other.who = who
        return other

    def jobs(self) -> list[Job]:
        """All jobs, the newest first."""
        return self._jobs.all()

    def job(self, id: str) -> Job:
        """The job with this id. Raises NoSuchJob."""
        return self._jobs.get(id)

    def wait(self, id: str, timeout: float | None = None) -> Job:
        """Waits until the job has ended, or for `timeout` seconds, and returns it. It may run in another process."""
        return self._jobs.wait(id, timeout)

    def control(self, id: str, action: str) -> Control:
        """Asks a job to pause, resume or cancel (`action`). It may run in another process. Raises JobNotRunning."""
        job = self._jobs.get(id)
        known: dict[str, Any] = {"queue": job.queue, "job": job.id}
        self.audit.write(self.who, f"{action} job", outcome="asked", **known)
        try:
            control = self._jobs.control(id, action, self.who)
        except BaseException as error:
            self.audit.add(self.who, f"{action} job", outcome=f"failed: {error}", **known)
            raise
        self.audit.add(self.who, f"{action} job", outcome=str(control), **known)
        return control

    def audit_entries(self, where: str = "", limit: int | None = 100) -> list[AuditEntry]:
        """Entries of the audit log that match the filter `where`, the newest first; at most `limit`."""
        return list(self.audit.entries(where, limit))

    def annotate(self, text: str) -> Annotation:
        """Records that something happened now, such as a deploy."""
        with self.audit.around(self.who, "annotate", text=text):
            return annotation_log.add(self.state, text, self.who, self._clock())

    def annotations(self, since: float = 0.0) -> list[Annotation]:
        """The annotations since this time, in seconds since 1970."""
        return annotation_log.since(self.state, since)
