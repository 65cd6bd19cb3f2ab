"""The answers of the API and their schemas: the values that the pages show, as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Final, get_type_hints

import msgspec
import orjson
from fastapi import Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field, create_model

from semel.dashboard.views.model import Viewer
from semel.dlq.jobs import Counts, Job, Line
from semel.dlq.messages import DeadLetterMessage, MessagePage, as_json
from semel.dlq.redrive.plan import RedrivePlan
from semel.doctor.model import Finding, Recommendation
from semel.doctor.report.json_report import value as doctor_json


class Problem(BaseModel):
    """What went wrong."""

    error: str = Field(description="what happened, and to what")
    what_to_do: str = Field(description="what to do about it; may be empty")


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"model": Problem, "description": "The request cannot be carried out as it is."},
    "5XX": {"model": Problem, "description": "The endpoint, the ledger or a worker failed, or does not answer."},
}

Where = Annotated[str, Query(description='a filter, for example: error ~ "timeout" and age > 2h', max_length=8_000)]
Receive = Annotated[
    bool,
    Query(
        description="on SQS: receive the messages, which raises their receive count by one and, if the queue has a "
        "RedrivePolicy of its own, may move them; not needed for Semel's broker"
    ),
]
After = Annotated[str | None, Query(description="`next` of an earlier answer", max_length=100)]


class AttributeSchema(BaseModel):
    """`value`, or `base64` if it is binary."""

    type: str = "String"
    value: str | None = None
    base64: str | None = None


def described(kind: type, **changed: Any) -> type[BaseModel]:
    """A dataclass as the API writes it: some fields have another type in JSON, some are added or left out (None)."""
    hints = get_type_hints(kind) | changed
    fields: dict[str, Any] = {name: (hint, ...) for name, hint in hints.items() if hint is not None}
    return create_model(kind.__name__, __doc__=kind.__doc__, **fields)


_Attributes = dict[str, AttributeSchema]
_message = {
    "attributes": _Attributes,
    "carried": _Attributes,
    "system": dict[str, str],
    "why": str,
    "fingerprint": str,
    "receipt": None,
}
MessageSchema = described(DeadLetterMessage, **_message)
PageSchema = described(MessagePage, messages=list[MessageSchema])  # type: ignore[valid-type]
FindingSchema = described(Finding, severity=str, examples=list[dict[str, Any]])


def plan_schema() -> dict[str, Any]:
    """The fields and bounds of a redrive, from the plan itself; the queue is in the address."""
    (_,), components = msgspec.json.schema_components([RedrivePlan], ref_template="#/components/schemas/{name}")
    plan = components["RedrivePlan"]
    del plan["properties"]["queue"]
    plan["required"] = [name for name in plan["required"] if name != "queue"]
    return components


class JobSchema(BaseModel):
    """A redrive, delete or restore of messages."""

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
        body = orjson.dumps(content, default=_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except (TypeError, orjson.JSONEncodeError):  # a lone surrogate, a number of more than 64 bits
        body = json.dumps(content, default=_plain).encode()
    return Response(body, status, media_type="application/json")


def job_answer(job: Job, status: int = 200) -> Response:
    return answer(job.to_json(), status)


def json_lines(queue: str, lines: Iterator[bytes]) -> StreamingResponse:
    """Streams a file for download. An error in the first line is raised before the response begins."""
    first = next(lines, b"")
    return StreamingResponse(
        chain([first], lines),
        media_type="application/x-ndjson",
        headers={"content-disposition": f'attachment; filename="{queue}.jsonl"'},
    )


def viewer(request: Request) -> Viewer:
    who: Viewer = request.state.viewer
    return who


def _plain(value: Any) -> Any:
    if isinstance(value, DeadLetterMessage):
        return as_json(value)
    if isinstance(value, Finding | Recommendation):
        return doctor_json(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
