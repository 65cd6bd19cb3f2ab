"""The dashboard as a web application: the access policy around pages and JSON API."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, FastAPI, Form, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from semel.dashboard import api, error_responses, web
from semel.dashboard.auth.access_policy import AccessPolicy, Refused
from semel.dashboard.auth.middleware import AuthMiddleware, is_page, logged_in, login_address, own_page
from semel.dashboard.error_responses import ErrorAnswer
from semel.dashboard.services import Services
from semel.dashboard.settings import Settings
from semel.dashboard.views import NotThere
from semel.dashboard.web.pages import Notice, Pages, sentence
from semel.version import __version__

if TYPE_CHECKING:
    from semel.ledger.contract import Ledger
    from semel.sqs import Client


def build(
    settings: Settings,
    *,
    client: Client | None = None,
    ledger: Ledger | None = None,
    clock: Callable[[], float] = time.time,
) -> FastAPI:
    """The application. Raises StartError for invalid settings. `app.state.services` are its services; the settings in
    them have the token, also if the dashboard made one."""
    settings.check()
    settings = settings.with_token()
    services = Services.of(settings, client=client, ledger=ledger, clock=clock)
    policy = AccessPolicy(settings, services.service.audit, clock=clock)
    pages = Pages(services.inspector)

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
    app.include_router(web.router(services, pages))
    app.include_router(_login(policy, pages))
    app.include_router(_report(services))
    app.mount("/static", StaticFiles(directory=web.STATIC), name="static")
    api.describe(app, settings)

    def respond(request: Request, answer: ErrorAnswer) -> Response:
        if is_page(request.scope):
            return pages.problem(request, answer.status, answer.error, answer.what_to_do, answer.command)
        return JSONResponse({"error": answer.error, "what_to_do": answer.what_to_do}, answer.status)

    def refusal(scope: Scope, refused: Refused) -> Response:
        if refused.status == 401 and is_page(scope):  # a wrong token
            return pages.redirect(login_address(scope), Notice(login_problem(refused), "bad"))
        return respond(Request(scope), error_responses.of(refused))

    def counts() -> bool:
        return not services.inspector.is_ours

    error_responses.handle(app, respond)
    app.add_middleware(AuthMiddleware, policy=policy, refusal=refusal, counts=counts)
    return app


def login_problem(refused: Refused) -> str:
    return sentence(f"{refused.error}: {refused.what_to_do}")


def _login(policy: AccessPolicy, pages: Pages) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/health")
    def health() -> dict[str, str]:
        """For probes, which have no token."""
        return {"status": "ok", "version": __version__}

    @router.get("/login")
    def form(request: Request, next: str = "/") -> Response:
        if policy.settings.open_access:
            return RedirectResponse("/", 303)
        return pages.login(request, own_page(next))

    @router.post("/login")
    def log_in(request: Request, token: Annotated[str, Form()] = "", next: Annotated[str, Form()] = "/") -> Response:
        remote = request.client.host if request.client else "unknown"
        try:
            cookie = policy.log_in(token, request.headers, remote)
        except Refused as refused:
            return pages.login(request, own_page(next), login_problem(refused), refused.status)
        return logged_in(policy, request.headers, cookie, next)

    @router.post("/logout")
    def log_out(request: Request) -> Response:
        policy.log_out(request.state.caller)
        return logged_in(policy, request.headers, "", "/")

    return router


def _report(services: Services) -> APIRouter:
    """The doctor's report has inline styles and no scripts, so it has its own content security policy."""
    router = APIRouter(include_in_schema=False)

    @router.get("/doctor/report")
    def report() -> Response:
        diagnosis = services.inspector.doctor_job.diagnosis
        if diagnosis is None:
            raise NotThere("there is no report yet", "start an examination on the doctor's page")
        from semel.doctor.report import html_report

        return HTMLResponse(html_report.render(diagnosis), headers={"content-security-policy": html_report.POLICY})

    return router
