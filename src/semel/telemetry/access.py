"""Who may watch and control a worker: clients on this machine or, if there is a token, whoever has it. No web page may.

A browser is also a client on this machine, so requests that a page could send are refused (see `semel.sqs.hosts`).
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from semel.sqs.hosts import Headers, can_be_rebound, is_from_page, is_loopback

PROXIED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
HOW: Final = "start the worker with SEMEL_CONTROL_TOKEN or --control-token, and send Authorization: Bearer TOKEN"


@dataclass(frozen=True, slots=True)
class Refusal:
    status: HTTPStatus
    text: str


def refusal(address: str, header: Headers, token: str | None) -> Refusal | None:
    """Why a request from `address` is refused; None if it is allowed."""
    if is_from_page(header):
        return Refusal(HTTPStatus.FORBIDDEN, "web pages may not control a worker: use semel workers or the dashboard")
    if token:
        kind, _, credentials = (header("authorization") or "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(credentials.strip().encode(), token.encode()):
            return None
        return Refusal(HTTPStatus.UNAUTHORIZED, "the worker needs its token: send Authorization: Bearer TOKEN")
    if not is_loopback(address) or any(header(name) is not None for name in PROXIED):
        return Refusal(HTTPStatus.FORBIDDEN, f"without a token only local requests are answered: {HOW}")
    if can_be_rebound(host := header("host") or ""):
        return Refusal(HTTPStatus.FORBIDDEN, f"the host {host!r} is not known to be this machine: use 127.0.0.1")
    return None
