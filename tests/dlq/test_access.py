"""Reading and claiming: peeking at the broker is free; receiving from SQS releases everything and reports its cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from dlq.dead_letters import DLQ, dead_letter, message
from driven import Place, new_place
from semel.dlq import queues as listing
from semel.dlq.access import MessageAccess, PeekRisk, ScanPage, open_access
from semel.dlq.access.broker import BrokerAccess
from semel.dlq.access.sqs import SqsAccess
from semel.dlq.filter import parser as filters
from semel.dlq.jobs import Job
from semel.dlq.messages import MAX_GROUPS, DeadLetterMessage, Grouping
from semel.dlq.queues import NoSuchQueue
from semel.dlq.service import DeadLetterService, NoSuchMessage
from semel.errors import SemelError
from semel.sqs import Queue
from semel.sqs.client.admin import Admin
from semel.sqs.errors import AccessDenied, QueueNotFound


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq=DLQ)
        yield place


class Look:
    """One scan to its end: the messages, and the totals of its last page."""

    def __init__(self, access: MessageAccess, where: str = "", **options: Any) -> None:
        self.messages: list[DeadLetterMessage] = []
        self.last = ScanPage([])
        for self.last in access.scan(filters.parse(where), **options):
            self.messages += self.last.messages

    @property
    def numbers(self) -> list[int]:
        return numbers(self.messages)


def by_receiving(place: Place, queue: str = DLQ, **options: Any) -> SqsAccess:
    now = place.clock.now
    return SqsAccess(place.client.queue(queue), clock=now, monotonic=now, wait=0, **options)


def by_peeking(place: Place, queue: str = DLQ) -> MessageAccess:
    return open_access(place.client, queue, clock=place.clock.now)


def numbers(messages: list[DeadLetterMessage]) -> list[int]:
    return [int(message.key.removeprefix("o-")) for message in messages]


def receive_counts(place: Place, queue: str = DLQ) -> set[str]:
    return {message["Attributes"]["ApproximateReceiveCount"] for message in place.broker.peek(queue, limit=5_000)}


# Semel's broker.


def test_the_broker_is_known_and_peeking_counts_no_receive(place: Place) -> None:
    dead_letter(place, 25)
    access = by_peeking(place)
    assert isinstance(access, BrokerAccess)
    assert not access.receives
    look = Look(access)
    assert look.numbers == list(range(25))
    assert (look.last.complete, look.last.scanned, str(look.last.cost)) == (True, 25, "")
    assert receive_counts(place) == {"0"}


def test_pages_are_gone_through_to_the_end_and_the_filter_decides(place: Place) -> None:
    dead_letter(place, 2_300)
    look = Look(by_peeking(place), "attr.tenant = acme and $.n >= 2000")
    assert look.numbers == list(range(2_001, 2_300, 2))
    assert look.last.scanned == 2_300


def test_a_scan_goes_on_where_the_last_one_ended(place: Place) -> None:
    dead_letter(place, 30)
    access, where = by_peeking(place), "attr.tenant = acme"
    first = Look(access, where, limit=4)
    assert (first.numbers, first.last.complete) == ([1, 3, 5, 7], False)
    second = Look(access, where, limit=4, after=first.last.next)
    assert second.numbers == [9, 11, 13, 15]
    third = Look(access, where, after=second.last.next)
    assert third.numbers == list(range(17, 30, 2))
    assert (third.last.complete, third.last.next) == (True, None)


def test_no_more_are_scanned_than_asked_for(place: Place) -> None:
    dead_letter(place, 30)
    look = Look(by_peeking(place), "$.n = 29", max_scanned=20)
    assert (look.numbers, look.last.scanned, look.last.complete) == ([], 20, False)
    assert Look(by_peeking(place), "$.n = 29", after=look.last.next).numbers == [29]


def test_bodies_that_are_not_wanted_are_cut_also_if_the_filter_needs_them(place: Place) -> None:
    long = '{"n": 1, "filling": "' + "é" * 5_000 + '"}'
    place.send(long, DLQ)
    for where in ("", "$.n = 1"):
        (message,) = Look(by_peeking(place), where, bodies=False).messages
        assert (message.cut, message.body_bytes, len(message.body)) == (True, len(long.encode()), 200)
        assert message.preview == message.body
    (whole,) = Look(by_peeking(place)).messages
    assert (whole.cut, whole.body, whole.preview) == (False, long, long[:200])


def test_what_only_the_broker_knows_is_there(place: Place) -> None:
    dead_letter(place, 1)
    place.client.queue(DLQ).receive(1, 0, visibility=40)
    (message,) = Look(by_peeking(place)).messages
    now = place.clock.now()
    assert (message.state, message.receipt, message.receives_here) == ("in_flight", "", 1)
    assert message.place is not None
    assert message.visible_at == pytest.approx(now + 40)
    assert message.expires == pytest.approx(now + 345_600)
    assert (message.reason, message.attempts, message.original_id, message.source) == (
        "TimeoutError",
        3,
        "m-0",
        "orders",
    )


def test_a_message_shows_its_own_attributes_and_apart_from_them_what_semel_sends_along(place: Place) -> None:
    dead_letter(place, 1)
    for access in (by_peeking(place), by_receiving(place)):
        (message,) = Look(access).messages
        assert set(message.attributes) == {"tenant"}
        assert message.carried["semel-key"].value == "o-0"
        assert all(name.startswith("semel-") for name in message.carried)


def test_one_message_is_found_by_its_id_here_or_in_the_source_queue(place: Place) -> None:
    dead_letter(place, 5)
    access = by_peeking(place)
    third = Look(access).messages[3]
    for id, at in ((third.id, None), (third.id, third.place), (third.id, 1), ("m-3", None)):
        message = access.get(id, at).message
        assert message is not None
        assert (message.id, message.body) == (third.id, third.body)
    assert access.get("nobody").message is None


def test_a_queue_that_is_not_there_is_said_to_be(place: Place) -> None:
    for access in (by_peeking(place, "orders-dql"), by_receiving(place, "orders-dql")):
        with pytest.raises(NoSuchQueue, match="there is no queue orders-dql at http"):
            Look(access)


# SQS.


def test_receiving_releases_everything_at_once_and_in_order_and_says_what_it_cost(place: Place) -> None:
    dead_letter(place, 25)
    access = by_receiving(place)
    assert access.receives
    look = Look(access)
    assert look.numbers == list(range(25))
    assert str(look.last.cost) == "5 receives; the receive count of 25 messages went up by 1"
    assert (look.last.complete, place.messages(DLQ, "in_flight"), receive_counts(place)) == (True, [], {"1"})
    assert Look(access).numbers == list(range(25))


def test_no_more_are_received_than_allowed(place: Place) -> None:
    dead_letter(place, 25)
    look = Look(by_receiving(place, max_receive=12))
    assert len(look.messages) == 12
    assert (look.last.cost.messages, look.last.complete) == (12, False)
    assert "only 12 messages were scanned" in look.last.notes[0]
    assert len(Look(by_receiving(place, max_receive=12), limit=3).messages) == 3
    assert place.messages(DLQ, "in_flight") == []


def test_a_filter_that_matches_little_scans_all(place: Place) -> None:
    dead_letter(place, 25)
    look = Look(by_receiving(place), "$.n = 24")
    assert (look.numbers, look.last.scanned, place.messages(DLQ, "in_flight")) == ([24], 25, [])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_was_received_is_released_also_when_something_goes_wrong(place: Place, error: type[BaseException]) -> None:
    dead_letter(place, 25)

    def interrupted() -> None:
        with closing(by_receiving(place).scan()) as pages:
            for number, _ in enumerate(pages):
                if number == 1:
                    raise error

    with pytest.raises(error):
        interrupted()
    assert place.messages(DLQ, "in_flight") == []
    assert len(place.messages(DLQ, "visible")) == 25


def test_what_is_held_stays_hidden_however_long_the_scan_takes(place: Place) -> None:
    dead_letter(place, 45)
    messages: list[DeadLetterMessage] = []
    page = ScanPage([])
    for page in by_receiving(place).scan():
        messages += page.messages
        place.clock.advance(12)  # five of these outlast the first receive's visibility
    assert sorted(numbers(messages)) == list(range(45))
    assert (page.cost.messages, place.messages(DLQ, "in_flight")) == (45, [])


def test_a_fifo_queue_keeps_its_order_and_says_what_it_cannot_show(place: Place) -> None:
    place.queue("pay.fifo", dlq="pay-dlq.fifo")
    dead_letter(place, 40, "pay-dlq.fifo")
    look = Look(by_receiving(place, "pay-dlq.fifo"))
    assert 0 < len(look.messages) < 40
    assert "the next message of a FIFO group only when those before it are deleted" in look.last.notes[0]
    assert place.messages("pay-dlq.fifo", "in_flight") == []
    assert received_by_group(place) == {"g0": list(range(0, 40, 2)), "g1": list(range(1, 40, 2))}


def received_by_group(place: Place, queue_name: str = "pay-dlq.fifo") -> dict[str, list[int]]:
    """In the order in which a consumer gets them."""
    order: dict[str, list[int]] = {}
    queue = place.client.queue(queue_name)
    while messages := queue.receive(10, 0):
        for dlq_message in messages:
            order.setdefault(dlq_message.group or "", []).append(int(dlq_message.body.split(": ")[-1][:-1]))
        queue.delete([dlq_message.receipt for dlq_message in messages])
    return order


@pytest.mark.parametrize("access", [by_peeking, by_receiving])
def test_claims_of_a_fifo_queue_are_released_last_one_first(
    place: Place, access: Callable[[Place, str], MessageAccess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no consumer can have the first of a group while a later one is still hidden."""
    place.queue("pay.fifo", dlq="pay-dlq.fifo")
    dead_letter(place, 4, "pay-dlq.fifo")
    place.clock.advance(1)
    released: list[str] = []
    change = Queue.change_visibility

    def recorded(queue: Queue, pairs: Any, **options: Any) -> Any:
        released.extend(receipt for receipt, seconds in pairs if seconds == 0)
        return change(queue, pairs, **options)

    monkeypatch.setattr(Queue, "change_visibility", recorded)
    with access(place, "pay-dlq.fifo").claims(Job("redrive", "pay-dlq.fifo")) as claims:
        messages = claims.claim(10)
    assert len(messages) == 4
    assert released == [message.receipt for message in reversed(messages)]


