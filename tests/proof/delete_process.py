"""A delete or a restore in a process of its own, which is killed at a point that the test names."""

from __future__ import annotations

import time
from pathlib import Path

from redrive_process import client_for, killer

from semel.dlq import delete as deletes
from semel.dlq.access import open_access
from semel.dlq.access.sqs import SqsAccess
from semel.dlq.filter.parser import parse
from semel.dlq.jobs import Job
from semel.dlq.restore import Restorer

deletes.ROUND = 7  # type: ignore[misc]  # so that few messages take several rounds
SqsAccess.__init__.__kwdefaults__["wait"] = 0  # type: ignore[index]


def delete(url: str, queue: str, where: str, file: str, admitted: bool, ahead: float, point: str, nth: int) -> None:
    with client_for(url, admitted=admitted) as client:
        access = open_access(client, queue, clock=lambda: time.time() + ahead)
        deleter = deletes.Deleter(access, parse(where), Path(file), crash=killer(point, nth))
        _finished(Job("delete", queue).run(deleter.run))


def restore(url: str, file: str, admitted: bool, point: str, nth: int) -> None:
    with client_for(url, admitted=admitted) as client:
        restorer = Restorer(client, Path(file), folder=Path(file).parent, crash=killer(point, nth))
        _finished(Job("restore", restorer.queues[0]).run(restorer.run))


def _finished(job: Job) -> None:
    if job.state != "done":
        raise SystemExit(f"{job.state}: {job.reason}")
