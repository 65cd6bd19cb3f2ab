"""Clients that use up connections, time or memory: other clients must still be answered as if these were not there.

Most tests use lower limits, so that they are fast. Those below "The limits that a user gets" use the defaults.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import pytest

from dashboard.serving import Shop
from intruders import targets
from intruders.crowd import Crowd
from intruders.targets import Program, Target, wait_for
from intruders.wire import connect, get, is_closed
from semel.broker.connections import Limits
from semel.dashboard.connections import MAX_HEAD, MAX_PIPELINED
from semel.dashboard.connections import Limits as DashboardLimits
from semel.sqs import Client
from semel.telemetry import health_server
from suite import slow

SECONDS: Final = 0.4
CROWD: Final = 60


@contextmanager
def opened(name: str, place: Shop, seconds: float) -> Iterator[Target]:
    """A server with room for 20 clients (the worker: 32), which gives each of them this many seconds."""
    with ExitStack() as stack:
        if name == "broker":
            limits = Limits(connections=20, request_seconds=seconds, idle_seconds=seconds, tick_seconds=0.05)
            yield stack.enter_context(targets.broker(limits))
        elif name == "dashboard":
            short = DashboardLimits(
                connections=20, active=100, request_seconds=seconds, idle_seconds=seconds, tick_seconds=0.05
            )
            yield targets.target("dashboard", stack.enter_context(place.dashboard(limits=short)).url)
        else:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(health_server._Answer, "timeout", seconds)
            yield stack.enter_context(targets.endpoint())


def half_requests(target: Target) -> dict[str, bytes]:
    path = {"broker": "/", "dashboard": "/login", "worker": "/control"}[target.name]
    kind = "application/x-www-form-urlencoded" if target.name == "dashboard" else "application/json"
    body = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\n"
    if target.name == "dashboard":
        body += f"Origin: {target.url}\r\nSec-Fetch-Site: same-origin\r\n"
    return {
        "nothing": b"",
        "half a head": b"GET / HTTP/1.1\r\nHost: 127",
        "half a body": f"{body}Content-Type: {kind}\r\nContent-Length: 1000\r\n\r\nto".encode(),
    }


@pytest.mark.parametrize("what", ["half a body", *slow("nothing", "half a head")])
@pytest.mark.parametrize("name", ["broker", "worker", *slow("dashboard")])
def test_a_crowd_that_sends_no_whole_request_keeps_nobody_out(place: Shop, name: str, what: str) -> None:
    with opened(name, place, targets.INTRUSION) as target, ExitStack() as stack:
        for _ in range(CROWD):
            client = stack.enter_context(connect(target.port))
            with contextlib.suppress(OSError):
                client.sendall(half_requests(target)[what])
        for _ in range(3):
            assert target.is_well()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["nothing", "half a head", "half a body"])
@pytest.mark.parametrize("name", ["broker", "dashboard", "worker"])
def test_a_client_that_sends_a_byte_now_and_then_is_let_go(place: Shop, name: str, what: str) -> None:
    with opened(name, place, SECONDS) as target, connect(target.port) as client:
        client.sendall(half_requests(target)[what])
        assert until_let_go(client, b"" if what == "nothing" else b"x") < 10


def until_let_go(client: socket.socket, byte: bytes) -> float:
    """How many seconds the server lets the client send the byte again and again."""
    began = monotonic()
    while monotonic() < began + 15:
        try:
            client.sendall(byte)
        except OSError:
            break
        if is_closed(client, 0.02):
            break
    return monotonic() - began


@pytest.mark.parametrize("name", ["broker", *slow("dashboard")])
def test_a_client_that_reads_no_answer_is_let_go_and_holds_up_nobody(place: Shop, name: str) -> None:
    place.orders.send("x" * 1_000_000)
    with opened(name, place, targets.INTRUSION) as target, reads_nothing(target, place):
        assert target.is_well()
    with opened(name, place, SECONDS) as target, reads_nothing(target, place) as client:
        wait_for(lambda: has_hung_up(client))
    place.orders.purge()


@contextmanager
def reads_nothing(target: Target, place: Shop) -> Iterator[socket.socket]:
    """A client that asks for more than its connection can buffer, and reads nothing."""
    many = large_answer(target, place) * 31
    with connect(target.port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(many)
        yield client


def large_answer(target: Target, place: Shop) -> bytes:
    if target.name == "dashboard":
        (message,) = place.broker.peek("orders")
        return get(f"/queues/orders/messages/{message['MessageId']}/body")
    with Client(target.url, "us-east-1", access_key="test", secret_key="test") as client:
        client.create_queue("orders").send("x" * 1_000_000)
    return get("/_semel/queues/orders/messages")


def has_hung_up(client: socket.socket) -> bool:
    """Whether the server has closed the connection, found without reading: it answers a write with a reset."""
    sleep(0.02)
    try:
        client.sendall(b"\r\n")
    except OSError:
        return True
    return False


def test_headers_without_end_are_refused_by_the_dashboard_as_by_the_broker(servers: dict[str, Target]) -> None:
    for start in (b"GET /" + b"x" * 4000, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + b"x" * 4000):
        with connect(servers["dashboard"].port) as client:
            client.sendall(start)
            sent = len(start)
            with contextlib.suppress(OSError):
                while sent < 4 * MAX_HEAD and not is_closed(client, 0.001):
                    client.sendall(b"x" * 4000)
                    sent += 4000
            assert MAX_HEAD <= sent < 3 * MAX_HEAD


@pytest.mark.slow
def test_a_pipeline_of_the_dashboard_has_an_end(servers: dict[str, Target]) -> None:
    with connect(servers["dashboard"].port) as client:
        with contextlib.suppress(OSError):
            client.sendall(get("/static/style.css") * 100 * MAX_PIPELINED)
        assert is_closed(client, 10)
    assert servers["dashboard"].is_well()


# The limits that a user gets.

IDLE: Final = 10_000
MEMORY: Final = 120 * 1024 * 1024  # bytes that ten thousand clients may use: about 12 kB each


@contextmanager
def as_a_user_starts_it(name: str, folder: Path, open_files: int | None = None) -> Iterator[Program]:
    with targets.program(
        folder, "broker", "broker", "--ephemeral", "--port", "0", ready="listening on ", open_files=open_files
    ) as running:
        if name == "broker":
            yield running
            return
        with targets.program(
            folder,
            "dashboard",
            *("dashboard", "--port", "0", "--open", "--endpoint-url", running.target.url, "--region", "us-east-1"),
            ready="dashboard at ",
            environment={**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"},
            open_files=open_files,
        ) as site:
            yield site


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "GET / HTTP/1.1\\r\\nHost: 127"], ids=["idle", "half a head"])
@pytest.mark.parametrize("name", ["broker", "dashboard"])
def test_ten_thousand_connections_are_cut_to_the_limit_and_others_are_answered(
    tmp_path: Path, name: str, text: str
) -> None:
    most = {"broker": Limits().connections, "dashboard": DashboardLimits().connections}[name]
    with as_a_user_starts_it(name, tmp_path) as running:
        assert running.target.is_well()
        before = running.memory
        with Crowd(running.target.port, IDLE, text) as crowd:
            for _ in range(5):
                assert running.target.is_well()
            wait_for(lambda: crowd.open <= most)
            assert running.files <= most + 200
            assert running.memory - before < MEMORY
        wait_for(lambda: running.files < 100)
        assert running.target.is_well()
        assert running.errors.read_text() == ""


@pytest.mark.slow
def test_a_broker_that_may_open_few_files_takes_no_more_clients_than_fit(tmp_path: Path) -> None:
    with (
        as_a_user_starts_it("broker", tmp_path, open_files=256) as running,
        Crowd(running.target.port, 2_000) as crowd,
    ):
        for _ in range(5):
            assert running.target.is_well()
        wait_for(lambda: crowd.open <= 256)
        assert running.errors.read_text() == ""
