"""Message bodies in forms: an unedited body is sent unchanged, and text that could not be sent is not lost."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from browsing import Browser
from dashboard.serving import Answer, Shop, Site, shop
from semel.messages import dead_letter_attributes as own_attributes
from waiting import PATIENCE

PATIENT = PATIENCE * 1000
DEAD = "/dead-letters/orders-dlq"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("state")) as place:
        yield place


@pytest.fixture(scope="module")
def site(place: Shop) -> Iterator[Site]:
    with place.dashboard() as site:
        yield site


@pytest.fixture(autouse=True)
def empty(place: Shop) -> Iterator[None]:
    yield
    place.orders.purge()
    place.dead.purge()


def dead_letter(place: Shop, body: str) -> str:
    message = own_attributes.DeadLetterDetails("k-1", "failed", "Timeout: no answer", 3, "id-1", "orders")
    return place.dead.send(body, attributes=own_attributes.attributes(message, {}, len(body.encode()))).message_id


def sent(place: Shop) -> list[str]:
    return [message["Body"] for message in place.broker.peek("orders")]


BODIES = {
    "leading newline": '\n{"a": 1}',
    "two leading newlines and one at the end": "\n\na\n",
    "mixed line ends": "one\r\ntwo\nthree\rfour\r\n",
    "lone carriage returns": "\rone\rtwo\r",
    "trailing spaces": "  a \t \n   \n ",
    "odd Unicode": "\ufeffé\u00a0\u2028\u202e\u200d\u0085 👩\u200d👩\u200d👧 </textarea>&amp;&#10;<b> \ufffd",
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_that_was_not_edited_is_resent_byte_by_byte(
    place: Shop, site: Site, browser: Browser, kind: str
) -> None:
    id = dead_letter(place, BODIES[kind])

    def resend(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.get_by_role("button", name="Resend").click()
        page.get_by_role("status").wait_for()

    assert browser.look(f"{site.url}{DEAD}/messages/{id}", resend).complaints == []
    assert sent(place) == [BODIES[kind]]


@pytest.mark.parametrize(
    ("before", "after"), [("a\r\nb\r\n", "a\r\nX\r\n"), ("a\nb\n", "a\nX\n"), ("a\rb\r", "a\rX\r")]
)
def test_an_edited_body_keeps_its_line_ends(place: Shop, site: Site, browser: Browser, before: str, after: str) -> None:
    id = dead_letter(place, before)

    def edit(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.locator("#edit-body").fill("a\nX\n")
        page.get_by_role("button", name="Resend").click()
        page.get_by_role("status").wait_for()

    browser.look(f"{site.url}{DEAD}/messages/{id}", edit)
    assert sent(place) == [after]


def test_a_test_message_has_the_line_ends_that_were_typed(place: Shop, site: Site, browser: Browser) -> None:
    def send(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.get_by_label("Body").fill("one\ntwo")
        page.get_by_role("button", name="Send", exact=True).click()
        page.get_by_role("status").wait_for()

    browser.look(f"{site.url}/queues/orders?tab=send", send)
    assert sent(place) == ["one\ntwo"]


def submit(site: Site, path: str, **fields: str) -> Answer:
    return site.form(path, fields)


def typed(answer: Answer) -> str:
    """What is in the text field of the page."""
    field = re.search(r"<textarea[^>]*>\n?(.*?)</textarea>", answer.text, re.DOTALL)
    return html.unescape(field[1]) if field else "no field"


def test_edited_text_stays_in_the_form_when_it_could_not_be_sent(place: Shop, site: Site) -> None:
    id = dead_letter(place, "{}")
    path = f"{DEAD}/messages/{id}/resend"
    wrong = submit(site, path, body='\r\n{"edited": 1}', to="nowhere", key="new", new_key="k-2")
    assert wrong.status in (400, 404)
    assert typed(wrong) == '\n{"edited": 1}'
    assert 'value="nowhere"' in wrong.text
    assert 'value="k-2"' in wrong.text
    place.dead.purge()  # somebody else was faster
    gone = submit(site, path, body='{"edited": 1}')
    assert gone.status == 404
    assert typed(gone) == '{"edited": 1}'
    assert id in gone.text
    assert sent(place) == []


def test_edited_text_stays_in_the_form_when_the_queue_is_gone(place: Shop, site: Site) -> None:
    place.client.create_queue("short-lived").drop()
    for path in ("/queues/short-lived/messages", "/dead-letters/short-lived/messages/m-1/resend"):
        answer = submit(site, path, body="a long text")
        assert answer.status in (400, 404)
        assert 'role="alert"' in answer.text
        assert typed(answer) == "a long text"
