"""The broker's HTTP layer with hand-written requests: whatever a client does, others are served and the broker ends."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import count, repeat
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Final

import pytest
from serve_process import ACCOUNT, Answer, Connection, Serve, call, request

_MIB: Final = 1 << 20
_numbers: Final = count(1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """One durable broker for all tests of this file, which must come through all of them without a word."""
    folder: Path = tmp_path_factory.mktemp("http")
    broker = Serve(folder, "--port", "0")
    try:
        yield broker
        ended = broker.stop()
        assert (ended.code, ended.output, ended.errors) == (0, "", "")
    finally:
        broker.kill_if_running()


@pytest.fixture
def queue(shared: Serve) -> str:
    """An empty queue of the test's own."""
    name = f"queue-{next(_numbers)}"
    shared.create(name)
    return name


@pytest.fixture
def client(shared: Serve) -> Iterator[Connection]:
    with shared.connect() as connection:
        yield connection
    # Whatever this test has done to it, the broker serves the next client.
    assert shared.call("ListQueues").status == 200


def health(broker: Serve, version: str = "1.1") -> bytes:
    return request("/_semel/health", host=broker.url, method="GET", version=version)


def send_all(client: Connection, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        client.send(piece)


# Framing.


def test_a_connection_is_kept_for_the_next_request(shared: Serve, client: Connection) -> None:
    for _ in range(3):
        client.send(health(shared))
        assert client.answer().status == 200


def test_connection_close_is_honoured(shared: Serve, client: Connection) -> None:
    client.send(request("/_semel/health", host=shared.url, method="GET", headers=["Connection: close"]))
    answer = client.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert client.at_end()


def test_http_1_0_is_answered_and_the_connection_closed(shared: Serve, client: Connection) -> None:
    client.send(health(shared, version="1.0"))
    assert client.answer().status == 200
    assert client.at_end()


def test_a_request_may_arrive_byte_by_byte(client: Connection, queue: str) -> None:
    for byte in call("SendMessage", queue, host=client.host, MessageBody="piecemeal"):
        client.send(bytes([byte]))
    assert client.answer().status == 200


def test_a_chunked_body_is_read_as_a_whole_one(shared: Serve, client: Connection, queue: str) -> None:
    whole = call("SendMessage", queue, host=client.host, MessageBody="in pieces")
    body = whole.partition(b"\r\n\r\n")[2]
    chunks = [body[start : start + 7] for start in range(0, len(body), 7)]
    headers = ["X-Amz-Target: AmazonSQS.SendMessage", "Transfer-Encoding: chunked"]
    client.send(request("/", host=client.host, headers=headers))
    for chunk in [*chunks, b""]:
        client.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    assert client.answer().status == 200
    assert [message["Body"] for message in shared.peek(queue)] == ["in pieces"]


def test_expect_100_continue_is_answered_before_the_body_is_sent(client: Connection, queue: str) -> None:
    head, _, body = call("SendMessage", queue, host=client.host, MessageBody="x").partition(b"\r\n\r\n")
    client.send(head + b"\r\nExpect: 100-continue\r\n\r\n")
    assert client.answer().status == 100
    client.send(body)
    assert client.answer().status == 200


def test_a_head_request_is_answered_without_a_body(shared: Serve, client: Connection) -> None:
    client.send(request("/_semel/health", host=shared.url, method="HEAD"))
    client.send(health(shared))
    head = b""
    while head.count(b"\r\n\r\n") < 2 and b'"status"' not in head:
        head += client.socket.recv(65536)
    # A body after the first head would be taken for the start of the second answer.
    first, _, rest = head.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 ")
    assert rest.startswith(b"HTTP/1.1 200")


# Pipelines.


def test_pipelined_requests_are_answered_in_order(shared: Serve, client: Connection, queue: str) -> None:
    requests = [
        call("SendMessage", queue, host=client.host, MessageBody=str(number)) if number % 3 else health(shared)
        for number in range(200)
    ]
    client.send(b"".join(requests))
    for number in range(200):
        answer = client.answer()
        assert answer.status == 200
        assert ("MessageId" if number % 3 else "version") in answer.json
    assert [message["Body"] for message in shared.peek(queue)] == [str(n) for n in range(200) if n % 3]


def test_a_poll_in_a_pipeline_is_woken_by_the_send_behind_it(client: Connection, queue: str) -> None:
    asked = monotonic()
    for number in range(5):
        client.send(
            call("ReceiveMessage", queue, host=client.host, WaitTimeSeconds=5)
            + call("SendMessage", queue, host=client.host, MessageBody=str(number))
        )
        assert client.answer().json["Messages"][0]["Body"] == str(number)
        assert "MessageId" in client.answer().json
    assert monotonic() - asked < 4


def test_what_came_before_garbage_in_a_pipeline_is_answered_first(
    shared: Serve, client: Connection, queue: str
) -> None:
    client.send(call("SendMessage", queue, host=client.host, MessageBody="good") + b"\x00\x01garbage\r\n\r\n")
    assert client.answer().status == 200
    assert client.answer().status == 400
    assert client.at_end()
    assert len(shared.peek(queue)) == 1


# Limits.


def refused(client: Connection, status: int) -> Answer:
    answer = client.answer()
    assert answer.status == status
    assert answer.headers["connection"] == "close"
    assert client.at_end()
    return answer


def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_sent(client: Connection) -> None:
    client.send(request("/", host=client.host, headers=[f"Content-Length: {8 * _MIB + 1}"]))
    assert b"8388608" in refused(client, 413).body


def test_a_client_that_sends_too_long_a_body_anyway_gets_to_read_why(client: Connection) -> None:
    """Cutting it off while it sends would take the answer away from it as well."""
    client.send(request("/", b" " * (8 * _MIB + 1), host=client.host))
    assert client.answer().status == 413


def test_a_chunked_body_is_refused_once_it_is_too_long(client: Connection) -> None:
    client.send(request("/", host=client.host, headers=["Transfer-Encoding: chunked"]))
    send_all(client, repeat(b"%x\r\n%b\r\n" % (_MIB, b" " * _MIB), 9))
    assert client.answer().status == 413


def test_the_largest_body_is_taken(client: Connection, queue: str) -> None:
    """1 MiB of text takes 6 MiB of JSON if every character of it is escaped."""
    body = b'{"QueueUrl": "http://%b/%b/%b", "MessageBody": "%b"}' % (
        client.host.encode(),
        ACCOUNT.encode(),
        queue.encode(),
        b"\\u0061" * _MIB,
    )
    client.send(request("/", body, host=client.host, headers=["X-Amz-Target: AmazonSQS.SendMessage"]))
    assert client.answer().status == 200


@pytest.mark.parametrize("headers", [["X-Long: " + "x" * 70_000], [f"X-{n}: {'x' * 60}" for n in range(1200)]])
@pytest.mark.parametrize("in_one_go", [True, False])
def test_headers_of_more_than_64_kib_are_refused(client: Connection, headers: list[str], in_one_go: bool) -> None:
    whole = request("/_semel/health", host=client.host, method="GET", headers=headers)
    pieces = [whole] if in_one_go else [whole[start : start + 4000] for start in range(0, len(whole), 4000)]
    try:
        for piece in pieces:
            client.send(piece)
            if not in_one_go:
                sleep(0.001)
    except ConnectionError:
        pass  # it need not hear us out
    refused(client, 431)


def test_an_endless_url_is_refused(client: Connection) -> None:
    try:
        client.send(b"GET /")
        for _ in range(40):
            client.send(b"x" * 2000)
            sleep(0.001)
    except ConnectionError:
        pass
    refused(client, 431)


def test_endless_trailers_are_refused(client: Connection) -> None:
    """Headers behind a chunked body are headers too."""
    client.send(request("/", host=client.host, headers=["Transfer-Encoding: chunked"]) + b"1\r\n{\r\n0\r\n")
    send_all(client, repeat(b"X-Trailer: " + b"x" * 1000 + b"\r\n", 200))
    assert client.answer().status == 431


# Clients that do not behave.


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"\x00" * 100,
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes(range(256)) * 20,
    ],
    ids=lambda garbage: garbage[:24].decode("latin-1").encode("unicode_escape").decode(),
)
def test_garbage_is_refused_and_the_connection_closed(client: Connection, garbage: bytes) -> None:
    client.send(garbage)
    assert refused(client, 400).body


