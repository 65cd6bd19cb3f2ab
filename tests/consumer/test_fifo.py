"""FIFO: the order of a group survives failures, crashes and second deliveries; groups do not affect each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from driven import LEASE, Place, dead_letter_details, new_place, take
from semel import App, Batch, Context, Fixed, Reject, Transaction
from semel.ledger.contract import ClaimRequest, Status

QUEUE = "moves.fifo"


class Book:
    """A handler's memory: what it did, in order, and what it is to fail at."""

    def __init__(self, **failures: list[BaseException]) -> None:
        self.done: list[str] = []
        self.tried: list[tuple[str, int]] = []
        self.failures = failures

    def apply(self, name: str, ctx: Context) -> None:
        self.tried.append((name, ctx.attempt))
        if self.failures.get(name):
            raise self.failures[name].pop(0)
        self.done.append(name)

    def of(self, group: str) -> list[str]:
        return [name for name in self.done if name.startswith(group)]


def app_for(book: Book, **options: Any) -> App:
    app = App()

    @app.handler(QUEUE, key="$.name", **({"retry": Fixed(5)} | options))
    def apply(move: dict[str, str], ctx: Context) -> None:
        book.apply(move["name"], ctx)

    return app


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue(QUEUE, dlq="dead.fifo")
        yield place


def send(place: Place, *names: str) -> None:
    """The first letter is the group."""
    for name in names:
        place.send({"name": name}, QUEUE, group=name[0], dedup=name)


def names(place: Place, state: str | None = None) -> list[str]:
    return [body["name"] for body in place.bodies(QUEUE, state)]


def test_a_group_is_worked_off_in_order_and_groups_take_turns(place: Place) -> None:
    book = Book()
    send(place, "a1", "b1", "a2", "b2", "a3", "b3")
    place.worker(app_for(book)).drain()
    assert book.of("a") == ["a1", "a2", "a3"]
    assert book.of("b") == ["b1", "b2", "b3"]
    assert place.is_empty(QUEUE)


def test_the_next_one_starts_when_the_one_before_it_is_recorded(place: Place) -> None:
    send(place, "a1", "a2")
    states: list[Status] = []
    app = App()

    @app.handler(QUEUE, key="$.name")
    def apply(move: dict[str, str]) -> None:
        if move["name"] == "a2":
            states.append(place.known("a1", QUEUE).status)

    place.worker(app).drain()
    assert states == [Status.DONE]


def test_a_failure_hides_the_head_for_its_back_off_and_shows_the_rest_at_once(place: Place) -> None:
    book = Book(a1=[ValueError("no")])
    send(place, "a1", "a2", "a3")
    worker = place.worker(app_for(book))
    worker.drain()
    assert book.done == []
    assert names(place, "in_flight") == ["a1"]
    assert names(place, "visible") == ["a2", "a3"]  # SQS keeps them back until the head is visible again
    entry = place.known("a2", QUEUE)
    assert (entry.status, entry.attempt) == (Status.FREE, 0)
    place.clock.advance(5)
    worker.drain()
    assert book.tried == [("a1", 1), ("a1", 2), ("a2", 1), ("a3", 1)]
    assert book.done == ["a1", "a2", "a3"]
    assert place.is_empty(QUEUE)
    assert worker.consumer(QUEUE).in_flight.admission.in_use == 0
    assert worker.consumer(QUEUE).scheduler.groups == 0


def test_a_failure_in_the_middle_keeps_what_was_done_before_it(place: Place) -> None:
    book = Book(a2=[ValueError("no"), ValueError("no")])
    send(place, "a1", "a2", "a3")
    worker = place.worker(app_for(book))
    for _ in range(3):
        worker.drain()
        place.clock.advance(5)
    assert book.tried == [("a1", 1), ("a2", 1), ("a2", 2), ("a2", 3), ("a3", 1)]


def test_a_failed_group_never_touches_another(place: Place) -> None:
    book = Book(a1=[ValueError("no")] * 3)
    send(place, "a1", "b1", "a2", "b2", "c1", "a3")
    worker = place.worker(app_for(book))
    worker.drain()
    assert book.of("b") == ["b1", "b2"]
    assert book.of("c") == ["c1"]
    assert sorted(names(place)) == ["a1", "a2", "a3"]


