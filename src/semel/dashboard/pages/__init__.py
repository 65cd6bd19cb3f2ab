"""The pages: server-rendered, each with an address that can be shared, all of them usable without a script."""

from __future__ import annotations

from fastapi import APIRouter

from semel.dashboard.pages import actions, jobs, letters, messages, once, others, queues
from semel.dashboard.pages.office import Office
from semel.dashboard.pages.rendering import STATIC, Pages
from semel.dashboard.services import Services

__all__ = ["STATIC", "Pages", "router"]


def router(services: Services, pages: Pages) -> APIRouter:
    """All pages and the forms on them; who may call them is decided before they are reached."""
    office = Office(services, pages)
    found = APIRouter(include_in_schema=False)
    for part in (queues, messages, letters, actions, jobs, once, others):
        found.include_router(part.routes(office))
    return found
