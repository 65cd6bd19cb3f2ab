"""The JSON API under /api/v1: everything that the pages show and do, for scripts and for `semel dlq --via`."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, FastAPI

from semel.dashboard.api import dead_letters as messages
from semel.dashboard.api import operations as operating
from semel.dashboard.api import queues as looking
from semel.dashboard.services import Services
from semel.dashboard.settings import Settings

PREFIX: Final = "/api/v1"
DESCRIPTION: Final = """\
Queues, messages, dead letters, workers and the rest of Semel's dashboard, as JSON.

Times are seconds since 1970, durations are seconds, `null` is "not known". Errors have a `status` that says what kind
they are, and a body `{"error": …, "what_to_do": …}`.

Where the endpoint is not Semel's own broker, a message can be seen only by receiving it, which counts against it. Calls
that would do that answer 409 unless they are made with `look=1`."""
TAGS: Final[list[dict[str, Any]]] = [
    {"name": "Queues", "description": "Depth, age, rates and their past, alarms, faults."},
    {"name": "Messages", "description": "What is in a queue, and why it is still there."},
    {"name": "Dead letters", "description": "Groups, letters, export; redrive, resend, drop, restore."},
    {"name": "Jobs", "description": "What runs, how far it is, and its brakes."},
    {"name": "Once", "description": "Deliveries against effects."},
    {"name": "Workers", "description": "Who works on what; pause, resume, concurrency."},
    {"name": "Doctor", "description": "What is wrong, and the remedy."},
    {"name": "Audit", "description": "Who did what; marks on the charts."},
]


def router(services: Services) -> APIRouter:
    found = APIRouter(prefix=PREFIX)
    for part in (looking, messages, operating):
        found.include_router(part.routes(services))
    return found


def describe(app: FastAPI, settings: Settings) -> None:
    """The description says who may call, too."""
    made = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = made()
            if not settings.open_access:
                found.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                found["security"] = [{"token": []}]
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
