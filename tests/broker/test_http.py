"""The HTTP edge by itself: how long a client may take."""

from __future__ import annotations

from time import monotonic
from typing import Any, cast

from semel.broker.http import IDLE_SECONDS, REQUEST_SECONDS, Connection, Request, render

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Wire:
    """A transport that remembers what was written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def connection(accepted: list[Request]) -> tuple[Connection, Wire]:
    made, wire = Connection(accepted.append, set(), 10, raw_headers=False), Wire()
    made.connection_made(cast(Any, wire))
    return made, wire


def test_a_request_that_does_not_arrive_in_a_minute_is_given_up() -> None:
    slow, _ = connection([])
    slow.data_received(GET[:10])
    assert not slow.overdue(monotonic() + REQUEST_SECONDS - 1)
    assert slow.overdue(monotonic() + REQUEST_SECONDS + 1)


def test_a_client_that_waits_for_its_answer_is_never_overdue() -> None:
    accepted: list[Request] = []
    waiting, wire = connection(accepted)
    waiting.data_received(GET)
    assert not waiting.overdue(monotonic() + 10 * IDLE_SECONDS)
    accepted[0].reply(render(200, b"text/plain", b"done"))
    assert wire.written.endswith(b"\r\n\r\ndone")
    assert not waiting.overdue(monotonic() + IDLE_SECONDS - 1)


def test_a_connection_that_nobody_uses_ends_after_ten_minutes() -> None:
    idle, _ = connection([])
    assert not idle.overdue(monotonic() + IDLE_SECONDS - 1)
    assert idle.overdue(monotonic() + IDLE_SECONDS + 1)


def test_what_a_client_sends_behind_its_last_request_is_neither_read_nor_answered() -> None:
    accepted: list[Request] = []
    last, wire = connection(accepted)
    last.data_received(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + GET + b"no HTTP")
    last.data_received(GET)
    assert len(accepted) == 1
    accepted[0].reply(render(200, b"text/plain", b"done", keep_alive=False))
    assert wire.written.count(b"HTTP/1.1") == 1
