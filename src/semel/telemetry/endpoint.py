"""A worker's endpoint: its health server, and the entry in the registry that says where it is."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from semel.errors import SemelError
from semel.telemetry import worker_registry as registry
from semel.telemetry.health_server import Health, HealthServer
from semel.telemetry.worker_client import TOKEN_VARIABLE
from semel.telemetry.worker_control import Controlled, Identity

# Logged as the worker whose endpoint this is.
_log: Final = logging.getLogger("semel.consumer")


def parse(address: str) -> tuple[str, int]:
    """Host and port of "8080", "0.0.0.0:8080" or "[::1]:8080"."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise SemelError(f"{address!r} is not an address for the health endpoint: write it as 8080 or 0.0.0.0:8080")
    return host.strip("[]") or "127.0.0.1", int(port)


def serve(
    stack: ExitStack,
    address: str,
    identity: Identity,
    queues: Sequence[str],
    *,
    health: Callable[[], Health],
    metrics: Callable[[], str],
    control: Controlled,
    token: str | None = None,
    processes: int = 1,
) -> HealthServer:
    """Serve at `address` ("8080", "0.0.0.0:8080") and register the worker, until `stack` closes."""
    host, port = parse(address)
    token = token or os.environ.get(TOKEN_VARIABLE) or None
    server = HealthServer(host, port, health=health, metrics=metrics, control=control, token=token)
    stack.callback(server.close)
    _log.info("health, metrics and control on %s", server.url)
    try:
        entry = registry.register(identity, server.url, queues, processes=processes, needs_token=token is not None)
        stack.callback(registry.unregister, entry)
    except SemelError as error:
        _log.info("%s", error)  # the endpoint works without it
    return server