@pytest.mark.parametrize(
    "headers", [["Connection: Upgrade", "Upgrade: websocket"], ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"]]
)
def test_an_offer_to_upgrade_does_no_harm(shared: Serve, client: Connection, headers: list[str]) -> None:
    """A server may ignore it (RFC 9110, 7.8), and clients make it in passing, as `curl --http2` does."""
    client.send(request("/_semel/health", host=shared.url, method="GET", headers=headers))
    assert client.answer().status == 200


def test_requests_without_a_known_operation_are_told_so(client: Connection) -> None:
    for target in ("AmazonSQS.Frobnicate", "DynamoDB_20120810.ListTables", "", "\xff"):
        client.send(request("/", b"{}", host=client.host, headers=[f"X-Amz-Target: {target}"]))
        assert 400 <= client.answer().status < 500


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"QueueUrl": 5}', b"[" * 100_000])
def test_bodies_that_are_not_what_the_operation_takes_are_told_so(client: Connection, body: bytes) -> None:
    client.send(request("/", body, host=client.host, headers=["X-Amz-Target: AmazonSQS.SendMessage"]))
    answer = client.answer()
    assert answer.status == 400
    assert answer.headers["x-amzn-query-error"].endswith(";Sender")


def test_a_slow_client_holds_nobody_up(shared: Serve, client: Connection, queue: str) -> None:
    whole = call("SendMessage", queue, host=client.host, MessageBody="slow")
    client.send(whole[:-1])
    with shared.connect() as other:
        asked = monotonic()
        for _ in range(50):
            assert other.call("SendMessage", queue, MessageBody="fast").status == 200
        assert monotonic() - asked < 5
    client.send(whole[-1:])
    assert client.answer().status == 200


