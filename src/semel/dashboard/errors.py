"""What went wrong, for whoever asked: a status, what happened, and what to do. No traceback ever leaves the house."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.dashboard.views.errors import DashboardError
from semel.dlq.access import RECEIVE_TOO, PeekRisk
from semel.dlq.filter.parser import FilterError
from semel.dlq.job_control import JobNotRunning
from semel.dlq.jobs import NoSuchJob
from semel.dlq.queues import NoSuchQueue, NotDeadLetterQueue
from semel.dlq.selection import SelectionError
from semel.dlq.service import NoSuchMessage
from semel.errors import SemelError
from semel.ledger.contract import LedgerUnavailable
from semel.sqs.client.admin import AdminError
from semel.sqs.errors import (
    AccessDenied,
    BadConfiguration,
    BadRequest,
    CredentialsRefused,
    QueueNotFound,
    ServerFailed,
    SqsError,
    Throttled,
    Unreachable,
)


@dataclass(frozen=True, slots=True)
class Problem:
    status: int
    error: str
    what_to_do: str = ""
    command: str = ""


# The first that fits counts.
_KNOWN: Final[tuple[tuple[type[SemelError], int, str, str], ...]] = (
    (NoSuchJob, 404, "only the last 200 jobs are kept; see the list of jobs", ""),
    (JobNotRunning, 409, "", ""),
    (NoSuchMessage, 404, "reload the list of letters", ""),
    (NoSuchQueue, 404, "see the list of queues for its name", ""),
    (QueueNotFound, 404, "see the list of queues for its name", ""),
    (FilterError, 400, "correct the filter", ""),
    (SelectionError, 400, 'give exactly one of where, ids or "all": true', ""),
    (NotDeadLetterQueue, 409, "say any_queue if it is meant all the same", ""),
    (PeekRisk, 409, RECEIVE_TOO, ""),
    (CredentialsRefused, 502, "give the dashboard credentials that the endpoint knows", ""),
    (AccessDenied, 502, "allow it in the policy of the user or role that the dashboard runs as", ""),
    (BadConfiguration, 500, "start the dashboard with other options", "semel dashboard --help"),
    (BadRequest, 400, "", ""),
    (Throttled, 503, "wait a little, and try again", ""),
    (Unreachable, 503, "see that the endpoint runs and that --endpoint-url is right", "semel serve"),
    (ServerFailed, 502, "try again; if it stays so, see the endpoint's log", ""),
    (LedgerUnavailable, 503, "see that the ledger's store runs and that --ledger is right", ""),
)


def of(error: SemelError) -> Problem:
    if isinstance(error, DashboardError):
        return Problem(error.status, error.error, error.what_to_do)
    if isinstance(error, AdminError):
        status = error.status if error.status in (400, 404, 409) else 502
        return Problem(status, str(error), "" if status == 400 else "reload the page")
    for kind, status, what_to_do, command in _KNOWN:
        if isinstance(error, kind):
            return Problem(status, str(error), what_to_do, command)
    return Problem(502 if isinstance(error, SqsError) else 400, str(error))
