"""The health endpoint: what a probe gets, and the errors when it cannot be started or asked."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import orjson
import pytest

from semel.errors import SemelError, StartError
from semel.telemetry import health_server
from semel.telemetry.health_server import MAX_REQUESTS, Health, HealthServer
from semel.telemetry.worker_client import get_health

WELL = Health(True, True, {"orders": {"in_flight": 3}})


def serving(health: Callable[[], Health] = lambda: WELL, metrics: Callable[[], str] = lambda: "up 1\n") -> HealthServer:
    return HealthServer("127.0.0.1", 0, health=health, metrics=metrics)


def get(server: HealthServer, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()


@pytest.mark.parametrize(
    ("health", "live", "ready", "both"),
    [
        (Health(True, True), 200, 200, 200),
        (Health(True, False), 200, 503, 503),
        (Health(False, False), 503, 503, 503),
        (Health(False, True), 503, 200, 503),
    ],
)
def test_a_probe_learns_from_the_status_alone(health: Health, live: int, ready: int, both: int) -> None:
    with serving(lambda: health) as server:
        assert get(server, "/health/live")[0] == live
        assert get(server, "/health/ready")[0] == ready
        assert get(server, "/health")[0] == both


def test_the_health_page_has_the_details() -> None:
    with serving() as server:
        status, kind, body = get(server, "/health")
    assert (status, kind) == (200, "application/json")
    assert orjson.loads(body) == {"live": True, "ready": True, "details": {"orders": {"in_flight": 3}}}


def test_details_may_hold_anything() -> None:
    odd = Health(True, True, {"set": {1}, "numbers": {1: 2}, "half": "\ud800", "at": object()})
    with serving(lambda: odd) as server:
        assert get(server, "/health")[0] == 200


def test_prometheus_gets_the_metrics_in_its_format() -> None:
    with serving() as server:
        assert get(server, "/metrics") == (200, "text/plain; version=0.0.4; charset=utf-8", b"up 1\n")


def test_a_head_request_gets_no_body() -> None:
    with serving() as server:
        with (
            closing(socket.create_connection(("127.0.0.1", server.port), 30)) as client,
            client.makefile("rb") as answer,
        ):
            client.sendall(b"HEAD /health/live HTTP/1.0\r\n\r\n")
            head, _, body = answer.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200")
    assert body == b""


def test_a_trailing_slash_or_a_query_does_not_matter() -> None:
    with serving() as server:
        assert get(server, "/health/?verbose=1")[0] == 200


@pytest.mark.parametrize("path", ["/", "/health/alive", "/health/live/x", "/etc/passwd"])
def test_another_path_is_told_which_there_are(path: str) -> None:
    with serving() as server:
        status, _, body = get(server, path)
    assert status == 404
    assert b"/health/live" in body


def test_nothing_can_be_changed() -> None:
    with serving() as server:
        assert get(server, "/health", "POST")[0] == 501


def fail() -> Any:
    raise RuntimeError("hunter2")


def test_a_consumer_that_cannot_tell_is_not_well_and_keeps_the_reason_to_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(fail, fail) as server:
        status, _, body = get(server, "/health")
        assert get(server, "/health/live")[0] == 503
        assert get(server, "/metrics")[0] == 500
    assert status == 503
    assert b"hunter2" not in body
    assert "hunter2" in caplog.text


def test_a_slow_answer_does_not_hold_up_another() -> None:
    go = threading.Event()

    def slow() -> str:
        assert go.wait(60)
        return ""

    with serving(metrics=slow) as server:
        waiting = threading.Thread(target=get, args=(server, "/metrics"))
        waiting.start()
        assert get(server, "/health")[0] == 200
        go.set()
        waiting.join()


def test_too_many_requests_at_a_time_are_turned_away_and_later_ones_are_not() -> None:
    go, entered = threading.Event(), threading.Semaphore(0)

    def slow() -> str:
        entered.release()
        assert go.wait(60)
        return ""

    answers: list[int] = []
    with serving(metrics=slow) as server:
        threads = [
            threading.Thread(target=lambda: answers.append(get(server, "/metrics")[0])) for _ in range(MAX_REQUESTS)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert entered.acquire(timeout=60)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            get(server, "/health")
        go.set()
        for thread in threads:
            thread.join()
        assert answers == [200] * MAX_REQUESTS
        assert eventually(server) == 200


def test_clients_that_send_no_request_make_room_for_those_that_do() -> None:
    with serving() as server, contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((server.host, server.port))) for _ in range(MAX_REQUESTS)
        ]
        for client in silent:
            client.sendall(b"GET /health HTTP/1.1\r\n")
        for _ in range(3):
            assert get(server, "/health")[0] == 200
        assert silent[0].recv(1) == b""


def test_a_byte_now_and_then_does_not_prolong_the_time_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_server._Answer, "timeout", 0.3)
    with serving() as server, socket.create_connection((server.host, server.port)) as slow:
        slow.settimeout(0.05)
        started = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < started + 10:
                slow.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    if not slow.recv(1):
                        break
        assert 0.2 < time.monotonic() - started < 5


def eventually(server: HealthServer) -> int:
    """A place is free a moment after the answer that needed it has arrived."""
    while True:
        try:
            return get(server, "/health")[0]
        except (ConnectionError, http.client.HTTPException):
            continue


def test_a_port_in_use_is_named_with_the_way_out() -> None:
    with (
        serving() as server,
        pytest.raises(StartError, match=rf"127.0.0.1:{server.port}: .*in use; choose another port"),
    ):
        HealthServer("127.0.0.1", server.port, health=lambda: WELL, metrics=str)


@pytest.mark.parametrize(("host", "port"), [("256.0.0.1", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_cannot_be_is_named(host: str, port: int) -> None:
    with pytest.raises(StartError, match=rf"cannot listen on {host}:{port}"):
        HealthServer(host, port, health=lambda: WELL, metrics=str)


def test_a_closed_server_gives_its_port_back_and_may_be_closed_again() -> None:
    server = serving()
    assert get(server, "/health")[0] == 200
    server.close()
    server.close()
    with closing(socket.socket()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", server.port))
    assert not server._thread.is_alive()


def test_a_client_that_says_nothing_does_not_hold_up_closing() -> None:
    with serving() as server, closing(socket.create_connection(("127.0.0.1", server.port))):
        server.close()


# Asking.


@pytest.mark.parametrize("form", ["http://127.0.0.1:{}", "127.0.0.1:{}", "http://127.0.0.1:{}/health/ready"])
def test_whoever_asks_gets_the_health(form: str) -> None:
    with serving() as server:
        assert get_health(form.format(server.port)) == WELL


def test_also_a_consumer_that_is_not_well_answers() -> None:
    unwell = Health(True, False, {"reason": "the ledger does not answer"})
    with serving(lambda: unwell) as server:
        assert get_health(server.url) == unwell


def test_asking_where_nobody_is_says_so() -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(SemelError, match=r"no worker answers at http://[^ ]*: Connection refused; is it running"):
        get_health(url)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.0 200 OK\r\n\r\nhello", b"HTTP/1.0 200 OK\r\n\r\n[]", b"SSH-2.0-x\r\n", b""]
)
def test_asking_something_else_says_so(answer: bytes) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            with closing(listening.accept()[0]) as client:
                client.recv(10_000)
                client.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises(SemelError, match=r"no worker answers|is not a Semel worker"):
            get_health(f"http://127.0.0.1:{listening.getsockname()[1]}")
        serving.join()


@pytest.mark.parametrize("url", ["http://127.0.0.1:port", "http://[::1"])
def test_asking_an_address_that_cannot_be_says_so(url: str) -> None:
    with pytest.raises(SemelError, match="no worker answers at"):
        get_health(url)


def test_a_target_that_is_no_url_is_not_found() -> None:
    with serving() as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            client.sendall(b"GET http://[half HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.0 404")
        assert get(server, "/health")[0] == 200
