"""Dead letters: the desk over HTTP. What takes long is a job; its id comes back at once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from semel.dashboard.api.queues import AttributeRequest, attribute
from semel.dashboard.api.schemas import (
    PROBLEMS,
    After,
    JobSchema,
    Look,
    Receive,
    Where,
    answer,
    check_look,
    job_answer,
    viewer,
)
from semel.dashboard.services import Services
from semel.dlq.messages import DeadLetterQueue, ErrorGroups, Impact, ReceiveCost, Resent, ShownMessages, as_json
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.selection import Selection, SelectionError
from semel.dlq.service import DeadLetterService, Key

_IN_MEMORY: Final = 4 * 1024 * 1024
Ids = Annotated[list[str] | None, Query(description="only these message ids", max_length=1_000)]
Filter = Annotated[str | None, Query(description="a filter; exactly one of where, id and all", max_length=8_000)]
All = Annotated[bool, Query(description="all messages of the queue")]
AnyQueue = Annotated[bool, Query(description="also if it is not the dead-letter queue of any queue")]


class QueuesSchema(BaseModel):
    queues: list[DeadLetterQueue]


class AttributeShown(BaseModel):
    type: str
    value: str | None = None
    base64: str | None = None


class DeadLetterSchema(BaseModel):
    """A dead letter. `body` is only its beginning where `cut` is true."""

    id: str
    queue: str
    body: str
    body_bytes: int
    cut: bool
    sent: float
    receives: int
    first_received: float | None
    expires: float | None
    visible_at: float | None
    source: str
    key: str
    reason: str
    error: str
    why: str
    attempts: int
    redrives: int
    original_id: str
    group: str
    dedup: str
    sequence: str
    trace: str
    state: str
    by_semel: bool
    fingerprint: str
    attributes: dict[str, AttributeShown]
    system: dict[str, str]


class MessagePageSchema(BaseModel):
    messages: list[DeadLetterSchema]
    next: str | None
    looked_at: int
    complete: bool
    cost: ReceiveCost
    notes: list[str]


class RedriveRequest(BaseModel):
    """See `semel dlq redrive --help`."""

    model_config = ConfigDict(extra="forbid")

    where: str | None = Field(None, description="a filter; exactly one of where, ids and all says which messages")
    ids: list[str] | None = Field(None, max_length=100_000)
    all: bool = False
    any_queue: bool = Field(False, description="also if it is not the dead-letter queue of any queue")
    limit: int | None = Field(None, ge=1)
    to: str = Field("", description="the queue they go to; each to the one that it came from if left out")
    rate: float | None = Field(None, gt=0, description="messages a second, at most")
    dry_run: bool = False
    canary: int = Field(0, ge=0, le=50, description="so many go first, the rest only if those succeed")
    canary_wait: float | None = Field(None, ge=1)
    stop_after_failures: int | None = Field(None, ge=0)
    engine: Literal["stream", "sqs-move"] = "stream"
    threads: int = Field(4, ge=1, le=32)


class ShownRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = Field(ge=0)
    ids: list[str] | None = Field(None, max_length=100_000)
    place: int | None = Field(None, ge=0)
    at: float | None = None

    @property
    def value(self) -> ShownMessages:
        return ShownMessages(self.count, None if self.ids is None else tuple(self.ids), self.place, self.at)


class DeleteRequest(BaseModel):
    """`shown` is what `impact` answered for the same selection: nothing else is dropped. Ids need none."""

    model_config = ConfigDict(extra="forbid")

    where: str | None = Field(None, description="a filter; exactly one of where, ids and all says which messages")
    ids: list[str] | None = Field(None, max_length=100_000)
    all: bool = False
    shown: ShownRequest | None = None
    any_queue: bool = Field(False, description="also if it is not the dead-letter queue of any queue")


class ResendRequest(BaseModel):
    """What is left out stays as it is. `new_key`: "auto" makes one up; without it the letter's key is kept."""

    model_config = ConfigDict(extra="forbid")

    body: str | None = Field(None, max_length=1_048_576)
    attributes: dict[str, AttributeRequest] | None = Field(None, max_length=10)
    group: str | None = None
    new_key: str | None = Field(None, min_length=1, max_length=1_024)
    to: str = ""
    any_queue: bool = Field(False, description="also if it is not the dead-letter queue of any queue")


def routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["Dead letters"], responses=PROBLEMS)
    service = services.service

    def acting(request: Request) -> DeadLetterService:
        return service.by(viewer(request).name)

    @router.get("/dead-letters", summary="All dead-letter queues", response_model=QueuesSchema)
    def queues() -> Response:
        return answer({"queues": service.queues()})

    @router.get("/dead-letters/{queue}", summary="One dead-letter queue", response_model=DeadLetterQueue)
    def queue(queue: str) -> Response:
        return answer(service.queue(queue))

    @router.get("/dead-letters/{queue}/groups", summary="What they died of", response_model=ErrorGroups)
    def groups(
        queue: str,
        where: Where = "",
        most: Annotated[int | None, Query(ge=1)] = None,
        look: Look = False,
        receive: Receive = False,
    ) -> Response:
        check_look(services, queue, look, receive)
        return answer(service.groups(queue, where, max_scanned=most, receive=receive))

    @router.get("/dead-letters/{queue}/impact", summary="What an action on these would touch", response_model=Impact)
    def impact(
        queue: str,
        where: Filter = None,
        id: Ids = None,
        all: All = False,
        look: Look = False,
        receive: Receive = False,
    ) -> Response:
        Selection.of(where, id, all)
        check_look(services, queue, look, receive)
        return answer(service.impact(queue, where, id, all=all, receive=receive))

    @router.get("/dead-letters/{queue}/messages", summary="Letters", response_model=MessagePageSchema)
    def messages(
        queue: str,
        where: Where = "",
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
        after: After = None,
        bodies: Annotated[bool, Query(description="whole bodies, not only their beginnings")] = False,
        look: Look = False,
        receive: Receive = False,
    ) -> Response:
        check_look(services, queue, look, receive)
        found = service.messages(queue, where, limit, after, bodies=bodies, receive=receive)
        return answer(
            {
                "messages": [as_json(message) for message in found.messages],
                "next": found.next,
                "looked_at": found.looked_at,
                "complete": found.complete,
                "cost": found.cost,
                "notes": found.notes,
            }
        )

    @router.get("/dead-letters/{queue}/messages/{id}", summary="One whole letter", response_model=DeadLetterSchema)
    def message(queue: str, id: str, look: Look = False, receive: Receive = False) -> Response:
        check_look(services, queue, look, receive)
        return answer(as_json(service.message(queue, id, receive=receive)))

    @router.get(
        "/dead-letters/{queue}/export",
        summary="Letters as JSON lines, to be kept and restored",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/x-ndjson": {}}, "description": "One letter a line."}},
    )
    def export(
        request: Request,
        queue: str,
        where: Filter = None,
        id: Ids = None,
        all: All = False,
        any_queue: AnyQueue = False,
        look: Look = False,
        receive: Receive = False,
    ) -> Response:
        Selection.of(where, id, all)
        check_look(services, queue, look, receive)
        service.queue(queue)  # what is not there is said before the answer begins
        return StreamingResponse(
            _from_first(acting(request).lines(queue, where, id, all=all, any_queue=any_queue, receive=receive)),
            media_type="application/x-ndjson",
            headers={"content-disposition": f'attachment; filename="{queue}.jsonl"'},
        )

    @router.post(
        "/dead-letters/{queue}/redrive", summary="Send letters back", response_model=JobSchema, status_code=202
    )
    def redrive(request: Request, queue: str, given: RedriveRequest) -> Response:
        Selection.of(given.where, given.ids, given.all)
        plan = RedrivePlan.from_json(
            {**given.model_dump(), "where": given.where or "", "ids": given.ids or [], "queue": queue}
        )
        service.queue(queue)
        job = acting(request).redrive(plan, receive=True)
        services.inspector.changed(queue)
        return job_answer(job, 202)

    @router.post("/dead-letters/{queue}/delete", summary="Delete letters", response_model=JobSchema, status_code=202)
    def drop(request: Request, queue: str, given: DeleteRequest) -> Response:
        """Each is deleted only once it is in a snapshot; the job's result says where that is."""
        Selection.of(given.where, given.ids, given.all)
        if given.shown is None and given.ids is None:
            raise SelectionError(
                f"a drop says what was shown: ask dead-letters/{queue}/impact, and pass on its `shown`"
            )
        service.queue(queue)
        shown = None if given.shown is None else given.shown.value
        job = acting(request).delete(
            queue, given.where, ids=given.ids, all=given.all, shown=shown, any_queue=given.any_queue, receive=True
        )
        services.inspector.changed(queue)
        return job_answer(job, 202)

    @router.post(
        "/dead-letters/{queue}/restore",
        summary="Bring letters of an export back",
        response_model=JobSchema,
        status_code=202,
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
        },
    )
    async def restore(request: Request, queue: str) -> Response:
        """The body is what `export` gave. The same content again sends only what was not sent before."""
        await run_in_threadpool(service.queue, queue)

        def begin(kept: IO[bytes]) -> Response:
            # The desk has a copy of its own when it answers.
            job = acting(request).restore(kept, queue)
            services.inspector.changed(queue)
            return job_answer(job, 202)

        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as kept:
            async for block in request.stream():
                await run_in_threadpool(kept.write, block)
            kept.seek(0)
            return await run_in_threadpool(begin, kept)

    @router.post(
        "/dead-letters/{queue}/messages/{id}/resend",
        summary="Send one letter, changed or not",
        response_model=Resent,
    )
    def resend(request: Request, queue: str, id: str, given: ResendRequest) -> Response:
        attributes: Mapping[str, Any] | None = None
        if given.attributes is not None:
            attributes = {name: attribute(name, one) for name, one in given.attributes.items()}
        key = Key.KEEP if given.new_key is None else Key.NEW if given.new_key == "auto" else given.new_key
        sent = acting(request).resend(
            queue,
            id,
            body=given.body,
            attributes=attributes,
            group=given.group,
            key=key,
            to=given.to,
            any_queue=given.any_queue,
            receive=True,
        )
        services.inspector.changed(queue)
        return answer(sent)

    return router


def _from_first(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The same lines; what is wrong with the request is raised now, and not in the middle of an answer."""
    first = next(lines, b"")

    def again() -> Iterator[bytes]:
        yield first
        yield from lines

    return again()
