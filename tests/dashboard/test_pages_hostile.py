"""Whatever a message, a key or an error contains, pages show it as text, and none of it is executed."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from browsing import Browser
from dashboard.serving import Shop, Site, shop
from semel.dashboard.web import template_filters
from semel.messages import dead_letter_attributes as own_attributes

SCRIPT = "<script>document.title = 'owned'; alert(1)</script><img src=x onerror=alert(2)>"
HOSTILE = {
    "script": SCRIPT,
    "json": json.dumps({"name": SCRIPT, "</pre>": ["<b>", "&lt;", "'\"`${1}"]}),
    "template": "{{ 7 * 7 }}{% raw %}${7*7}#{7*7}",
    "attribute": "\" autofocus onfocus=alert(3) x='",
    "turned": "safe \u202egnp.exe\u202c \u2066x\u2069 \u200b\ufeff end",
    "deep": "[" * 20_000 + "]" * 20_000,
    "figures": '{"big": 123456789012345678901234567890, "e": 1E400, "twice": 1, "twice": 2}',
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("state")) as place:
        yield place


@pytest.fixture(scope="module")
def site(place: Shop) -> Iterator[Site]:
    with place.dashboard() as site:
        yield site


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_body_is_text_on_every_page(place: Shop, site: Site, browser: Browser, kind: str) -> None:
    body = HOSTILE[kind]
    message = own_attributes.DeadLetterDetails(
        f"k{SCRIPT}", f"Reason {SCRIPT}", f"error {SCRIPT}", 3, f"id-{kind}", "orders"
    )
    own = own_attributes.attributes(message, {}, len(body.encode()))
    sent = place.orders.send(body).message_id
    dead = place.dead.send(body, attributes=own).message_id

    def look(page: Page) -> list[str]:
        titles = [page.title()]
        for path in ("/queues/orders", f"/dead-letters/orders-dlq/messages/{dead}", "/dead-letters/orders-dlq"):
            page.goto(site.url + path)
            titles.append(page.title())
        assert not page.locator("main script, main img, main [onerror], main [onfocus]").count()
        return titles

    visit = browser.look(f"{site.url}/queues/orders/messages/{sent}", look)
    place.orders.purge()
    place.dead.purge()
    assert visit.complaints == [], "nothing ran, and the policy had nothing to refuse"
    assert all(title.endswith("· Semel") for title in visit.result)


def test_a_body_of_a_mebibyte_opens_at_once_is_cut_and_can_be_had_whole(
    place: Shop, site: Site, browser: Browser
) -> None:
    body = json.dumps({"blob": "é<" * 349_000}, ensure_ascii=False)
    assert 1_000_000 < len(body.encode()) <= 1024 * 1024
    sent = place.orders.send(body).message_id

    def look(page: Page) -> int:
        shown = page.locator("pre.body").inner_text()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download all of it").click()
        assert download.value.path().read_text(encoding="utf-8") == body
        return len(shown)

    visit = browser.look(f"{site.url}/queues/orders/messages/{sent}", look)
    place.orders.purge()
    assert visit.complaints == []
    assert visit.result <= template_filters.MAX_SHOWN


def test_the_body_that_is_handed_out_is_a_file_and_never_a_page(place: Shop, site: Site) -> None:
    sent = place.orders.send(SCRIPT).message_id
    answer = site.get(f"/queues/orders/messages/{sent}/body")
    place.orders.purge()
    assert answer.body == SCRIPT.encode()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("where", ['error ~ "', SCRIPT, "age > yesterday", "a" * 5_000])
def test_a_wrong_filter_is_explained_and_is_text(site: Site, browser: Browser, where: str) -> None:
    def look(page: Page) -> None:
        expect(page.get_by_role("alert").or_(page.get_by_role("heading", level=1)).first).to_be_visible()
        expect(page.get_by_label("Filter")).to_have_value(where)

    visit = browser.look(f"{site.url}/dead-letters/orders-dlq?where={quote(where)}", look)
    assert visit.complaints == []


def test_a_foreign_name_in_the_address_is_text(site: Site, browser: Browser) -> None:
    for path in (f"/queues/{quote(SCRIPT, safe='')}", f"/jobs/{quote(SCRIPT, safe='')}", f"/?q={quote(SCRIPT)}"):
        visit = browser.look(site.url + path, lambda page: page.title())
        assert visit.result.endswith("· Semel")
        assert [complaint for complaint in visit.complaints if not re.search("status of 40[45]", complaint)] == []


# Bodies.


def test_json_is_indented_and_nothing_in_it_changes() -> None:
    shown = template_filters.body('{"a":[1.10,{}],"a":1E5,"b":"x\\ny"}', 30)
    assert shown.kind == "json"
    plain = html.unescape(re.sub("<[^>]+>", "", str(shown.html)))
    assert plain == '{\n  "a": [\n    1.10,\n    {}\n  ],\n  "a": 1E5,\n  "b": "x\\ny"\n}'


def test_an_unprintable_character_is_shown_as_a_symbol() -> None:
    assert "U+202E" in template_filters.visible("a\u202eb")
    assert "␀" in template_filters.visible("a\x00b")
    assert "U+D800" in template_filters.visible("a\ud800b")
    assert template_filters.visible("é 漢字 👩‍👩‍👧 \n\t") == "é 漢字 👩‍👩‍👧 \n\t"


def test_junk_is_recognised_as_no_text() -> None:
    assert template_filters.body("".join(map(chr, range(32))) * 20, 640).kind == "binary"
    assert template_filters.body("plain words", 11).kind == "text"
