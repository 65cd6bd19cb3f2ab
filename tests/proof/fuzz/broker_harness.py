"""A whole broker without a socket: the bytes of a client go in, the answers come out. Each input gets a new broker, and
all of these are equal: the clock stands still, ids come from a seed, and the database is a copy of the same one.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, Final, cast

from semel.broker.auth import Verifier
from semel.broker.clock import ManualClock
from semel.broker.engine import Caller, Engine
from semel.broker.engine.schema import open_database
from semel.broker.faults import Faults
from semel.broker.http import Request
from semel.broker.server import Broker

NOW: Final = 1_790_000_000_000  # milliseconds
RECEIPT_KEY: Final = b"a key for tests!"
ORIGIN: Final = "http://localhost:9324"
CALLER: Final = Caller(NOW, ORIGIN)
_TURNS: Final = 40
_LONGEST_POLL: Final = 21.0


@cache
def _database() -> bytes:
    """Three queues. `orders` has one visible message and one in flight."""
    db = open_database(None)
    db.execute("INSERT INTO meta VALUES ('receipt-key', ?)", (RECEIPT_KEY,))
    engine = Engine(db, Random(1), cooldowns=False)
    engine.begin()
    for name, attributes in (
        ("orders-dlq", {}),
        ("orders", {"RedrivePolicy": f'{{"deadLetterTargetArn":"{arn("orders-dlq")}","maxReceiveCount":3}}'}),
        ("orders.fifo", {"FifoQueue": "true", "ContentBasedDeduplication": "true"}),
    ):
        engine.perform("CreateQueue", {"QueueName": name, "Attributes": attributes}, CALLER)
    for body in ("one", "two"):
        engine.perform("SendMessage", {"QueueUrl": url("orders"), "MessageBody": body}, CALLER)
    engine.perform("ReceiveMessage", {"QueueUrl": url("orders"), "MaxNumberOfMessages": 1}, CALLER)
    engine.flush()
    engine.commit()
    engine.committed()
    return db.serialize()


def arn(name: str) -> str:
    return f"arn:aws:sqs:us-east-1:000000000000:{name}"


def url(name: str) -> str:
    return f"{ORIGIN}/000000000000/{name}"


def new_engine() -> Engine:
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.deserialize(_database())
    return Engine(db, Random(2), cooldowns=False)


class FixedClock(ManualClock):
    def __init__(self) -> None:
        self._now = NOW


class Transport:
    """The other side of a connection. It keeps everything that the broker writes, and its buffer is never full."""

    _client, _server = socket.socketpair()  # so that the broker sees a client that is still connected

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed, "the broker writes to a connection that it has closed"
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("127.0.0.1", 50_000), "socket": self._server}.get(name)

    def write_eof(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class RecordingBroker(Broker):
    """Keeps a list of the requests that it has accepted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.accepted: list[Request] = []
        super().__init__(*args, **options)

    def accept(self, request: Request) -> None:
        self.accepted.append(request)
        super().accept(request)


class Exchange:
    """The result of the bytes of one client."""

    def __init__(self, broker: RecordingBroker, transport: Transport) -> None:
        self.requests = broker.accepted
        self.written = bytes(transport.written)
        self.unanswered = [request for request in broker.accepted if request.answer is None]
        self.faults = broker.faults.active


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def exchange(pieces: Sequence[bytes], verifier: Verifier | None = None) -> Exchange:
    return _loop().run_until_complete(_exchange(pieces, verifier))


async def _exchange(pieces: Sequence[bytes], verifier: Verifier | None) -> Exchange:
    clock = FixedClock()
    broker = RecordingBroker(new_engine(), clock, Faults(0), log=None, verifier=verifier, rng=Random(3))
    transport, connection = Transport(), broker.connect()
    connection.connection_made(cast(Any, transport))
    for piece in pieces:
        connection.data_received(piece)
        await _turns(3)
    await _turns(6)
    if connection._requests:  # a long poll: advance the clock to its end
        clock.advance(_LONGEST_POLL)
        broker.time_passed()
        for _ in range(_TURNS):
            await asyncio.sleep(0.001)
            if not connection._requests:
                break
    result = Exchange(broker, transport)
    await broker.stop()
    return result


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
