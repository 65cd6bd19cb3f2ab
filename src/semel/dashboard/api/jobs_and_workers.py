"""Jobs, deliveries, workers, the doctor, the audit log and annotations."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from semel.dashboard.api.schemas import PROBLEMS, FindingSchema, JobSchema, Where, answer, described, job_answer, viewer
from semel.dashboard.services import Services
from semel.dashboard.views.model import AuditPage, DeliveriesPage, DoctorPage, WorkersPage
from semel.telemetry.annotation_log import Annotation


class JobsSchema(BaseModel):
    jobs: list[JobSchema]


class ControlSchema(JobSchema):
    acknowledged: bool = Field(description="whether the job has confirmed the request")
    outcome: str = Field(description="what was done, in a sentence")


class Started(BaseModel):
    started: bool = Field(description="false if a diagnosis is already running")


class Done(BaseModel):
    done: str = Field(description="what the worker did, in a sentence")


class WorkerRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    action: Literal["pause", "resume", "concurrency", "stop"]
    queue: str | None = Field(None, description="all queues of the worker if left out")
    value: int | None = Field(None, ge=1, le=10_000, description="the new concurrency")


class AnnotationRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1, max_length=200, examples=["deploy 1.4.2"])


class AnnotationsSchema(BaseModel):
    annotations: list[Annotation]


_DOCTOR: Final = described(DoctorPage, findings=list[FindingSchema])  # type: ignore[valid-type]


def routes(services: Services) -> APIRouter:
    router = APIRouter(responses=PROBLEMS)
    inspector, service = services.inspector, services.service

    @router.get("/jobs", tags=["Jobs"], summary="The last jobs, newest first", response_model=JobsSchema)
    def jobs() -> Response:
        return answer({"jobs": [job.to_json() for job in service.jobs()]})

    @router.get("/jobs/{id}", tags=["Jobs"], summary="One job", response_model=JobSchema)
    def job(id: str) -> Response:
        return job_answer(service.job(id))

    @router.post(
        "/jobs/{id}/{action}", tags=["Jobs"], summary="Pause, resume or cancel a job", response_model=ControlSchema
    )
    def control_job(request: Request, id: str, action: Literal["pause", "resume", "cancel"]) -> Response:
        """200: the job has confirmed the request, and follows it at its next checkpoint. 202: the request is not
        confirmed yet. 409: the job has ended, or its process is gone."""
        control = service.by(viewer(request).name).control(id, action)
        content = control.job.to_json() | {"acknowledged": control.acknowledged, "outcome": str(control)}
        return answer(content, 200 if control.acknowledged else 202)

    @router.get("/deliveries", tags=["Deliveries"], summary="Deliveries and effects", response_model=DeliveriesPage)
    def deliveries() -> Response:
        return answer(inspector.deliveries())

    @router.get(
        "/workers", tags=["Workers"], summary="Workers and their messages in progress", response_model=WorkersPage
    )
    def workers() -> Response:
        return answer(inspector.workers())

    @router.post(
        "/workers/{id}/control", tags=["Workers"], summary="Pause, resume, scale or stop a worker", response_model=Done
    )
    def control(request: Request, id: str, command: WorkerRequest) -> Response:
        return answer({"done": services.control(viewer(request), id, command.action, command.queue, command.value)})

    @router.get("/doctor", tags=["Doctor"], summary="The last diagnosis", response_model=_DOCTOR)
    def doctor() -> Response:
        return answer(inspector.doctor())

    @router.post("/doctor/run", tags=["Doctor"], summary="Start a diagnosis", response_model=Started, status_code=202)
    def examine(request: Request) -> Response:
        return answer({"started": services.examine(viewer(request))}, 202)

    @router.get("/audit", tags=["Audit"], summary="Audit log, newest first", response_model=AuditPage)
    def audit(where: Where = "", limit: Annotated[int, Query(ge=1, le=1_000)] = 200) -> Response:
        return answer(inspector.audit(where, limit))

    @router.get("/annotations", tags=["Audit"], summary="List annotations", response_model=AnnotationsSchema)
    def annotations(since: Annotated[float, Query(ge=0, le=1e11)] = 0.0) -> Response:
        return answer({"annotations": inspector.annotations(since)})

    @router.post(
        "/annotations", tags=["Audit"], summary="Add an annotation, such as a deploy", response_model=Annotation
    )
    def annotate(request: Request, annotation: AnnotationRequest) -> Response:
        return answer(service.by(viewer(request).name).annotate(annotation.text))

    return router
