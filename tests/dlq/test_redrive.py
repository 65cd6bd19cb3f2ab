"""Redrive: what is sent back, what stays, and that each is done once; on the broker, and with only SQS's calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dlq.redrives import BROKER, MODES, SQS, Site, at, site
from semel import App, Message
from semel.dlq.access.sqs import SqsAccess
from semel.dlq.filter.parser import parse
from semel.dlq.jobs import Job, State
from semel.dlq.redrive.plan import PlanError, RedrivePlan
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Entry
from semel.sqs.client.admin import Admin
from semel.sqs.client.messages import Attribute
from waiting import until


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def standard(mode: str) -> Iterator[Site]:
    with site(mode) as standard:
        yield standard


@pytest.fixture
def fifo(mode: str) -> Iterator[Site]:
    with site(mode, fifo=True) as fifo:
        yield fifo


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def either(request: pytest.FixtureRequest, mode: str) -> Iterator[Site]:
    with site(mode, fifo=request.param) as either:
        yield either


def good(job: Job) -> Job:
    assert (job.state, job.reason) == (State.DONE, ""), [line.text for line in job.messages]
    return job


# What goes, and what it carries.


def test_messages_go_back_to_where_they_came_from_with_their_own_attributes_and_key(either: Site) -> None:
    either.dead_letter("a1", "b1", attributes={"tenant": "acme", "n": 7, "raw": b"\x00\xff"})
    job = good(either.redrive())
    assert (job.counts.matched, job.counts.sent, job.counts.deleted, job.counts.failed) == (2, 2, 2, 0)
    assert either.dead_names() == []
    assert sorted(either.names()) == ["a1", "b1"]
    first = next(attributes for attributes in either.attributes() if attributes["semel-key"] == "a1")
    assert first == {"tenant": "acme", "n": "7", "raw": "?", "semel-key": "a1", "semel-redrives": "1"}


def test_a_message_that_sqs_moved_itself_gets_no_key_but_the_id_that_it_had(either: Site) -> None:
    (id,) = either.moved("a1")
    good(either.redrive())
    assert either.attributes() == [{"semel-message-id": id, "semel-redrives": "1"}]


def test_the_first_id_stays_the_first_one_through_a_second_redrive(either: Site) -> None:
    (id,) = either.moved("a1")
    good(either.redrive())
    queue = either.place.client.queue(either.queue)
    for _ in range(3):
        queue.receive(wait=0, visibility=1)
        either.place.clock.advance(1)
    assert either.dead_names() == ["a1"]
    good(either.redrive())
    assert either.attributes() == [{"semel-message-id": id, "semel-redrives": "2"}]


def test_a_key_that_a_message_carried_before_it_died_is_carried_on(either: Site) -> None:
    either.moved("a1", attributes={"semel-key": "from-the-outbox"})
    good(either.redrive())
    assert either.attributes() == [{"semel-key": "from-the-outbox", "semel-redrives": "1"}]


def test_a_message_counts_how_often_it_was_sent_back(standard: Site) -> None:
    standard.dead_letter("a1")
    for times in (1, 2, 3):
        good(standard.redrive())
        assert standard.attributes()[0]["semel-redrives"] == str(times)
        standard.dead_letter()
        assert standard.attributes(standard.dead)[0]["semel-redrives"] == str(times)


def test_ten_attributes_of_its_own_are_no_obstacle(standard: Site) -> None:
    own = {f"a{n}": f"value {n}" for n in range(10)}
    standard.moved("a1", attributes=own)
    good(standard.redrive())
    attributes: dict[str, Attribute] = {}
    app = App()

    @app.handler(standard.queue)
    def look(message: Message) -> None:
        attributes.update(message.attributes)

    standard.place.worker(app).drain()
    assert {name: attributes[name].value for name in own} == own


def test_what_does_not_match_stays_as_it_was(standard: Site) -> None:
    standard.dead_letter("a1", "b1", "c1", error="no such country")
    standard.dead_letter("x1", "y1", error="timeout")
    standard.dead_letter("d1", error="no such country")
    before = standard.place.messages(standard.dead)
    job = good(standard.redrive(where="error ~ timeout"))
    assert (job.counts.matched, job.counts.sent) == (2, 2)
    assert sorted(standard.names()) == ["x1", "y1"]
    assert standard.dead_names("visible") == ["a1", "b1", "c1", "d1"]
    if standard.mode == BROKER:
        assert standard.place.messages(standard.dead) == [
            message for message in before if '"x1"' not in message["Body"] and '"y1"' not in message["Body"]
        ]
    else:
        assert job.counts.released == 4


def test_a_filter_may_ask_for_the_body(standard: Site) -> None:
    standard.dead_letter("a1", "b1")
    good(standard.redrive(where="$.name = b1"))
    assert (standard.names(), standard.dead_names("visible")) == (["b1"], ["a1"])


def test_only_those_that_are_named_go(either: Site) -> None:
    either.dead_letter("a1", "b1", "c1")
    ids = [message["MessageId"] for message in either.place.messages(either.dead)]
    job = good(either.redrive(ids=(ids[2], ids[0], "unknown")))
    assert job.counts.sent == 2
    assert f"not in {either.dead}, or in flight: 1 of 3 ids" in [line.text for line in job.messages]
    assert sorted(either.names()) == ["a1", "c1"]
    assert either.dead_names("visible") == ["b1"]


def test_at_most_so_many_go_as_are_wanted(either: Site) -> None:
    either.dead_letter("a1", "b1", "c1")
    assert good(either.redrive(limit=2)).counts.sent == 2
    assert len(either.names()) == 2
    assert len(either.dead_names("visible")) == 1


def test_more_than_one_round(standard: Site) -> None:
    names = [f"{n:04}" for n in range(1_234)]
    queue = standard.place.client.queue(standard.dead)
    for begin in range(0, len(names), 500):
        part = names[begin : begin + 500]
        queue.send_many(
            [
                Entry(
                    f'{{"name": "{name}"}}',
                    own_attributes.attributes(
                        own_attributes.DeadLetterDetails(name, "r", "e", 1, "m", "orders"), {}, 20
                    ),
                )
                for name in part
            ]
        )
    job = good(standard.redrive())
    assert (job.counts.sent, job.counts.deleted) == (1_234, 1_234)
    messages = standard.place.broker.peek("orders", limit=2_000)
    assert sorted(message["MessageAttributes"]["semel-key"]["StringValue"] for message in messages) == names
    assert standard.dead_names() == []


def test_a_dry_run_counts_and_touches_nothing(either: Site) -> None:
    either.dead_letter("a1", "b1", "c1")
    job = good(either.redrive(dry_run=True, where="not $.name = b1"))
    assert (job.counts.matched, job.counts.sent, job.result["targets"]) == (2, 0, {either.queue: 2})
    assert either.dead_names("visible") == ["a1", "b1", "c1"]
    assert either.names() == []


# Where to.


def test_messages_can_be_sent_elsewhere(standard: Site) -> None:
    standard.place.queue("quarantine")
    standard.dead_letter("a1")
    good(standard.redrive(to="quarantine"))
    assert (standard.names("quarantine"), standard.names()) == (["a1"], [])


@pytest.mark.parametrize(
    ("to", "complaint"),
    [
        ("dead", "is the dead-letter queue itself"),
        ("other.fifo", "a FIFO queue and dead a Standard queue"),
        ("nowhere", "does not exist"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_anything_is_claimed(standard: Site, to: str, complaint: str) -> None:
    standard.place.queue("other.fifo")
    standard.dead_letter("a1")
    before = standard.place.messages(standard.dead)
    job = standard.redrive(to=to)
    assert job.state is State.FAILED
    assert complaint in job.reason
    assert standard.place.messages(standard.dead) == before


def test_a_message_that_nobody_knows_the_source_of_goes_to_the_only_one_there_is(standard: Site) -> None:
    standard.place.send({"name": "stray"}, standard.dead)
    good(standard.redrive())
    assert standard.names() == ["stray"]


def test_with_two_sources_it_must_be_said_where_a_stray_message_goes(standard: Site) -> None:
    standard.place.queue("invoices", dlq=standard.dead)
    standard.place.send({"name": "stray"}, standard.dead)
    job = standard.redrive()
    assert job.state is State.FAILED
    assert "name the queue that they go to" in job.reason
    assert standard.dead_names("visible") == ["stray"]
    standard.dead_letter("a1")
    job = good(standard.redrive())
    assert (job.counts.sent, job.counts.skipped) == (1, 1)
    assert standard.dead_names("visible") == ["stray"]


def claims(queue: str) -> dict[str, Attribute]:
    """What Semel's own attributes say, in a message that anybody may send."""
    return own_attributes.attributes(own_attributes.DeadLetterDetails("k-1", "failed", "no", 3, "m-1", queue), {}, 20)


