"""More calls, clients and bytes than the broker can serve: it refuses some, and nothing grows without limit."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from serve_process import Connection, Serve, call, request

import semel.broker
from semel.broker import calls
from semel.broker.calls import PendingCall, PendingCalls
from semel.broker.connections import Limits
from semel.broker.embedded_broker import event_loop
from semel.broker.http import MAX_PIPELINED
from semel.broker.startup import Options, Running, start
from waiting import until

QUEUE = "orders"


class Caller:
    """A request of a client that may have gone."""

    def __init__(self, size: int = 0, *, hung_up: bool = False) -> None:
        self.body, self.hung_up, self.aborted = b"x" * size, hung_up, False

    def abort(self) -> None:
        self.aborted = True


def pending(*requests: Caller) -> PendingCalls:
    waiting = PendingCalls()
    for caller in requests:
        waiting.add(cast(PendingCall, SimpleNamespace(request=caller)))
    return waiting


def connect(broker: semel.broker.EmbeddedBroker) -> Connection:
    host, _, port = broker.url.removeprefix("http://").rpartition(":")
    return Connection(host, int(port))


def test_no_more_calls_wait_than_are_soon_carried_out_whatever_they_wait_for() -> None:
    waiting = pending(*[Caller()] * (calls.MAX_WAITING - 3))
    states = [waiting.full]
    waiting.held, waiting.unsynced = 1, 2
    states.append(waiting.full)
    waiting.take()
    assert [*states, waiting.full] == [False, True, False]


def test_no_more_bytes_of_calls_wait_than_fit() -> None:
    waiting = pending(*[Caller(calls.MAX_WAITING_BYTES // 4)] * 3)
    states = [waiting.full]
    waiting.put_back(pending(Caller(calls.MAX_WAITING_BYTES // 4)).take())
    states.append(waiting.full)
    waiting.take()
    assert [*states, waiting.full] == [False, True, False]


def test_nobody_is_made_to_wait_behind_calls_that_wait_for_more_than_a_second() -> None:
    clock = iter([*[10.0] * (calls.MAX_IN_TRANSACTION + 1), 10.9, 11.1])
    waiting = PendingCalls(lambda: next(clock))
    for _ in range(calls.MAX_IN_TRANSACTION + 1):
        waiting.add(cast(PendingCall, SimpleNamespace(request=Caller())))
    assert [waiting.full, waiting.full] == [False, True]
    waiting.take()
    assert not waiting.full  # the next transaction has them all


def test_a_transaction_has_no_more_calls_than_the_event_loop_can_wait_for() -> None:
    waiting = pending(*[Caller()] * (2 * calls.MAX_IN_TRANSACTION + 1))
    assert [len(waiting.take()) for _ in range(4)] == [calls.MAX_IN_TRANSACTION, calls.MAX_IN_TRANSACTION, 1, 0]


def test_while_others_wait_nothing_is_done_for_clients_that_have_gone() -> None:
    gone = [Caller(hung_up=True) for _ in range(calls.MAX_IN_TRANSACTION)]
    there = [Caller() for _ in range(calls.MAX_IN_TRANSACTION)]
    next_calls = pending(*gone, *there).take()
    assert [cast(Any, pending_call).request for pending_call in next_calls] == there
    assert all(caller.aborted for caller in gone)


def test_a_call_that_finds_too_many_waiting_is_throttled_and_the_broker_goes_on() -> None:
    """Calls that a fault holds up are as good as any to wait."""
    with ExitStack() as stack:
        broker = stack.enter_context(semel.broker.running())
        broker.client().create_queue(QueueName=QUEUE)
        broker.faults.set("latency", 1.0, milliseconds=60_000)
        crowd = [stack.enter_context(connect(broker)) for _ in range(calls.MAX_WAITING // MAX_PIPELINED)]
        for client in crowd:
            client.send(call("ListQueues", host=client.host) * MAX_PIPELINED)
        last = stack.enter_context(connect(broker))
        until(lambda: broker.faults.counts()["latency"] == calls.MAX_WAITING, "the crowd's arrival")
        answer = last.call("GetQueueUrl", None, QueueName=QUEUE)
        assert answer.status == 403
        assert answer.json["__type"] == "com.amazonaws.sqs#RequestThrottled"
        assert answer.headers["x-amzn-query-error"] == "RequestThrottled;Sender"
        assert broker.admin("GET", "health")["status"] == "ok"
        broker.faults.clear()


def test_receives_that_bring_too_much_for_one_transaction_are_served_by_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "MAX_RESULT_BYTES", 1_000)
    with semel.broker.running() as broker, connect(broker) as client, connect(broker) as poller:
        sqs = broker.client()
        url = sqs.create_queue(QueueName=QUEUE)["QueueUrl"]
        for _ in range(MAX_PIPELINED // 2):
            poller.ask("ReceiveMessage", QUEUE, WaitTimeSeconds=20)
        bodies = [f"{number:0600}" for number in range(MAX_PIPELINED)]
        entries = [{"Id": str(place % 10), "MessageBody": body} for place, body in enumerate(bodies)]
        for at in range(0, len(entries), 10):
            sqs.send_message_batch(QueueUrl=url, Entries=cast(Any, entries[at : at + 10]))
        client.send(call("ReceiveMessage", QUEUE, host=client.host) * (MAX_PIPELINED // 2))
        answers = [connection.answer().json for connection in (client, poller) for _ in range(MAX_PIPELINED // 2)]
        assert sorted(message["Body"] for answer in answers for message in answer["Messages"]) == bodies


def on_a_broker(test: Callable[[Running], Awaitable[None]], limits: Limits | None = None) -> None:
    async def main() -> None:
        running = await start(Options(data=None, port=0, limits=limits or Limits()))
        try:
            await test(running)
        finally:
            await running.stop()

    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(main())


def address(running: Running) -> tuple[str, int]:
    host, _, port = running.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def test_clients_that_come_together_are_taken_in_together() -> None:
    async def test(running: Running) -> None:
        clients = [socket.create_connection(address(running)) for _ in range(200)]
        for _ in range(20):  # turns of the event loop, each of which may last as long as a transaction
            await asyncio.sleep(0)
        assert len(running.broker.connections) == len(clients)
        for client in clients:
            client.close()

    on_a_broker(test)


def test_the_polls_of_clients_that_hang_up_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MANY_POLLS", 8)

    async def test(running: Running) -> None:
        host = "{}:{}".format(*address(running))
        reader, writer = await asyncio.open_connection(*address(running))
        writer.write(call("CreateQueue", host=host, QueueName=QUEUE))
        await reader.readuntil(b"}")
        waiting = running.broker._parked
        for _ in range(50):
            _, poller = await asyncio.open_connection(*address(running))
            poller.write(call("ReceiveMessage", QUEUE, host=host, WaitTimeSeconds=20))
            before = len(waiting)
            while len(waiting) == before:
                await asyncio.sleep(0)
            assert len(waiting) <= 2 * calls._MANY_POLLS
            poller.close()
            await poller.wait_closed()
        writer.close()

    on_a_broker(test)


def test_bodies_that_do_not_fit_together_are_refused_and_those_that_do_are_taken() -> None:
    body = json.dumps({"QueueNamePrefix": "x" * 700_000}).encode()
    head = "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ListQueues\r\n"
    whole = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def answer(running: Running, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address(running))
        writer.write(request)
        status = await reader.readline()
        writer.close()
        return status

    async def test(running: Running) -> None:
        connections = running.broker.connections
        _, slow = await asyncio.open_connection(*address(running))
        slow.write(whole[:-1])
        while connections.arriving_bytes < 700_000:
            await asyncio.sleep(0.001)
        assert (await answer(running, whole)).split()[1] == b"503"
        slow.close()
        while connections.arriving_bytes:
            await asyncio.sleep(0.001)
        assert (await answer(running, whole)).split()[1] == b"200"
        assert connections.arriving_bytes == 0

    on_a_broker(test, Limits(arriving_bytes=1_000_000))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux changes the limits of another process")
def test_clients_for_whom_no_file_is_left_are_served_when_there_is_one(tmp_path: Path) -> None:
    broker = Serve(tmp_path, "--port", "0", "--ephemeral")
    with ExitStack() as stack:
        stack.callback(broker.kill_if_running)
        process = psutil.Process(broker.pid)
        until(lambda: process.num_threads() == 1, "the end of the warm-up, which opens files")
        limits = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (process.num_fds(), limits[1]))
        clients = [stack.enter_context(broker.connect()) for _ in range(3)]
        for client in clients:
            client.send(request("/_semel/health", host=broker.url, method="GET"))
        assert "no connection can be accepted for 1 s: Too many open files" in broker.next_error()
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limits)
        assert [client.answer().status for client in clients] == [200] * 3
        assert broker.call("ListQueues").status == 200


def test_the_limits_are_those_that_the_documentation_names() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "reference" / "broker.md").read_text()
    assert f"{calls.MAX_WAITING:,} calls" in docs
    assert f"{calls.MAX_WAITING_BYTES >> 20} MiB" in docs