def test_with_skip_message_the_failed_one_is_put_aside_and_its_group_goes_on(place: Place) -> None:
    book = Book(a2=[ValueError("no such account")])
    send(place, "a1", "a2", "a3", "b1")
    place.worker(app_for(book, on_failure="skip_message")).drain()
    assert book.of("a") == ["a1", "a3"]
    assert book.of("b") == ["b1"]
    (dead,) = place.messages("dead.fifo")
    assert dead_letter_details(dead)["reason"] == "skipped"
    assert dead_letter_details(dead)["error"] == "ValueError: no such account"
    assert place.is_empty(QUEUE)


def test_a_rejected_message_is_dead_lettered_with_its_group_and_what_follows_it_waits_for_that(place: Place) -> None:
    book = Book(a1=[Reject("no such account")])
    send(place, "a1", "a2")
    place.worker(app_for(book)).drain()
    assert book.done == ["a2"]
    (dead,) = place.messages("dead.fifo")
    assert dead["Attributes"]["MessageGroupId"] == "a"
    assert dead_letter_details(dead)["key"] == "a1"


def test_a_second_copy_of_a_dead_letter_is_taken_for_the_first_by_its_fifo_queue(place: Place) -> None:
    book = Book(a1=[Reject("no"), Reject("no")])
    send(place, "a1")
    worker = place.worker(app_for(book), crash_at="after_dead_letter")
    worker.drain()
    assert worker.crashed_at == "after_dead_letter"
    place.clock.advance(LEASE + 1)
    worker.drain()
    assert len(place.messages("dead.fifo")) == 1
    assert place.is_empty(QUEUE)


def test_without_a_place_for_dead_letters_a_rejected_head_holds_its_group(place: Place) -> None:
    place.queue("plain.fifo")
    book, app = Book(), App()

    @app.handler("plain.fifo", key="$.name")
    def apply(move: dict[str, str], ctx: Context) -> None:
        if move["name"] == "a1":
            raise Reject("no")
        book.done.append(move["name"])

    for name in ("a1", "a2", "b1"):
        place.send({"name": name}, "plain.fifo", group=name[0], dedup=name)
    place.worker(app).drain()
    assert book.done == ["b1"]
    assert [body["name"] for body in place.bodies("plain.fifo", "in_flight")] == ["a1"]


def test_an_undecodable_message_goes_aside_in_its_turn(place: Place) -> None:
    book = Book()
    send(place, "a1")
    place.send("not JSON", QUEUE, group="a", dedup="bad")
    send(place, "a2")
    place.worker(app_for(book)).drain()
    assert book.done == ["a1", "a2"]
    assert len(place.messages("dead.fifo")) == 1
    assert place.is_empty(QUEUE)


def test_a_conflict_goes_aside_and_its_group_goes_on(place: Place) -> None:
    book = Book()
    send(place, "a1")
    worker = place.worker(app_for(book, payload=True))
    worker.drain()
    send(place, "a2")
    place.send({"name": "a1", "cents": "5"}, QUEUE, group="a", dedup="another")
    send(place, "a3")
    worker.drain()
    assert book.done == ["a1", "a2", "a3"]
    assert [dead_letter_details(dead)["reason"] for dead in place.messages("dead.fifo")] == ["conflict"]
    assert place.is_empty(QUEUE)
    assert worker.consumer(QUEUE).scheduler.groups == 0


def test_a_predecessor_that_is_delivered_again_is_skipped_and_the_order_of_effects_holds(place: Place) -> None:
    book = Book()
    send(place, "a1", "a2", "a3")
    worker = place.worker(app_for(book), crash_at="before_delete")
    worker.drain()
    assert worker.crashed_at == "before_delete"
    done = list(book.done)
    place.clock.advance(LEASE + 1)
    worker.drain()
    assert done == book.done[: len(done)]
    assert book.done == ["a1", "a2", "a3"]
    assert place.is_empty(QUEUE)


def test_a_second_sending_that_comes_in_the_same_receive_does_not_hold_up_the_first(place: Place) -> None:
    for dedup, name in enumerate(("a1", "a1", "a2")):
        place.send({"name": name}, QUEUE, group="a", dedup=str(dedup))
    book = Book()
    worker = place.worker(app_for(book))
    worker.worker.work(take(worker, QUEUE))
    assert book.tried == [("a1", 1)]
    assert worker.consumer(QUEUE).metrics.received.count == 3  # the first one was not given back and received again
    worker.drain()  # the second sending comes as soon as the first is done, not after its lease
    assert book.tried == [("a1", 1), ("a2", 1)]
    assert names(place) == []


