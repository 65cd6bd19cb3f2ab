"""Asking and telling a worker over HTTP: the other end of its control endpoint."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any, Final
from urllib.parse import urlsplit

from semel.errors import SemelError
from semel.telemetry.control import Action

MOST: Final = 32 * 1024 * 1024  # bytes of an answer
TOKEN_VARIABLE: Final = "SEMEL_CONTROL_TOKEN"


class ControlError(SemelError):
    """A worker did not do, or not tell, what it was asked. `status`: what HTTP calls it; 0 if nobody answered."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def look(url: str, *, token: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """What a worker says of itself: `GET /workers`, see docs/workers.md."""
    return _call(url, "GET", "/workers", None, token, timeout)


def tell(
    url: str,
    action: Action | str,
    *,
    queue: str | None = None,
    value: int | None = None,
    token: str | None = None,
    timeout: float = 10.0,
) -> dict[str, Any]:
    """Give a worker a command; its answer says what was done."""
    command = {"action": str(action), "queue": queue, "value": value}
    return _call(url, "POST", "/control", json.dumps(command).encode(), token, timeout)


def metrics(url: str, *, timeout: float = 5.0) -> str:
    """What it has counted, as Prometheus reads it."""
    status, data = _fetch(url, "GET", "/metrics", None, {}, timeout)
    if status != 200:
        raise ControlError(f"{url} does not tell its metrics: HTTP {status}", status)
    return data.decode("utf-8", "replace")


def _call(url: str, method: str, path: str, body: bytes | None, token: str | None, timeout: float) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if chosen := token if token is not None else os.environ.get(TOKEN_VARIABLE):
        headers["Authorization"] = f"Bearer {chosen}"
    status, data = _fetch(url, method, path, body, headers, timeout)
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        if status == 404:
            raise ControlError(f"what runs at {url} can be watched but not controlled (a Spark engine, or older)", 404)
        raise ControlError(f"what answers at {url} is no Semel worker; check the host and the port", status)
    if status != 200:
        raise ControlError(f"{url}: {found.get('error', f'HTTP {status}')}", status)
    return found


def _fetch(
    url: str, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
) -> tuple[int, bytes]:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MOST)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ControlError(
            f"no worker answers at {url}: {error}; is it running, and was it started with --health?"
        ) from None