def test_a_queue_that_moves_its_messages_on_is_read_only_if_that_is_accepted(place: Place) -> None:
    place.queue("middle-dlq", dlq="last-dlq", receives=3)
    dead_letter(place, 3, "middle-dlq")
    with pytest.raises(PeekRisk, match=r"to its own dead-letter queue after 3 receives"):
        Look(by_receiving(place, "middle-dlq"))
    assert receive_counts(place, "middle-dlq") == {"0"}
    assert len(Look(by_receiving(place, "middle-dlq", accept_risk=True)).messages) == 3
    # Peeking has no such risk.
    assert len(Look(by_peeking(place, "middle-dlq")).messages) == 3


def test_there_is_no_going_on_where_there_are_no_places(place: Place) -> None:
    with pytest.raises(SemelError, match="no places in a queue"):
        Look(by_receiving(place), after=5)


def test_a_message_that_is_found_by_receiving_is_released_and_its_cost_is_known(place: Place) -> None:
    dead_letter(place, 25)
    lookup = by_receiving(place).get("m-12")
    assert lookup.message is not None
    assert (lookup.message.key, lookup.scanned, lookup.cost.messages) == ("o-12", 20, 20)
    assert place.messages(DLQ, "in_flight") == []


# A clock that is wrong.


def test_a_local_clock_that_is_behind_hides_no_messages_from_a_claim(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letter(place, 3)
    place.clock.advance(5)
    behind = 600.0
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - behind)
    access = SqsAccess(place.client.queue(DLQ), clock=lambda: place.clock.now() - behind, wait=0)
    with access.claims(Job("delete", DLQ)) as claims:
        assert numbers(claims.claim(10)) == [0, 1, 2]