def test_nothing_overtakes_a_head_that_somebody_else_is_still_at(place: Place) -> None:
    slow, quick = Book(), Book()
    send(place, "a1", "a2", "b1")
    first = place.worker(app_for(slow))
    consumer = first.consumer(QUEUE)
    consumer.receiver.run_once(1)  # a1 alone
    consumer.claimer.run_once()
    (held,) = consumer.in_flight.deliveries.values()
    # SQS shows a1 again long before its lease is over.
    place.client.queue(QUEUE).change_visibility([(held.receipt, 0)])
    second = place.worker(app_for(quick))
    second.drain()
    assert quick.done == ["b1"]
    assert names(place, "in_flight") == ["a1"]
    first.worker.work(consumer)
    assert slow.done == ["a1"]
    place.clock.advance(LEASE + 2)
    second.drain()
    assert quick.done == ["b1", "a2"]
    assert place.is_empty(QUEUE)


@pytest.mark.parametrize("point", ["after_receive", "after_claim", "before_work", "after_work", "after_record"])
def test_a_death_at_any_point_keeps_the_order(place: Place, point: str) -> None:
    book = Book(a3=[ValueError("no")])
    send(place, "a1", "a2", "a3", "a4")
    worker = place.worker(app_for(book), crash_at=point)
    for _ in range(4):
        worker.drain()
        place.clock.advance(LEASE + 1)
    first_times = list(dict.fromkeys(book.done))
    assert first_times == ["a1", "a2", "a3", "a4"]
    assert book.done == sorted(book.done)  # a repeated one is repeated before the next one is begun
    assert place.is_empty(QUEUE)


def test_a_message_whose_claim_has_aged_in_the_group_is_not_begun(place: Place) -> None:
    """Each member's deadline is looked at before it starts, not only the head's."""
    book, app = Book(), App()

    @app.handler(QUEUE, key="$.name", retry=Fixed(1))
    def apply(move: dict[str, str], ctx: Context) -> None:
        book.apply(move["name"], ctx)
        if ctx.attempt == 1 and move["name"] == "a1":
            place.clock.advance(LEASE + 1)  # and no heartbeat was made

    send(place, "a1", "a2")
    worker = place.worker(app)
    consumer = take(worker, QUEUE)
    worker.worker.work(consumer)
    assert book.done == ["a1"]
    worker.drain()
    assert book.tried == [("a1", 1), ("a2", 1)]
    assert book.done == ["a1", "a2"]
    assert place.is_empty(QUEUE)


def test_a_batch_of_a_fifo_queue_is_in_order_and_is_tried_again_in_order(place: Place) -> None:
    app, batches = App(), list[list[str]]()

    @app.batch_handler(QUEUE, key="$.name", size=10, retry=Fixed(5))
    def apply(batch: Batch[dict[str, str]]) -> None:
        batches.append([item.value["name"] for item in batch])
        if len(batches) == 1:
            raise ValueError("no")

    send(place, "a1", "a2", "a3")
    worker = place.worker(app)
    worker.drain()
    assert batches == [["a1", "a2", "a3"]]
    for _ in range(3):
        place.clock.advance(5)
        worker.drain()
    assert [name for batch in batches[1:] for name in batch] == ["a1", "a2", "a3"]
    assert place.is_empty(QUEUE)


def test_an_item_that_is_to_be_tried_again_holds_back_what_follows_it_in_a_later_batch(place: Place) -> None:
    app, done, tried = App(), list[str](), set[str]()

    @app.batch_handler(QUEUE, key="$.name", size=2, retry=Fixed(5))
    def apply(batch: Batch[dict[str, str]]) -> None:
        for item in batch:
            name = item.value["name"]
            if name == "a2" and name not in tried:
                tried.add(name)
                item.retry("not yet")
            else:
                done.append(name)

    send(place, "a1", "a2", "a3", "a4")
    worker = place.worker(app)
    worker.drain()
    assert done == ["a1"]
    for _ in range(3):
        place.clock.advance(5)
        worker.drain()
    assert done == ["a1", "a2", "a3", "a4"]
    assert place.is_empty(QUEUE)


