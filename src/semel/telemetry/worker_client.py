"""The client of a worker's endpoint: its health, its metrics, what it works on, and commands to it."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any, Final
from urllib.parse import urlsplit

from semel.errors import SemelError
from semel.telemetry.health_server import Health
from semel.telemetry.worker_control import Action
from semel.text import reason

MAX_ANSWER: Final = 32 * 1024 * 1024  # bytes
TOKEN_VARIABLE: Final = "SEMEL_CONTROL_TOKEN"


class WorkerError(SemelError):
    """A worker did not answer, or refused. `status`: the HTTP status of its answer; 0 if there was none. Check that the
    worker runs, its address and its token."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def get_health(url: str, *, timeout: float = 5.0) -> Health:
    """`GET /health` of an address such as http://127.0.0.1:8080, or just 127.0.0.1:8080."""
    status, data = _fetch(url, "GET", "/health", timeout=timeout)
    try:
        answer = json.loads(data)
        return Health(bool(answer["live"]), bool(answer["ready"]), dict(answer.get("details", {})))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _not_a_worker(url, status) from None


def get_metrics(url: str, *, timeout: float = 5.0) -> str:
    """`GET /metrics`: the page that Prometheus reads."""
    status, data = _fetch(url, "GET", "/metrics", timeout=timeout)
    if status != 200:
        raise WorkerError(f"{url} does not show its metrics: HTTP {status}", status)
    return data.decode("utf-8", "replace")


def get_worker(url: str, *, token: str | None = None, timeout: float = 5.0) -> dict[str, Any]:
    """`GET /workers`: what a worker has in progress; see docs/how-to/workers.md."""
    return _call(url, "GET", "/workers", None, token, timeout)


def send_command(
    url: str,
    action: Action | str,
    *,
    queue: str | None = None,
    value: int | None = None,
    token: str | None = None,
    timeout: float = 10.0,
) -> dict[str, Any]:
    """`POST /control`; the answer says what was done."""
    command = {"action": str(action), "queue": queue, "value": value}
    return _call(url, "POST", "/control", json.dumps(command).encode(), token, timeout)


def _call(url: str, method: str, path: str, body: bytes | None, token: str | None, timeout: float) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if chosen := token if token is not None else os.environ.get(TOKEN_VARIABLE):
        headers["Authorization"] = f"Bearer {chosen}"
    status, data = _fetch(url, method, path, body, headers, timeout=timeout)
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        if status == 404:
            raise WorkerError(f"what runs at {url} can be watched but not controlled (on Spark, or too old)", 404)
        raise _not_a_worker(url, status)
    if status != 200:
        raise WorkerError(f"{url}: {answer.get('error', f'HTTP {status}')}", status)
    return answer


def _not_a_worker(url: str, status: int) -> WorkerError:
    return WorkerError(f"what answers at {url} is not a Semel worker; check the host and the port", status)


def _fetch(
    url: str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    *,
    timeout: float,
) -> tuple[int, bytes]:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_ANSWER)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise WorkerError(
            f"no worker answers at {url}: {reason(error)}; is it running, and was it started with --health?"
        ) from None
