"""Requests as boto3 sends them, as bytes ready for the socket, and just enough parsing to recognise a success.

The header lines, their order and their sizes are those of boto3 1.44. The signature is made up.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from typing import Any

Address = tuple[str, int]

HEAD = (
    "POST / HTTP/1.1\r\n"
    "Host: {host}:{port}\r\n"
    "Accept-Encoding: identity\r\n"
    "X-Amz-Target: AmazonSQS.{operation}\r\n"
    "Content-Type: application/x-amz-json-1.0\r\n"
    "x-amzn-query-mode: true\r\n"
    "User-Agent: Boto3/1.44.0 md/Botocore#1.44.0 ua/2.1 os/linux#6.1.0 md/arch#x86_64 lang/python#3.11.7 "
    "md/pyimpl#CPython m/N,e,b,E,Z cfg/retry-mode#standard Botocore/1.44.0\r\n"
    "X-Amz-Date: 20260101T120000Z\r\n"
    "Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/sqs/aws4_request, "
    "SignedHeaders=content-type;host;x-amz-date;x-amz-target;x-amzn-query-mode, "
    "Signature=3f0e5c1b9a7d48e2c6b1a05d94f7e83216c0d7a9b4e5f6087c1d2e3f4a5b6c7d\r\n"
    "amz-sdk-invocation-id: 8f807410-d75b-4c59-9196-07b11238febc\r\n"
    "amz-sdk-request: attempt=1; max=3\r\n"
    "Content-Length: "
)

length_of = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search
handles_in = re.compile(rb'"ReceiptHandle": *"([^"]+)"').findall
failure_in = re.compile(rb'"Failed": *\[ *[^\] ]').search


class WrongAnswer(Exception):
    """A server refused a call, lost one, or reports other counts than were sent to it."""


class Requests:
    """Builds the bytes of requests to one server."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._heads: dict[str, bytes] = {}

    def head(self, operation: str) -> bytes:
        """Everything up to the number after `Content-Length: `."""
        if operation not in self._heads:
            host, port = self.address
            self._heads[operation] = HEAD.format(host=host, port=port, operation=operation).encode()
        return self._heads[operation]

    def make(self, operation: str, call: dict[str, Any]) -> bytes:
        body = json.dumps(call).encode()
        return b"%s%d\r\n\r\n%s" % (self.head(operation), len(body), body)


def framed(data: bytes) -> int:
    """The full length of the answer that `data` begins with, or 0 if its head is not complete yet."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    length = length_of(data, 0, end)
    if length is None:
        raise WrongAnswer(f"an answer without Content-Length: {data[:200]!r}")
    return end + 4 + int(length[1])


def closes(data: bytes) -> bool:
    """Whether the server ends the connection after this answer."""
    return data.find(b": close\r\n", 0, data.find(b"\r\n\r\n") + 2) > 0


def refusal(answer: bytes) -> WrongAnswer:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode("latin-1")
    return WrongAnswer(f"{status}: {body[:300].decode('utf-8', 'replace')}")


class Session:
    """One blocking connection, for everything except load."""

    def __init__(self, address: Address, timeout: float = 30.0) -> None:
        self.requests = Requests(address)
        self.address = address
        self.timeout = timeout
        self._sock: socket.socket | None = None

    def exchange(self, request: bytes) -> bytes:
        """Send the request and return the whole answer with its head. Any status except 200 raises WrongAnswer."""
        if self._sock is None:
            self._sock = connect(self.address, self.timeout)
        self._sock.sendall(request)
        data = self._sock.recv(1 << 18)
        while not (whole := framed(data)) or len(data) < whole:
            more = self._sock.recv(1 << 18)
            if not more:
                self.close()
                raise WrongAnswer("the server closed the connection in the middle of an answer")
            data += more
        if closes(data):
            self.close()
        if data[9:12] != b"200":
            raise refusal(data)
        return data

    def call(self, operation: str, **members: Any) -> dict[str, Any]:
        answer = self.exchange(self.requests.make(operation, members))
        result: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2] or b"{}")
        if result.get("Failed"):
            raise WrongAnswer(f"{operation}: {result['Failed'][0]}")
        return result

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def connect(address: Address, timeout: float) -> socket.socket:
    sock = socket.create_connection(address, timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def message_body(size: int, number: int = 0) -> str:
    """A small JSON document of exactly `size` bytes (at least about 60), as an order service might send it."""
    start = f'{{"order": "{number:08d}", "customer": "c-{number % 997:04d}", "total": 19.9, "note": "'
    return start + "x" * max(0, size - len(start) - 2) + '"}'


def batch_entries(bodies: Sequence[str]) -> list[dict[str, str]]:
    return [{"Id": str(i), "MessageBody": body} for i, body in enumerate(bodies)]