def test_a_message_that_sqs_moved_goes_back_to_where_sqs_took_it_from_whatever_it_says_of_itself(either: Site) -> None:
    payments = either.place.queue("payments.fifo" if either.fifo else "payments", dlq=either.dead)
    either.moved("a1", attributes=claims(payments.name))
    good(either.redrive())
    assert (either.names(), either.names(payments.name)) == (["a1"], [])


@pytest.mark.parametrize("said", ["payments", "{url}/payments", "{arn}"])
def test_a_message_cannot_choose_a_queue_that_is_no_source_of_its_dead_letter_queue(standard: Site, said: str) -> None:
    payments = standard.place.queue("payments")
    said = said.format(url=standard.client.endpoint, arn=payments.arn)
    standard.place.send({"name": "stray"}, standard.dead, attributes=claims(said))
    job = standard.redrive()
    assert job.state is State.FAILED
    assert "dead is not the dead-letter queue of that queue" in job.reason
    assert "--to" in job.reason
    assert (standard.names("payments"), standard.dead_names("visible")) == ([], ["stray"])
    standard.dead_letter("a1")
    job = good(standard.redrive())
    assert (job.counts.sent, job.counts.skipped, standard.names()) == (1, 1, ["a1"])
    job = standard.redrive(dry_run=True)
    assert job.result["targets"] == {"": 1}
    good(standard.redrive(to="payments"))
    assert standard.names("payments") == ["stray"]