def test_a_message_that_is_named_is_claimed_whenever_it_came(place: Place) -> None:
    dead_letter(place, 1)
    (message,) = Look(by_peeking(place)).messages
    access = SqsAccess(place.client.queue(DLQ), clock=lambda: place.clock.now() - 600, wait=0)
    with access.claims(Job("delete", DLQ), ids=[message.id]) as claims:
        assert numbers(claims.claim(10)) == [0]


# A pause.


@pytest.mark.parametrize("queue", [DLQ, "pay-dlq.fifo"])
def test_while_a_job_is_paused_nothing_is_claimed_and_then_all_of_it_is_again(place: Place, queue: str) -> None:
    place.queue("pay.fifo", dlq="pay-dlq.fifo")
    dead_letter(place, 10, queue)
    place.clock.advance(1)
    job = Job("redrive", queue)
    hidden: list[int] = []

    def paused() -> None:
        release()
        hidden.append(len(place.messages(queue, "in_flight")))
        job.resume()

    with by_receiving(place, queue).claims(job, filters.parse("$.n > 3")) as claims:
        release, claims.release = claims.release, paused  # type: ignore[method-assign]
        assert len(claims.claim(2)) == 2
        assert len(place.messages(queue, "in_flight")) == 10
        job.pause()
        claims.checkpoint()
        assert hidden == [0]
        assert sorted(numbers(claims.claim(10))) == [4, 5, 6, 7, 8, 9]
    assert (job.counts.scanned, job.counts.matched) == (10, 6)


