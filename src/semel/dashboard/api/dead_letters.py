"""Dead-letter queues. Long work runs as a job, whose id is returned at once."""

from __future__ import annotations

import tempfile
from typing import IO, Annotated, Any, Final

from fastapi import APIRouter, Body, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from semel.dashboard.api.queues import attribute
from semel.dashboard.api.schemas import (
    PROBLEMS,
    AttributeSchema,
    JobSchema,
    MessageSchema,
    Receive,
    Where,
    answer,
    job_answer,
    json_lines,
    viewer,
)
from semel.dashboard.services import Services
from semel.dashboard.views.model import DashboardError
from semel.dlq.messages import DeadLetterQueue, ErrorGroups, Impact, Resent, ShownMessages
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.selection import Selection, SelectionError
from semel.dlq.service import DeadLetterService, Key

_IN_MEMORY: Final = 4 * 1024 * 1024
Ids = Annotated[list[str] | None, Query(description="only these message ids", max_length=1_000)]
Filter = Annotated[str | None, Query(description="a filter; exactly one of where, id and all", max_length=8_000)]
All = Annotated[bool, Query(description="all messages of the queue")]
_ANY_QUEUE: Final = "also if it is not the dead-letter queue of any queue"
AnyQueue = Annotated[bool, Query(description=_ANY_QUEUE)]
_PLAN: Final = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/RedrivePlan"}}}}


class QueuesSchema(BaseModel):
    queues: list[DeadLetterQueue]


class DeleteRequest(BaseModel):
    """`shown`: what `impact` returned as `shown` for the same selection. Only those messages are deleted. Not needed
    with ids."""

    model_config = ConfigDict(extra="forbid")

    where: str | None = Field(None, description="a filter; exactly one of where, ids and all says which messages")
    ids: list[str] | None = Field(None, max_length=100_000)
    all: bool = False
    shown: ShownMessages | None = None
    any_queue: bool = Field(False, description=_ANY_QUEUE)


class ResendRequest(BaseModel):
    """Fields that are left out stay unchanged. `new_key`: "auto" for a random key; without it, the key is kept."""

    model_config = ConfigDict(extra="forbid")

    body: str | None = Field(None, max_length=1_048_576)
    attributes: dict[str, AttributeSchema] | None = Field(None, max_length=10)
    group: str | None = None
    new_key: str | None = Field(None, min_length=1, max_length=1_024)
    to: str = ""
    any_queue: bool = Field(False, description=_ANY_QUEUE)


def routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["Dead letters"], responses=PROBLEMS)
    inspector, service = services.inspector, services.service

    def acting(request: Request) -> DeadLetterService:
        return service.by(viewer(request).name)

    @router.get("/dead-letters", summary="List dead-letter queues", response_model=QueuesSchema)
    def queues() -> Response:
        return answer({"queues": service.queues()})

    @router.get("/dead-letters/{queue}", summary="One dead-letter queue", response_model=DeadLetterQueue)
    def queue(queue: str) -> Response:
        return answer(service.queue(queue))

    @router.get("/dead-letters/{queue}/groups", summary="Errors", response_model=ErrorGroups)
    def groups(queue: str, where: Where = "", receive: Receive = False) -> Response:
        """`complete` is false if the queue is too large to be read in time. Ask again: the search continues."""
        return answer(inspector.groups(queue, where, receive=receive))

    @router.get("/dead-letters/{queue}/impact", summary="What an action would touch", response_model=Impact)
    def impact(
        queue: str, where: Filter = None, id: Ids = None, all: All = False, receive: Receive = False
    ) -> Response:
        Selection.of(where, id, all)
        inspector.check_receive(queue, receive)
        return answer(service.impact(queue, where, id, all=all, receive=receive))

    @router.get("/dead-letters/{queue}/messages/{id}", summary="One whole message", response_model=MessageSchema)
    def message(queue: str, id: str, receive: Receive = False) -> Response:
        inspector.check_receive(queue, receive)
        return answer(service.message(queue, id, receive=receive))

    @router.get(
        "/dead-letters/{queue}/export",
        summary="Messages as JSON lines, for restore",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/x-ndjson": {}}, "description": "One message a line."}},
    )
    def export(
        request: Request,
        queue: str,
        where: Filter = None,
        id: Ids = None,
        all: All = False,
        any_queue: AnyQueue = False,
        receive: Receive = False,
    ) -> Response:
        Selection.of(where, id, all)
        inspector.check_receive(queue, receive)
        service.queue(queue)
        lines = acting(request).lines(queue, where, id, all=all, any_queue=any_queue, receive=receive)
        return json_lines(queue, lines)

    @router.post(
        "/dead-letters/{queue}/redrive",
        summary="Redrive messages",
        response_model=JobSchema,
        status_code=202,
        openapi_extra={"requestBody": _PLAN},
    )
    def redrive(
        request: Request, queue: str, fields: Annotated[dict[str, Any], Body()], receive: Receive = False
    ) -> Response:
        """The fields are those of `semel dlq redrive --help`."""
        if "queue" in fields:
            raise DashboardError(f"the body names a queue, and the address names {queue}", "leave `queue` out")
        content = {name: value for name, value in fields.items() if value is not None}
        plan = RedrivePlan.from_json({**content, "queue": queue})
        Selection.of(content.get("where"), content.get("ids"), plan.all)
        service.queue(queue)
        job = acting(request).redrive(plan, receive=receive)
        inspector.changed(queue)
        return job_answer(job, 202)

    @router.post("/dead-letters/{queue}/delete", summary="Delete messages", response_model=JobSchema, status_code=202)
    def delete(request: Request, queue: str, deletion: DeleteRequest, receive: Receive = False) -> Response:
        """Each message is deleted only after it was written to a snapshot, whose path is in the job's result."""
        Selection.of(deletion.where, deletion.ids, deletion.all)
        if deletion.shown is None and deletion.ids is None:
            raise SelectionError(
                f"a delete must say which messages were shown: call dead-letters/{queue}/impact and pass its `shown`"
            )
        service.queue(queue)
        job = acting(request).delete(
            queue,
            deletion.where,
            ids=deletion.ids,
            all=deletion.all,
            shown=deletion.shown,
            any_queue=deletion.any_queue,
            receive=receive,
        )
        inspector.changed(queue)
        return job_answer(job, 202)

    @router.post(
        "/dead-letters/{queue}/restore",
        summary="Send the messages of an export back",
        response_model=JobSchema,
        status_code=202,
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
        },
    )
    async def restore(request: Request, queue: str) -> Response:
        """The body is a response of `export`. Posted again, it sends only the messages that were not sent before."""
        await run_in_threadpool(service.queue, queue)

        def begin(content: IO[bytes]) -> Response:
            job = acting(request).restore(content, queue)
            inspector.changed(queue)
            return job_answer(job, 202)

        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as content:
            async for block in request.stream():
                await run_in_threadpool(content.write, block)
            content.seek(0)
            return await run_in_threadpool(begin, content)

    @router.post(
        "/dead-letters/{queue}/messages/{id}/resend", summary="Send one message, edited or not", response_model=Resent
    )
    def resend(request: Request, queue: str, id: str, message: ResendRequest, receive: Receive = False) -> Response:
        sent = acting(request).resend(
            queue,
            id,
            body=message.body,
            attributes=None
            if message.attributes is None
            else {name: attribute(name, content) for name, content in message.attributes.items()},
            group=message.group,
            key=Key.KEEP if message.new_key is None else Key.NEW if message.new_key == "auto" else message.new_key,
            to=message.to,
            any_queue=message.any_queue,
            receive=receive,
        )
        inspector.changed(queue)
        return answer(sent)

    return router
