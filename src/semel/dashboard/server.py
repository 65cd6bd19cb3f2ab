"""The dashboard as a web application: the gate around it, the pages, the JSON API, and what becomes of errors."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, FastAPI, Form, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import Scope

from semel.dashboard import api, web
from semel.dashboard import errors as problems
from semel.dashboard.auth.middleware import AuthMiddleware, is_for_people, session_cookie
from semel.dashboard.auth.policy import Refused
from semel.dashboard.errors import Problem
from semel.dashboard.services import Services
from semel.dashboard.settings import Settings
from semel.dashboard.views import NotThere
from semel.dashboard.web.templating import Pages
from semel.errors import SemelError
from semel.version import __version__

if TYPE_CHECKING:
    from semel.ledger.contract import Ledger
    from semel.sqs import Client

log = logging.getLogger("semel.dashboard")
_NOT_FOUND: Final = Problem(404, "there is nothing at this address", "begin at the list of queues")


def build(
    settings: Settings,
    *,
    client: Client | None = None,
    ledger: Ledger | None = None,
    clock: Callable[[], float] = time.time,
) -> FastAPI:
    """The application. Raises StartError for settings that make no sense. `app.state.services` is what is behind it."""
    settings.check()
    services = Services.of(settings, client=client, ledger=ledger, clock=clock)
    rendered = Pages.of(services.inspector)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        services.inspector.begin()
        try:
            yield
        finally:
            services.close()

    app = FastAPI(
        title="Semel",
        version=__version__,
        description=api.DESCRIPTION,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        openapi_tags=api.TAGS,
    )
    app.state.services = services
    app.include_router(api.router(services))
    app.include_router(web.router(services, rendered))
    app.include_router(_sessions(services, rendered))
    app.include_router(_report(services))
    app.mount("/static", StaticFiles(directory=web.STATIC), name="static")
    _answer_problems(app, rendered)

    def costs() -> bool:
        return not services.inspector.is_ours

    def refusal(scope: Scope, refused: Refused) -> str:
        return bytes(rendered.problem(Request(scope), refused.status, refused.error, refused.what_to_do).body).decode()

    app.add_middleware(AuthMiddleware, policy=services.policy, is_open=settings.is_open, refusal=refusal, costs=costs)
    api.describe(app, settings)
    return app


def run(settings: Settings) -> int:
    """Serves it until SIGTERM or SIGINT."""
    from semel.dashboard.process import run as serve

    return serve(settings)


# Logging in.


def _sessions(services: Services, rendered: Pages) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    policy = services.policy

    def answered(request: Request, response: Response, cookie: str, *, ends: bool = False) -> Response:
        headers = dict(request.headers)
        response.headers.append(
            "set-cookie", session_cookie(policy, request.scope, headers, cookie, ends=ends).decode()
        )
        return response

    @router.get("/health")
    def health() -> dict[str, str]:
        """For probes: says nothing that a stranger may not know."""
        return {"status": "ok", "version": __version__}

    @router.get("/login")
    def ask(request: Request, next: str = "/") -> Response:
        return RedirectResponse("/", 303) if services.settings.is_open else rendered.login(request, next=_inside(next))

    @router.post("/login")
    def log_in(request: Request, token: Annotated[str, Form()] = "", next: Annotated[str, Form()] = "/") -> Response:
        remote = request.client.host if request.client else "unknown"
        try:
            cookie = policy.begin(token, dict(request.headers), remote)
        except Refused as refused:
            text = f"{refused.error[:1].upper()}{refused.error[1:]}: {refused.what_to_do}."
            return rendered.login(request, next=_inside(next), problem=text, status=refused.status)
        return answered(request, RedirectResponse(_inside(next), 303), cookie)

    @router.post("/logout")
    def log_out(request: Request) -> Response:
        policy.end(request.state.session)
        return answered(request, RedirectResponse("/login", 303), "", ends=True)

    return router


def _report(services: Services) -> APIRouter:
    """The doctor's own report, under its own policy: it has its style inside, and no script."""
    router = APIRouter(include_in_schema=False)

    @router.get("/doctor/report")
    def report() -> Response:
        diagnosis = services.inspector.doctor_job.diagnosis
        if diagnosis is None:
            raise NotThere("there is no examination to report on yet", "start one on the doctor's page")
        from semel.doctor.report import html

        return HTMLResponse(html.render(diagnosis), headers={"content-security-policy": html.POLICY})

    return router


def _inside(address: str) -> str:
    """Only addresses of our own: a link to the login page must not lead anywhere else."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\", "/login")) else "/"


# Problems.


def _answer_problems(app: FastAPI, rendered: Pages) -> None:
    def answer(request: Request, problem: Problem) -> Response:
        if is_for_people(request.scope):
            return rendered.problem(request, problem.status, problem.error, problem.what_to_do, problem.command)
        return JSONResponse({"error": problem.error, "what_to_do": problem.what_to_do}, problem.status)

    @app.exception_handler(SemelError)
    def semel(request: Request, error: SemelError) -> Response:
        return answer(request, problems.of(error))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        parts = [f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg']}" for one in error.errors()[:5]]
        return answer(request, Problem(422, "; ".join(parts), "see /api for what this call takes"))

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return answer(request, _NOT_FOUND)
        if error.status_code == 405:
            return answer(request, Problem(405, f"{request.method} is not for this address", "see /api"))
        return answer(request, Problem(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(request, Problem(500, "something failed that should not have", "the dashboard's log says what"))
