"""Connections: reused, found stale, closed; every way to frame an answer; long polls that end when they are told to."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from clients import client_for, naps_of
from scripted_server import Request, answer, in_turn, refusal, scripted

import semel.broker
from semel.sqs import Cancel, Client
from semel.sqs.client import connection as connections
from semel.sqs.client import transport as transports
from semel.sqs.errors import BadConfiguration, Cancelled, Unreachable


def list_queues(client: Client) -> dict[str, Any]:
    return client.call("ListQueues")


# Keeping.


def test_calls_one_after_the_other_share_one_connection() -> None:
    with scripted(in_turn(answer())) as server, client_for(server.url) as client:
        for _ in range(5):
            list_queues(client)
        assert server.connections == 1


def test_an_error_answer_does_not_cost_the_connection() -> None:
    script = in_turn(refusal("InternalFailure", status=500), refusal("RequestThrottled", status=403), answer())
    with scripted(script) as server, client_for(server.url) as client:
        list_queues(client)
        assert (len(server.requests), server.connections) == (3, 1)


def test_calls_at_the_same_time_have_a_connection_each_and_the_last_used_is_used_next() -> None:
    everybody = threading.Barrier(4)

    def script(request: Request) -> bytes:
        if request.operation == "ListQueues":
            everybody.wait()
        return answer()

    with scripted(script) as server, client_for(server.url) as client:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: list_queues(client), range(4)))
        assert server.connections == 4
        for _ in range(5):
            client.call("ListDeadLetterSourceQueues")
        assert len({request.connection for request in server.requests[4:]}) == 1


def test_a_connection_that_the_server_closed_is_replaced_at_once_and_without_counting() -> None:
    with scripted(in_turn(answer())) as server, client_for(server.url, max_attempts=1) as client:
        for number in range(1, 4):
            list_queues(client)
            assert server.connections == number
            server.hang_up()
        assert naps_of(client) == []


def test_an_idle_connection_is_looked_at_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "LOOK_AFTER", 0.0)
    with scripted(in_turn(answer())) as server, client_for(server.url, max_attempts=1) as client:
        list_queues(client)
        list_queues(client)
        assert server.connections == 1
        (kept,) = client._transport._idle
        server.hang_up()
        while not kept.gone():
            time.sleep(0.001)
        kept.used = False  # so that a call over it would not be repeated
        list_queues(client)
        assert (server.connections, len(server.requests)) == (2, 3)


def test_connections_that_were_idle_for_long_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(transports, "monotonic", lambda: now[0])
    everybody = threading.Barrier(3)

    def script(request: Request) -> bytes:
        if request.operation == "ListQueues":
            everybody.wait()
        return answer()

    with scripted(script) as server, client_for(server.url) as client:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: list_queues(client), range(3)))
        assert len(client._transport._idle) == 3
        for _ in range(3):
            now[0] += transports.IDLE_SECONDS - 1
            client.call("ListDeadLetterSourceQueues")
        assert len(client._transport._idle) == 1
        now[0] += transports.IDLE_SECONDS
        client.call("ListDeadLetterSourceQueues")
        assert server.connections == 4


def test_no_more_connections_are_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "MAX_IDLE", 2)
    with scripted(in_turn(answer())) as server, client_for(server.url, max_attempts=1) as client:
        transport = client._transport
        for connection in [transport._dial(None) for _ in range(4)]:
            transport._keep(connection)
        assert len(transport._idle) == 2
        list_queues(client)


def test_a_closed_client_keeps_nothing_open() -> None:
    with scripted(in_turn(answer())) as server:
        client = client_for(server.url)
        list_queues(client)
        client.close()
        assert client._transport._idle == []
        list_queues(client)
        assert client._transport._idle == []


def test_a_client_that_nobody_closed_leaves_no_socket_behind() -> None:
    # A socket that is forgotten open is a ResourceWarning, and with it a failed test.
    with scripted(in_turn(answer())) as server:
        list_queues(client_for(server.url))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_does_not_talk_over_its_parents_connection() -> None:
    with scripted(in_turn(answer())) as server, client_for(server.url) as client:
        list_queues(client)
        child = os.fork()
        if child == 0:
            os._exit(0 if client._transport._idle == [] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        list_queues(client)
        assert server.connections == 1


def test_a_broker_that_went_away_and_came_back_is_found_again() -> None:
    with semel.broker.running() as broker:
        port = int(broker.url.rpartition(":")[2])
        client = client_for(broker.url, max_attempts=2)
        list_queues(client)
    with client:
        with pytest.raises(Unreachable) as caught:
            list_queues(client)
        assert f"cannot connect to http://127.0.0.1:{port}: Connection refused" in str(caught.value)
        assert len(naps_of(client)) == 1
        with semel.broker.running(port=port):
            assert list_queues(client) == {}


# Timeouts.


def test_a_server_that_says_nothing_is_given_up() -> None:
    release = threading.Event()

    def script(request: Request) -> None:
        release.wait()

    with scripted(script) as server, client_for(server.url, read_timeout=0.05, max_attempts=2) as client:
        try:
            with pytest.raises(Unreachable, match=r"no answer from .* within 0.05 s.*read_timeout") as caught:
                list_queues(client)
        finally:
            release.set()
        assert (caught.value.attempts, len(naps_of(client))) == (2, 1)


def test_who_asks_for_the_time_waits_no_longer_than_it_says() -> None:
    release = threading.Event()

    def script(request: Request) -> None:
        release.wait()

    with scripted(script) as server, client_for(server.url) as client:
        try:
            with pytest.raises(Unreachable, match=r"no answer from .* within 0.05 s"):
                client.exchange("GET", "/", signed=False, timeout=0.05)
        finally:
            release.set()


def test_a_timeout_on_a_kept_connection_counts_as_an_attempt() -> None:
    release = threading.Event()

    def script(request: Request) -> bytes | None:
        if len(server.requests) > 1:
            release.wait()
        return answer()

    with scripted(script) as server, client_for(server.url, max_attempts=1) as client:
        list_queues(client)
        client._read_timeout = 0.05
        try:
            with pytest.raises(Unreachable) as caught:
                list_queues(client)
        finally:
            release.set()
        assert (caught.value.attempts, server.connections) == (1, 1)


@pytest.mark.parametrize(("read_timeout", "wait", "expected"), [(60.0, 20, 60.0), (5.0, 20, 30.0), (5.0, 0, 5.0)])
def test_the_read_timeout_is_always_longer_than_the_long_poll(
    monkeypatch: pytest.MonkeyPatch, read_timeout: float, wait: int, expected: float
) -> None:
    timeouts = []
    exchange = connections.Connection.exchange

    def spy(self: connections.Connection, request: bytes, timeout: float) -> connections.Answer:
        timeouts.append(timeout)
        return exchange(self, request, timeout)

    monkeypatch.setattr(connections.Connection, "exchange", spy)
    with scripted(in_turn(answer())) as server, client_for(server.url, read_timeout=read_timeout) as client:
        queue = client.queue(f"{server.url}/1/orders")
        queue.receive(10, wait)
        client.call("ReceiveMessage", {"QueueUrl": queue.url, "WaitTimeSeconds": wait})
        assert timeouts == [expected] * 2
        # Without a wait of its own the queue's counts, which may be twenty seconds.
        client.call("ReceiveMessage", {"QueueUrl": queue.url})
        assert timeouts[2] >= 30


@pytest.mark.parametrize("option", ["connect_timeout", "read_timeout"])
def test_a_timeout_that_is_none_is_refused(option: str) -> None:
    with pytest.raises(BadConfiguration, match=option):
        client_for("http://127.0.0.1:1", **{option: 0})


# Framing.


def chunks(*pieces: bytes, trailer: bytes = b"", extension: bytes = b"") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    return head + body + b"0\r\n" + trailer + b"\r\n"


@pytest.mark.parametrize(
    ("reply", "connections_used"),
    [
        (answer({"a": 1}), 1),
        (chunks(b'{"a"', b":", b"1}"), 1),
        (chunks(b'{"a":1}', trailer=b"X: y\r\nZ: w\r\n", extension=b";name=value"), 1),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answer({"a": 1}), 1),
        (answer({"a": 1}, headers="Connection: Close\r\n"), 2),
        (answer({"a": 1}, headers="connection:close\r\n"), 2),
        (answer({"a": 1}).replace(b"HTTP/1.1", b"HTTP/1.0"), 2),
        (answer({"a": 1}, headers="Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"), 1),
        (answer({"a": 1}) + b"unasked for", 2),
        (answer({"a": 1}).replace(b"Content-Length:", b"CONTENT-length:  "), 1),
    ],
)
def test_every_way_to_frame_an_answer_is_understood(reply: bytes, connections_used: int) -> None:
    with scripted(in_turn(reply)) as server, client_for(server.url) as client:
        assert [list_queues(client) for _ in range(2)] == [{"a": 1}] * 2
        assert server.connections == connections_used


def test_an_answer_without_a_length_lasts_until_the_end_of_the_connection() -> None:
    def serve(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(65536)
            sock.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"a"')
            sock.sendall(b":1}")

    assert over_raw_socket(serve) == {"a": 1}


@pytest.mark.parametrize("reply", [answer({"a": "é" * 300}), chunks(b'{"a":"', "é".encode() * 300, b'"}')])
def test_an_answer_may_come_byte_by_byte(reply: bytes) -> None:
    def serve(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.recv(65536)
            for number in range(len(reply)):
                sock.sendall(reply[number : number + 1])

    assert over_raw_socket(serve) == {"a": "é" * 300}


def over_raw_socket(serve: Callable[[socket.socket], None]) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            with client_for(f"http://127.0.0.1:{listener.getsockname()[1]}", max_attempts=1) as client:
                return list_queues(client)
        finally:
            thread.join()


def test_an_answer_of_many_megabytes_arrives_whole() -> None:
    body = {"Messages": [{"MessageId": "1", "ReceiptHandle": "r", "Body": "x" * 8_000_000}]}
    with scripted(in_turn(answer(body))) as server, client_for(server.url) as client:
        (got,) = client.queue(f"{server.url}/1/orders").receive(10, 0)
        assert len(got.body) == 8_000_000


@pytest.mark.parametrize(
    "reply",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 two OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X" * 70_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
def test_what_is_not_http_is_an_error_that_says_so(reply: bytes) -> None:
    with scripted(in_turn(reply)) as server, client_for(server.url, max_attempts=1) as client:
        with pytest.raises(Unreachable, match=r"Check that an SQS endpoint answers there"):
            list_queues(client)
        assert client._transport._idle == []


@pytest.mark.parametrize("kept", [answer({"a": 1})[:-3], chunks(b'{"a":1}')[:-3], answer({"a": 1})[:30]])
def test_an_answer_that_breaks_off_is_not_taken_for_one(kept: bytes) -> None:
    def serve(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(65536)
            sock.sendall(kept)

    with pytest.raises(Unreachable, match="in the middle of an answer"):
        over_raw_socket(serve)


# Cancelling.


def test_a_long_poll_ends_when_it_is_cancelled() -> None:
    with semel.broker.running() as broker, client_for(broker.url) as client:
        queue = client.create_queue("orders")
        cancel = Cancel()
        with ThreadPoolExecutor() as pool:
            polls = [pool.submit(queue.receive, 10, 20, cancel=cancel) for _ in range(3)]
            while len(cancel._running) < 3:
                time.sleep(0.001)
            cancel.set()
            for poll in polls:
                with pytest.raises(Cancelled, match="ReceiveMessage on queue orders: cancelled"):
                    poll.result()
        with pytest.raises(Cancelled):
            queue.receive(10, 20, cancel=cancel)
        assert naps_of(client) == []
        # Others are not touched.
        queue.send("x")
        assert len(queue.receive(10, 0, cancel=Cancel())) == 1


def test_a_message_sent_after_a_cancelled_poll_is_there_for_the_next() -> None:
    with semel.broker.running() as broker, client_for(broker.url) as client:
        queue = client.create_queue("orders")
        cancel = Cancel()
        with ThreadPoolExecutor() as pool:
            poll = pool.submit(queue.receive, 10, 20, cancel=cancel)
            while not cancel._running:
                time.sleep(0.001)
            cancel.set()
            assert isinstance(poll.exception(), Cancelled)
        queue.send("x")
        assert [message.body for message in queue.receive(10, 20)] == ["x"]


def test_a_pause_between_attempts_ends_when_it_is_cancelled() -> None:
    cancel = Cancel()

    def script(request: Request) -> bytes:
        threading.Timer(0.01, cancel.set).start()
        return answer(b"", 503)

    with scripted(script) as server, client_for(server.url, max_attempts=1000, chance=lambda: 10_000.0) as client:
        with pytest.raises(Cancelled):
            client.call("ListQueues", cancel=cancel)
        assert len(server.requests) == 1


def test_a_cancel_that_comes_with_the_answer_loses_no_message() -> None:
    class Late(Cancel):
        def end(self, connection: Any) -> None:
            self.set()
            super().end(connection)

    body = {"Messages": [{"MessageId": "1", "ReceiptHandle": "r", "Body": "x"}]}

    with scripted(in_turn(answer(body))) as server, client_for(server.url) as client:
        queue = client.queue(f"{server.url}/1/orders")
        assert len(queue.receive(10, 0, cancel=Late())) == 1
        assert client._transport._idle == []  # it was shut down under way


def test_a_call_that_is_cancelled_before_its_answer_is_not_tried_again() -> None:
    cancel = Cancel()

    def script(request: Request) -> bytes:
        cancel.set()
        return b""

    with scripted(script) as server, client_for(server.url) as client:
        with pytest.raises(Cancelled):
            client.call("ListQueues", cancel=cancel)


@pytest.mark.parametrize("framing", [f"Content-Length: {'9' * 5_000}", "Content-Length: 1e3", "Content-Length: -1"])
def test_a_length_that_is_no_length_is_no_answer(framing: str) -> None:
    script = in_turn(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{{}}".encode())
    with scripted(script) as server, client_for(server.url, max_attempts=1) as client, pytest.raises(Unreachable):
        list_queues(client)


@pytest.mark.parametrize("size", ["-2", "+2", "0x2", "2_0", ""])
def test_a_chunk_whose_size_is_no_number_is_no_answer(size: str) -> None:
    script = in_turn(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\n{{}}\r\n0\r\n\r\n".encode())
    with scripted(script) as server, client_for(server.url, max_attempts=1) as client, pytest.raises(Unreachable):
        list_queues(client)
