"""The pages: rendered on the server, each with an address that can be shared, all of them usable without scripts."""

from __future__ import annotations

from fastapi import APIRouter

from semel.dashboard.services import Services
from semel.dashboard.web import dead_letters, deliveries, jobs_and_workers, messages, queues
from semel.dashboard.web.pages import STATIC, Pages, RequestContext

__all__ = ["STATIC", "Pages", "router"]


def router(services: Services, pages: Pages) -> APIRouter:
    """All pages and their forms; the middleware has already decided who may call them."""
    context = RequestContext(services, pages)
    router = APIRouter(include_in_schema=False)
    for part in (queues, messages, dead_letters, deliveries, jobs_and_workers):
        router.include_router(part.routes(context))
    return router
