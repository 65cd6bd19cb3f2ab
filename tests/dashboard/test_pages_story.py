"""An operator at work in a real browser, with a real broker, a real worker with a ledger, and the real dashboard."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from browsing import Browser
from dashboard.serving import Shop, Site, shop
from running_apps import running_app
from semel import App
from semel.consumer.outcomes import Reject
from semel.ledger.sqlite.ledger import SqliteLedger
from waiting import PATIENCE, until

PATIENT = PATIENCE * 1000  # milliseconds, for the browser
OTHERS = 6


class Warehouse:
    """What the handler does with orders. While it is closed, and for a currency that it does not know, it gives up."""

    def __init__(self) -> None:
        self.open = False
        self.shipped: Counter[str] = Counter()
        self._lock = threading.Lock()

    def app(self, place: Shop, ledger: SqliteLedger) -> App:
        app = App(ledger, client=place.client)

        @app.handler("orders", key="$.id", payload=False)
        def ship(order: dict[str, Any]) -> None:
            if order["currency"] == "EURO":
                raise Reject(f"ValidationError: order {order['id']}: unknown currency 'EURO'")
            if not self.open:
                raise Reject(f"ConnectionError: the warehouse is closed, says host 10.0.0.{len(order['id'])}")
            with self._lock:
                self.shipped[order["id"]] += 1

        return app


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Shop]:
    with shop(tmp_path / "state") as place:
        (tmp_path / "state").mkdir(exist_ok=True)
        yield place


def depth(place: Shop, queue: str) -> int:
    return len(place.broker.peek(queue))


def test_an_operator_finds_the_failing_group_edits_one_redrives_the_rest_and_finds_it_in_the_audit_log(
    place: Shop, browser: Browser, tmp_path: Path
) -> None:
    warehouse = Warehouse()
    for number in range(OTHERS):
        place.orders.send(json.dumps({"id": f"o-{number}", "currency": "EUR"}))
    place.orders.send(json.dumps({"id": "o-odd", "currency": "EURO"}))

    with SqliteLedger(str(tmp_path / "ledger.db")) as ledger, running_app(warehouse.app(place, ledger)):
        until(lambda: depth(place, "orders-dlq") == OTHERS + 1, "the failing of all")
        warehouse.open = True
        with place.dashboard(ledger=ledger) as site:
            visit = browser.look(site.url, lambda page: operate(page, site))
        until(lambda: not depth(place, "orders"), "the end of the work")

    assert visit.complaints == []
    assert all(address.startswith(site.url) for address in visit.requests), "pages need nothing from elsewhere"
    assert depth(place, "orders-dlq") == 0
    assert warehouse.shipped == {**{f"o-{number}": 1 for number in range(OTHERS)}, "o-odd": 1}


def operate(page: Page, site: Site) -> None:
    page.set_default_timeout(PATIENT)

    # From the queues to the dead letters.
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    page.get_by_role("link", name=f": {OTHERS + 1} messages").click()
    groups = page.get_by_role("table", name="Errors").locator("tbody tr")
    expect(groups).to_have_count(2)
    expect(groups.first).to_contain_text("ConnectionError")
    expect(groups.first).to_contain_text(str(OTHERS))

    # One of them needs an edit.
    page.get_by_role("link", name="ValidationError").click()
    expect(page.get_by_role("heading", name=f"1 of {OTHERS + 1} messages matches")).to_be_visible()
    message = page.get_by_role("table", name="Messages of orders-dlq").locator("tbody th a")
    message.click()
    expect(page.get_by_text("unknown currency").first).to_be_visible()
    body = page.get_by_label("Body", exact=True).and_(page.locator("textarea"))
    body.fill(body.input_value().replace("EURO", "EUR"))
    page.get_by_role("button", name="Resend").click()
    expect(page.get_by_role("status")).to_contain_text("to orders, and deleted here")

    # The rest is redriven, a few first.
    page.goto(f"{site.url}/dead-letters/orders-dlq")
    page.get_by_role("link", name="ConnectionError").click()
    page.get_by_role("link", name=f"Redrive {OTHERS} messages").click()
    page.get_by_label("Canary messages").fill("2")
    page.get_by_role("button", name=f"Redrive {OTHERS} messages").click()
    expect(page.get_by_role("heading", name=f"Finished: {OTHERS} redriven")).to_be_visible(timeout=PATIENT)
    expect(page.get_by_role("progressbar")).to_have_js_property("value", OTHERS)

    # And it is all in the log.
    page.get_by_role("link", name="Audit log").click()
    rows = page.get_by_role("table", name="Audit log").locator("tbody tr")
    done = rows.filter(has_text="redrive").filter(has_text="done")
    expect(done).to_have_count(1)
    expect(done).to_contain_text("fingerprint =")
    expect(done).to_contain_text("operator 127.0.0.1")
    expect(rows.filter(has_text="resend").filter(has_text="done")).to_have_count(1)


@pytest.mark.slow
def test_messages_are_deleted_only_with_the_queues_name_typed_and_come_back_from_the_snapshot(
    place: Shop, browser: Browser, tmp_path: Path
) -> None:
    place.dead_letter(4, "Timeout: no answer")
    place.dead_letter(2, "KeyError: 'address'", start=10)

    def delete(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.get_by_role("link", name="Timeout").click()
        page.get_by_role("link", name="Delete…").click()
        typed = page.get_by_label("To confirm")
        typed.fill("orders")
        page.get_by_role("button", name="Delete 4 messages").click()
        assert typed.evaluate("field => field.validity.patternMismatch"), "a wrong name is not even sent"
        typed.fill("orders-dlq")
        page.get_by_role("button", name="Delete 4 messages").click()
        expect(page.get_by_role("heading", name="Finished: 4 deleted")).to_be_visible(timeout=PATIENT)

    def restore(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        (snapshot,) = snapshots()
        page.get_by_label("Snapshot").set_input_files(snapshot)
        page.get_by_role("button", name="Restore").click()
        expect(page.get_by_role("heading", name="Finished: 4 restored")).to_be_visible(timeout=PATIENT)

    def snapshots() -> list[Path]:
        return list((tmp_path / "state" / "snapshots").rglob("*.jsonl"))

    with place.dashboard() as site:
        assert browser.look(f"{site.url}/dead-letters/orders-dlq", delete).complaints == []
        assert depth(place, "orders-dlq") == 2
        assert browser.look(f"{site.url}/dead-letters/orders-dlq/restore", restore).complaints == []
    keys = {
        message["MessageAttributes"]["semel-key"]["StringValue"]
        for message in place.broker.peek("orders-dlq")
        if "semel-key" in message["MessageAttributes"]
    }
    assert depth(place, "orders-dlq") == 6
    assert keys == {*(f"order-{number}" for number in range(4)), "order-10", "order-11"}


@pytest.mark.slow
def test_a_job_is_paused_resumed_and_cancelled_on_its_page(place: Shop, browser: Browser) -> None:
    place.dead_letter(80)

    def brake(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.get_by_label("Canary messages").fill("0")
        page.get_by_label("Rate").fill("5")
        page.get_by_role("button", name="Redrive 80 messages").click()
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("heading", name="Paused")).to_be_visible(timeout=PATIENT)
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible(timeout=PATIENT)
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("heading", name="Cancelled")).to_be_visible(timeout=PATIENT)

    with place.dashboard() as site:
        assert browser.look(f"{site.url}/dead-letters/orders-dlq/redrive", brake).complaints == []
    assert depth(place, "orders-dlq") + depth(place, "orders") == 80, "nothing is lost, nothing doubled"


@pytest.mark.slow
def test_a_dry_run_counts_and_touches_nothing(place: Shop, browser: Browser) -> None:
    place.dead_letter(5)

    def try_it(page: Page) -> None:
        page.get_by_role("button", name="Dry run").click()
        expect(
            page.get_by_role("heading", name="Dry run finished: 5 would be redriven; nothing was changed")
        ).to_be_visible(timeout=PATIENT)

    with place.dashboard() as site:
        assert browser.look(f"{site.url}/dead-letters/orders-dlq/redrive", try_it).complaints == []
    assert depth(place, "orders-dlq") == 5


@pytest.mark.slow
def test_a_test_message_is_sent_and_a_fault_is_set(place: Shop, browser: Browser) -> None:
    def send(page: Page) -> None:
        page.get_by_label("Body").fill('{"id": "o-1"}')
        page.get_by_label("Idempotency key").fill("k-1")
        page.get_by_role("button", name="Send").click()
        page.get_by_role("status").get_by_role("link").click()
        expect(page.get_by_role("heading", name="Where is it?")).to_be_visible()
        expect(page.get_by_text('"o-1"').first).to_be_visible()

    def hurt(page: Page) -> None:
        page.get_by_label("Rate of duplicate").fill("0.25")
        page.get_by_role("row", name="duplicate").get_by_role("button", name="Set").click()
        expect(page.get_by_role("status")).to_have_text("Fault duplicate of orders is on, at a rate of 0.25.")
        expect(page.get_by_label("Rate of duplicate")).to_have_value("0.25")

    with place.dashboard() as site:
        assert browser.look(f"{site.url}/queues/orders?tab=send", send).complaints == []
        assert browser.look(f"{site.url}/queues/orders?tab=faults", hurt).complaints == []
    (message,) = place.broker.peek("orders")
    assert message["MessageAttributes"]["idempotency-key"]["StringValue"] == "k-1"
    assert place.broker.admin("GET", "faults")["faults"] == [{"kind": "duplicate", "queue": "orders", "rate": 0.25}]
