"""Forms that act on dead-letter messages: they show what they will affect, and affect nothing else."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping

import pytest

from dashboard.serving import Answer, Shop, Site, shop
from semel.dlq.redrive.plan import RedrivePlan
from semel.doctor.text_format import number
from waiting import until

DEAD = "/dead-letters/orders-dlq"


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, credentials: None) -> Iterator[Shop]:
    with shop(tmp_path_factory.mktemp("state")) as place:
        yield place


@pytest.fixture
def site(place: Shop) -> Iterator[Site]:
    with place.dashboard() as site:
        yield site


class Form:
    """A page with a form, as a browser without scripts has it."""

    def __init__(self, site: Site, path: str, ready: str = "") -> None:
        self._site, self._path = site, path.partition("?")[0]
        self._cookie = ""
        self.page = until(lambda: ready in (page := self._get(path)) and page, f"{ready!r} on the page")
        form = self.page.partition(f'action="{self._path}')[2].partition("</form>")[0]
        self.fields = {
            name: html.unescape(value)
            for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
        }

    def _get(self, path: str) -> str:
        headers = {"accept": "text/html"} | ({"cookie": self._cookie} if self._cookie else {})
        answer = self._site.ask("GET", path, headers=headers)
        assert answer.status == 200, answer.text
        if answer.cookies:
            self._cookie = answer.cookies[0].partition(";")[0]
        return answer.text

    def send(self, **typed: str) -> Answer:
        return self._site.form(self._path, self.fields | typed, cookie=self._cookie)


def ended(site: Site, answer: Answer) -> Mapping[str, int]:
    assert answer.status == 303, answer.text
    id = answer.headers["location"].rpartition("/")[2]
    job = until(lambda: (now := site.api(f"jobs/{id}"))["ended"] and now, "the end of the job")
    counts: Mapping[str, int] = job["counts"]
    return counts


def ids(place: Shop, queue: str = "orders-dlq") -> set[str]:
    return {message["MessageId"] for message in place.broker.peek(queue, limit=5_000)}


@pytest.mark.parametrize("count", [4, 1_200])  # by their ids, and by their place where they are too many
def test_a_confirmed_delete_touches_only_what_the_page_showed(site: Site, place: Shop, count: int) -> None:
    gone, *_ = place.dead_letter(count)
    form = Form(site, f"{DEAD}/delete", f"Delete {number(count)} messages")
    ended(site, Form(site, f"{DEAD}/redrive?ids={gone}").send(canary="0"))
    later = set(place.dead_letter(5))
    answer = form.send(confirm="orders-dlq")
    assert ended(site, answer)["deleted"] == count - 1
    assert ids(place) == later


def test_a_delete_form_that_does_not_contain_what_it_showed_deletes_nothing(site: Site, place: Shop) -> None:
    place.dead_letter(3)
    form = Form(site, f"{DEAD}/delete", "Delete 3 messages")
    for wrong in ({"shown": ""}, {"shown": "{}"}, {"shown": "[]"}, {"shown": json.dumps({"count": 3})}, {"all": ""}):
        answer = form.send(**({"confirm": "orders-dlq"} | wrong))
        assert answer.status in (400, 422), answer.text
    assert len(ids(place)) == 3


def test_a_redrive_form_that_selects_nothing_sends_nothing(site: Site, place: Shop) -> None:
    place.dead_letter(3)
    form = Form(site, f"{DEAD}/redrive", "Redrive 3 messages")
    assert form.fields["all"] == "1"
    del form.fields["all"]
    answer = form.send()
    assert (answer.status, "nothing is selected" in answer.text) == (400, True)
    assert form.send(ids="").status == 400
    assert (len(ids(place)), ids(place, "orders")) == (3, set())


@pytest.mark.parametrize("action", ["delete", "redrive", "restore"])
def test_every_form_that_acts_names_the_endpoint_the_account_and_the_queue(
    site: Site, place: Shop, action: str
) -> None:
    place.dead_letter(3)
    form = Form(site, f"{DEAD}/{action}", "" if action == "restore" else "3 messages")
    assert f"{place.broker.url}, account 000000000000" in form.page
    assert "orders-dlq" in form.page


def test_the_form_that_edits_a_message_names_where_it_is(site: Site, place: Shop) -> None:
    (id,) = place.dead_letter(1)
    page = Form(site, f"{DEAD}/messages/{id}").page
    assert f"1 message is deleted from orders-dlq at {place.broker.url}, account 000000000000" in page


def test_a_queue_that_is_not_a_dead_letter_queue_needs_a_tick_of_its_own(site: Site, place: Shop) -> None:
    id = place.orders.send("{}").message_id
    assert "orders is not the dead-letter queue of any queue" in site.get("/dead-letters/orders").text
    delete = Form(site, "/dead-letters/orders/delete", "Delete 1 message")
    redrive = Form(site, "/dead-letters/orders/redrive", "Redrive 1 message")
    for form in (delete, redrive):
        assert 'type="checkbox" name="any_queue"' in form.page
        refused = form.send(confirm="orders")
        assert (refused.status, "is not the dead-letter queue of any queue" in refused.text) == (400, True)
    assert ids(place, "orders") == {id}
    assert site.get("/dead-letters/orders/export", all=1).status == 409
    assert site.get("/dead-letters/orders/export", all=1, any_queue=1).status == 200
    assert site.get("/dead-letters/orders-dlq/export").status == 400
    assert ended(site, delete.send(confirm="orders", any_queue="1"))["deleted"] == 1
    assert 'name="any_queue"' not in Form(site, f"{DEAD}/redrive").page


@pytest.mark.parametrize("query", ["", "?where=error+~+answer", "?ids=m-1"])
def test_the_redrive_form_shows_the_defaults_of_a_plan_and_posts_its_fields(site: Site, query: str) -> None:
    page = Form(site, f"{DEAD}/redrive{query}").page
    form = page.partition(f'action="{DEAD}/redrive"')[2].partition("</form>")[0]
    default = RedrivePlan(queue="orders-dlq", all=True)
    shown = dict(re.findall(r'<input id="[\w-]+" name="(\w+)"[^>]* value="([^"]*)"', form))
    fields = ("to", "canary", "canary_wait", "rate", "limit", "stop_after_failures")
    assert shown == {
        name: str(getattr(default, name) or "") if name != "canary" else str(default.canary) for name in fields
    }
    assert 'placeholder="10, or 5 %"' in form
    names = set(re.findall(r' name="(\w+)"', form))
    assert names <= default.to_json().keys()
