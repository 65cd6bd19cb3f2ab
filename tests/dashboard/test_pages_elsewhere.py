"""The pages over an endpoint that is not Semel's broker, here moto's: what looking costs is said before and after."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from browsing import Browser
from dashboard.serving import PATIENCE, Site, serving
from semel.dashboard.views import Settings
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Client
from servers import moto

pytest.importorskip("moto.server")
PATIENT = PATIENCE * 1000


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    state = tmp_path_factory.mktemp("state")
    with moto.running() as url, Client(url, moto.REGION, access_key="test", secret_key="test") as client:
        dead = client.create_queue("orders-dlq")
        policy = json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": 5})
        client.create_queue("orders", {"RedrivePolicy": policy})
        message = own_attributes.Letter("k-1", "Timeout", "no answer", 3, "id-1", "orders")
        dead.send('{"id": 1}', attributes=own_attributes.attributes(message, {}, 9))
        settings = Settings(endpoint_url=url, region=moto.REGION, port=0, state=state)
        with serving(settings, client=client) as found:
            yield found


@pytest.mark.slow
def test_letters_are_looked_at_only_when_asked_for_and_can_then_be_redriven(site: Site, browser: Browser) -> None:
    def operate(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.get_by_role("link", name="orders-dlq").click()
        expect(page.get_by_text("Looking costs something here")).to_be_visible()
        page.get_by_role("link", name="Receive, look, give back").click()
        expect(page.get_by_text("the receive count of 1 message went up by 1")).to_be_visible(timeout=PATIENT)
        page.get_by_role("link", name="Timeout: no answer").click()  # moto knows no move tasks: it must stream
        page.get_by_role("link", name="Redrive these 1…").click()
        page.get_by_label("Canary").fill("0")
        page.get_by_role("button", name="Redrive 1 letter").click()
        expect(page.get_by_role("heading", name="Finished: 1 sent back")).to_be_visible(timeout=PATIENT)

    visit = browser.look(f"{site.url}/dead-letters", operate)
    assert visit.complaints == []
    (message,) = site.services.inspector.client.queue("orders").receive(10, 0)
    assert message.body == '{"id": 1}'
    assert own_attributes.carried_key(message.attributes) == "k-1"


@pytest.mark.slow
def test_a_letter_is_edited_and_sent_there(site: Site, browser: Browser) -> None:
    def edit(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.get_by_text("the receive count of 1 message went up by 1").wait_for()
        page.locator("section[aria-labelledby=letters-title] tbody th a").click()
        expect(page.locator("#live")).to_have_text("at rest")
        page.locator("#edit-body").fill('{"id": 2}')
        page.get_by_role("button", name="Resend").click()
        expect(page.get_by_role("status")).to_contain_text("to orders, and deleted here")

    visit = browser.look(f"{site.url}/dead-letters/orders-dlq?receive=1", edit)
    assert visit.complaints == []
    client = site.services.inspector.client
    assert [message.body for message in client.queue("orders").receive(10, 0)] == ['{"id": 2}']
    assert client.queue("orders-dlq").receive(10, 0) == []


@pytest.mark.slow
def test_every_page_has_something_to_say_there(site: Site, browser: Browser) -> None:
    paths = ("/", "/queues/orders", "/queues/orders?tab=faults", "/queues/orders?receive=1",
             "/queues/orders?tab=settings",
             "/dead-letters/orders-dlq/delete", "/deliveries", "/workers", "/doctor", "/audit")  # fmt: skip

    def look(page: Page) -> list[int]:
        return [answer.status for path in paths if (answer := page.goto(site.url + path)) is not None]

    visit = browser.look(site.url, look)
    assert visit.result == [200] * len(paths)
    assert visit.complaints == []
