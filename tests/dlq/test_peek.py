"""Looking at dead letters: the broker's way costs nothing; the receiving way gives all back and says what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from driven import Place, new_place
from semel.dlq import queues as listing
from semel.dlq.access.peek import BrokerPeeker, NoSuchQueue, Peeker, PeekRisk, ReceivingPeeker, peeker
from semel.dlq.filter import parser as filters
from semel.dlq.messages import DeadLetterMessage
from semel.dlq.service import DeadLetterService, NoSuchMessage
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Entry
from semel.sqs.client.admin import Admin
from semel.sqs.client.messages import Attribute

DLQ = "orders-dlq"


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as found:
        found.queue("orders", dlq=DLQ)
        yield found


def bury(place: Place, count: int, queue: str = DLQ, error: str = "read timed out after {n} s", **options: Any) -> None:
    """Letters as a worker writes them."""
    entries = []
    for n in range(count):
        about = own_attributes.Letter(f"o-{n}", "TimeoutError", error.format(n=n), 3, f"m-{n}", "orders")
        body = f'{{"id": "o-{n}", "n": {n}}}'
        group = {"group": f"g{n % 2}", "dedup": f"d{n}"} if queue.endswith(".fifo") else {}
        own = {"tenant": Attribute("String", "acme" if n % 2 else "umbrella")}
        entries.append(Entry(body, attributes=own_attributes.attributes(about, own, len(body)), **(group | options)))
    place.client.queue(queue).send_many(entries)


def by_receiving(place: Place, **options: Any) -> ReceivingPeeker:
    return ReceivingPeeker(place.client, place.clock.now, wait=0, **options)


def by_peeking(place: Place) -> Peeker:
    return peeker(place.client, clock=place.clock.now)


def all_of(look: Peeker, queue: str = DLQ, where: str = "", **options: Any) -> list[DeadLetterMessage]:
    return [message for page in look.pages(queue, where=filters.parse(where), **options) for message in page]


def numbers(found: list[DeadLetterMessage]) -> list[int]:
    return [int(message.key.removeprefix("o-")) for message in found]


def receive_counts(place: Place, queue: str = DLQ) -> set[str]:
    return {message["Attributes"]["ApproximateReceiveCount"] for message in place.broker.peek(queue, limit=5_000)}


# The broker's way.


def test_the_broker_is_known_and_peeking_counts_no_receive(place: Place) -> None:
    bury(place, 25)
    look = by_peeking(place)
    assert isinstance(look, BrokerPeeker)
    assert numbers(all_of(look)) == list(range(25))
    assert (look.complete, look.looked_at, str(look.cost)) == (True, 25, "")
    assert receive_counts(place) == {"0"}


def test_pages_are_gone_through_to_the_end_and_the_filter_decides(place: Place) -> None:
    bury(place, 2_300)
    look = by_peeking(place)
    assert numbers(all_of(look, where="attr.tenant = acme and $.n >= 2000")) == list(range(2_001, 2_300, 2))
    assert look.looked_at == 2_300


def test_a_look_goes_on_where_the_last_one_ended(place: Place) -> None:
    bury(place, 30)
    look = by_peeking(place)
    first = all_of(look, where="attr.tenant = acme", limit=4)
    assert (numbers(first), look.complete) == ([1, 3, 5, 7], False)
    assert numbers(all_of(look, where="attr.tenant = acme", limit=4, after=look.next)) == [9, 11, 13, 15]
    assert numbers(all_of(look, where="attr.tenant = acme", after=look.next)) == list(range(17, 30, 2))
    assert (look.complete, look.next) == (True, None)


def test_bodies_that_are_not_wanted_are_cut_also_if_the_filter_needs_them(place: Place) -> None:
    long = '{"n": 1, "filling": "' + "é" * 5_000 + '"}'
    place.send(long, DLQ)
    for where in ("", "$.n = 1"):
        (message,) = all_of(by_peeking(place), where=where, bodies=False)
        assert (message.cut, message.body_bytes, len(message.body)) == (True, len(long.encode()), 200)
    (whole,) = all_of(by_peeking(place))
    assert (whole.cut, whole.body) == (False, long)


def test_what_only_the_broker_knows_is_there(place: Place) -> None:
    bury(place, 1)
    place.client.queue(DLQ).receive(1, 0, visibility=40)
    (message,) = all_of(by_peeking(place))
    now = place.clock.now()
    assert (message.state, message.receipt) == ("in_flight", "")
    assert message.visible_at == pytest.approx(now + 40)
    assert message.expires == pytest.approx(now + 345_600)
    assert (message.reason, message.attempts, message.original_id, message.source) == (
        "TimeoutError",
        3,
        "m-0",
        "orders",
    )


def test_one_letter_is_found_by_its_id_here_or_before(place: Place) -> None:
    bury(place, 5)
    look = by_peeking(place)
    third = all_of(look)[3]
    for id in (third.id, "m-3"):
        found = look.one(DLQ, id)
        assert found is not None
        assert (found.id, found.body) == (third.id, third.body)
    assert look.one(DLQ, "nobody") is None


def test_a_queue_that_is_not_there_is_said_to_be(place: Place) -> None:
    for look in (by_peeking(place), by_receiving(place)):
        with pytest.raises(NoSuchQueue, match="there is no queue orders-dql at http"):
            all_of(look, "orders-dql")


# The receiving way.


def test_receiving_gives_everything_back_at_once_and_in_order_and_says_what_it_cost(place: Place) -> None:
    bury(place, 25)
    look = by_receiving(place)
    assert numbers(all_of(look)) == list(range(25))
    assert str(look.cost) == "5 receives; the receive count of 25 messages went up by 1"
    assert (look.complete, place.messages(DLQ, "in_flight"), receive_counts(place)) == (True, [], {"1"})
    assert numbers(all_of(look)) == list(range(25))


def test_no_more_are_received_than_allowed(place: Place) -> None:
    bury(place, 25)
    look = by_receiving(place, most=12)
    assert len(all_of(look)) == 12
    assert (look.cost.messages, look.complete) == (12, False)
    assert "only 12 messages were looked at" in look.notes[0]
    assert len(all_of(look, limit=3)) == 3
    assert place.messages(DLQ, "in_flight") == []


def test_a_filter_that_matches_little_looks_at_all(place: Place) -> None:
    bury(place, 25)
    look = by_receiving(place)
    assert numbers(all_of(look, where="$.n = 24")) == [24]
    assert (look.looked_at, place.messages(DLQ, "in_flight")) == (25, [])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_was_received_is_given_back_also_when_something_goes_wrong(
    place: Place, error: type[BaseException]
) -> None:
    bury(place, 25)
    look = by_receiving(place)

    def interrupted() -> None:
        pages = look.pages(DLQ)
        try:
            for number, _ in enumerate(pages):
                if number == 1:
                    raise error
        finally:
            pages.close()  # type: ignore[attr-defined]

    with pytest.raises(error):
        interrupted()
    assert place.messages(DLQ, "in_flight") == []
    assert len(place.messages(DLQ, "visible")) == 25


def test_what_is_held_stays_hidden_however_long_the_look_takes(place: Place) -> None:
    bury(place, 45)
    look = by_receiving(place)
    seen: list[DeadLetterMessage] = []
    for page in look.pages(DLQ):
        seen += page
        place.clock.advance(12)  # five of these outlast the first receive's visibility
    assert sorted(numbers(seen)) == list(range(45))
    assert (look.cost.messages, place.messages(DLQ, "in_flight")) == (45, [])


def test_a_fifo_queue_keeps_its_order_and_says_what_it_cannot_show(place: Place) -> None:
    place.queue("pay.fifo", dlq="pay-dlq.fifo")
    bury(place, 40, "pay-dlq.fifo")
    look = by_receiving(place)
    found = all_of(look, "pay-dlq.fifo")
    assert 0 < len(found) < 40
    assert "SQS shows the next of a FIFO group only when those before it are deleted" in look.notes[0]
    assert place.messages("pay-dlq.fifo", "in_flight") == []
    order: dict[str, list[int]] = {"g0": [], "g1": []}
    queue = place.client.queue("pay-dlq.fifo")
    while got := queue.receive(10, 0):
        for one in got:
            order[one.group or ""].append(int(one.body.split(": ")[-1][:-1]))
        queue.delete([one.receipt for one in got])
    assert order == {"g0": list(range(0, 40, 2)), "g1": list(range(1, 40, 2))}


def test_a_queue_that_moves_its_messages_on_is_looked_at_only_if_somebody_accepts_that(place: Place) -> None:
    place.queue("middle-dlq", dlq="last-dlq", receives=3)
    bury(place, 3, "middle-dlq")
    with pytest.raises(PeekRisk, match=r"moves its messages on after 3 receives"):
        all_of(by_receiving(place), "middle-dlq")
    assert receive_counts(place, "middle-dlq") == {"0"}
    assert len(all_of(by_receiving(place, accept_risk=True), "middle-dlq")) == 3
    # Peeking has no such risk.
    assert len(all_of(by_peeking(place), "middle-dlq")) == 3


def test_there_is_no_going_on_where_there_are_no_places(place: Place) -> None:
    with pytest.raises(Exception, match="no places in a queue"):
        all_of(by_receiving(place), after="5")


# The list of queues.


def test_dead_letter_queues_are_those_that_are_named_so_by_a_queue_or_by_their_name(place: Place) -> None:
    place.queue("pay.fifo", dlq="bin.fifo")
    place.client.create_queue("other-dlq")
    place.client.create_queue("just-a-queue")
    bury(place, 3)
    place.clock.advance(3_600)
    bury(place, 2)
    place.client.queue(DLQ).receive(1, 0)
    found = {info.name: info for info in listing.dead_letter_queues(place.client, clock=place.clock.now)}
    assert sorted(found) == ["bin.fifo", "orders-dlq", "other-dlq"]
    info = found[DLQ]
    assert (info.sources, info.visible, info.in_flight, info.depth) == (("orders",), 4, 1, 5)
    assert info.oldest_age == pytest.approx(3_600)
    assert info.first_expires == pytest.approx(place.clock.now() + 345_600 - 3_600)
    assert (info.estimated, info.max_receives, info.fifo) == (False, None, False)
    assert (found["bin.fifo"].sources, found["bin.fifo"].fifo) == (("pay.fifo",), True)
    assert (found["other-dlq"].depth, found["other-dlq"].first_expires) == (0, None)


def test_the_same_list_comes_from_an_endpoint_that_is_not_ours(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.queue("pay.fifo", dlq="bin.fifo")
    bury(place, 3)
    ours = listing.dead_letter_queues(place.client, clock=place.clock.now)
    one = listing.dead_letter_queue(place.client, DLQ, clock=place.clock.now)
    monkeypatch.setattr(Admin, "of", lambda _client: None)
    theirs = listing.dead_letter_queues(place.client, clock=place.clock.now)
    known = [(info.name, info.url, info.arn, info.depth, info.sources, info.retention) for info in ours]
    assert [(info.name, info.url, info.arn, info.depth, info.sources, info.retention) for info in theirs] == known
    info = listing.dead_letter_queue(place.client, DLQ)
    assert (info.sources, info.depth, info.oldest_age) == (("orders",), 3, None)
    assert one.oldest_age is not None
    seen = all_of(by_receiving(place))
    guess = listing.estimated(info, seen[:2], place.clock.now())
    assert guess.oldest_age == pytest.approx(0)
    assert guess.estimated
    with pytest.raises(NoSuchQueue):
        listing.dead_letter_queue(place.client, "nowhere")


# The desk's looks.


@pytest.fixture
def service(place: Place, tmp_path: Any) -> DeadLetterService:
    return DeadLetterService(place.client, state=tmp_path, who="tester", clock=place.clock.now)


def test_groups_count_what_died_of_the_same(place: Place, service: DeadLetterService) -> None:
    bury(place, 7)
    place.clock.advance(60)
    bury(place, 3, error="no such tenant 'acme'")
    found = service.groups(DLQ)
    assert [(group.count, group.shape) for group in found.groups] == [
        (7, "TimeoutError: read timed out after <n> s"),
        (3, "TimeoutError: no such tenant '…'"),
    ]
    assert (found.matched, found.looked_at, found.complete) == (10, 10, True)
    group = found.groups[0]
    assert (group.sources, group.first, group.last) == (("orders",), group.last, group.first)
    assert len(service.messages(DLQ, group.where).messages) == 7
    assert [one.count for one in service.groups(DLQ, "$.n < 2").groups] == [2, 2]
    assert service.impact(DLQ, group.where).count == 7


def test_a_letter_that_is_not_there_says_what_may_have_become_of_it(service: DeadLetterService) -> None:
    with pytest.raises(NoSuchMessage, match="redriven, dropped or has expired"):
        service.message(DLQ, "nobody")


def test_the_desk_works_by_receiving_too(
    place: Place, service: DeadLetterService, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(place, 25)
    monkeypatch.setattr(Admin, "of", lambda _client: None)
    found = service.messages(DLQ, "attr.tenant = acme", limit=5)
    assert (len(found.messages), found.next, found.complete) == (5, None, False)
    assert found.cost.messages == 10
    assert service.message(DLQ, "m-7").key == "o-7"
    assert service.groups(DLQ).matched == 25
    assert place.messages(DLQ, "in_flight") == []


def test_some_are_looked_at_by_their_ids(
    place: Place, service: DeadLetterService, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(place, 30)
    all_ = service.messages(DLQ).messages
    wanted = [all_[3].id, all_[21].id, "nobody"]
    assert service.impact(DLQ, ids=wanted).count == 2
    assert numbers(all_of(by_peeking(place), ids=wanted, limit=1)) == [3]
    monkeypatch.setattr(Admin, "of", lambda _client: None)
    look = by_receiving(place)
    assert numbers(all_of(look, ids=wanted[:1])) == [3]
    assert (look.looked_at, place.messages(DLQ, "in_flight")) == (10, [])
    assert numbers(all_of(look, ids=wanted)) == [3, 21]
