"""Connections and queues that come and go, and apps that are started and stopped, leave nothing behind."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest

import semel.broker
import suite
from running_apps import client_of, running_app, send
from semel import App
from soak.figures import MIB
from soak.processes import BrokerProcess, ended
from waiting import until

TIMES: Final = suite.effort(fast=40, full=1_000)
MEMORY: Final = 12 * MIB


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    started = BrokerProcess(tmp_path_factory.mktemp("idle"))
    with ended(started):
        yield started


def uses(process: psutil.Process) -> tuple[int, int]:
    return process.num_fds(), process.num_threads()


def connections(process: psutil.Process) -> int:
    """The number of its connections, without the one that listens."""
    return sum(connection.status != psutil.CONN_LISTEN for connection in process.net_connections())


def visit(broker: BrokerProcess, times: int) -> None:
    """Connections that end in all ways: after an answer, without a request, with half of one, and by a reset."""
    address = urlsplit(broker.url)
    for number in range(times):
        with socket.create_connection((address.hostname, address.port or 0), 30) as client:
            if number % 4 == 0:
                client.sendall(f"GET /_semel/health HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
                assert client.recv(1_000).startswith(b"HTTP/1.1 200")
            elif number % 4 == 1:
                client.sendall(b"POST / HTTP/1.1\r\nContent-Le")
            elif number % 4 == 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def test_a_thousand_connections_leave_no_file_and_no_thread_behind(broker: BrokerProcess) -> None:
    process = psutil.Process(broker.pid)
    visit(broker, 8)
    until(lambda: not connections(process), "the end of the first connections")
    before = uses(process)
    visit(broker, TIMES)
    until(lambda: not connections(process), "the end of all connections")
    until(lambda: uses(process) <= before, "the end of what was opened for them")


def test_a_thousand_queues_leave_no_file_no_thread_and_no_metric_behind(broker: BrokerProcess) -> None:
    process, client = psutil.Process(broker.pid), broker.client()

    def come_and_go(name: str, times: int) -> None:
        for number in range(times):
            queue = client.create_queue(f"{name}-{number}", {"VisibilityTimeout": "60"}, {"tag": "x" * 100})
            queue.send("x" * 1_000)
            assert queue.receive()
            queue.drop()

    come_and_go("first", suite.effort(fast=20, full=100))
    before, memory = uses(process), process.memory_info().rss
    come_and_go("later", TIMES)
    assert uses(process) <= before
    assert process.memory_info().rss - memory < MEMORY
    with urlopen(f"{broker.url}/metrics", timeout=30) as metrics:
        assert b"later-" not in metrics.read()


STARTS: Final = suite.effort(fast=5, full=1_000)


@pytest.mark.timeout(900)
def test_an_app_that_is_started_and_stopped_a_thousand_times_leaves_nothing_behind(tmp_path: Path) -> None:
    process = psutil.Process()
    with semel.broker.running() as broker, client_of(broker) as client:
        queue = client.create_queue("orders")

        def start_and_stop(times: int) -> None:
            for number in range(times):
                app = App(f"sqlite:///{tmp_path / 'ledger.db'}", client=client)
                done: list[str] = []
                app.handler("orders")(done.append)
                send(queue, [str(number)])
                with running_app(app) as running:
                    until(lambda: done, "the message")  # noqa: B023
                    assert running.stop().clean

        start_and_stop(3)
        before, memory = uses(process), process.memory_info().rss
        start_and_stop(STARTS)
        # The broker is in this process, so each connection to it counts twice; the client keeps some to reuse them.
        until(lambda: uses(process)[1] <= before[1] + 1, "the end of all threads")
        assert uses(process)[0] <= before[0] + 4
        assert process.memory_info().rss - memory < MEMORY