# Once.


@pytest.mark.parametrize(
    "options",
    [
        {"key": None},
        {"key": "message-id"},
        {"key": "$.name"},
        {"key": "attribute:order"},
        {"key": lambda order: order["name"]},
        {"key": "$.nothing", "missing_key": "message-id"},
    ],
)
def test_a_message_that_was_done_and_died_nevertheless_is_not_done_again(either: Site, options: dict[str, Any]) -> None:
    """Its deletes were lost, so often that SQS moved it away."""
    either.send("a1", attributes={"order": "o-1"})
    done: list[str] = []
    app = App()

    @app.handler(either.queue, **options)
    def ship(order: dict[str, str]) -> None:
        done.append(order["name"])

    for _ in range(4):
        worker = either.place.worker(app, crash_at="before_delete")
        worker.drain()
        either.place.clock.advance(31)
    assert done == ["a1"]
    assert either.dead_names() == ["a1"]
    good(either.redrive())
    worker = either.place.worker(app)
    worker.drain()
    assert done == ["a1"]
    assert worker.consumer(either.queue).metrics.duplicates_deleted.count == 1
    assert either.names() == []


def test_a_producers_own_key_still_counts(either: Site) -> None:
    either.moved("a1", attributes={"idempotency-key": "p-1"})
    good(either.redrive())
    assert either.processed(key=None) == ["a1"]
    assert either.place.known("p-1", either.queue)


