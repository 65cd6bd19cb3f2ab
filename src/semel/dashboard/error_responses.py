"""Errors as responses: a status, what happened, and what to do. Tracebacks are never sent to clients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from semel.dashboard.views.model import DashboardError
from semel.dlq.access import RECEIVE_TOO, PeekRisk
from semel.dlq.filter.parser import FilterError
from semel.dlq.jobs import JobNotRunning, NoSuchJob
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

_log: Final = logging.getLogger("semel.dashboard")


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    status: int
    error: str
    what_to_do: str = ""
    command: str = ""


# The first entry that matches is used.
_KNOWN: Final[tuple[tuple[type[SemelError], int, str, str], ...]] = (
    (NoSuchJob, 404, "only the last 200 jobs are kept; see the list of jobs", ""),
    (JobNotRunning, 409, "", ""),
    (NoSuchMessage, 404, "reload the list of messages", ""),
    (NoSuchQueue, 404, "see the list of queues for its name", ""),
    (QueueNotFound, 404, "see the list of queues for its name", ""),
    (FilterError, 400, "correct the filter", ""),
    (SelectionError, 400, 'give exactly one of where, ids or "all": true', ""),
    (NotDeadLetterQueue, 409, "add any_queue to use it anyway", ""),
    (PeekRisk, 409, RECEIVE_TOO, ""),
    (CredentialsRefused, 502, "start the dashboard with credentials that the endpoint accepts", ""),
    (AccessDenied, 502, "allow it in the policy of the user or role that the dashboard runs as", ""),
    (BadConfiguration, 500, "start the dashboard with other options", "semel dashboard --help"),
    (BadRequest, 400, "", ""),
    (Throttled, 503, "wait a moment, then try again", ""),
    (Unreachable, 503, "check that the endpoint is running and that --endpoint-url is right", "semel broker"),
    (ServerFailed, 502, "try again; if it fails again, see the endpoint's log", ""),
    (LedgerUnavailable, 503, "check that the ledger's store is running and that --ledger is right", ""),
)


def of(error: SemelError) -> ErrorAnswer:
    if isinstance(error, DashboardError):
        return ErrorAnswer(error.status, error.error, error.what_to_do)
    if isinstance(error, AdminError):
        status = error.status if error.status in (400, 404, 409) else 502
        return ErrorAnswer(status, str(error), "" if status == 400 else "reload the page")
    for kind, status, what_to_do, command in _KNOWN:
        if isinstance(error, kind):
            return ErrorAnswer(status, str(error), what_to_do, command)
    return ErrorAnswer(502 if isinstance(error, SqsError) else 400, str(error))


def handle(app: FastAPI, respond: Callable[[Request, ErrorAnswer], Response]) -> None:
    """Turns every exception of the application into a response."""

    @app.exception_handler(SemelError)
    def semel(request: Request, error: SemelError) -> Response:
        return respond(request, of(error))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        parts = [
            f"{'.'.join(map(str, detail['loc'][1:])) or detail['loc'][0]}: {detail['msg']}"
            for detail in error.errors()[:5]
        ]
        return respond(request, ErrorAnswer(422, "; ".join(parts), "see /api for the parameters of this call"))

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return respond(request, ErrorAnswer(404, "there is nothing at this address", "start at the list of queues"))
        if error.status_code == 405:
            return respond(request, ErrorAnswer(405, f"{request.method} is not allowed here", "see /api"))
        return respond(request, ErrorAnswer(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return respond(request, ErrorAnswer(500, "an unexpected error occurred", "see the dashboard's log"))