def test_a_client_that_does_not_read_is_not_read_from(shared: Serve, client: Connection, queue: str) -> None:
    """Its answers pile up somewhere: at its own end, not in the broker."""
    shared.call("SendMessage", queue, MessageBody="x" * 50_000)
    client.socket.settimeout(0.5)
    wants_it_all = request(
        f"/_semel/queues/{queue}/messages", host=client.host, method="GET", headers=["X-Padding: " + "x" * 3_000]
    )
    with pytest.raises(TimeoutError):
        send_all(client, repeat(wants_it_all, 6000))
    with shared.connect() as other:
        asked = monotonic()
        assert other.call("ListQueues").status == 200
        assert monotonic() - asked < 5


def test_a_long_pipeline_of_small_requests_takes_no_memory_to_speak_of(
    shared: Serve, client: Connection, queue: str
) -> None:
    """Hundreds of them arrive in one read, and each wants a large answer that nobody takes."""
    if not Path(f"/proc/{shared.pid}/status").exists():
        pytest.skip("NOT TESTED: the memory of a broker with a long pipeline; this machine has no /proc")
    shared.call("SendMessage", queue, MessageBody="x" * _MIB)
    client.send(request(f"/_semel/queues/{queue}/messages", host=client.host, method="GET") * 500)
    assert shared.call("ListQueues").status == 200
    peak = Path(f"/proc/{shared.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
    assert int(peak) < 300_000


def test_a_client_that_ends_its_side_first_gets_its_answer(client: Connection, queue: str) -> None:
    """As `printf ... | nc` does: it has nothing more to say, but it listens."""
    client.ask("SendMessage", queue, MessageBody="x")
    client.socket.shutdown(socket.SHUT_WR)
    assert client.answer().status == 200
    assert client.at_end()


def test_500_clients_at_once_are_all_served(shared: Serve, queue: str) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(shared.connect()) for _ in range(500)]
        for number, client in enumerate(clients):
            client.ask("SendMessage", queue, MessageBody=str(number))
        ids = {client.answer().json["MessageId"] for client in clients}
        assert len(ids) == 500
        for client in clients:
            client.ask("ReceiveMessage", queue, WaitTimeSeconds=20)
        bodies = {client.answer().json["Messages"][0]["Body"] for client in clients}
        assert bodies == {str(number) for number in range(500)}


