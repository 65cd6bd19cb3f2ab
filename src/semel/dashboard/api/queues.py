"""Queues and their messages, test messages, faults and alarms."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, Field

from semel.dashboard.api.schemas import (
    PROBLEMS,
    After,
    AttributeSchema,
    MessageSchema,
    PageSchema,
    Receive,
    Where,
    answer,
    described,
    viewer,
)
from semel.dashboard.services import Services
from semel.dashboard.views.messages import API_SECONDS, MAX_PAGE, PAGE
from semel.dashboard.views.model import DashboardError, Fault, MessageDetails, QueuePage, QueuesPage
from semel.sqs.client.messages import Attribute


class MessageRequest(BaseModel):
    body: str = Field(max_length=1_048_576, examples=['{"order": 7}'])
    attributes: dict[str, AttributeSchema] = Field(default_factory=dict, max_length=10)
    delay: int | None = Field(None, ge=0, le=900, description="seconds; not for FIFO queues")
    group: str | None = Field(None, description="the message group; FIFO queues need one")
    dedup: str | None = Field(None, description="the deduplication id; by default, FIFO queues get a random one")


class Sent(BaseModel):
    id: str


class FaultRequest(BaseModel):
    kind: str = Field(examples=["duplicate"])
    rate: float = Field(ge=0, le=1)
    milliseconds: float | None = Field(None, ge=0, le=60_000, description="for latency")


def routes(services: Services) -> APIRouter:
    router = APIRouter(responses=PROBLEMS)
    inspector = services.inspector

    @router.get("/queues", tags=["Queues"], summary="List queues", response_model=QueuesPage)
    def queues() -> Response:
        return answer(inspector.queues())

    @router.get("/queues/{queue}", tags=["Queues"], summary="One queue and its history", response_model=QueuePage)
    def queue(queue: str, since: Annotated[float | None, Query(ge=0, le=1e11)] = None) -> Response:
        return answer(inspector.queue(queue, since))

    @router.get(
        "/dead-letters/{queue}/messages", tags=["Dead letters"], summary="List messages", response_model=PageSchema
    )
    @router.get("/queues/{queue}/messages", tags=["Messages"], summary="List messages", response_model=PageSchema)
    def messages(
        queue: str,
        where: Where = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="maximum number of messages")] = PAGE,
        after: After = None,
        bodies: Annotated[bool, Query(description="whole bodies, not only their first 200 characters")] = False,
        receive: Receive = False,
    ) -> Response:
        return answer(
            inspector.messages(
                queue, where, limit=limit, after=after, receive=receive, seconds=API_SECONDS, bodies=bodies, fresh=True
            )
        )

    @router.post("/queues/{queue}/messages", tags=["Messages"], summary="Send a message", response_model=Sent)
    def send(request: Request, queue: str, message: MessageRequest) -> Response:
        id = services.send(
            viewer(request),
            queue,
            message.body,
            attributes={name: attribute(name, content) for name, content in message.attributes.items()},
            delay=message.delay,
            group=message.group,
            dedup=message.dedup,
        )
        return answer({"id": id})

    @router.get(
        "/queues/{queue}/messages/{id}",
        tags=["Messages"],
        summary="One message, its state, ledger entry and attempts",
        response_model=described(MessageDetails, message=MessageSchema),
    )
    def message(
        queue: str, id: str, place: Annotated[int | None, Query(ge=0, le=1 << 40)] = None, receive: Receive = False
    ) -> Response:
        return answer(inspector.message(queue, id, place=place, receive=receive))

    @router.get("/queues/{queue}/faults", tags=["Queues"], summary="List faults", response_model=tuple[Fault, ...])
    def faults(queue: str) -> Response:
        return answer(inspector.broker.faults(queue))

    @router.put("/queues/{queue}/faults", tags=["Queues"], summary="Set a fault", response_model=tuple[Fault, ...])
    def set_fault(request: Request, queue: str, fault: FaultRequest) -> Response:
        return answer(services.set_fault(viewer(request), fault.kind, fault.rate, queue, fault.milliseconds))

    @router.delete("/queues/{queue}/faults", tags=["Queues"], summary="Clear faults", response_model=tuple[Fault, ...])
    def clear_faults(request: Request, queue: str, kind: str | None = None) -> Response:
        return answer(services.clear_faults(viewer(request), kind, queue))

    @router.get(
        "/alarms/{queue}",
        tags=["Queues"],
        summary="The alarms that a queue needs, as a template",
        response_class=PlainTextResponse,
    )
    def alarms(
        queue: str,
        format: Literal["cloudformation", "terraform", "prometheus", "cli"] = "cloudformation",
        sns: Annotated[str | None, Query(max_length=300, description="ARN of the topic to notify")] = None,
    ) -> PlainTextResponse:
        return PlainTextResponse(inspector.alarms(queue, format, sns))

    return router


def attribute(name: str, content: AttributeSchema) -> Attribute:
    if content.base64 is None:
        if content.value is None:
            raise DashboardError(f"attribute {name} has no value", "give it a value, or base64 if it is binary")
        return Attribute(content.type, content.value)
    try:
        value = base64.b64decode(content.base64, validate=True)
    except (binascii.Error, ValueError):
        raise DashboardError(f"attribute {name}: its base64 cannot be decoded", "encode its bytes again") from None
    return Attribute("Binary" if content.type == "String" else content.type, value)
