"""The service behind the commands: at an endpoint of SQS, or through a dashboard. And the records of this user, which
need no endpoint: jobs, audit log, annotations."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from semel.cli import options
from semel.cli.command import UsageError
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.dlq.audit import AuditEntry
    from semel.dlq.jobs import Control, Job
    from semel.dlq.remote import RemoteDeadLetterService
    from semel.dlq.service import DeadLetterService
    from semel.ledger.contract import Ledger
    from semel.telemetry.annotation_log import Annotation

    Service = DeadLetterService | RemoteDeadLetterService
    Records: TypeAlias = "Service | LocalRecords"


def add_places(parser: argparse.ArgumentParser) -> None:
    """Where the queues are: an endpoint, or a dashboard."""
    group = parser.add_argument_group("endpoint")
    options.add_aws(group)
    options.add_dashboard(group)


@contextlib.contextmanager
def open_service(given: argparse.Namespace) -> Iterator[Service]:
    from semel.dlq.access import PeekRisk

    try:
        with _opened(given) as service:
            yield service
    except PeekRisk as error:
        raise SemelError(f"{error}; --receive accepts that") from None


@contextlib.contextmanager
def _opened(given: argparse.Namespace) -> Iterator[Service]:
    ledger_url = getattr(given, "ledger", None)
    if url := options.dashboard(given):
        from semel.dlq.remote import RemoteDeadLetterService

        if ledger_url and "ledger" not in given.environment:
            raise UsageError("--ledger and --dashboard exclude each other: the dashboard has its own ledger")
        yield RemoteDeadLetterService(url, given.token or "")
        return
    from semel.dlq.service import DeadLetterService

    with contextlib.ExitStack() as stack:
        ledger: Ledger | None = None
        if ledger_url:
            from semel.ledger.connect import connect

            ledger = stack.enter_context(contextlib.closing(connect(ledger_url)))
        client = stack.enter_context(options.client(given))
        max_receive = getattr(given, "max_receive", None)
        if max_receive is None:
            yield DeadLetterService(client, ledger=ledger)
        else:
            yield DeadLetterService(client, ledger=ledger, max_receive=max_receive)


# Records.


def open_records(given: argparse.Namespace) -> Records:
    """Of a dashboard, or of the state folder."""
    if url := options.dashboard(given):
        from semel.dlq.remote import RemoteDeadLetterService

        return RemoteDeadLetterService(url, given.token or "")
    return LocalRecords()


class LocalRecords:
    """What any process of this user wrote into the state folder. The methods are those of `DeadLetterService`."""

    remote = False

    def __init__(self, folder: Path | None = None) -> None:
        from semel.dlq.audit import Audit, somebody
        from semel.dlq.jobs import Jobs
        from semel.state_folder import state_folder

        self._folder = state_folder() if folder is None else folder
        self._who, self._audit = somebody(), Audit.at(self._folder)
        self._jobs = Jobs(self._folder / "jobs")

    def jobs(self) -> list[Job]:
        return self._jobs.all()

    def job(self, id: str) -> Job:
        return self._jobs.get(id)

    def control(self, id: str, action: str) -> Control:
        job = self._jobs.get(id)
        with self._audit.around(self._who, f"{action} job", queue=job.queue, job=id) as ending:
            control = self._jobs.control(id, action, self._who)
            ending.outcome = str(control)
        return control

    def audit_entries(self, where: str = "", limit: int | None = 100) -> list[AuditEntry]:
        return list(self._audit.entries(where, limit))

    def annotate(self, text: str) -> Annotation:
        from semel.telemetry import annotation_log

        with self._audit.around(self._who, "annotate", text=text):
            return annotation_log.add(self._folder, text, self._who, time.time())
