"""How the API answers: as JSON, made once and quickly, whatever is in a message."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Final

import orjson
from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from semel.dashboard.services import Services
from semel.dashboard.views.errors import DashboardError
from semel.dashboard.views.model import Viewer
from semel.dlq.access import refuse_risk
from semel.dlq.jobs import Job


class Problem(BaseModel):
    """What went wrong."""

    error: str = Field(description="what happened, and to what")
    what_to_do: str = Field(description="the way out; may be empty")


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"model": Problem, "description": "The request cannot be carried out as it is."},
    "5XX": {"model": Problem, "description": "The endpoint, the ledger or a worker failed, or does not answer."},
}

Where = Annotated[str, Query(description='which ones, for example: error ~ "timeout" and age > 2h', max_length=8_000)]
Look = Annotated[bool, Query(description="look even if that costs receives (not needed for Semel's broker)")]
Receive = Annotated[bool, Query(description="look even if that may move messages on (see the queue's RedrivePolicy)")]
After = Annotated[str | None, Query(description="`next` of an earlier answer", max_length=100)]


class Counts(BaseModel):
    looked_at: int = 0
    matched: int = 0
    sent: int = 0
    deleted: int = 0
    failed: int = 0
    given_back: int = 0
    skipped: int = 0
    returned: int = 0


class Line(BaseModel):
    at: float
    text: str


class JobSchema(BaseModel):
    """A long piece of work on dead letters."""

    id: str
    kind: str = Field(description="redrive, delete or restore")
    queue: str
    plan: dict[str, Any]
    who: str
    state: str = Field(description="planned, running, canary, paused, done, cancelled, stopped, failed or interrupted")
    pausing: bool
    cancelling: bool
    counts: Counts
    total: int | None
    rate: float | None
    eta: float | None
    created: float
    started: float | None
    ended: float | None
    reason: str
    result: dict[str, Any]
    messages: list[Line]


def answer(content: Any, status: int = 200) -> Response:
    try:
        body = orjson.dumps(content, default=_plain)
    except (TypeError, orjson.JSONEncodeError):  # half of a surrogate pair, a number of more than 64 bits
        body = json.dumps(_all_plain(content)).encode()
    return Response(body, status, media_type="application/json")


def job_answer(job: Job, status: int = 200) -> Response:
    return answer(job.to_json(), status)


def viewer(request: Request) -> Viewer:
    found: Viewer = request.state.viewer
    return found


def check_look(services: Services, queue: str, look: bool, receive: bool = False) -> None:
    """Where seeing a message means receiving it, nobody does so by accident; nor moves one on by doing so."""
    if services.inspector.is_ours:
        return
    if not look:
        raise DashboardError(
            f"{services.inspector.client.endpoint} shows a message only if it is received, which counts against it",
            "ask again with look=1",
            409,
        )
    if not receive:
        refuse_risk(services.inspector.client.queue(queue))


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError


def _all_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _all_plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(name): _all_plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_all_plain(one) for one in value]
    return value
