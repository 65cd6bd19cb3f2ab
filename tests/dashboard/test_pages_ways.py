"""Every way to use the pages: keyboard, phone, dark, screen reader, without scripts, with a token, read-only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from browsing import Browser
from dashboard.serving import Shop, Site, serving, shop
from running_apps import running_app
from semel import App
from semel.dashboard.views import Settings
from semel.ledger.sqlite.ledger import SqliteLedger
from waiting import PATIENCE, free_port

PATIENT = PATIENCE * 1000
TOKEN, READER = "operator-token", "reader-token"
PAGES: Final = (
    "/", "/queues/orders", "/queues/orders?tab=send", "/queues/orders?tab=settings", "/queues/orders?tab=alarms",
    "/queues/orders?tab=faults", "/dead-letters", "/dead-letters/orders-dlq", "/dead-letters/orders-dlq/redrive",
    "/dead-letters/orders-dlq/delete", "/dead-letters/orders-dlq/restore", "/deliveries", "/workers", "/doctor",
    "/audit",
    "/api", "/nowhere",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("state"), clock="manual") as place:
        place.dead_letter(5)
        place.dead_letter(2, "KeyError: 'address'", start=10)
        for number in range(20):
            place.orders.send(json.dumps({"id": number}))
        for _ in range(6):
            place.broker.clock.advance(10)
        yield place


@pytest.fixture(scope="module")
def site(place: Shop) -> Iterator[Site]:
    with place.dashboard() as site:
        yield site


@pytest.fixture(scope="module")
def closed_site(place: Shop) -> Iterator[Site]:
    with place.dashboard(token=TOKEN, reader_token=READER) as site:
        yield site


# What is on every page: found by looking at it as a screen reader does.
FAULTS: Final = """() => {
  const faults = [], visible = node => node.getClientRects().length > 0;
  const words = node => (node.getAttribute('aria-label') || node.textContent || node.title || '').trim();
  const named = node => (node.labels && [...node.labels].some(words)) || node.getAttribute('aria-label')
    || (node.getAttribute('aria-labelledby') || '').split(' ').some(id => document.getElementById(id));
  for (const node of document.querySelectorAll('input:not([type=hidden]), select, textarea'))
    if (!named(node)) faults.push('no label: ' + node.outerHTML.slice(0, 80));
  for (const node of document.querySelectorAll('a, button, summary'))
    if (!words(node)) faults.push('no words: ' + node.outerHTML.slice(0, 80));
  for (const node of document.querySelectorAll('svg'))
    if (!node.closest('[aria-hidden=true]') && !node.getAttribute('aria-label') && !node.parentElement.closest('svg'))
      faults.push('no text for: ' + node.outerHTML.slice(0, 80));
  for (const node of document.querySelectorAll('table')) {
    if (!node.caption) faults.push('a table without a caption');
    if ([...node.querySelectorAll('th')].some(cell => !cell.scope)) faults.push('a head without a scope');
  }
  const levels = [...document.querySelectorAll('main :is(h1, h2, h3, h4)')].map(node => Number(node.tagName[1]));
  if (levels[0] !== 1 || levels.filter(level => level === 1).length !== 1) faults.push('headings: ' + levels);
  levels.forEach((level, place) => { if (place && level > levels[place - 1] + 1) faults.push('headings: ' + levels); });
  const ids = [...document.querySelectorAll('[id]')].map(node => node.id);
  ids.filter((id, place) => ids.indexOf(id) !== place).forEach(id => faults.push('twice: #' + id));
  for (const mark of ['main', 'header', 'nav'])
    if (!document.querySelector(mark) && !document.body.matches('.alone')) faults.push('no ' + mark);
  if (!document.documentElement.lang) faults.push('no language');
  return faults;
}"""
# Texts whose contrast is too low, as WCAG counts it.
PALE: Final = """() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const parse = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
  };
  const light = rgb => rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, below) => top.slice(0, 3).map((v, i) => v * top[3] + below[i] * (1 - top[3]));
  const behind = node => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) { layers.push(colour); if (colour[3] === 1) break; }
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const faint = node => {
    let all = 1;
    for (let at = node; at; at = at.parentElement) all *= Number(getComputedStyle(at).opacity);
    return all;
  };
  const pale = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !node.getClientRects().length) continue;
    if (node.closest('svg, option, :disabled')) continue;
    const ground = behind(node), ink = parse(getComputedStyle(node).color);
    ink[3] *= faint(node);
    const [a, b] = [light(over(ink, ground)), light(ground)].sort((x, y) => y - x);
    const size = parseFloat(getComputedStyle(node).fontSize), bold = Number(getComputedStyle(node).fontWeight) >= 700;
    const least = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < least) pale.push(`${ratio.toFixed(2)}: ${walk.currentNode.textContent.trim().slice(0, 40)}`);
  }
  return [...new Set(pale)];
}"""


def test_every_page_is_labelled_readable_in_light_and_dark_and_fits_a_phone(site: Site, browser: Browser) -> None:
    def look(page: Page) -> dict[str, Any]:
        faults = {}
        for path in PAGES:
            page.goto(site.url + path)
            wrong = page.evaluate(FAULTS) + page.evaluate(PALE)
            page.emulate_media(color_scheme="dark")
            wrong += [f"dark {text}" for text in page.evaluate(PALE)]
            page.emulate_media(color_scheme="light")
            for width in (820, 390):
                page.set_viewport_size({"width": width, "height": 800})
                if over := page.evaluate("document.documentElement.scrollWidth - innerWidth"):
                    wrong.append(f"{over} wider than {width}")
            page.set_viewport_size({"width": 1280, "height": 800})
            if wrong:
                faults[path] = wrong
        return faults

    visit = browser.look(site.url, look)
    assert visit.result == {}
    assert [complaint for complaint in visit.complaints if "404" not in complaint] == []


@pytest.mark.slow
def test_everything_can_be_reached_by_keys(site: Site, browser: Browser) -> None:
    def type_it(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.keyboard.press("/")
        page.keyboard.type("orders")
        page.keyboard.press("Enter")
        page.wait_for_url("**/?q=orders")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/dead-letters/orders-dlq")
        page.keyboard.press("u")
        page.wait_for_url("**/dead-letters")
        page.keyboard.press("g")
        page.keyboard.press("v")
        page.wait_for_url("**/deliveries")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        page.keyboard.type("orders")
        expect(page.get_by_role("option")).to_have_count(2)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url("**/dead-letters/orders-dlq")
        page.keyboard.press("Control+k")
        page.keyboard.type("orders")
        expect(page.get_by_role("option")).to_have_count(2)
        page.keyboard.press("Enter")
        page.wait_for_url("**/queues/orders")

    assert browser.look(site.url, type_it).complaints == []


def test_a_chosen_theme_stays(site: Site, browser: Browser) -> None:
    def choose(page: Page) -> list[str]:
        def ground() -> str:
            return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

        grounds = [ground()]
        page.keyboard.press("t")
        grounds.append(ground())
        page.reload()
        grounds.append(ground())
        return grounds

    first, second, third = browser.look(site.url, choose).result
    assert first != second == third


HIDE: Final = """hidden => {
  Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
  document.dispatchEvent(new Event('visibilitychange'));
}"""


@pytest.mark.slow
def test_a_page_stays_fresh_and_rests_while_nobody_looks(place: Shop, site: Site, browser: Browser) -> None:
    asked: list[str] = []

    def watch(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        page.clock.install()
        page.reload()
        page.on("request", lambda request: asked.append(request.url) if "part=" in request.url else None)
        visible = page.locator("tr[data-key=orders] td").first
        before = visible.inner_text()
        place.orders.send("{}")
        page.clock.run_for(10_000)
        expect(visible).not_to_have_text(before, timeout=PATIENT)
        page.wait_for_load_state("networkidle")

        page.evaluate(HIDE, True)
        expect(page.locator("#live")).to_have_text("paused")
        resting = len(asked)
        page.clock.run_for(600_000)
        assert len(asked) == resting, "it asks for nothing while it is hidden"

        with page.expect_response(re.compile("part=")):
            page.evaluate(HIDE, False)
        expect(page.locator("#live")).to_have_text("live")

    assert browser.look(site.url, watch).complaints == []


@pytest.mark.slow
def test_what_somebody_types_is_not_taken_away(
    place: Shop, site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_STATE", str(place.state))
    with SqliteLedger(":memory:") as ledger:
        app = App(ledger, client=place.client)
        place.client.create_queue("typed")

        @app.handler("typed")
        def nothing(body: Any) -> None: ...

        with running_app(app, health="127.0.0.1:0"):

            def type_it(page: Page) -> None:
                page.set_default_timeout(PATIENT)
                field = page.get_by_label("Concurrency of typed")
                field.fill("7")
                with page.expect_response(re.compile("part=")):
                    pass
                expect(field).to_have_value("7")

            browser.look(f"{site.url}/workers", type_it)


# Who may.


def test_a_wrong_token_is_refused_the_right_one_lets_in_and_log_out_ends_it(
    closed_site: Site, browser: Browser
) -> None:
    def come_in(page: Page) -> None:
        page.set_default_timeout(PATIENT)
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        page.get_by_label("Token").fill("wrong-token")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("token is wrong")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("orders-dlq")
        assert page.evaluate("document.cookie") == "", "no script can read the session"
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        page.goto(closed_site.url)
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()

    visit = browser.look(f"{closed_site.url}/dead-letters/orders-dlq", come_in)
    assert [complaint for complaint in visit.complaints if "401" not in complaint] == []


@pytest.mark.slow
def test_a_reader_sees_everything_and_no_button_that_acts(closed_site: Site, browser: Browser) -> None:
    def look(page: Page) -> dict[str, list[str]]:
        page.get_by_label("Token").fill(READER)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        buttons_by_path = {}
        for path in PAGES:
            if path.endswith(("/redrive", "/delete", "/restore")):
                continue
            page.goto(closed_site.url + path)
            forms = "form[method=post]:not([action='/logout']) button"
            if buttons := page.locator(forms).all_inner_texts():
                buttons_by_path[path] = buttons
        return buttons_by_path

    assert browser.look(closed_site.url, look).result == {}


def test_pages_work_without_a_script(site: Site) -> None:
    """Filters are addresses, and the page that comes has its content in it."""
    page = site.get("/dead-letters/orders-dlq", where="error ~ address").text
    assert "2 of 7 messages match" in page
    assert "KeyError" in page
    assert '<form class="filter" role="search" action="/dead-letters/orders-dlq" method="get">' in page


@pytest.mark.slow
def test_an_endpoint_that_does_not_answer_is_a_page_that_says_what_to_do(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, credentials: None
) -> None:
    settings = Settings(
        endpoint_url=f"http://127.0.0.1:{free_port()}",
        region="us-east-1",
        port=0,
        state=tmp_path_factory.mktemp("none"),
    )
    with serving(settings) as site:
        visit = browser.look(site.url, lambda page: page.locator("main").inner_text())
    assert "No answer" in visit.result
    assert "semel broker" in visit.result


@pytest.mark.slow
def test_empty_pages_say_what_to_do(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    with shop(tmp_path_factory.mktemp("empty")) as place, place.dashboard() as site:
        place.orders.drop()
        place.dead.drop()

        def look(page: Page) -> list[str]:
            texts = []
            for path in ("/", "/dead-letters", "/deliveries", "/workers", "/audit"):
                page.goto(site.url + path)
                texts.append(page.locator(".empty").inner_text())
            return texts

        queues, dead, deliveries, workers, audit = browser.look(site.url, look).result
    assert "semel queues create" in queues
    assert "RedrivePolicy" in dead
    assert "semel run" in deliveries
    assert "semel run" in workers
    assert "No actions yet" in audit
