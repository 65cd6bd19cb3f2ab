"""Jobs, once, workers, the doctor, the audit log and marks."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from semel.dashboard.api.schemas import PROBLEMS, JobSchema, Where, answer, job_answer, viewer
from semel.dashboard.services import Services
from semel.dashboard.views.model import Annotation, AuditPage, DeliveriesPage, DoctorPage, WorkersPage


class JobsAnswer(BaseModel):
    jobs: list[JobSchema]


class ControlAnswer(JobSchema):
    acknowledged: bool = Field(description="whether the job knows of it; else it was only asked")
    outcome: str = Field(description="what is known of it, in a sentence")


class Started(BaseModel):
    started: bool = Field(description="false if one was running already")


class Done(BaseModel):
    done: str = Field(description="what was done, in a sentence")


class ControlGiven(BaseModel):
    model_config = ConfigDict(extra="forbid")

    action: Literal["pause", "resume", "concurrency", "stop"]
    queue: str | None = Field(None, description="all queues of the worker if left out")
    value: int | None = Field(None, ge=1, le=10_000, description="the new concurrency")


class MarkGiven(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1, max_length=200, examples=["deploy 1.4.2"])


class MarksAnswer(BaseModel):
    annotations: list[Annotation]


def routes(services: Services) -> APIRouter:
    router = APIRouter(responses=PROBLEMS)
    inspector, service = services.inspector, services.service

    @router.get("/jobs", tags=["Jobs"], summary="The last jobs, newest first", response_model=JobsAnswer)
    def jobs() -> Response:
        return answer({"jobs": [job.to_json() for job in service.jobs()]})

    @router.get("/jobs/{id}", tags=["Jobs"], summary="One job", response_model=JobSchema)
    def job(id: str) -> Response:
        return job_answer(service.job(id))

    @router.post(
        "/jobs/{id}/{action}", tags=["Jobs"], summary="Pause, resume or cancel a job", response_model=ControlAnswer
    )
    def control_job(request: Request, id: str, action: Literal["pause", "resume", "cancel"]) -> Response:
        """200: the job has acknowledged it, and obeys at its next checkpoint. 202: it was asked, and has not
        acknowledged it yet. 409: it has ended, or its process is gone."""
        control = service.by(viewer(request).name).control(id, action)
        content = control.job.to_json() | {"acknowledged": control.acknowledged, "outcome": str(control)}
        return answer(content, 200 if control.acknowledged else 202)

    @router.get("/deliveries", tags=["Once"], summary="Deliveries against effects", response_model=DeliveriesPage)
    def once() -> Response:
        return answer(inspector.once())

    @router.get("/workers", tags=["Workers"], summary="Who works on what", response_model=WorkersPage)
    def workers() -> Response:
        return answer(inspector.workers())

    @router.post("/workers/{id}/control", tags=["Workers"], summary="Tell a worker what to do", response_model=Done)
    def control(request: Request, id: str, given: ControlGiven) -> Response:
        return answer({"done": services.control(viewer(request), id, given.action, given.queue, given.value)})

    @router.get("/doctor", tags=["Doctor"], summary="The last examination", response_model=DoctorPage)
    def doctor() -> Response:
        return answer(inspector.doctor())

    @router.post("/doctor/run", tags=["Doctor"], summary="Examine everything", response_model=Started, status_code=202)
    def examine(request: Request) -> Response:
        return answer({"started": services.examine(viewer(request))}, 202)

    @router.get("/audit", tags=["Audit"], summary="Who did what, newest first", response_model=AuditPage)
    def audit(where: Where = "", limit: Annotated[int, Query(ge=1, le=1_000)] = 200) -> Response:
        return answer(inspector.audit(where, limit))

    @router.get("/annotations", tags=["Audit"], summary="Marks on the charts", response_model=MarksAnswer)
    def annotations(since: Annotated[float, Query(ge=0, le=1e11)] = 0.0) -> Response:
        return answer({"annotations": inspector.annotations(since)})

    @router.post(
        "/annotations", tags=["Audit"], summary="Mark this moment, such as a deploy", response_model=Annotation
    )
    def annotate(request: Request, given: MarkGiven) -> Response:
        return answer(service.by(viewer(request).name).annotate(given.text))

    return router