def test_a_rejected_message_runs_again_under_its_key(either: Site) -> None:
    either.dead_letter("a1")
    good(either.redrive())
    assert either.processed() == ["a1"]
    assert either.place.known("a1", either.queue).status == "done"


def test_a_handler_that_goes_by_deduplication_ids_learns_that_sqs_replaced_it(fifo: Site) -> None:
    fifo.moved("a1")
    good(fifo.redrive())
    assert fifo.processed(key="dedup-id") == []
    (message,) = fifo.attributes(fifo.dead)
    assert "replaced its deduplication id" in message["semel-error"]


def test_what_fails_again_meanwhile_is_not_sent_a_second_time(either: Site) -> None:
    either.dead_letter("a1", "b1", "c1")

    def fail(point: str) -> None:
        if point == "between_rounds":
            either.place.clock.advance(1)
            either.dead_letter()

    job = good(either.redrive(rate=1, monotonic=_instant(), crash=fail))
    assert job.counts.sent == 3
    assert sorted(either.dead_names("visible")) == ["a1", "b1", "c1"]
    assert either.names() == []


def test_nor_where_it_comes_back_before_the_end_of_the_queue_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    peek = Admin.peek

    def one_by_one(self: Admin, queue: str, **options: Any) -> Any:
        return peek(self, queue, **(options | {"limit": 1}))

    monkeypatch.setattr(Admin, "peek", one_by_one)
    monkeypatch.setattr("semel.dlq.access.broker._PAGES_AHEAD", 1)
    with site(BROKER) as standard:
        names = [f"{n}" for n in range(9)]
        standard.dead_letter(*names)
        rounds = iter(range(20))

        def fail(point: str) -> None:
            if point == "between_rounds":
                next(rounds)
                standard.dead_letter()

        job = good(standard.redrive(rate=1, monotonic=_instant(), crash=fail, stop_after_failures=0))
        assert (job.counts.sent, job.counts.matched) == (9, 9)
        assert sorted(standard.dead_names("visible")) == names


