"""The HTTP layer alone: how long a client may take, and which connections are closed to make room."""

from __future__ import annotations

from time import monotonic
from typing import Any, cast

import pytest

from semel.broker import http
from semel.broker.connections import Connections, Limits
from semel.broker.http import MAX_PIPELINED, Connection, Request, render

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER = render(200, b"text/plain", b"x" * 1000)
LIMITS = Limits(connections=3, unread_bytes=2_000)


class Wire:
    """A transport that remembers what was written; `unread` is what its client has not taken."""

    def __init__(self) -> None:
        self.written, self.unread = b"", 0
        self.closed = self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def connection(accepted: list[Request], connections: Connections | None = None) -> tuple[Connection, Wire]:
    together = Connections(LIMITS) if connections is None else connections
    made, wire = Connection(accepted.append, together, raw_headers=False), Wire()
    made.connection_made(cast(Any, wire))
    return made, wire


def asking(connections: Connections) -> tuple[Connection, Wire, list[Request]]:
    """A client that waits for the answer to a request."""
    accepted: list[Request] = []
    made, wire = connection(accepted, connections)
    made.data_received(GET)
    return made, wire, accepted


# Time.


def test_a_request_that_does_not_arrive_in_a_minute_is_given_up() -> None:
    slow, _ = connection([])
    slow.data_received(GET[:10])
    assert not slow.overdue(monotonic() + LIMITS.request_seconds - 1)
    assert slow.overdue(monotonic() + LIMITS.request_seconds + 1)


def test_a_byte_now_and_then_does_not_prolong_the_time_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(http, "monotonic", lambda: now)
    slow, _ = connection([])
    for byte in GET[:10]:
        slow.data_received(bytes([byte]))
        now += LIMITS.request_seconds / 8
    assert slow.overdue(now)


def test_a_client_that_waits_for_its_answer_is_never_overdue() -> None:
    accepted: list[Request] = []
    waiting, wire = connection(accepted)
    waiting.data_received(GET)
    assert not waiting.overdue(monotonic() + 10 * LIMITS.idle_seconds)
    accepted[0].reply(render(200, b"text/plain", b"done"))
    assert wire.written.endswith(b"\r\n\r\ndone")
    assert not waiting.overdue(monotonic() + LIMITS.idle_seconds - 1)


def test_a_connection_that_nobody_uses_ends_after_ten_minutes() -> None:
    idle, _ = connection([])
    assert not idle.overdue(monotonic() + LIMITS.idle_seconds - 1)
    assert idle.overdue(monotonic() + LIMITS.idle_seconds + 1)


def test_a_client_that_takes_nothing_of_its_answer_for_a_minute_is_given_up() -> None:
    reader, wire = connection([])
    wire.unread = 1_000
    reader.pause_writing()
    start = monotonic()
    assert not reader.overdue(start + LIMITS.request_seconds - 1)
    assert reader.overdue(start + LIMITS.request_seconds + 1)


def test_a_client_that_takes_its_answer_slowly_is_not_given_up() -> None:
    reader, wire = connection([])
    wire.unread = 1_000
    reader.pause_writing()
    now = monotonic()
    for _ in range(5):
        now += LIMITS.request_seconds - 1
        wire.unread -= 100
        assert not reader.overdue(now)
    assert reader.overdue(now + LIMITS.request_seconds + 1)


# Room.


def test_a_new_client_gets_the_place_of_one_that_never_asked_for_anything() -> None:
    connections = Connections(LIMITS)
    waiting, answered, silent = asking(connections), asking(connections), connection([], connections)
    answered[2][0].reply(ANSWER)
    _, newest = connection([], connections)
    assert silent[1].closed
    assert [wire.is_closing() for wire in (newest, waiting[1], answered[1])] == [False] * 3
    assert len(connections) == LIMITS.connections


def test_a_client_that_sends_half_a_request_makes_room_before_one_that_was_answered() -> None:
    connections = Connections(LIMITS)
    answered, half, _ = asking(connections), connection([], connections), asking(connections)
    answered[2][0].reply(ANSWER)
    half[0].data_received(GET[:10])
    connection([], connections)
    assert half[1].closed
    assert not answered[1].is_closing()


