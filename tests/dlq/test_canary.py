"""The canary: the rest follows only if it succeeds, and messages that come back later stop the redrive, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlq.redrives import BROKER, MODES, SQS, Site, at, site
from semel import App, Context, Reject, SqliteLedger
from semel.dlq.jobs import Job, State
from semel.dlq.messages import DeadLetterMessage
from semel.dlq.redrive.canary import choose, default_wait
from semel.dlq.redrive.outcomes import Returns
from semel.messages.dead_letter_attributes import DeadLetterDetails, attributes
from semel.sqs.client.admin import Admin


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def either(request: pytest.FixtureRequest) -> Iterator[Site]:
    with site(BROKER, fifo=request.param) as either:
        yield either


@pytest.fixture(params=MODES)
def standard(request: pytest.FixtureRequest) -> Iterator[Site]:
    with site(request.param) as standard:
        yield standard


class Worker:
    """Works while the redrive waits: each wait is a second, in which all that is there is processed."""

    def __init__(self, place: Site, *bad: str, key: Any = "$.name") -> None:
        self.site, self.bad = place, set(bad)
        self.done: list[str] = []
        app = App()

        @app.handler(place.queue, key=key)
        def ship(order: dict[str, str], ctx: Context) -> None:
            if order["name"] in self.bad:
                raise Reject("no such country")
            self.done.append(order["name"])

        self.driver = place.place.worker(app)
        self.waits = 0

    def rest(self, _job: Job, seconds: float) -> None:
        self.waits += 1
        self.site.place.clock.advance(seconds)
        self.driver.drain()


def test_when_those_that_went_first_were_processed_the_rest_follows(either: Site) -> None:
    either.dead_letter("a1", "b1", "c1", "d1", "e1")
    worker = Worker(either)
    counts: list[int] = []
    job = either.redrive(
        canary=2, rest=worker.rest, crash=at("canary_sent", lambda: counts.append(len(either.names())))
    )
    assert (job.state, job.reason) == (State.DONE, "")
    assert counts == [2], "two, and no more, were sent before their outcome was known"
    assert worker.waits == 1
    assert job.counts.sent == 5
    assert either.dead_names() == []
    assert len(either.names()) == 3
    assert "all 2 canary messages succeeded" in [line.text for line in job.messages]


@pytest.mark.parametrize("by_sqs", [False, True])
def test_when_one_of_them_fails_again_the_rest_stays(either: Site, by_sqs: bool) -> None:
    names = ("a1", "b1", "c1", "d1")
    either.moved(*names) if by_sqs else either.dead_letter(*names)
    worker = Worker(either, "b1")
    job = either.redrive(canary=2, rest=worker.rest)
    assert job.state is State.STOPPED
    assert "1 of the 2 canary messages failed again, so the rest was not sent" in job.reason
    assert "no such country" in job.reason
    assert (job.counts.sent, job.counts.returned) == (2, 1)
    assert worker.done == ["a1"]
    assert sorted(either.dead_names("visible")) == ["b1", "c1", "d1"]


def test_a_message_that_sqs_itself_moves_back_is_a_failure_too(either: Site) -> None:
    either.moved("a1", "b1")

    def rest(_job: Job, _seconds: float) -> None:
        queue = either.place.client.queue(either.queue)
        queue.receive(wait=0, visibility=1)
        either.place.clock.advance(1)

    job = either.redrive(canary=1, rest=rest)
    assert job.state is State.STOPPED
    assert "moved by SQS: received too often" in job.reason
    assert sorted(either.dead_names("visible")) == ["a1", "b1"]


def test_without_a_worker_nothing_follows(either: Site) -> None:
    either.dead_letter("a1", "b1", "c1")
    job = either.redrive(canary=1, canary_wait=30, rest=lambda _job, seconds: either.place.clock.advance(seconds))
    assert job.state is State.STOPPED
    assert job.messages[0].text == "sent 1 canary message; waiting up to 30 s for the outcome"
    assert "the outcome of the canary message is not known after 30 s" in job.reason
    assert "Is a worker running on their queue? A longer --canary-wait gives it more time." in job.reason
    assert len(either.names()) == 1
    assert len(either.dead_names("visible")) == 2


def test_a_failure_that_only_the_ledger_knows_of_is_one(either: Site) -> None:
    """Its worker dead-letters messages to a queue of its own, which nobody watches."""
    either.dead_letter("a1", "b1")
    elsewhere = "morgue.fifo" if either.fifo else "morgue"
    either.place.queue(elsewhere)
    app = App()

    @app.handler(either.queue, key="$.name", dead_letter=elsewhere)
    def refuse(order: dict[str, str]) -> None:
        raise Reject("still not")

    driver = either.place.worker(app)

    def rest(_job: Job, seconds: float) -> None:
        driver.drain()

    job = either.redrive(canary=1, ledger=either.place.ledger, rest=rest)
    assert job.state is State.STOPPED
    assert "rejected, as the ledger says" in job.reason


def test_while_the_ledger_does_not_answer_nobody_knows_that_a_canary_succeeded(either: Site, tmp_path: Path) -> None:
    either.dead_letter("a1", "b1")
    ledger = SqliteLedger(str(tmp_path / "ledger.db"))
    worker = Worker(either)
    gone = at("canary_sent", ledger.close)
    job = either.redrive(canary=1, canary_wait=30, ledger=ledger, rest=worker.rest, crash=gone)
    assert (job.state, job.counts.sent) == (State.STOPPED, 1)
    assert "is not known after 30 s" in job.reason


def test_a_second_run_is_not_fooled_by_the_copy_of_a_first_one_that_died() -> None:
    """Within five minutes SQS answers a FIFO send with the id of the first copy, which is back by now."""
    with site(BROKER, fifo=True) as fifo:
        fifo.dead_letter("a1", "b1")

        class Died(BaseException):
            pass

        def die() -> None:
            raise Died

        with pytest.raises(Died):
            fifo.redriver(canary=1, crash=at("after_send", die)).run(Job("redrive", fifo.dead))
        worker = Worker(fifo, "a1", "b1")
        worker.driver.drain()
        fifo.place.clock.advance(130)
        job = fifo.redrive(canary=1, rest=worker.rest)
        assert job.state is State.STOPPED, job.reason
        assert "failed again" in job.reason


def test_what_comes_back_later_ends_the_redrive(either: Site) -> None:
    names = [f"{chr(97 + n)}1" for n in range(20)]
    either.dead_letter(*names)
    worker = Worker(either, *names[1:])
    now = [0.0]

    def monotonic() -> float:
        now[0] += 5.0
        return now[0]

    def crash(point: str) -> None:
        if point == "after_delete":
            worker.driver.drain()

    job = either.redrive(canary=1, rate=2, stop_after_failures=4, rest=worker.rest, monotonic=monotonic, crash=crash)
    assert job.state is State.STOPPED
    assert "4 messages came back" in job.reason
    assert job.counts.sent == 5
    assert sorted(either.dead_names("visible")) == sorted(names[1:])


def test_a_canary_is_spread_over_the_errors_and_takes_the_heads_of_groups() -> None:
    with site(BROKER, fifo=True) as fifo:
        for name in ("a1", "a2", "b1"):
            fifo.dead_letter(name, error="timeout")
        fifo.dead_letter("c1", error="no such country")
        names: list[str] = []
        worker = Worker(fifo)
        fifo.redrive(canary=3, rest=worker.rest, crash=at("canary_sent", lambda: names.extend(fifo.names())))
        assert sorted(names) == ["a1", "b1", "c1"]


def message(n: int, error: str) -> DeadLetterMessage:
    return DeadLetterMessage(str(n), "dead", "", 0.0, 1, error=error, by_semel=True)


def test_each_kind_of_error_has_its_turn() -> None:
    messages = [message(n, "timeout") for n in range(8)] + [message(8, "bad country"), message(9, "no stock")]
    assert [message.id for message in choose(messages, 3)] == ["0", "8", "9"]
    assert [message.id for message in choose(messages, 5)] == ["0", "1", "2", "8", "9"]
    assert len(choose(messages, 50)) == 10
    assert choose([], 3) == []
    assert [message.id for message in choose(messages, 2)] == ["0", "8"]


def test_it_is_waited_as_long_as_a_message_is_tried_twice_over() -> None:
    with site() as standard:
        make: Callable[..., Any] = standard.place.queue
        assert default_wait([make("quick", VisibilityTimeout=1, dlq="d1", receives=2)]) == 60
        assert default_wait([make("usual", VisibilityTimeout=30, dlq="d1", receives=5)]) == 300
        assert default_wait([make("slow", VisibilityTimeout=3600, dlq="d1", receives=5)]) == 900
        assert default_wait([make("none")]) == 60


# Where only SQS's calls are.


def test_with_a_ledger_the_outcome_is_known_there_too() -> None:
    with site(SQS) as standard:
        standard.dead_letter("a1", "b1", "c1")
        worker = Worker(standard)
        job = standard.redrive(canary=2, ledger=standard.place.ledger, rest=worker.rest)
        assert (job.state, job.counts.sent) == (State.DONE, 3)
        worker.driver.drain()
        worker = Worker(standard, "a1", "b1", "c1")
        standard.place.ledger.forget([standard.place.ledger_key(name) for name in ("a1", "b1", "c1")])
        standard.dead_letter("a1", "b1", "c1")
        job = standard.redrive(canary=2, ledger=standard.place.ledger, rest=worker.rest)
        assert job.state is State.STOPPED
        assert "rejected, as the ledger says" in job.reason
        standard.place.clock.advance(2_000)
        assert sorted(standard.dead_names("visible")) == ["a1", "b1", "c1"]


def test_a_ledger_that_knows_nothing_of_them_is_a_reason_to_stop() -> None:
    with site(SQS) as standard:
        standard.dead_letter("a1", "b1")
        advance = standard.place.clock.advance
        job = standard.redrive(
            canary=1, canary_wait=10, ledger=standard.place.ledger, rest=lambda _job, seconds: advance(seconds)
        )
        assert job.state is State.STOPPED
        assert "is not known after 10 s" in job.reason


@pytest.mark.parametrize("bad", [True, False])
def test_without_one_it_is_watched_whether_the_queue_grows(bad: bool) -> None:
    with site(SQS) as standard:
        standard.dead_letter("a1", "b1", "c1")
        worker = Worker(standard, *(("a1", "b1", "c1") if bad else ()))
        job = standard.redrive(canary=1, canary_wait=20, rest=worker.rest)
        if bad:
            assert job.state is State.STOPPED
            assert "dead has grown by 1 since" in job.reason
            assert sorted(standard.dead_names("visible")) == ["a1", "b1", "c1"]
        else:
            assert (job.state, job.counts.sent) == (State.DONE, 3)
            assert any("No more is known here" in line.text for line in job.messages)


def test_a_key_that_belongs_to_something_else_is_a_failure() -> None:
    """Done under that key was another message; this one is a conflict, and dies again."""
    for mode in MODES:
        with site(mode) as standard:
            worker = Worker(standard)
            standard.send("a1")
            worker.driver.drain()
            standard.place.send({"name": "a1", "total": 7})
            worker.driver.drain()
            assert standard.dead_names() == ["a1"]
            job = standard.redrive(canary=1, ledger=standard.place.ledger, rest=worker.rest)
            assert job.state is State.STOPPED
            assert ("conflict" if mode == BROKER else "rejected, as the ledger says") in job.reason


def test_what_was_done_before_it_died_is_no_failure() -> None:
    for mode in MODES:
        with site(mode) as standard:
            worker = Worker(standard)
            standard.dead_letter("a1", "b1")
            (message, _) = standard.place.messages(standard.dead)
            body, wire = message["Body"], message["MessageAttributes"]
            standard.place.client.queue(standard.queue).call(
                "SendMessage", {"MessageBody": body, "MessageAttributes": {"semel-key": wire["semel-key"]}}
            )
            worker.driver.drain()
            assert worker.done == ["a1"]
            job = standard.redrive(canary=1, ledger=standard.place.ledger, rest=worker.rest)
            assert (job.state, job.counts.sent) == (State.DONE, 2)
            assert worker.done == ["a1"]


def test_the_latest_return_is_last_even_if_that_copy_had_come_back_before() -> None:
    """A redrive that stops itself quotes it."""
    with site() as place:
        dead, admin = place.client.queue(place.dead), Admin.of(place.client)
        assert admin is not None
        returns = Returns(admin, place.client, place.dead)
        returns.watch_copies(["copy-1", "copy-2"])
        for copy, error in (("copy-1", "first"), ("copy-2", "second"), ("copy-1", "third")):
            details = DeadLetterDetails("key", "ValueError", error, 1, copy, place.queue)
            dead.send("{}", attributes=attributes(details, {}, 2))
        assert list(returns.check().items()) == [("copy-2", "ValueError: second"), ("copy-1", "ValueError: third")]
