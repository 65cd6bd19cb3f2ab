"""A running dashboard for tests: a real broker, its queues, and the real server on a port."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from running_apps import client_of
from semel.broker import EmbeddedBroker, running
from semel.dashboard.connections import Limits
from semel.dashboard.process import server_for
from semel.dashboard.server import build
from semel.dashboard.services import Services
from semel.dashboard.views import Settings
from semel.messages import dead_letter_attributes as own_attributes
from semel.ports import listen
from semel.sqs import Client, Queue
from waiting import PATIENCE, until

DEFAULT = Limits()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    cookies: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Site:
    """A running dashboard. `host` is its name in the Host header."""

    url: str
    services: Services
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {**self.headers, **(headers or {})})
            response = connection.getresponse()
            cookies = response.headers.get_all("set-cookie") or []
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read(), cookies)
        finally:
            connection.close()

    def get(self, path: str, **query: Any) -> Answer:
        return self.ask("GET", f"{path}?{urlencode(query, doseq=True)}" if query else path)

    def api(self, path: str, **query: Any) -> Any:
        """The content of an answer of the API, whose status must be 200."""
        answer = self.get(f"/api/v1/{path}", **query)
        assert answer.status == 200, (answer.status, answer.text)
        return answer.json()

    def post(self, path: str, content: Any = None, *, method: str = "POST", **headers: str) -> Answer:
        """Send JSON, as a script does."""
        request_headers = {"content-type": "application/json"} | {
            key.replace("_", "-"): value for key, value in headers.items()
        }
        return self.ask(method, path, json.dumps(content).encode(), request_headers)

    def form(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        """Send a form, as a browser does from a page of the dashboard."""
        request_headers = {
            "content-type": "application/x-www-form-urlencoded",
            "origin": self.url,
            "sec-fetch-site": "same-origin",
        } | {key.replace("_", "-"): value for key, value in headers.items()}
        return self.ask("POST", path, urlencode(fields).encode(), request_headers)


@contextmanager
def serving(
    settings: Settings, *, open_access: bool = True, limits: Limits = DEFAULT, **dependencies: Any
) -> Iterator[Site]:
    """Run a dashboard. A token is needed only if the settings have one; without `open_access` the dashboard makes one.
    `dependencies` are passed to `build`: a client, a ledger, a clock."""
    listener = listen(settings.host, settings.port)
    port = listener.getsockname()[1]
    try:
        app = build(replace(settings, port=port, open_access=open_access and not settings.has_token), **dependencies)
    except BaseException:
        listener.close()
        raise
    server = server_for(app, limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="dashboard")
    thread.start()
    try:
        until(lambda: server.started, "the start of the dashboard")
        yield Site(f"http://127.0.0.1:{port}", app.state.services)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


@dataclass
class Shop:
    """A broker with the queues `orders` and `orders-dlq`."""

    broker: EmbeddedBroker
    client: Client
    orders: Queue
    dead: Queue
    state: Path

    def settings(self, **more: Any) -> Settings:
        return Settings(**{"endpoint_url": self.broker.url, "port": 0, "state": self.state, **more})

    def dead_letter(self, count: int, error: str = "Timeout: no answer", *, start: int = 0, **body: Any) -> list[str]:
        """Write dead-letter messages as the consumer does; returns their ids."""
        ids = []
        for number in range(start, start + count):
            message = own_attributes.DeadLetterDetails(
                f"order-{number}", "failed", error, 3, f"message-{number}", "orders"
            )
            content = json.dumps({"order": number, **body})
            ids.append(
                self.dead.send(content, attributes=own_attributes.attributes(message, {}, len(content))).message_id
            )
        return ids

    @contextmanager
    def dashboard(
        self, ledger: Any = None, *, open_access: bool = True, limits: Limits = DEFAULT, **more: Any
    ) -> Iterator[Site]:
        settings = self.settings(**more)
        with serving(settings, open_access=open_access, limits=limits, client=self.client, ledger=ledger) as site:
            yield site


@contextmanager
def shop(state: Path, **how: Any) -> Iterator[Shop]:
    with running(**{"cooldowns": False, **how}) as broker, client_of(broker) as client:
        dead = client.create_queue("orders-dlq", {"MessageRetentionPeriod": "1209600"})
        policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 3}
        orders = client.create_queue("orders", {"VisibilityTimeout": "30", "RedrivePolicy": policy})
        yield Shop(broker, client, orders, dead, state)
