"""The ceiling: a server that parses and answers but stores nothing, in two forms.

The default uses the broker's own HTTP stack: its connections, parsing, validation against the service model, and
answers; only the engine and the disk are missing. `--bare` is a minimal protocol on uvloop and httptools: it parses the
body as JSON, validates nothing, and handles neither limits nor pipelining nor clients that hang up.

    python bench/broker_bench/echo.py 9399
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from random import Random
from typing import Any, cast

import httptools
import orjson
import uvloop

from semel.broker import protocol as wire
from semel.broker.connections import Connections, Limits
from semel.broker.http import Connection, Request, render

HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"x-amzn-RequestId: 4b1d0c52-6a4e-4c0a-9a86-0d6f3f0c7f11\r\n"
    b"Content-Type: application/x-amz-json-1.0\r\n"
    b"Content-Length: %d\r\n\r\n"
)
DIGEST = "900150983cd24fb0d6963f7d28e17f72"
MESSAGE_ID = "5fea7756-0ea4-451a-a703-a558b933e274"
SEQUENCE = "18849496460467696128"


def answer(target: bytes, call: dict[str, Any]) -> dict[str, Any]:
    """The answer of SQS with made-up ids, one entry for each entry of the request."""
    if target == b"AmazonSQS.SendMessage":
        return {"MD5OfMessageBody": DIGEST, "MessageId": MESSAGE_ID}
    if target == b"AmazonSQS.SendMessageBatch":
        entries = call["Entries"]
        if "MessageGroupId" in entries[0]:
            return {
                "Successful": [
                    {"Id": e["Id"], "MessageId": MESSAGE_ID, "MD5OfMessageBody": DIGEST, "SequenceNumber": SEQUENCE}
                    for e in entries
                ]
            }
        return {"Successful": [{"Id": e["Id"], "MessageId": MESSAGE_ID, "MD5OfMessageBody": DIGEST} for e in entries]}
    if target == b"AmazonSQS.CreateQueue":
        return {"QueueUrl": "http://127.0.0.1/000000000000/" + str(call["QueueName"])}
    return {}


class Echo(asyncio.Protocol):
    """One connection. Requests are answered in order of arrival, each as soon as it is complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)
        self.target = b""
        self.body = b""

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-amz-target":
            self.target = value

    def on_body(self, body: bytes) -> None:
        self.body = self.body + body if self.body else body

    def on_message_complete(self) -> None:
        body = orjson.dumps(answer(self.target, orjson.loads(self.body or b"{}")))
        self.body = b""
        self.transport.write(HEAD % len(body) + body)
        if not self.parser.should_keep_alive():
            self.transport.close()


class OnTheEdge:
    """The same on the broker's own HTTP stack: its connections, its parsing and validation of calls, its answers."""

    def __init__(self) -> None:
        self.connections = Connections(Limits())
        self.random = Random()

    def connect(self) -> Connection:
        return Connection(self.accept, self.connections, raw_headers=False)

    def accept(self, request: Request) -> None:
        request_id = f"{self.random.getrandbits(128):032x}"
        call = wire.parse(request.method, request.target, request.headers, request.body, "http://127.0.0.1")
        result = answer(b"AmazonSQS." + call.operation.name.encode(), call.params)
        content_type, body = wire.answer(call, result, request_id)
        headers = b"x-amzn-RequestId: %b\r\n" % request_id.encode()
        request.reply(render(200, content_type, body, keep_alive=request.keep_alive, headers=headers))


async def serve(port: int, bare: bool) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for ending in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(ending, over.set)
    connect: Callable[[], asyncio.Protocol] = Echo if bare else OnTheEdge().connect
    server = await loop.create_server(connect, "127.0.0.1", port)
    print(f"echo: listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await over.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0, bare="--bare" in sys.argv))
