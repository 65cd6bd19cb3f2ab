"""Small requests that could use much time or memory: each is refused or answered soon, and none causes a 5xx."""

from __future__ import annotations

import gzip
import json
import re
import resource
import socket
import subprocess
from base64 import b64encode
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import pytest

import semel
from intruders.targets import SEMEL, Target
from intruders.wire import ask, connect, get, read
from suite import slow

JSON: Final = "Content-Type: application/json"
DIGITS: Final = b"9" * 1_000_000
BOMBS: Final = {
    "arrays in arrays": b"[" * 200_000,
    "arrays in arrays that end": b"[" * 100_000 + b"]" * 100_000,
    "objects in objects": b'{"a":' * 100_000,
    "1e999999": b'{"seconds": 1e999999, "rate": 1e999999, "kind": "latency", "limit": 1e999999, "action": 1e999999}',
    "a million digits": b'{"seconds": %b, "rate": %b, "kind": "latency", "value": %b}' % (DIGITS, DIGITS, DIGITS),
    "no numbers": b'{"seconds": NaN, "rate": Infinity, "kind": "latency"}',
    "half a character": b'{"text": "\\ud800", "kind": "\\ud800", "queue": "\\ud800", "action": "\\ud800"}',
    "a million equal names": b"{" + b'"a": 1, ' * 200_000 + b'"a": 1}',
    "XML with entities": b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><x>&b;</x>',
    "a zip bomb": gzip.compress(b"\0" * 8_000_000),
}
QUICK: Final = ("arrays in arrays", "1e999999", "half a character")
PARSERS: Final = re.compile(r"^\s*(?:from|import) (?:xml\.(?!sax\.saxutils)|lxml|expat|html\.parser)", re.MULTILINE)
PLACES: Final = [
    ("broker", "POST", "/"),
    ("broker", "PUT", "/_semel/faults"),
    ("broker", "POST", "/_semel/clock/advance"),
    ("broker", "POST", "/_semel/queues/orders/messages"),
    ("dashboard", "POST", "/api/v1/annotations"),
    ("dashboard", "POST", "/api/v1/dead-letters/orders-dlq/redrive"),
    ("dashboard", "POST", "/api/v1/queues/orders/messages"),
    ("worker", "POST", "/control"),
]


@pytest.mark.parametrize("what", [*QUICK, *slow(*(what for what in BOMBS if what not in QUICK))])
@pytest.mark.parametrize(("name", "method", "path"), PLACES, ids=str)
def test_a_body_that_blows_up_is_refused_soon(
    servers: dict[str, Target], name: str, method: str, path: str, what: str
) -> None:
    headers = [JSON, "Content-Encoding: gzip"] if "zip" in what else [JSON]
    if path == "/":
        headers.append("X-Amz-Target: AmazonSQS.SendMessage")
    began = monotonic()
    reply = ask(servers[name].port, get(path, "127.0.0.1", *headers, method=method, body=BOMBS[what]))
    assert 400 <= reply.statuses[0] < 500
    assert monotonic() - began < 5


DOCUMENTS: Final = ("[" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000, f'{{"maxReceiveCount": {"9" * 100_000}}}')


@pytest.mark.parametrize("document", DOCUMENTS, ids=["arrays", "objects", "digits"])
@pytest.mark.parametrize("where", ["Policy", "RedrivePolicy", "RedriveAllowPolicy", "TaskHandle", "ReceiptHandle"])
def test_a_document_inside_of_a_request_that_blows_up_is_refused_too(
    servers: dict[str, Target], where: str, document: str
) -> None:
    url = "http://127.0.0.1/000000000000/orders"
    operation, parameters = {
        "TaskHandle": ("CancelMessageMoveTask", {"TaskHandle": b64encode(document.encode()).decode()}),
        "ReceiptHandle": ("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": document}),
    }.get(where, ("SetQueueAttributes", {"QueueUrl": url, "Attributes": {where: document}}))
    target = f"X-Amz-Target: AmazonSQS.{operation}"
    request = get("/", "127.0.0.1", target, method="POST", body=json.dumps(parameters).encode())
    assert ask(servers["broker"].port, request).statuses[0] in (400, 404)


@pytest.mark.parametrize("name", ["broker", "dashboard", "worker"])
def test_a_gigabyte_that_is_announced_is_refused_before_it_comes(servers: dict[str, Target], name: str) -> None:
    path = {"broker": "/", "dashboard": "/api/v1/annotations", "worker": "/control"}[name]
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{JSON}\r\nContent-Length: {1 << 30}\r\n\r\n"
    with connect(servers[name].port) as client:
        client.sendall(head.encode())
        assert read(client).statuses == [413]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["broker", "dashboard"])
def test_chunks_without_end_are_cut_off(servers: dict[str, Target], name: str) -> None:
    path = {"broker": "/", "dashboard": "/login"}[name]
    target = servers[name]
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nOrigin: {target.url}\r\n"
    with connect(target.port) as client:
        client.sendall(f"{head}{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        with pytest.raises(OSError, match=r"reset|pipe"):
            send_for_ever(client)
    assert target.is_well()


def send_for_ever(client: socket.socket) -> None:
    ends = monotonic() + 20
    while monotonic() < ends:
        client.sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
        sleep(0.05)


@pytest.mark.parametrize("name", ["broker", "dashboard", "worker"])
def test_thousands_of_headers_are_refused_or_answered_soon(servers: dict[str, Target], name: str) -> None:
    headers = [f"X-{number}: y" for number in range(7_000)]
    began = monotonic()
    reply = ask(servers[name].port, get(servers[name].health, "127.0.0.1", *headers))
    assert reply.statuses[0] in (200, 431)
    assert monotonic() - began < 5


@pytest.mark.parametrize(
    "where", ["(" * 3_000, "not " * 3_000, "error ~ /(a+)+$/", "error ~ /" + "a?" * 2_000 + "/", "9" * 5_000]
)
def test_a_filter_that_blows_up_is_answered_soon(servers: dict[str, Target], where: str) -> None:
    from urllib.parse import quote

    began = monotonic()
    reply = ask(servers["dashboard"].port, get(f"/api/v1/dead-letters/orders-dlq?where={quote(where)}"))
    assert reply.statuses[0] < 500
    assert monotonic() - began < 5


@pytest.mark.slow
def test_the_doctor_reads_a_log_that_unpacks_to_a_gigabyte_in_bounded_memory(tmp_path: Path) -> None:
    """Two small gzip files, each of half a gigabyte: one is a single line, the other has many lines without meaning."""
    block = b"a" * (1 << 20)
    for name, end in (("line", b""), ("lines", b"\n")):
        with gzip.open(tmp_path / f"{name}.log.gz", "wb", 1) as file:
            for _ in range(512):
                file.write(block + end)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))

    ran = subprocess.run(
        [SEMEL, "doctor", "--log", str(tmp_path), "--output", "json", "--engine", "duckdb"],
        capture_output=True,
        text=True,
        timeout=240,
        preexec_fn=limit,
        check=False,
    )
    assert "bug" not in ran.stderr
    assert "MemoryError" not in ran.stderr
    assert ran.returncode in (0, 1, 3), ran.stderr[-500:]
    assert ran.returncode == 1 or json.loads(ran.stdout)


def test_nothing_here_parses_xml() -> None:
    """What is not parsed cannot blow up. SQS's older protocol reads forms and only writes XML."""
    sources = {file: file.read_text() for file in Path(semel.__file__).parent.rglob("*.py")}
    assert len(sources) > 100
    assert [file for file, text in sources.items() if PARSERS.search(text)] == []
