"""The JSON API under /api/v1: everything that the pages show and do, for scripts and for `--dashboard` of the CLI."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, FastAPI

from semel.dashboard.api import dead_letters, jobs_and_workers, queues
from semel.dashboard.api.schemas import plan_schema
from semel.dashboard.services import Services
from semel.dashboard.settings import Settings

PREFIX: Final = "/api/v1"
DESCRIPTION: Final = """\
Queues, messages, dead letters, jobs and workers as JSON.

Times are seconds since 1970, durations are seconds, `null` means "not known". An error has an HTTP status and a body
`{"error": …, "what_to_do": …}`.

SQS shows a message only to those who receive it. That raises the message's receive count and may move it to another
queue. Calls that would receive answer 409 unless they are made with `receive=1`. Semel's broker needs no receives."""
TAGS: Final[list[dict[str, Any]]] = [
    {"name": "Queues", "description": "Depth, age, rates and their history, alarms, faults."},
    {"name": "Messages", "description": "List messages, the state of one; send."},
    {"name": "Dead letters", "description": "List messages and errors, export; redrive, resend, delete, restore."},
    {"name": "Jobs", "description": "Progress; pause, resume, cancel."},
    {"name": "Deliveries", "description": "Deliveries, effects and duplicates."},
    {"name": "Workers", "description": "Messages in progress; pause, resume, concurrency, stop."},
    {"name": "Doctor", "description": "Findings and remedies."},
    {"name": "Audit", "description": "Audit log and annotations."},
]


def router(services: Services) -> APIRouter:
    router = APIRouter(prefix=PREFIX)
    for part in (queues, dead_letters, jobs_and_workers):
        router.include_router(part.routes(services))
    return router


def describe(app: FastAPI, settings: Settings) -> None:
    """Adds the fields of a redrive, and the authentication, to the description."""
    generate = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = generate()
            description["components"]["schemas"] |= plan_schema()
            if not settings.open_access:
                description["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                description["security"] = [{"token": []}]
            app.openapi_schema = description
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
