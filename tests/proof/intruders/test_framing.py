"""Request smuggling, where one request ends and the next begins: no server sees a request hidden inside another."""

from __future__ import annotations

from typing import Final

import pytest

from intruders.targets import Target
from intruders.wire import ask, get

HOST: Final = b"Host: 127.0.0.1\r\n"
POST: Final = b"POST /none HTTP/1.1\r\n" + HOST
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
HIDDEN: Final = b"DELETE /smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
END: Final = b"0\r\n\r\n"

AMBIGUOUS: Final = {
    "length and chunks": POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n" + END,
    "chunks and length": POST + CHUNKED + b"Content-Length: 5\r\n\r\n" + END,
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n" + END,
    "an unknown encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + END,
    "chunks that are not the last encoding": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + END,
    "two encodings": POST + CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + END,
    "a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + END,
    "a folded encoding": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + END,
    "a folded length": POST + b"X-A: b\r\n Content-Length: 46\r\nContent-Length: 0\r\n\r\n",
    "lines without CR": b"POST /none HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 0\n\n",
    "one line without CR": POST + b"X-A: b\nContent-Length: 46\r\n\r\n",
    "a lone CR": POST + b"X-A: b\rContent-Length: 46\r\n\r\n",
    "a length with a sign": POST + b"Content-Length: +5\r\n\r\n12345",
    "a hexadecimal length": POST + b"Content-Length: 0x5\r\n\r\n12345",
    "a list of lengths": POST + b"Content-Length: 5, 5\r\n\r\n12345",
    "a length with an underscore": POST + b"Content-Length: 1_0\r\n\r\n0123456789",
    "a length in two parts": POST + b"Content-Length: 4 6\r\n\r\n",
    "an empty length": POST + b"Content-Length: \r\n\r\n",
    "two equal lengths": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n12345",
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 46\r\n\r\n",
    "a chunk of negative size": POST + CHUNKED + b"\r\n-1\r\n\r\n",
    "a chunk of 2 ** 68 bytes": POST + CHUNKED + b"\r\n" + b"f" * 17 + b"\r\n\r\n",
    "chunks without CR": POST + CHUNKED + b"\r\n0\n\n",
    "a NUL in a header": POST + b"X-A: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "a space in a name": POST + b"X A: b\r\nContent-Length: 0\r\n\r\n",
    "a space before the first header": b"POST /none HTTP/1.1\r\n X-A: b\r\n" + HOST + b"Content-Length: 0\r\n\r\n",
}
HOSTS: Final = (b"Host: 127.0.0.1\r\n", b"Host: evil.example\r\n")


@pytest.mark.parametrize("how", AMBIGUOUS)
@pytest.mark.parametrize("name", ["broker", "dashboard", "worker"])
def test_a_request_whose_end_is_open_to_doubt_is_the_last_one_of_its_connection(
    servers: dict[str, Target], name: str, how: str
) -> None:
    reply = ask(servers[name].port, AMBIGUOUS[how] + HIDDEN, answers=2)
    assert reply.closed
    (status,) = reply.statuses
    assert status in (400, 501)


@pytest.mark.parametrize("name", ["broker", "dashboard"])
def test_a_body_is_no_request_whatever_it_looks_like(servers: dict[str, Target], name: str) -> None:
    as_body = get("/none", method="POST", body=HIDDEN)
    reply = ask(servers[name].port, as_body + get(servers[name].health), answers=2)
    assert len(reply.statuses) == 2 or reply.closed
    assert b"smuggled" not in reply.data


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("name", ["broker", "dashboard", "worker"])
def test_two_hosts_are_none(servers: dict[str, Target], name: str, order: int) -> None:
    """A proxy in front of the server might choose the other one."""
    path = {"broker": b"/_semel/queues", "dashboard": b"/api/v1/queues", "worker": b"/workers"}[name]
    first, second = HOSTS[order], HOSTS[1 - order]
    reply = ask(servers[name].port, b"GET " + path + b" HTTP/1.1\r\n" + first + second + b"\r\n")
    assert reply.statuses[0] in (400, 403)
    assert b"orders" not in reply.data
    assert b"worker-1" not in reply.data