# Clients that hang up.


def test_a_poll_whose_client_has_hung_up_takes_no_message(shared: Serve, queue: str) -> None:
    with shared.connect() as gone:
        gone.ask("ReceiveMessage", queue, WaitTimeSeconds=20)
        shared.call("ListQueues")
    assert shared.call("SendMessage", queue, MessageBody="x").status == 200
    answer = shared.call("ReceiveMessage", queue, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    (message,) = answer.json["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_poll_whose_client_hangs_up_behind_another_request_takes_no_message(shared: Serve, queue: str) -> None:
    """The poll waits in a pipeline behind another one, so its answer could not even be written yet."""
    with shared.connect() as gone:
        gone.ask("ReceiveMessage", queue, WaitTimeSeconds=20)
        gone.ask("ReceiveMessage", queue, WaitTimeSeconds=20)
        shared.call("ListQueues")
    entries = [{"Id": str(number), "MessageBody": "x"} for number in range(5)]
    shared.call("SendMessageBatch", queue, Entries=entries)
    assert len(shared.call("ReceiveMessage", queue, MaxNumberOfMessages=10).json["Messages"]) == 5


def test_a_message_sent_while_a_client_hangs_up_is_there_for_the_next(shared: Serve, queue: str) -> None:
    """50 rounds. Only a client that was still there when the message was sent may have taken it with it."""
    rng = Random(7)
    took = 0
    for _ in range(50):
        gone, closed_at = shared.connect(), [0.0]
        gone.ask("ReceiveMessage", queue, WaitTimeSeconds=20, VisibilityTimeout=1)
        shared.call("ListQueues")
        pause = rng.choice((0.0, rng.random() * 0.001))
        start = threading.Barrier(2)

        def hang_up(
            gone: Connection = gone, closed_at: list[float] = closed_at, start: threading.Barrier = start
        ) -> None:
            start.wait()
            gone.socket.close()
            closed_at[0] = monotonic()

        thread = threading.Thread(target=hang_up)
        with shared.connect() as sender:
            thread.start()
            start.wait()
            sleep(pause)
            sent_at = monotonic()
            assert sender.call("SendMessage", queue, MessageBody="x").status == 200
        thread.join()
        asked = monotonic()
        answer = shared.call("ReceiveMessage", queue, WaitTimeSeconds=5, VisibilityTimeout=60)
        (message,) = answer.json["Messages"]
        if monotonic() - asked > 0.5:
            took += 1
            assert closed_at[0] > sent_at, "a client that had hung up has taken a message with it"
        shared.call("DeleteMessage", queue, ReceiptHandle=message["ReceiptHandle"])
    assert took < 25


def test_a_client_that_resets_its_connection_does_no_harm(shared: Serve, queue: str) -> None:
    for _ in range(20):
        gone = shared.connect()
        gone.ask("SendMessage", queue, MessageBody="x")
        gone.ask("ReceiveMessage", queue, WaitTimeSeconds=20)
        gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.socket.close()
    assert shared.call("ListQueues").status == 200
    assert len(shared.peek(queue)) <= 20