def _instant() -> Any:
    """A clock for which all waiting is over at once."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 10.0
        return now[0]

    return monotonic


def test_a_second_run_after_a_death_between_send_and_delete_completes_it(either: Site) -> None:
    either.dead_letter("a1", "b1")

    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    job = Job("redrive", either.dead)
    with pytest.raises(Died):
        either.redriver(crash=at("after_send", die), threads=1).run(job)
    either.place.clock.advance(200)
    assert len(either.dead_names("visible")) == 2, "nothing is lost"
    good(either.redrive())
    assert either.dead_names() == []
    assert sorted(either.processed()) == ["a1", "b1"]


def test_a_fifo_message_is_sent_under_an_id_of_its_own_and_within_five_minutes_only_once(fifo: Site) -> None:
    fifo.dead_letter("a1")
    (message,) = fifo.place.messages(fifo.dead)

    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    with pytest.raises(Died):
        fifo.redriver(crash=at("after_send", die)).run(Job("redrive", fifo.dead))
    fifo.place.clock.advance(130)
    good(fifo.redrive())
    (copy,) = fifo.place.messages(fifo.queue)
    assert copy["Attributes"]["MessageDeduplicationId"] == f"redrive-{message['MessageId']}"
    assert fifo.dead_names() == []


def test_two_redrives_at_once_send_each_message_once(either: Site) -> None:
    names = [f"{chr(97 + n % 20)}{n:02}" for n in range(60)]
    either.moved(*names)
    jobs = [Job("redrive", either.dead) for _ in range(3)]
    runs = [either.redriver().run for _ in jobs]
    threads = [threading.Thread(target=job.run, args=(run,)) for job, run in zip(jobs, runs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    good(either.redrive())
    assert sorted(either.names()) == sorted(names)
    for group in {name[0] for name in names}:
        assert [name for name in either.names() if name[0] == group] == [
            name for name in names if name[0] == group
        ] or not either.fifo


# Order.


def test_the_order_of_each_group_is_kept(fifo: Site) -> None:
    names = [f"{group}{n:02}" for n in range(25) for group in "abc"]
    fifo.moved(*names)
    good(fifo.redrive())
    names_in_queue = fifo.names()
    for group in "abc":
        assert [name for name in names_in_queue if name[0] == group] == [name for name in names if name[0] == group]
    assert fifo.dead_names() == []


def test_one_call_never_has_two_of_a_group(fifo: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo.moved("a1", "a2", "b1", "b2", "a3")
    queue = fifo.client.queue(fifo.queue)
    calls: list[list[str | None]] = []
    send_many = type(queue).send_many

    def spy(self: Any, entries: Any) -> Any:
        calls.append([entry.group for entry in entries])
        return send_many(self, entries)

    monkeypatch.setattr(type(queue), "send_many", spy)
    good(fifo.redrive())
    assert sum(map(len, calls)) == 5
    assert all(len(groups) == len(set(groups)) for groups in calls)


def test_a_message_that_cannot_be_sent_holds_up_those_behind_it_in_its_group_only(fifo: Site) -> None:
    fifo.moved("a1", "b1", "c1")
    fifo.moved("a2" + "x" * 2_000)
    fifo.moved("a3", "b2")
    fifo.client.queue(fifo.queue).call("SetQueueAttributes", {"Attributes": {"MaximumMessageSize": "1024"}})
    job = good(fifo.redrive())
    assert sorted(fifo.names()) == ["a1", "b1", "b2", "c1"]
    assert [name[:2] for name in fifo.dead_names("visible")] == ["a2", "a3"]
    assert job.counts.failed == 1
    assert "shorter than 1024 bytes" in job.result["failures"][0]["reason"]
    fifo.client.queue(fifo.queue).call("SetQueueAttributes", {"Attributes": {"MaximumMessageSize": "10240"}})
    good(fifo.redrive())
    assert [name[:2] for name in fifo.names() if name[0] == "a"] == ["a1", "a2", "a3"]


def test_nothing_overtakes_a_message_that_is_in_flight(fifo: Site) -> None:
    fifo.moved("a1", "a2", "b1")
    (held,) = fifo.place.client.queue(fifo.dead).receive(1, wait=0, visibility=600)
    assert "a1" in held.body
    good(fifo.redrive())
    assert fifo.names() == ["b1"]
    assert fifo.dead_names("visible") == ["a2"]


def test_a_message_claimed_by_somebody_else_in_between_holds_up_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with site(BROKER, fifo=True) as fifo:
        fifo.moved("a1", "a2", "b1")
        receive_ids = Admin.receive_ids

        def robbed(self: Admin, *arguments: Any, **options: Any) -> Any:
            monkeypatch.undo()
            fifo.place.client.queue(fifo.dead).receive(1, wait=0, visibility=600)
            return receive_ids(self, *arguments, **options)

        monkeypatch.setattr(Admin, "receive_ids", robbed)
        job = good(fifo.redrive())
        assert fifo.names() == ["b1"]
        assert fifo.dead_names("visible") == ["a2"]
        assert job.counts.skipped == 2


# Trouble.


def test_a_single_message_that_cannot_be_sent_is_released_and_reported(standard: Site) -> None:
    standard.dead_letter("a1", "b" * 3_000, "c1")
    standard.client.queue(standard.queue).call("SetQueueAttributes", {"Attributes": {"MaximumMessageSize": "2048"}})
    job = good(standard.redrive())
    assert (job.counts.sent, job.counts.failed) == (2, 1)
    assert sorted(standard.names()) == ["a1", "c1"]
    assert standard.dead_names("visible") == ["b" * 3_000]
    assert any("1 not sent" in line.text for line in job.messages)


def test_a_message_too_large_for_its_key_stays(standard: Site) -> None:
    body = {"name": "a" * (1_048_576 - 20)}
    standard.place.send(body, standard.dead)
    job = standard.redrive()
    assert job.counts.failed == 1
    assert "too large to carry its key" in job.result["failures"][0]["reason"]
    assert len(standard.dead_names("visible")) == 1


def test_a_queue_that_takes_nothing_ends_it_and_the_rest_is_not_tried(standard: Site) -> None:
    standard.moved(*[f"{n:03}" for n in range(150)])
    standard.place.client.queue("orders").drop()
    job = standard.redrive(rate=20, monotonic=_instant())
    assert job.state is State.STOPPED
    assert "could not be sent, so the rest was not tried" in job.reason
    assert job.counts.failed == 20
    assert len(standard.place.broker.peek(standard.dead, "visible", limit=1_000)) == 150


def test_a_receipt_that_expired_before_the_delete_is_no_reason_to_send_twice(either: Site) -> None:
    either.dead_letter("a1", "b1")
    job = good(either.redrive(crash=at("after_send", lambda: either.place.clock.advance(130)), threads=1))
    assert job.counts.sent == 2
    assert sorted(either.names()) == ["a1", "b1"]
    assert either.dead_names() == []


@pytest.mark.parametrize(
    "fault", ["throttle", "server-error", "lost-answer", "early-visibility", "lost-delete", "duplicate"]
)
def test_whatever_the_service_does_nothing_is_lost_and_nothing_done_twice(either: Site, fault: str) -> None:
    names = [f"{group}{n}" for n in range(8) for group in "abcd"]
    either.dead_letter(*names[:16])
    either.moved(*names[16:])
    either.place.broker.faults.set(fault, 0.2)
    for _ in range(6):
        job = either.redrive(stop_after_failures=0)
        assert job.state in (State.DONE, State.FAILED), job.reason
        either.place.clock.advance(130)
        if not either.place.broker.peek(either.dead):
            break
    either.place.broker.faults.clear()
    good(either.redrive())
    assert either.dead_names() == []
    assert sorted(either.processed()) == sorted(names)


# Pause, cancel, pace.


def test_cancelled_between_two_rounds_the_rest_stays_and_is_visible(either: Site) -> None:
    either.dead_letter("a1", "b1", "c1", "d1")
    job = Job("redrive", either.dead)

    def crash(point: str) -> None:
        if point == "between_rounds":
            job.cancel()

    job.run(either.redriver(rate=2, monotonic=_instant(), crash=crash).run)
    assert job.state is State.CANCELLED
    assert len(either.names()) == 2
    assert len(either.dead_names("visible")) == 2


def test_paused_it_has_nothing_half_done_and_goes_on_when_it_may(standard: Site) -> None:
    standard.dead_letter("a1", "b1", "c1")
    job = Job("redrive", standard.dead)

    def crash(point: str) -> None:
        if point == "between_rounds" and job.counts.sent == 1:
            job.pause()

    thread = threading.Thread(target=job.run, args=(standard.redriver(rate=1, monotonic=_instant(), crash=crash).run,))
    thread.start()
    until(lambda: job.state is State.PAUSED)
    assert (len(standard.names()), job.counts.sent, job.counts.deleted) == (1, 1, 1)
    job.resume()
    thread.join(60)
    good(job)
    assert len(standard.names()) == 3


def test_a_rate_is_kept(standard: Site) -> None:
    standard.dead_letter(*[f"{n}" for n in range(9)])
    now, slept = [100.0], []

    def rest(_job: Job, seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    good(standard.redrive(rate=2, monotonic=lambda: now[0], rest=rest))
    assert now[0] - 100.0 == pytest.approx(4.5)
    assert slept == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.5])


def test_an_error_releases_what_was_claimed(standard: Site) -> None:
    standard.dead_letter("a1", "b1")

    def fail() -> None:
        raise RuntimeError("unexpected")

    job = standard.redrive(crash=at("after_claim", fail))
    assert (job.state, job.reason) == (State.FAILED, "RuntimeError: unexpected")
    assert standard.dead_names("visible") == ["a1", "b1"]


# Where only SQS's calls are.


def test_messages_that_do_not_match_are_held_until_the_end_and_no_more_than_sqs_hides() -> None:
    with site(SQS) as standard:
        standard.dead_letter(*[f"{n:02}" for n in range(30)])
        job = Job("redrive", standard.dead)
        standard.place.clock.advance(1)
        queue, now = standard.client.queue(standard.dead), standard.place.clock.now
        access = SqsAccess(queue, clock=now, wait=0, max_held=20)
        with access.claims(job, parse("$.name = 29")) as claims:
            assert claims.claim(10) == []
            assert len(standard.dead_names("in_flight")) == 20
        assert len(standard.dead_names("visible")) == 30
        assert any("SQS allows no more" in line.text for line in job.messages)


def test_what_sqs_does_not_show_behind_a_message_that_stays_is_reported() -> None:
    with site(SQS, fifo=True) as fifo:
        fifo.moved(*[f"a{n:02}" for n in range(15)])
        job = good(fifo.redrive(where="not $.name = a03"))
        assert (fifo.names(), job.counts.sent) == ([f"a{n:02}" for n in range(10) if n != 3], 9)
        assert len(fifo.dead_names("visible")) == 6
        assert any("about 5 messages were not scanned" in line.text for line in job.messages)


def test_that_reading_may_move_messages_on_is_reported_before() -> None:
    with site(SQS) as standard:
        standard.place.client.create_queue("last")
        policy = {"deadLetterTargetArn": standard.client.queue("last").arn, "maxReceiveCount": 9}
        standard.client.queue(standard.dead).call(
            "SetQueueAttributes", {"Attributes": {"RedrivePolicy": json.dumps(policy)}}
        )
        standard.dead_letter("a1")
        job = good(standard.redrive())
        assert "dead moves messages to its own dead-letter queue after 9 receives" in job.messages[0].text


def test_a_message_that_is_never_hidden_does_not_keep_it_going() -> None:
    with site(SQS) as standard:
        standard.dead_letter("a1", "b1")
        standard.place.broker.faults.set("duplicate", 1.0)
        job = good(standard.redrive(where="$.name = b1"))
        assert job.counts.sent == 1


def test_what_is_held_is_kept_hidden() -> None:
    with site(SQS) as standard:
        standard.dead_letter("a1", "b1")
        clock = standard.place.clock
        clock.advance(1)
        access = SqsAccess(standard.client.queue(standard.dead), clock=clock.now, monotonic=clock.now, wait=0)
        with access.claims(Job("redrive", "dead"), parse("$.name = a1")) as claims:
            assert len(claims.claim(10)) == 1
            for _ in range(5):
                clock.advance(70)
                claims.hidden.extend()
                assert len(standard.dead_names("in_flight")) == 2
        assert standard.dead_names("visible") == ["a1", "b1"]


# Plans.


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": ""},
        {"limit": 0},
        {"rate": 0},
        {"rate": -1},
        {"canary": 51},
        {"canary": -1},
        {"canary_wait": 0},
        {"engine": "fast"},
        {"engine": "auto"},
        {"threads": 0},
        {"ids": ["x"] * 100_001},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        RedrivePlan(**({"queue": "dead"} | ({} if "ids" in wrong else {"all": True}) | wrong))


def test_a_plan_survives_the_way_through_json() -> None:
    plan = RedrivePlan(queue="dead", where="timeout", rate=2.5, canary=3)
    assert RedrivePlan.from_json(plan.to_json()) == plan
    for wrong in (
        {},
        {"queue": 7},
        {"queue": "d", "colour": 1},
        {"queue": "d", "ids": "abc"},
        {"queue": "d", "limit": True},
    ):
        with pytest.raises(PlanError):
            RedrivePlan.from_json(wrong)
