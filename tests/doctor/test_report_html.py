"""The HTML report in a real browser: one file that loads nothing, fits every screen, and shows foreign text as text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page

from browsing import Browser
from doctor import sample
from semel.doctor.model import Behaviour, Case, Diagnosis, HistogramBar, Point, Series, Window
from semel.doctor.report import charts, html_report, svg

ALL: Final[dict[str, Callable[[], Diagnosis]]] = {
    "rich": sample.rich, "healthy": sample.healthy, "empty": sample.empty, "hostile": sample.hostile,
}  # fmt: skip
OPEN: Final = "document.querySelectorAll('details').forEach(node => node.open = true)"
# Every text of every drawing: whether it leaves the drawing, and which others it lies upon.
MISPLACED: Final = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const box = svg.getBoundingClientRect(), misplaced = [];
  if (box.width < 200 || box.height < 40) misplaced.push(`too small: ${box.width} x ${box.height}`);
  const all = [...svg.querySelectorAll('text, rect, path, line')];
  const parts = all.filter(node => node.getBoundingClientRect().width > 0);
  for (const part of parts) {
    const at = part.getBoundingClientRect();
    if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 2 || at.bottom > box.bottom + 2)
      misplaced.push(`out of its box: ${part.outerHTML}`);
  }
  const texts = parts.filter(node => node.tagName === 'text');
  texts.forEach((node, index) => texts.slice(index + 1).forEach(other => {
    const a = node.getBoundingClientRect(), b = other.getBoundingClientRect();
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 4) misplaced.push(`${node.textContent} lies upon ${other.textContent}`);
  }));
  return misplaced;
})"""
# The contrast of each text with what is behind it, by WCAG's formula; the ones that are hard to read.
UNREADABLE: Final = """() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const pale = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !node.getClientRects().length || node.closest('.onbar')) continue;
    const style = getComputedStyle(node), ink = parse(node.closest('svg') ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(node))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) pale.push(`${contrast.toFixed(2)}: ${walk.currentNode.textContent.slice(0, 40)}`);
  }
  return pale;
}"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    for name, make in ALL.items():
        (folder / f"{name}.html").write_text(html_report.render(make()), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in ALL}


def opened(script: str) -> Callable[[Page], Any]:
    """Everything that is folded is opened first."""

    def see(page: Page) -> Any:
        page.evaluate(OPEN)
        return page.evaluate(script)

    return see


@pytest.mark.parametrize("name", ALL)
def test_no_request_leaves_the_file_and_the_browser_has_nothing_to_complain_of(
    browser: Browser, files: dict[str, Path], name: str
) -> None:
    visit = browser.look(files[name], opened("document.body.innerText.length"))
    assert [url for url in visit.requests if not url.startswith("data:")] == [files[name].as_uri()]
    assert visit.complaints == []
    assert visit.result > 100


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_screen_and_every_chart_its_box(
    browser: Browser, files: dict[str, Path], name: str, width: int
) -> None:
    def see(page: Page) -> tuple[int, list[str]]:
        page.evaluate(OPEN)
        return page.evaluate("document.documentElement.scrollWidth"), page.evaluate(MISPLACED)

    wide, misplaced = browser.look(files[name], see, width=width).result
    assert wide <= width
    assert misplaced == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_light_and_in_dark(browser: Browser, files: dict[str, Path], scheme: Any) -> None:
    def see(page: Page) -> tuple[str, list[str]]:
        page.evaluate(OPEN)
        return page.evaluate("getComputedStyle(document.body).backgroundColor"), page.evaluate(UNREADABLE)

    background, unreadable = browser.look(files["rich"], see, scheme=scheme).result
    assert background == ("rgb(245, 246, 248)" if scheme == "light" else "rgb(17, 22, 28)")
    assert unreadable == []


def test_hostile_text_stays_text(browser: Browser, files: dict[str, Path]) -> None:
    script = """() => [
      document.querySelectorAll('script, img, iframe, object, embed, form, base, [onerror], [onload]').length,
      document.body.innerText.split('<script>alert(1)</script><img src=x onerror=alert(2)>').length - 1
    ]"""
    elements, occurrences = browser.look(files["hostile"], opened(script)).result
    assert elements == 0
    assert occurrences > 10


def test_control_and_bidi_characters_do_not_reach_the_page() -> None:
    assert {char for char in html_report.render(sample.hostile()) if not char.isprintable()} == {"\n"}


def test_the_page_lets_no_script_and_no_foreign_style_in(browser: Browser, files: dict[str, Path]) -> None:
    """Even if some text did get out of its place one day."""
    script = """() => {
      const script = document.createElement('script'), style = document.createElement('style');
      script.textContent = 'window.ran = true'; style.textContent = 'body { display: none }';
      document.body.append(script, style);
      return [window.ran === true, getComputedStyle(document.body).display];
    }"""
    visit = browser.look(files["rich"], lambda page: page.evaluate(script))
    assert visit.result == [False, "block"]
    assert len([complaint for complaint in visit.complaints if "Content Security Policy" in complaint]) == 2


def test_a_screen_reader_finds_headings_captions_and_words_for_each_picture(
    browser: Browser, files: dict[str, Path]
) -> None:
    script = """() => ({
      headings: [...document.querySelectorAll('h1, h2, h3')].map(node => Number(node.tagName[1])),
      language: document.documentElement.lang,
      ids: [...document.querySelectorAll('[id]')].map(node => node.id),
      links: [...document.querySelectorAll('a')].map(node => node.getAttribute('href').slice(1)),
      tables: [...document.querySelectorAll('table')].map(node => node.caption.textContent),
      cells: [...document.querySelectorAll('th')].map(node => node.scope),
      pictures: [...document.querySelectorAll('svg')].map(node => node.getAttribute('aria-label'))
    })"""
    outline = browser.look(files["rich"], opened(script)).result
    assert outline["headings"][0] == 1
    assert outline["headings"].count(1) == 1
    assert all(after - before <= 1 for before, after in zip(outline["headings"], outline["headings"][1:], strict=False))
    assert outline["language"] == "en"
    assert len(set(outline["ids"])) == len(outline["ids"])
    assert set(outline["links"]) <= set(outline["ids"])
    assert all(outline["tables"])
    assert set(outline["cells"]) == {"col", "row"}
    assert len(outline["pictures"]) > 10
    assert all(len(words) > 40 for words in outline["pictures"])


def test_all_charts_and_commands_are_there(browser: Browser, files: dict[str, Path]) -> None:
    text = browser.look(files["rich"], opened("document.body.innerText")).result
    for title in (
        "How long messages are held", "Duplicates by cause", "The same work with another timeout",
        "Sent, received, deleted", "In flight", "Age of the oldest message", "What was not examined",
    ):  # fmt: skip
        assert title in text
    assert "With 69 s instead of 30 s: 3.2 % → 0.2 % duplicates." in text
    for finding in sample.FINDINGS:
        assert all(
            command in text for command in (finding.observed, finding.why, finding.remedy.text, *finding.remedy.cli)
        )
        assert finding.remedy.terraform is None or finding.remedy.terraform in text


def test_a_click_selects_a_whole_command(browser: Browser, files: dict[str, Path]) -> None:
    def see(page: Page) -> Any:
        page.locator("pre").first.click()
        return page.evaluate("getSelection().toString()")

    assert browser.look(files["rich"], see).result.strip() == sample.FINDINGS[0].remedy.cli[0]


def test_on_paper_it_is_light_and_nothing_is_folded(browser: Browser, files: dict[str, Path]) -> None:
    def see(page: Page) -> Any:
        page.emulate_media(media="print", color_scheme="dark")
        hidden = "[...document.querySelectorAll('details pre')].filter(pre => pre.getBoundingClientRect().height < 10)"
        return page.evaluate(f"[getComputedStyle(document.body).backgroundColor, {hidden}.length]")

    assert browser.look(files["rich"], see, scheme="dark").result == ["rgb(255, 255, 255)", 0]


def test_nothing_found_says_so_and_an_empty_diagnosis_what_is_missing(browser: Browser, files: dict[str, Path]) -> None:
    read = "document.body.innerText"
    healthy = browser.look(files["healthy"], lambda page: page.evaluate(read)).result
    assert "All is well: 103,556 messages, each delivered once." in healthy
    empty = browser.look(files["empty"], lambda page: page.evaluate(read)).result
    assert "The input names no queue" in empty
    assert "Add --log PATH to see duplicates" in empty


# Charts, without a browser.


def behaviour(**more: Any) -> Behaviour:
    plain = dict.fromkeys(("events", "deliveries", "attempts", "messages", "effects", "doubled", "retries"), 10)
    return Behaviour(queue="q", first_at=0.0, last_at=1.0, **(plain | more))


def test_bars_beyond_the_timeout_are_marked() -> None:
    chart = charts.histogram((HistogramBar(1, 10, 90), HistogramBar(10, 30, 6), HistogramBar(30, 60, 4)), 30.0, 66.0)
    assert chart is not None
    assert chart.sentence == "4.0 % of 100 deliveries took longer than the timeout of 30 s."
    assert (chart.svg.count('class="good"'), chart.svg.count('class="bad"')) == (2, 1)
    assert "timeout 30 s" in chart.svg
    assert "better 66 s" in chart.svg


def test_a_bar_that_the_timeout_goes_through_is_cut_in_two() -> None:
    chart = charts.histogram((HistogramBar(1, 10, 50), HistogramBar(10, 1_000, 50)), 100.0, None)
    assert chart is not None
    assert chart.sentence == "About 25 % of 100 deliveries took longer than the timeout of 100 s."
    assert (chart.svg.count('class="good"'), chart.svg.count('class="bad"')) == (2, 1)


def test_a_year_of_metrics_makes_no_endless_line() -> None:
    points = tuple(Point(at=300.0 * index, sent=1.0, received=2.0, deleted=1.0) for index in range(100_000))
    chart = charts.flow(None, Series("q", 300.0, points, "x"))
    assert chart is not None
    assert len(chart.svg) < 20_000
    assert "100,000 sent, 200,000 received, 100,000 deleted" in chart.sentence
    assert "from the metrics" in chart.svg


def test_a_chart_without_anything_to_show_is_left_out() -> None:
    nothing = behaviour(windows=(Window(0, 0, 0, 0, 0),), histogram=(HistogramBar(0, 1, 0),))
    assert charts.charts(nothing, None, None, None) == []
    assert charts.charts(None, Series("q", 60, (), "x"), 30.0, None) == []


def test_a_line_has_gaps_where_nothing_is_known_and_an_area_below_each_piece() -> None:
    points = [(0.0, 1.0), None, (2.0, 3.0), (4.0, 5.0), None]
    assert svg.path_data(points) == "M0.0 1.0h0.1M2.0 3.0L4.0 5.0"
    assert svg.area_data(points[1:], 9.0) == "M2.0 3.0L4.0 5.0L4.0 9.0L2.0 9.0Z"


def test_words_in_backticks_are_code_and_nothing_else() -> None:
    finding = dataclasses.replace(sample.FINDINGS[0], observed="Run `semel <b>run</b>` now.")
    drawn = html_report.render(dataclasses.replace(sample.rich(), findings=(finding,)))
    assert "Run <code>semel &lt;b&gt;run&lt;/b&gt;</code> now." in drawn


def test_figures_that_are_none_draw_no_nonsense() -> None:
    drawn = html_report.render(sample.hostile())
    assert not re.search(r'="-?(nan|inf)', drawn)
    odd = behaviour(windows=(Window(0, 1, 1, 1, 0), Window(60, 5, 5, 5, 0)), histogram=(HistogramBar(0, math.inf, 3),))
    assert [chart.title for chart in charts.charts(odd, None, math.inf, None)] == ["Sent, received, deleted"]


def test_a_hundred_queues_make_a_file_that_can_be_mailed() -> None:
    cases = tuple(dataclasses.replace(sample.orders(), queue=f"orders-{index}") for index in range(100))
    size = len(html_report.render(Diagnosis(sample.NOW, (*cases, Case("nothing")), sample.FINDINGS, ())))
    assert size < 4_000_000
