"""What a page says of an action is what came of it, and no link can make it say anything else."""

from __future__ import annotations

from pathlib import Path

from dashboard.serving import Answer, Site, serving, shop
from dashboard.test_security import browse
from semel.sqs import Client


def resend(site: Site, id: str) -> Answer:
    """The button below the edited message, and the page that is shown then."""
    cookie, csrf = browse(site)
    path = f"/dead-letters/orders-dlq/messages/{id}/resend"
    sent = site.form(path, {"csrf": csrf, "body": "{}"}, cookie=cookie)
    assert sent.status == 303
    return site.get(sent.headers["location"])


def test_a_page_says_deleted_here_only_if_the_message_was_deleted(tmp_path: Path) -> None:
    with (
        shop(tmp_path) as place,
        Client(place.broker.url, "us-east-1", access_key="test", secret_key="test", sleep=lambda _: None) as client,
        serving(place.settings(), client=client) as site,
    ):
        (first,) = place.bury(1)
        assert "to orders, and deleted here." in resend(site, first).text
        place.orders.purge()
        second = place.orders.send("[]").message_id
        for _ in range(4):
            place.orders.receive(1, 0, visibility=0)  # until SQS moves it
        site.post("/api/v1/queues/orders-dlq/faults", {"kind": "server-error", "rate": 1}, method="PUT")
        page = resend(site, second)
        assert "The copy was sent, but the letter could not be deleted: it is still there" in page.text
        assert "deleted here" not in page.text
        assert 'class="note bad" role="status"' in page.text


def test_no_link_makes_a_page_say_that_a_message_was_sent(tmp_path: Path) -> None:
    with shop(tmp_path) as place, place.dashboard() as site:
        for query in ("resent=m-1&to=payments", "notice=m-1"):
            assert 'role="status"' not in site.get(f"/dead-letters/orders-dlq?{query}").text
