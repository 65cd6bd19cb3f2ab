"""The pages with an endpoint other than Semel's broker, here moto's: messages are received only on request."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from browsing import Browser
from dashboard.serving import Site, serving
from semel.dashboard.views import Settings
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Client
from servers import moto
from waiting import PATIENCE

pytest.importorskip("moto.server")
PATIENT = PATIENCE * 1000


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    state = tmp_path_factory.mktemp("state")
    with moto.running() as url, Client(url, moto.REGION, access_key="test", secret_key="test") as client:
        dead = client.create_queue("orders-dlq")
        policy = json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": 5})
        client.create_queue("orders", {"RedrivePolicy": policy})
        message = own_attributes.DeadLetterDetails("k-1", "Timeout", "no answer", 3, "id-1", "orders")
        dead.send('{"id": 1}', attributes=own_attributes.attributes(message, {}, 9))
        settings = Settings(endpoint_url=url, region=moto.REGION, port=0, state=state)
        with serving(settings, client=client) as site:
            yield site


@pytest.mark.slow
def test_messages_are_received_only_on_request_and_can_then_be_redriven(site: Site, browser: Browser) -> None:
    def operate(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.get_by_role("link", name="orders-dlq").click()
        expect(page.get_by_text("Messages must be received to be shown")).to_be_visible()
        page.get_by_role("button", name="Receive and show").click()
        expect(page.get_by_text("the receive count of 1 message went up by 1")).to_be_visible(timeout=PATIENT)
        page.get_by_role("link", name="Timeout: no answer").click()  # moto knows no move tasks: it must stream
        page.get_by_role("link", name="Redrive 1 message…").click()
        page.get_by_label("Canary messages").fill("0")
        page.get_by_role("button", name="Redrive 1 message").click()
        expect(page.get_by_role("heading", name="Finished: 1 redriven")).to_be_visible(timeout=PATIENT)

    visit = browser.look(f"{site.url}/dead-letters", operate)
    assert visit.complaints == []
    (message,) = site.services.inspector.client.queue("orders").receive(10, 0)
    assert message.body == '{"id": 1}'
    assert own_attributes.carried_key(message.attributes) == "k-1"


@pytest.mark.slow
def test_a_message_is_edited_and_resent_there(site: Site, browser: Browser) -> None:
    def edit(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.get_by_text("the receive count of 1 message went up by 1").wait_for()
        page.locator("section[aria-labelledby=messages-title] tbody th a").click()
        expect(page.locator("#live")).to_have_text("updates off")
        page.locator("#edit-body").fill('{"id": 2}')
        page.get_by_role("button", name="Resend").click()
        expect(page.get_by_role("status")).to_contain_text("to orders, and deleted here")

    visit = browser.look(f"{site.url}/dead-letters/orders-dlq?receive=1", edit)
    assert visit.complaints == []
    client = site.services.inspector.client
    assert [message.body for message in client.queue("orders").receive(10, 0)] == ['{"id": 2}']
    assert client.queue("orders-dlq").receive(10, 0) == []


@pytest.mark.slow
def test_every_page_answers_there(site: Site, browser: Browser) -> None:
    paths = (
        "/", "/queues/orders", "/queues/orders?tab=faults", "/queues/orders?receive=1", "/queues/orders?tab=settings",
        "/dead-letters/orders-dlq/delete", "/queues/orders/messages/m-1", "/deliveries", "/workers", "/doctor",
        "/audit",
    )  # fmt: skip

    def look(page: Page) -> list[int]:
        return [answer.status for path in paths if (answer := page.goto(site.url + path)) is not None]

    visit = browser.look(site.url, look)
    assert visit.result == [200] * len(paths)
    assert visit.complaints == []


@pytest.mark.slow
def test_a_queue_with_a_redrive_policy_of_its_own_is_received_from_only_after_a_tick(
    site: Site, browser: Browser
) -> None:
    client = site.services.inspector.client
    last = client.create_queue("last")
    policy = json.dumps({"deadLetterTargetArn": last.arn, "maxReceiveCount": 3})
    client.queue("orders-dlq").call("SetQueueAttributes", {"Attributes": {"RedrivePolicy": policy}})

    def operate(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        expect(page.get_by_text("moves a message to another queue after 3 receives")).to_be_visible()
        tick, button = page.get_by_role("checkbox"), page.get_by_role("button", name="Receive and show")
        button.click()
        assert tick.evaluate("field => field.validity.valueMissing"), "nothing is asked for without the tick"
        expect(button).to_be_visible()
        tick.check()
        button.click()
        expect(page.get_by_text("the receive count of 1 message went up by 1")).to_be_visible(timeout=PATIENT)

    for path in ("", "/messages/m-1", "/redrive"):
        page = site.get(f"/dead-letters/orders-dlq{path}").text
        assert 'type="checkbox" name="receive"' in page
    assert 'href="/dead-letters/orders-dlq?">Show the messages</a>' in site.get("/dead-letters/orders-dlq/delete").text
    visit = browser.look(f"{site.url}/dead-letters/orders-dlq", operate)
    assert visit.complaints == []
