"""The notice about an action shows its real result, and no link can change what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dashboard.serving import Answer, Site, serving, shop
from running_apps import running_app
from semel import App
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.sqs import Client
from waiting import until


def resend(site: Site, id: str) -> Answer:
    """The button below the edited message, and the page that is shown then."""
    path = f"/dead-letters/orders-dlq/messages/{id}/resend"
    sent = site.form(path, {"body": "{}"})
    assert sent.status == 303
    return site.get(sent.headers["location"])


def test_a_page_says_deleted_here_only_if_the_message_was_deleted(tmp_path: Path) -> None:
    with (
        shop(tmp_path) as place,
        Client(place.broker.url, "us-east-1", access_key="test", secret_key="test", sleep=lambda _: None) as client,
        serving(place.settings(), client=client) as site,
    ):
        (first,) = place.dead_letter(1)
        assert "to orders, and deleted here." in resend(site, first).text
        place.orders.purge()
        second = place.orders.send("[]").message_id
        for _ in range(4):
            place.orders.receive(1, 0, visibility=0)  # until SQS moves it
        site.post("/api/v1/queues/orders-dlq/faults", {"kind": "server-error", "rate": 1}, method="PUT")
        page = resend(site, second)
        assert re.search("The copy was sent, but the [a-z]+ could not be deleted", page.text)
        assert "deleted here" not in page.text
        assert 'class="note bad" role="status"' in page.text


@pytest.mark.parametrize(
    "address",
    [
        "/dead-letters/orders-dlq?resent=m-1&to=payments",
        "/dead-letters/orders-dlq?notice=m-1",
        "/queues/orders?tab=send&sent=m-1",
        "/queues/orders?tab=faults&notice=1",
        "/workers?did=pause",
    ],
)
def test_no_link_makes_a_page_report_an_action(tmp_path: Path, address: str) -> None:
    with shop(tmp_path) as place, place.dashboard() as site:
        assert 'role="status"' not in site.get(address).text


def test_a_page_reports_what_the_worker_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_STATE", str(tmp_path))
    with shop(tmp_path) as place, SqliteLedger(":memory:") as ledger, place.dashboard() as site:
        app = App(ledger, client=place.client)

        @app.handler("orders")
        def nothing(body: Any) -> None: ...

        with running_app(app, health="127.0.0.1:0"):
            (worker,) = until(lambda: site.api("workers")["workers"], "the worker")
            fields = {"queue": "orders", "action": "pause"}
            paused = site.form(f"/workers/{quote(worker['id'], safe='')}/control", fields)
            page = site.get(paused.headers["location"]).text
            assert re.search(r'role="status"><bdi>Paused orders', page), page
