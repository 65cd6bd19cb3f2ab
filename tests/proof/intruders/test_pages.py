"""Pages of other sites in a browser on this machine: they can read nothing and change nothing, whatever they send.

The requests here have the headers that a browser adds by itself. `tests/broker/test_web_pages.py` and
`tests/dashboard/test_security.py` do the same with a real browser.
"""

from __future__ import annotations

import json
from typing import Final

import pytest

from dashboard.serving import Shop
from intruders.targets import Target, Worker
from intruders.wire import ask, get

EVIL: Final = "http://evil.example"
BROWSERS: Final = {
    "over HTTPS or to this machine": ["Sec-Fetch-Site: cross-site", f"Origin: {EVIL}"],
    "of the same site, another port": ["Sec-Fetch-Site: same-site", "Origin: http://127.0.0.1:1"],
    "in a sandbox": ["Sec-Fetch-Site: cross-site", "Origin: null"],
    "that says the origin only": [f"Origin: {EVIL}"],
    "without an origin": ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"],
}
TYPES: Final = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b")
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")
BODIES: Final = {
    "broker": json.dumps({"QueueUrl": "http://127.0.0.1/000000000000/orders"}).encode(),
    "dashboard": b'{"text": "forged"}',
    "worker": b'{"action": "stop"}',
}
ACTIONS: Final = {"broker": "/?Action=PurgeQueue", "dashboard": "/api/v1/annotations", "worker": "/control"}
READS: Final = {"broker": "/_semel/queues", "dashboard": "/api/v1/queues", "worker": "/workers"}


@pytest.mark.parametrize("browser", BROWSERS)
@pytest.mark.parametrize("name", ["broker", "dashboard", "worker"])
def test_a_page_of_another_site_has_no_effect_with_any_method_or_type_of_content(
    servers: dict[str, Target], place: Shop, worker: Worker, name: str, browser: str
) -> None:
    place.orders.send("here to stay")
    for method in METHODS:
        for kind in (*TYPES, "application/json"):
            headers = [*BROWSERS[browser], "X-Amz-Target: AmazonSQS.PurgeQueue"]
            headers += [f"Content-Type: {kind}"] if kind else []
            request = get(ACTIONS[name], "127.0.0.1", *headers, method=method, body=BODIES[name])
            assert ask(servers[name].port, request).statuses[0] in (403, 405, 501)
    assert place.broker.peek("orders")
    assert worker.commands == []
    assert b"forged" not in ask(servers["dashboard"].port, get("/api/v1/annotations")).data


@pytest.mark.parametrize("browser", BROWSERS)
@pytest.mark.parametrize("name", ["broker", "dashboard", "worker"])
def test_a_page_of_another_site_reads_nothing(servers: dict[str, Target], name: str, browser: str) -> None:
    reply = ask(servers[name].port, get(READS[name], "127.0.0.1", *BROWSERS[browser]))
    assert reply.statuses == [403]
    assert b"orders" not in reply.data
    assert b"order-secret-key" not in reply.data
    assert b"access-control-allow" not in reply.data.lower()


@pytest.mark.parametrize("browser", BROWSERS)
@pytest.mark.parametrize("name", ["broker", "dashboard", "worker"])
def test_a_preflight_permits_nothing(servers: dict[str, Target], name: str, browser: str) -> None:
    asked = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type,x-amz-target"]
    reply = ask(servers[name].port, get(ACTIONS[name], "127.0.0.1", *BROWSERS[browser], *asked, method="OPTIONS"))
    assert reply.statuses[0] in (403, 404, 405, 501)
    assert b"access-control-allow" not in reply.data.lower()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example"]
)
@pytest.mark.parametrize("name", ["broker", "dashboard", "worker"])
def test_a_name_that_was_pointed_here_reads_and_changes_nothing(
    servers: dict[str, Target], worker: Worker, name: str, host: str
) -> None:
    """For a browser, such a page and this server are the same site. Only the Host header gives the attack away."""
    own = ["Sec-Fetch-Site: same-origin"] if name != "worker" else []
    reply = ask(servers[name].port, get(READS[name], host, *own))
    assert reply.statuses == [403]
    headers = [*own, "Content-Type: application/json", "X-Amz-Target: AmazonSQS.PurgeQueue"]
    acted = ask(servers[name].port, get(ACTIONS[name], host, *headers, method="POST", body=BODIES[name]))
    assert acted.statuses == [403]
    assert worker.commands == []


@pytest.mark.parametrize("name", ["broker", "dashboard", "worker"])
def test_nobody_is_talked_into_another_protocol(servers: dict[str, Target], name: str) -> None:
    offer = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA=="]
    reply = ask(servers[name].port, get(servers[name].health, "127.0.0.1", *offer))
    assert 101 not in reply.statuses
    assert b"upgrade" not in reply.data.lower().partition(b"\r\n\r\n")[0]


def test_no_page_of_the_dashboard_can_be_framed(servers: dict[str, Target]) -> None:
    for path in ("/", "/login", "/queues/orders", "/none", "/api/v1/queues", "/static/style.css"):
        head = ask(servers["dashboard"].port, get(path), timeout=5).data.lower().partition(b"\r\n\r\n")[0]
        assert b"x-frame-options: deny" in head, path
        assert b"frame-ancestors 'none'" in head, path