def test_a_batch_does_not_begin_before_those_of_its_groups_in_the_one_before_are_recorded(place: Place) -> None:
    app, batches = App(), list[list[str]]()

    @app.batch_handler(QUEUE, key="$.name", size=2)
    def apply(batch: Batch[dict[str, str]]) -> None:
        batches.append([item.value["name"] for item in batch])
        if len(batches) == 1:  # somebody else has taken a2 over: what was done here does not count
            key = place.ledger_key("a2", QUEUE)
            place.ledger.forget([key])
            place.ledger.claim([ClaimRequest(key)], claimant="somebody", lease=LEASE)

    send(place, "a1", "a2", "a3", "a4", "b1", "b2")
    worker = place.worker(app)
    worker.drain()
    assert batches == [["a1", "a2"], ["b1", "b2"]], "a3 waits for a2, and b does not"
    for _ in range(3):
        place.clock.advance(LEASE + 3)
        worker.drain()
    assert [name for batch in batches[2:] for name in batch] == ["a2", "a3", "a4"]
    assert place.is_empty(QUEUE)


def test_batches_of_one_group_follow_each_other_as_soon_as_they_are_recorded(place: Place) -> None:
    app, batches = App(), list[list[str]]()

    @app.batch_handler(QUEUE, key="$.name", size=2)
    def apply(batch: Batch[dict[str, str]]) -> None:
        batches.append([item.value["name"] for item in batch])
        names = [name for batch in batches[:-1] for name in batch]
        assert all(place.known(name, QUEUE).status is Status.DONE for name in names)

    send(place, "a1", "a2", "a3", "a4", "a5")
    place.worker(app).drain()
    assert batches == [["a1", "a2"], ["a3", "a4"], ["a5"]]
    assert place.is_empty(QUEUE)


def test_a_bad_message_of_a_fifo_batch_fails_alone_and_holds_up_its_own_group_only(place: Place) -> None:
    app, done = App(), list[str]()

    @app.batch_handler(QUEUE, key="$.name", size=10, retry=Fixed(5), max_attempts=3)
    def apply(batch: Batch[dict[str, str]], tx: Transaction) -> None:
        names = [item.value["name"] for item in batch]
        if "a2" in names:
            raise ValueError("a2")
        tx.execute("SELECT 1")
        done.extend(names)

    send(place, "a1", "b1", "a2", "b2", "a3")
    worker = place.worker(app)
    for _ in range(4):
        worker.drain()
        place.clock.advance(5)
    assert [name for name in done if name[0] == "a"] == ["a1", "a3"]
    assert [name for name in done if name[0] == "b"] == ["b1", "b2"]
    assert [dead_letter_details(dead)["key"] for dead in place.messages("dead.fifo")] == ["a2"]
    assert place.is_empty(QUEUE)


def batch_app_for(book: Book) -> App:
    app = App()

    @app.batch_handler(QUEUE, key="$.name", size=10, retry=Fixed(5))
    def apply(batch: Batch[dict[str, str]]) -> None:
        for item in batch:
            book.apply(item.value["name"], item.context)

    return app


@pytest.mark.parametrize("make", [app_for, batch_app_for])
def test_a_second_sending_does_not_hold_up_what_stands_before_it(place: Place, make: Callable[[Book], App]) -> None:
    for dedup, name in enumerate(("a1", "a2", "a1", "a3")):
        place.send({"name": name}, QUEUE, group="a", dedup=str(dedup))
    book = Book()
    worker = place.worker(make(book))
    worker.worker.work(take(worker, QUEUE))
    assert book.tried == [("a1", 1), ("a2", 1)]
    assert worker.consumer(QUEUE).metrics.received.count == 4  # nothing was given back and received again
    worker.drain()
    assert book.tried == [("a1", 1), ("a2", 1), ("a3", 1)]
    assert names(place) == []


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("make", [app_for, batch_app_for])
def test_a_message_that_is_lost_while_it_waits_takes_those_behind_it_along(
    place: Place, make: Callable[[Book], App], recorded: bool
) -> None:
    book = Book()
    send(place, "a1", "a2", "a3", "b1")
    worker = place.worker(make(book))
    consumer = take(worker, QUEUE)
    place.take_over("a2", QUEUE)
    place.clock.advance(LEASE / 3)
    worker.worker.beat()
    if recorded:
        worker.worker.finish(consumer)
    worker.worker.work(consumer)
    assert sorted(book.done) == ["a1", "b1"]  # not a3, which would overtake a2
    place.clock.advance(LEASE + 2)
    worker.drain()
    assert book.of("a") == ["a1", "a2", "a3"]
    assert place.is_empty(QUEUE)
    assert consumer.in_flight.admission.in_use == 0
    assert consumer.scheduler.groups == 0
