"""The control endpoint over HTTP: who may use it, what it answers, and the registry that has its address."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from semel.telemetry import endpoint, worker_client
from semel.telemetry import worker_registry as registry
from semel.telemetry.access import refusal
from semel.telemetry.health_server import Health, HealthServer
from semel.telemetry.worker_client import WorkerError
from semel.telemetry.worker_control import Command, Identity, Refused

TOKEN = "correct horse"


class Worker:
    """What stands behind the endpoint here; it notes what it is told."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def workers(self) -> dict[str, Any]:
        return {"id": "w", "queues": {}}

    def do(self, command: Command) -> dict[str, Any]:
        self.commands.append(command)
        if command.queue == "full":
            raise Refused("full cannot be paused", 409)
        if command.queue == "broken":
            raise RuntimeError("hunter2")
        return {"done": f"{command.action} {command.queue}", "queues": {}}


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture(autouse=True)
def no_token_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SEMEL_CONTROL_TOKEN", raising=False)
    monkeypatch.setenv("SEMEL_STATE", str(tmp_path))


@pytest.fixture
def server(worker: Worker) -> Iterator[HealthServer]:
    with serving(worker) as server:
        yield server


def serving(worker: Worker, token: str | None = None) -> HealthServer:
    return HealthServer(
        "127.0.0.1", 0, health=lambda: Health(True, True), metrics=lambda: "up 1\n", control=worker, token=token
    )


def request(
    server: HealthServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def post(server: HealthServer, command: object, **headers: str) -> tuple[int, dict[str, Any]]:
    return request(
        server, "POST", "/control", json.dumps(command).encode(), **{"Content_Type": "application/json"} | headers
    )


# Who is let in.


@pytest.mark.parametrize(
    ("address", "headers", "token", "status"),
    [
        ("127.0.0.1", {}, None, None),
        ("127.8.8.8", {"Host": "127.0.0.1:8080"}, None, None),
        ("::1", {"Host": "[::1]:8080"}, None, None),
        ("::ffff:127.0.0.1", {"Host": "localhost:8080"}, None, None),
        ("127.0.0.1", {"Host": "worker:8080"}, None, None),
        ("127.0.0.1", {"Host": "shop.localhost"}, None, None),
        ("10.0.0.7", {"Host": "10.0.0.1"}, None, 403),
        ("::ffff:10.0.0.7", {}, None, 403),
        ("", {}, None, 403),
        ("127.0.0.1", {"X-Forwarded-For": "10.0.0.7"}, None, 403),
        ("127.0.0.1", {"Via": "1.1 proxy"}, None, 403),
        ("127.0.0.1", {"Host": "rebound.example:8080"}, None, 403),
        ("127.0.0.1", {"Origin": "http://evil.example"}, None, 403),
        ("127.0.0.1", {"Origin": "null"}, None, 403),
        ("127.0.0.1", {"Sec-Fetch-Site": "cross-site"}, None, 403),
        ("127.0.0.1", {"Sec-Fetch-Site": "none"}, None, None),
        ("127.0.0.1", {}, TOKEN, 401),
        ("10.0.0.7", {"Authorization": f"Bearer {TOKEN}", "Host": "worker.example"}, TOKEN, None),
        ("10.0.0.7", {"Authorization": f"bearer  {TOKEN} "}, TOKEN, None),
        ("10.0.0.7", {"Authorization": f"Basic {TOKEN}"}, TOKEN, 401),
        ("10.0.0.7", {"Authorization": "Bearer wröng"}, TOKEN, 401),
        ("10.0.0.7", {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}, TOKEN, 403),
        ("10.0.0.7", {"Authorization": "Bearer "}, "", 403),
    ],
)
def test_this_machine_and_whoever_has_the_token_are_let_in_and_no_web_page(
    address: str, headers: dict[str, str], token: str | None, status: int | None
) -> None:
    refused = refusal(address, {name.lower(): value for name, value in headers.items()}.get, token)
    assert (refused and int(refused.status)) == status


def test_the_token_is_asked_for_over_the_wire_too(worker: Worker) -> None:
    with serving(worker, TOKEN) as server:
        assert request(server, "GET", "/workers")[0] == 401
        assert post(server, {"action": "stop"})[0] == 401
        assert worker.commands == []
        assert worker_client.get_worker(server.url, token=TOKEN)["id"] == "w"
        with pytest.raises(WorkerError, match="the worker needs its token") as error:
            worker_client.send_command(server.url, "pause", token="wrong")
        assert error.value.status == 401


def test_the_token_may_come_from_the_environment(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_CONTROL_TOKEN", TOKEN)
    with serving(worker, TOKEN) as server:
        assert worker_client.get_worker(server.url)["id"] == "w"


@pytest.mark.parametrize("header", [{"Origin": "http://127.0.0.1:9325"}, {"Host": "evil.example"}])
def test_a_page_in_a_browser_on_this_machine_is_refused(
    worker: Worker, server: HealthServer, header: dict[str, str]
) -> None:
    status, body = post(server, {"action": "stop"}, **header)
    assert status == HTTPStatus.FORBIDDEN
    assert "error" in body
    assert request(server, "GET", "/workers", None, **header)[0] == 403
    assert worker.commands == []


# What it answers.


def test_a_command_is_carried_out_and_the_answer_says_what_was_done(worker: Worker, server: HealthServer) -> None:
    assert worker_client.send_command(server.url, "pause", queue="orders")["done"] == "pause orders"
    assert worker_client.send_command(server.url, "concurrency", value=8)["done"] == "concurrency None"
    assert [(command.action, command.queue, command.value) for command in worker.commands] == [
        ("pause", "orders", None),
        ("concurrency", None, 8),
    ]


def test_what_cannot_be_done_is_said_with_its_status(server: HealthServer) -> None:
    assert post(server, {"action": "pause", "queue": "full"}) == (409, {"error": "full cannot be paused"})
    status, body = post(server, {"action": "explode"})
    assert (status, "unknown action" in body["error"]) == (400, True)


def test_a_failure_keeps_its_reason_to_the_log(server: HealthServer, caplog: pytest.LogCaptureFixture) -> None:
    status, body = post(server, {"action": "pause", "queue": "broken"})
    assert status == 500
    assert "hunter2" not in json.dumps(body)
    assert "hunter2" in caplog.text


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {"Content_Type": "application/json"}, 400),
        (b"\xff\xfe", {"Content_Type": "application/json"}, 400),
        (b"[" * 10_000, {"Content_Type": "application/json"}, 400),
        (b'{"action": "stop"}', {"Content_Type": "text/plain"}, 415),
        (b'{"action": "stop"}', {}, 415),
        (b" " * 20_000, {"Content_Type": "application/json"}, 413),
        (b"{}", {"Content_Type": "application/json", "Content_Length": "9" * 5_000}, 413),
        (b"{}", {"Content_Type": "application/json", "Content_Length": "\xb2"}, 415),
        (b"{}", {"Content_Type": "application/json", "Content_Length": "-1"}, 415),
    ],
)
def test_hostile_commands_do_nothing(
    worker: Worker,
    server: HealthServer,
    caplog: pytest.LogCaptureFixture,
    body: bytes,
    headers: dict[str, str],
    status: int,
) -> None:
    assert request(server, "POST", "/control", body, **headers)[0] == status
    assert worker.commands == []
    assert caplog.text == ""


