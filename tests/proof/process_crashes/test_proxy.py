"""The proxy forwards, cuts and stalls connections as its methods promise."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from process_crashes.proxy import HOST, Proxy, ProxyLoop

ANSWER = b"0123456789" * 100


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy in front of a server that answers each request with the same bytes."""
    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        loop = ProxyLoop()
        yield loop.proxy(listener.getsockname()[1])
        loop.close()
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection:
        try:
            while connection.recv(100):
                connection.sendall(ANSWER)
        except OSError:
            return


def connected(proxy: Proxy) -> socket.socket:
    client = socket.create_connection((HOST, proxy.port), 10)
    client.sendall(b"?")
    return client


def answer(client: socket.socket) -> bytes:
    content = b""
    while len(content) < len(ANSWER) and (data := client.recv(4096)):
        content += data
    return content


def test_what_is_not_disturbed_gets_through(proxy: Proxy) -> None:
    with connected(proxy) as client:
        assert answer(client) == ANSWER


def test_an_answer_is_cut_in_its_middle_and_its_connection_ends(proxy: Proxy) -> None:
    with connected(proxy) as client:
        answer(client)
        proxy.cut_in_answer(0.5)
        client.sendall(b"?")
        assert answer(client) == ANSWER[: len(ANSWER) // 2]
    assert proxy.cut_answers == 1


def test_a_connection_that_is_cut_is_reset(proxy: Proxy) -> None:
    with connected(proxy) as client:
        answer(client)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert proxy.cut_links == 1


def test_nothing_gets_through_while_it_is_stalled(proxy: Proxy) -> None:
    proxy.stall()
    with connected(proxy) as client:
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.flow()
        client.settimeout(10)
        assert answer(client) == ANSWER
