"""The pages: server-rendered, each with an address that can be shared, all of them usable without a script."""

from __future__ import annotations

from fastapi import APIRouter

from semel.dashboard.services import Services
from semel.dashboard.web import dead_letter_actions as actions
from semel.dashboard.web import dead_letters as dead_letters
from semel.dashboard.web import deliveries as once
from semel.dashboard.web import jobs, messages, queues
from semel.dashboard.web import operations as others
from semel.dashboard.web.context import RequestContext
from semel.dashboard.web.templating import STATIC, Pages

__all__ = ["STATIC", "Pages", "router"]


def router(services: Services, pages: Pages) -> APIRouter:
    """All pages and the forms on them; who may call them is decided before they are reached."""
    context = RequestContext(services, pages)
    found = APIRouter(include_in_schema=False)
    for part in (queues, messages, dead_letters, actions, jobs, once, others):
        found.include_router(part.routes(context))
    return found