def test_the_rest_of_the_endpoint_is_for_everybody_as_before(worker: Worker) -> None:
    with serving(worker, TOKEN) as server:
        assert request(server, "GET", "/health", Origin="http://x.example")[0] == 200
        assert worker_client.get_metrics(server.url) == "up 1\n"


def test_an_engine_without_control_says_so() -> None:
    with (
        HealthServer("127.0.0.1", 0, health=lambda: Health(True, True), metrics=str) as server,
        pytest.raises(WorkerError, match="can be watched but not controlled"),
    ):
        worker_client.get_worker(server.url)


def test_asking_where_nobody_is_says_so(server: HealthServer) -> None:
    url = server.url
    server.close()
    with pytest.raises(WorkerError, match=r"no worker answers at http.*--health") as error:
        worker_client.get_worker(url)
    assert error.value.status == 0


# The registry.


def test_a_worker_is_registered_while_it_serves(worker: Worker, tmp_path: Path) -> None:
    identity = Identity.new("shop:app")
    with ExitStack() as stack:
        server = endpoint.serve(
            stack,
            "0",
            identity,
            ["orders", "emails"],
            health=lambda: Health(True, True),
            metrics=str,
            control=worker,
            token=TOKEN,
            processes=3,
        )
        (registration,) = registry.workers()
        assert (registration.id, registration.url, registration.pid, registration.app) == (
            identity.id,
            server.url,
            os.getpid(),
            "shop:app",
        )
        assert (registration.queues, registration.processes, registration.needs_token) == (
            ("orders", "emails"),
            3,
            True,
        )
        (entry,) = (tmp_path / "workers").iterdir()
        assert entry.stat().st_mode & 0o777 == 0o600
        assert TOKEN not in entry.read_text()
    assert registry.workers() == []
    assert list((tmp_path / "workers").iterdir()) == []


def test_the_entry_of_a_killed_worker_is_removed_by_whoever_reads(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        identity = Identity.new("shop:app")
        gone = Identity("gone", identity.host, process.pid, time.time(), "shop:app", "1")
        registry.register(gone, "http://127.0.0.1:1", ["orders"])
        assert [entry.id for entry in registry.workers()] == ["gone"]
    finally:
        process.kill()
        process.wait()
    assert registry.workers() == []
    assert list((tmp_path / "workers").iterdir()) == []


def test_a_later_process_of_the_same_number_is_not_taken_for_the_worker() -> None:
    path = registry.register(Identity.new("shop:app"), "http://127.0.0.1:1", ["orders"])
    path.write_text(path.read_text().replace(f'"born": "{registry.born(os.getpid())}"', '"born": "1"'))
    assert registry.workers() == []


def test_a_file_that_is_not_an_entry_is_left_alone_and_harms_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    folder.mkdir()
    (folder / "a.json").write_text("{")
    (folder / "b.json").write_text("[]")
    (folder / "c.json").write_text('{"id": "c"}')
    (folder / "d.json").write_bytes(b"\xff" * 100_000)
    (folder / "e.txt").write_text("hello")
    (folder / "f.json").mkdir()
    assert registry.workers() == []
    assert len(list(folder.iterdir())) == 6


def test_a_worker_of_another_machine_is_not_judged_by_its_process_number() -> None:
    elsewhere = Identity("elsewhere", "another-machine", 1, 0.0, "shop:app", "1")
    registry.register(elsewhere, "http://10.0.0.9:8080", [])
    assert [entry.url for entry in registry.workers()] == ["http://10.0.0.9:8080"]


def test_without_a_folder_to_write_to_the_worker_works_all_the_same(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SEMEL_STATE", str(tmp_path / "file" / "state"))
    with ExitStack() as stack:
        server = endpoint.serve(
            stack, "0", Identity.new(), [], health=lambda: Health(True, True), metrics=str, control=worker
        )
        assert worker_client.get_worker(server.url)["id"] == "w"