def test_a_process_that_is_killed_hides_nothing_for_more_than_two_minutes(place: Place) -> None:
    dead_letter(place, 10)
    place.clock.advance(1)
    claims = by_receiving(place).claims(Job("redrive", DLQ), filters.parse("$.n = 9"))
    assert numbers(claims.claim(1)) == [9]
    for _ in range(3):
        place.clock.advance(70)
        claims.hidden.extend()
        assert len(place.messages(DLQ, "in_flight")) == 10
    place.clock.advance(121)  # nobody extends them any more
    assert place.messages(DLQ, "in_flight") == []


# Error groups.


def test_more_errors_than_a_grouping_has_room_for_are_counted_together_and_select_nothing() -> None:
    grouping = Grouping()
    kinds = [chr(97 + n // 676) + chr(97 + n // 26 % 26) + chr(97 + n % 26) for n in range(MAX_GROUPS + 5)]
    grouping.add(message(id=f"m{n}", reason=f"{kind}Error", error=f"{kind}Error") for n, kind in enumerate(kinds))
    grouping.add([message(reason=f"{kinds[0]}Error", error=f"{kinds[0]}Error")])
    assert (len(grouping.groups), grouping.matched) == (MAX_GROUPS + 1, MAX_GROUPS + 6)
    assert (grouping.groups[0].count, grouping.groups[0].shape) == (2, "aaaError")
    others = grouping.groups[-1]
    assert (others.count, others.where, others.fingerprint) == (5, None, "")


# The list of queues.


def test_dead_letter_queues_are_those_that_are_named_so_by_a_queue_or_by_their_name(place: Place) -> None:
    place.queue("pay.fifo", dlq="bin.fifo")
    place.client.create_queue("other-dlq")
    place.client.create_queue("just-a-queue")
    dead_letter(place, 3)
    place.clock.advance(3_600)
    dead_letter(place, 2)
    place.client.queue(DLQ).receive(1, 0)
    queues = {info.name: info for info in listing.dead_letter_queues(place.client, clock=place.clock.now)}
    assert sorted(queues) == ["bin.fifo", "orders-dlq", "other-dlq"]
    info = queues[DLQ]
    assert (info.sources, info.visible, info.in_flight, info.depth) == (("orders",), 4, 1, 5)
    assert info.oldest_age == pytest.approx(3_600)
    assert info.first_expires == pytest.approx(place.clock.now() + 345_600 - 3_600)
    assert (info.estimated, info.max_receives, info.fifo) == (False, None, False)
    assert (queues["bin.fifo"].sources, queues["bin.fifo"].fifo) == (("pay.fifo",), True)
    assert (queues["other-dlq"].depth, queues["other-dlq"].first_expires) == (0, None)


def test_the_same_list_comes_from_an_endpoint_that_is_not_ours(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.queue("pay.fifo", dlq="bin.fifo")
    dead_letter(place, 3)
    ours = listing.dead_letter_queues(place.client, clock=place.clock.now)
    our_queue = listing.dead_letter_queue(place.client, DLQ, clock=place.clock.now)
    monkeypatch.setattr(Admin, "of", lambda _client: None)
    theirs = listing.dead_letter_queues(place.client, clock=place.clock.now)
    known = [(info.name, info.url, info.arn, info.depth, info.sources, info.retention) for info in ours]
    assert [(info.name, info.url, info.arn, info.depth, info.sources, info.retention) for info in theirs] == known
    info = listing.dead_letter_queue(place.client, DLQ)
    assert (info.sources, info.depth, info.oldest_age) == (("orders",), 3, None)
    assert our_queue.oldest_age is not None
    received = Look(by_receiving(place)).messages
    guess = listing.estimated(info, received[:2], place.clock.now())
    assert guess.oldest_age == pytest.approx(0)
    assert guess.estimated
    with pytest.raises(NoSuchQueue):
        listing.dead_letter_queue(place.client, "nowhere")


def test_queues_that_may_not_be_read_are_listed_with_the_reason(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.queue("pay", dlq="bin")
    place.client.create_queue("gone-dlq")
    monkeypatch.setattr(Admin, "of", lambda _client: None)
    real = Queue.attributes

    def attributes(queue: Queue, *names: str) -> dict[str, str]:
        if queue.name == "gone-dlq":
            raise QueueNotFound("gone")
        if queue.name in ("pay", "bin"):
            raise AccessDenied("not authorised to perform sqs:GetQueueAttributes")
        return real(queue, *names)

    monkeypatch.setattr(Queue, "attributes", attributes)
    queues = listing.dead_letter_queues(place.client)
    assert [info.name for info in queues] == ["bin", DLQ, "pay"]
    assert [bool(info.error) for info in queues] == [True, False, True]
    assert "sqs:GetQueueAttributes" in queues[0].error


# The service.


@pytest.fixture
def service(place: Place, tmp_path: Any) -> DeadLetterService:
    return DeadLetterService(place.client, state=tmp_path, who="tester", clock=place.clock.now)


def test_groups_count_the_messages_with_the_same_error(place: Place, service: DeadLetterService) -> None:
    dead_letter(place, 7)
    place.clock.advance(60)
    dead_letter(place, 3, error="no such tenant 'acme'")
    error_groups = service.groups(DLQ)
    assert [(group.count, group.shape) for group in error_groups.groups] == [
        (7, "TimeoutError: read timed out after <n> s"),
        (3, "TimeoutError: no such tenant '…'"),
    ]
    assert (error_groups.matched, error_groups.scanned, error_groups.complete) == (10, 10, True)
    group = error_groups.groups[0]
    assert (group.sources, group.first, group.last) == (("orders",), group.last, group.first)
    assert group.where is not None
    assert len(service.messages(DLQ, group.where).messages) == 7
    assert [group.count for group in service.groups(DLQ, "$.n < 2").groups] == [2, 2]
    assert service.impact(DLQ, group.where).count == 7


def test_a_message_that_is_not_there_says_what_may_have_become_of_it(service: DeadLetterService) -> None:
    with pytest.raises(NoSuchMessage, match="redriven, deleted or has expired"):
        service.message(DLQ, "nobody")


def test_the_service_works_by_receiving_too(
    place: Place, service: DeadLetterService, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letter(place, 25)
    monkeypatch.setattr(Admin, "of", lambda _client: None)
    page = service.messages(DLQ, "attr.tenant = acme", limit=5)
    assert (len(page.messages), page.next, page.complete) == (5, None, False)
    assert page.cost.messages == 10
    assert service.message(DLQ, "m-7").key == "o-7"
    assert service.groups(DLQ).matched == 25
    assert place.messages(DLQ, "in_flight") == []


def test_messages_are_scanned_by_their_ids(
    place: Place, service: DeadLetterService, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letter(place, 30)
    all_ = service.messages(DLQ).messages
    wanted = [all_[3].id, all_[21].id, "nobody"]
    assert service.impact(DLQ, ids=wanted).count == 2
    assert Look(by_peeking(place), ids=wanted, limit=1).numbers == [3]
    monkeypatch.setattr(Admin, "of", lambda _client: None)
    look = Look(by_receiving(place), ids=wanted[:1])
    assert (look.numbers, look.last.scanned, place.messages(DLQ, "in_flight")) == ([3], 10, [])
    assert Look(by_receiving(place), ids=wanted).numbers == [3, 21]