def test_among_clients_that_were_answered_the_one_that_is_quiet_for_the_longest_makes_room() -> None:
    connections = Connections(LIMITS)
    clients = [asking(connections) for _ in range(3)]
    for _, _, accepted in (clients[2], clients[0], clients[1]):
        accepted[0].reply(ANSWER)
    connection([], connections)
    assert [wire.closed for _, wire, _ in clients] == [False, False, True]


def test_a_client_that_does_not_read_its_answer_makes_room_at_once() -> None:
    connections = Connections(LIMITS)
    clients = [asking(connections) for _ in range(3)]
    clients[1][1].unread = 500
    clients[1][0].pause_writing()
    connection([], connections)
    assert [wire.aborted for _, wire, _ in clients] == [False, True, False]


def test_where_every_client_waits_for_an_answer_a_new_one_is_refused() -> None:
    connections = Connections(Limits(connections=3, lingering=0))
    clients = [asking(connections) for _ in range(3)]
    _, refused = connection([], connections)
    assert refused.written.startswith(b"HTTP/1.1 503 ")
    assert refused.closed
    assert not any(wire.is_closing() for _, wire, _ in clients)


# Memory.


def test_of_all_clients_that_do_not_read_the_one_with_the_most_unread_goes() -> None:
    connections = Connections(LIMITS)
    clients = [asking(connections) for _ in range(3)]
    for (client, wire, accepted), unread in zip(clients, (700, 900, 800), strict=True):
        wire.unread = unread
        client.pause_writing()
        accepted[0].reply(ANSWER)
    assert [wire.aborted for _, wire, _ in clients] == [False, True, False]


def test_answers_that_wait_for_an_earlier_one_count_as_unread() -> None:
    connections = Connections(LIMITS)
    client, wire, accepted = asking(connections)
    client.data_received(GET * 3)
    for request in accepted[1:3]:
        request.reply(ANSWER)
    assert wire.aborted


def test_what_was_read_does_not_count_any_more() -> None:
    connections = Connections(LIMITS)
    client, wire, accepted = asking(connections)
    for _ in range(10):
        wire.unread = 1_500
        client.pause_writing()
        accepted[-1].reply(ANSWER)
        wire.unread = 0
        client.resume_writing()
        client.data_received(GET)
    assert not wire.aborted


def test_a_client_that_does_not_read_is_not_read_from_either() -> None:
    """What it has sent already waits as it is: answers would only pile up."""
    accepted: list[Request] = []
    client, wire = connection(accepted)
    client.pause_writing()
    client.data_received(GET * 1_000)
    assert accepted == []
    client.resume_writing()
    assert len(accepted) >= MAX_PIPELINED
    assert not wire.is_closing()


def test_what_a_client_sends_behind_its_last_request_is_neither_read_nor_answered() -> None:
    accepted: list[Request] = []
    last, wire = connection(accepted)
    last.data_received(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + GET + b"no HTTP")
    last.data_received(GET)
    assert len(accepted) == 1
    accepted[0].reply(render(200, b"text/plain", b"done", keep_alive=False))
    assert wire.written.count(b"HTTP/1.1") == 1


# Bodies that have not arrived whole.


def half_a_body(connections: Connections, size: int) -> tuple[Connection, Wire, list[Request]]:
    accepted: list[Request] = []
    made, wire = connection(accepted, connections)
    made.data_received(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (2 * size) + b"x" * size)
    return made, wire, accepted


def test_a_body_counts_as_arriving_until_it_is_whole() -> None:
    connections = Connections(Limits())
    sender, _, accepted = half_a_body(connections, 1_000)
    assert connections.arriving_bytes == 1_000
    sender.data_received(b"x" * 1_000)
    assert len(accepted[0].body) == 2_000
    assert connections.arriving_bytes == 0


def test_half_a_body_of_a_client_that_has_gone_does_not_count() -> None:
    connections = Connections(Limits())
    sender, _, _ = half_a_body(connections, 1_000)
    half_a_body(connections, 300)
    sender.connection_lost(None)
    assert connections.arriving_bytes == 300


def test_the_client_whose_body_is_too_much_for_all_together_is_refused_and_the_others_go_on() -> None:
    connections = Connections(Limits(arriving_bytes=2_500))
    first, first_wire, accepted = half_a_body(connections, 1_000)
    _, second_wire, _ = half_a_body(connections, 2_000)
    assert second_wire.written.startswith(b"HTTP/1.1 503 ")
    first.data_received(b"x" * 1_000)
    assert accepted
    assert first_wire.written == b""
