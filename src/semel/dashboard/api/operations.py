"""Jobs, once, workers, the doctor, the audit log and marks."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from semel.dashboard.api.schemas import PROBLEMS, JobAnswer, Where, answer, job_answer, viewer
from semel.dashboard.services import Services
from semel.dashboard.views.model import AuditPage, DoctorPage, Mark, OncePage, WorkersPage


class JobsAnswer(BaseModel):
    jobs: list[JobAnswer]


class ControlAnswer(JobAnswer):
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
    marks: list[Mark]


def routes(services: Services) -> APIRouter:
    router = APIRouter(responses=PROBLEMS)
    house, desk = services.house, services.desk

    @router.get("/jobs", tags=["Jobs"], summary="The last jobs, newest first", response_model=JobsAnswer)
    def jobs() -> Response:
        return answer({"jobs": [job.to_json() for job in desk.jobs()]})

    @router.get("/jobs/{id}", tags=["Jobs"], summary="One job", response_model=JobAnswer)
    def job(id: str) -> Response:
        return job_answer(desk.job(id))

    @router.post(
        "/jobs/{id}/{action}", tags=["Jobs"], summary="Pause, resume or cancel a job", response_model=ControlAnswer
    )
    def control_job(request: Request, id: str, action: Literal["pause", "resume", "cancel"]) -> Response:
        """200: the job has acknowledged it, and obeys at its next checkpoint. 202: it was asked, and has not
        acknowledged it yet. 409: it has ended, or its process is gone."""
        control = desk.by(viewer(request).name).control(id, action)
        content = control.job.to_json() | {"acknowledged": control.acknowledged, "outcome": str(control)}
        return answer(content, 200 if control.acknowledged else 202)

    @router.get("/once", tags=["Once"], summary="Deliveries against effects", response_model=OncePage)
    def once() -> Response:
        return answer(house.once())

    @router.get("/workers", tags=["Workers"], summary="Who works on what", response_model=WorkersPage)
    def workers() -> Response:
        return answer(house.workers())

    @router.post("/workers/{id}/control", tags=["Workers"], summary="Tell a worker what to do", response_model=Done)
    def control(request: Request, id: str, given: ControlGiven) -> Response:
        return answer({"done": services.control(viewer(request), id, given.action, given.queue, given.value)})

    @router.get("/doctor", tags=["Doctor"], summary="The last examination", response_model=DoctorPage)
    def doctor() -> Response:
        return answer(house.doctor())

    @router.post("/doctor/run", tags=["Doctor"], summary="Examine everything", response_model=Started, status_code=202)
    def examine(request: Request) -> Response:
        return answer({"started": services.examine(viewer(request))}, 202)

    @router.get("/audit", tags=["Audit"], summary="Who did what, newest first", response_model=AuditPage)
    def audit(where: Where = "", limit: Annotated[int, Query(ge=1, le=1_000)] = 200) -> Response:
        return answer(house.audit(where, limit))

    @router.get("/marks", tags=["Audit"], summary="Marks on the charts", response_model=MarksAnswer)
    def marks(since: Annotated[float, Query(ge=0, le=1e11)] = 0.0) -> Response:
        return answer({"marks": house.marks(since)})

    @router.post("/marks", tags=["Audit"], summary="Mark this moment, such as a deploy", response_model=Mark)
    def mark(request: Request, given: MarkGiven) -> Response:
        return answer(desk.by(viewer(request).name).mark(given.text))

    return router
