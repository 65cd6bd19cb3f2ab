"""Who may look at a worker and control it: this machine, or whoever has the token. Never a web page.

A browser on this machine is also "this machine", so what a page could send is refused: a request with an Origin, or
one that was fetched by a page, or that names a host which is not this one (a name that was pointed here afterwards).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from semel.sqs.web_pages import can_be_rebound

PROXIED: Final = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")
HOW: Final = "start it with --control-token (or SEMEL_CONTROL_TOKEN), and send Authorization: Bearer TOKEN"


@dataclass(frozen=True, slots=True)
class Refusal:
    status: HTTPStatus
    text: str


def refusal(address: str, headers: Mapping[str, str], token: str | None) -> Refusal | None:
    """Why a request from `address` is not answered; None if it is. `headers` knows names in any case, as HTTP does."""
    if headers.get("Origin") is not None or headers.get("Sec-Fetch-Site", "none") != "none":
        return Refusal(HTTPStatus.FORBIDDEN, "a web page may not control a worker: use semel top, or the dashboard")
    if token:
        kind, _, given = headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode()):
            return None
        return Refusal(HTTPStatus.UNAUTHORIZED, "this needs the worker's token: send Authorization: Bearer TOKEN")
    if not _is_loopback(address) or any(headers.get(name) is not None for name in PROXIED):
        return Refusal(HTTPStatus.FORBIDDEN, f"without a token only this machine itself may ask: {HOW}")
    if can_be_rebound(headers.get("Host", "")):
        return Refusal(HTTPStatus.FORBIDDEN, f"the host {headers.get('Host')!r} is not this one: use 127.0.0.1")
    return None


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
