"""Other sites' pages can make a browser send requests to this machine; a broker without credentials refuses them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pytest
from serve_process import Starter

from browsing import Browser
from semel.broker import EmbeddedBroker, running


class Answer(NamedTuple):
    status: int
    body: bytes


class Service:
    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker

    def send(self, body: str) -> None:
        """To the queue `orders`."""
        client = self.broker.client()
        client.send_message(QueueUrl=client.create_queue(QueueName="orders")["QueueUrl"], MessageBody=body)

    def peek(self) -> list[str]:
        return [message["Body"] for message in self.broker.peek("orders")]

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """`User_Agent="x"` is the header User-Agent."""
        return ask(self.broker.url, path, method, **headers)


def ask(url: str, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())
    finally:
        connection.close()


@pytest.fixture
def sqs() -> Iterator[Service]:
    with running(clock="manual") as broker:
        yield Service(broker)


PURGE: Final = "/000000000000/orders?Action=PurgeQueue"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Referer": "http://evil.example/page"},
        {"Referer": "http://[evil"},
        {"Origin": "http://127.0.0.1:1"},
        # Browsers leave the first of these out if the broker is on another machine, and a page can suppress the second.
        {"User_Agent": "Mozilla/5.0 (X11; Linux x86_64)"},
        {"User_Agent": "Mozilla/5.0 (X11; Linux x86_64)", "Authorization": "Basic eDp5"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_a_page_of_another_site_purges_no_queue_whatever_the_method(
    sqs: Service, method: str, headers: dict[str, str]
) -> None:
    sqs.send("keep me")
    answer = sqs.ask(PURGE, method, **headers)
    assert (answer.status, b"AccessDenied" in answer.body) == (403, True)
    assert sqs.peek() == ["keep me"]


@pytest.mark.parametrize("path", ["/_semel/queues", "/_semel/queues/orders/messages", "/metrics"])
@pytest.mark.parametrize("headers", [{"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://evil.example"}])
def test_a_page_of_another_site_does_not_even_get_an_answer(sqs: Service, path: str, headers: dict[str, str]) -> None:
    sqs.send("secret")
    answer = sqs.ask(path, **headers)
    assert answer.status == 403
    assert b"secret" not in answer.body


@pytest.mark.parametrize(
    "headers",
    [
        {},  # curl, and every SDK
        {"Sec_Fetch_Site": "none", "User_Agent": "Mozilla/5.0"},  # typed into the address bar
        {"Sec_Fetch_Site": "same-origin", "User_Agent": "Mozilla/5.0"},
        # Celery: a page cannot make a browser send this header without asking the server first.
        {"User_Agent": "Mozilla/5.0 (compatible; pycurl)", "Authorization": "AWS4-HMAC-SHA256 Credential=x/y"},
    ],
)
def test_what_no_page_of_another_site_sent_is_carried_out(sqs: Service, headers: dict[str, str]) -> None:
    sqs.send("away with me")
    assert sqs.ask(PURGE, **headers).status == 200
    assert sqs.peek() == []


@pytest.mark.parametrize(
    "host", ["evil.example:9324", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "["]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/_semel/queues/orders/messages"), ("GET", "/metrics"), ("GET", PURGE), ("POST", PURGE)],
)
def test_a_name_that_was_pointed_here_gets_in_nowhere_and_is_told_how(
    sqs: Service, host: str, method: str, path: str
) -> None:
    sqs.send("secret")
    name = host.partition(":")[0]
    own: dict[str, str] = {"Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin"}
    for headers in ({}, own):
        answer = sqs.ask(path, method, Host=host, **headers)
        assert answer.status == 403
        assert b"secret" not in answer.body
        if name != "[":
            assert f"start the broker with --allow-host {name}".encode() in answer.body
    assert sqs.peek() == ["secret"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost:9324", "LOCALHOST", "orders.localhost:9324", "127.0.0.1", "[::1]:9324", "10.1.2.3:9324",
        "sqs:9324",  # a service of Docker Compose
        "sqs",
        "host.docker.internal:9324", "sqs.default.svc.cluster.local", "printer.local.", "sqs.test",
    ],
)  # fmt: skip
def test_names_that_nobody_can_register_are_let_in(sqs: Service, host: str) -> None:
    assert sqs.ask("/_semel/queues", Host=host).status == 200
    assert sqs.ask("/?Action=ListQueues", "POST", Host=host).status == 200


def test_a_page_with_an_image_of_another_site_cannot_purge_a_queue(sqs: Service, browser: Browser) -> None:
    sqs.send("keep me")
    page = "".join(
        f'<img src="{sqs.broker.url}{PURGE}{more}" onerror="document.title += 1" referrerpolicy="{policy}">'
        for policy, more in (("no-referrer", ""), ("unsafe-url", "&Version=2012-11-05"))
    )

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        visit = browser.look(f"http://localhost:{server.server_port}/", lambda page: page.title())
        server.shutdown()
    assert sqs.peek() == ["keep me"]
    assert len([address for address in visit.requests if "PurgeQueue" in address]) == 2
    assert visit.result == "11"


def test_a_name_that_the_operator_allowed_is_let_in(serve: Starter) -> None:
    broker = serve("--ephemeral", "--allow-host", "SQS.example.com", "--allow-host", "queues.example.com")
    for host, status in (
        ("sqs.example.com:9324", 200),
        ("queues.example.com.", 200),
        ("evil.example.com", 403),
        ("sqs.example.com.evil.example", 403),
    ):
        assert ask(broker.url, "/?Action=ListQueues", Host=host).status == status
