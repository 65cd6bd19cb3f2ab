"""Redrive by the service's own move task: only where nothing is chosen and every letter carries its key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dlq.redriving import BROKER, MODES, SQS, Site, site
from semel.dlq.jobs import Job, State


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def either(request: pytest.FixtureRequest) -> Iterator[Site]:
    with site(BROKER, fifo=request.param) as found:
        yield found


def rest_of(place: Site) -> Any:
    def rest(_job: Job, seconds: float) -> None:
        place.place.clock.advance(seconds)

    return rest


def auto(place: Site, **options: Any) -> Job:
    return place.redrive(**({"engine": "auto", "rest": rest_of(place)} | options))


def moved(job: Job) -> bool:
    return any("SQS moves them" in line.text for line in job.messages)


def test_letters_that_carry_their_keys_are_moved_and_run_under_them(either: Site) -> None:
    either.bury("a1", "a2", "b1")
    job = auto(either)
    assert (job.state, job.reason) == (State.DONE, "")
    assert moved(job)
    assert (job.counts.sent, job.counts.deleted, job.total) == (3, 3, 3)
    assert either.dead_names() == []
    keys = [found["semel-key"] for found in either.attributes()]
    assert sorted(keys) == ["a1", "a2", "b1"]
    assert keys.index("a1") < keys.index("a2")
    assert sorted(either.worked_off()) == ["a1", "a2", "b1"]


def test_one_letter_without_a_key_is_reason_enough_to_do_it_oneself(either: Site) -> None:
    either.bury("a1", "b1")
    (id,) = either.moved("c1")
    job = auto(either)
    assert (job.state, moved(job)) == (State.DONE, False)
    assert {"semel-message-id": id, "semel-redrives": "1"} in either.attributes()


def test_letters_of_several_queues_are_not_moved_into_one(either: Site) -> None:
    other = "invoices.fifo" if either.fifo else "invoices"
    either.place.queue(other, dlq=either.dead)
    either.bury("a1")
    home, either.queue = either.queue, other
    either.bury("b1")
    either.queue = home
    job = auto(either)
    assert (job.state, moved(job)) == (State.DONE, False)
    assert (either.names(home), either.names(other)) == (["a1"], ["b1"])


@pytest.mark.parametrize(
    "options", [{"where": "country"}, {"limit": 5}, {"rate": 0.5}, {"rate": 501}, {"engine": "stream"}]
)
def test_what_a_move_cannot_do_it_is_not_asked_for(either: Site, options: dict[str, Any]) -> None:
    either.bury("a1")
    job = auto(either, monotonic=_fast(), **options)
    assert (job.state, moved(job), either.names()) == (State.DONE, False, ["a1"])


def _fast() -> Any:
    now = [0.0]

    def monotonic() -> float:
        now[0] += 10.0
        return now[0]

    return monotonic


def test_a_move_that_was_asked_for_and_would_lose_a_key_is_refused(either: Site) -> None:
    either.moved("c1")
    job = auto(either, engine="move")
    assert job.state is State.FAILED
    assert "does not carry its key" in job.reason
    assert either.dead_names("visible") == ["c1"]


def test_a_rate_is_handed_on(either: Site) -> None:
    either.bury("a1", "b1", "c1")
    job = auto(either, rate=2)
    assert moved(job)
    task = either.place.client.call("ListMessageMoveTasks", {"SourceArn": either.client.queue(either.dead).arn})
    assert task["Results"][0]["MaxNumberOfMessagesPerSecond"] == 2
    assert sorted(either.names()) == ["a1", "b1", "c1"]


def test_a_cancelled_move_ends_the_task_and_the_rest_stays(either: Site) -> None:
    either.bury(*[f"{chr(97 + n)}1" for n in range(10)])
    job = Job("redrive", either.dead)

    def rest(_job: Job, seconds: float) -> None:
        either.place.clock.advance(1)
        if job.counts.sent >= 4:
            job.cancel()

    job.run(either.redriver(engine="auto", rate=2, rest=rest).run)
    assert job.state is State.CANCELLED
    either.place.clock.advance(60)
    assert len(either.names()) == job.counts.sent < 10
    assert len(either.names()) + len(either.dead_names("visible")) == 10


def test_a_paused_move_stands_still_and_goes_on_with_the_rest(either: Site) -> None:
    either.bury(*[f"{chr(97 + n)}1" for n in range(10)])
    job = Job("redrive", either.dead)
    stood: list[tuple[int, int]] = []

    def rest(_job: Job, seconds: float) -> None:
        either.place.clock.advance(1)
        if job.counts.sent >= 4 and not stood:
            job.pause()

    real = job.checkpoint

    def checkpoint() -> None:
        if job.pausing:
            before = len(either.names())
            either.place.clock.advance(60)
            stood.append((before, len(either.names())))
            job.resume()
        real()

    job.checkpoint = checkpoint  # type: ignore[method-assign]
    job.run(either.redriver(engine="auto", rate=2, rest=rest).run)
    assert (job.state, job.reason) == (State.DONE, "")
    assert stood
    assert stood[0][0] == stood[0][1] < 10
    assert len(either.names()) == 10
    assert job.counts.sent == 10


def test_where_looking_is_receiving_a_few_letters_are_looked_at_and_many_are_not_moved() -> None:
    with site(SQS) as standard:
        standard.bury("a1", "b1")
        assert moved(auto(standard))
        assert sorted(standard.names()) == ["a1", "b1"]
    with site(SQS) as standard:
        standard.bury(*[f"{n:03}" for n in range(101)])
        job = auto(standard)
        assert (job.state, moved(job), job.counts.sent) == (State.DONE, False, 101)
    with site(SQS) as standard:
        standard.bury(*[f"{n:03}" for n in range(101)])
        job = auto(standard, engine="move")
        assert (job.state, moved(job), job.counts.sent) == (State.DONE, True, 101)
        assert any("only 100 were looked at" in line.text for line in job.messages)


def test_a_queue_without_letters_is_done_at_once() -> None:
    for mode in MODES:
        with site(mode) as standard:
            job = auto(standard)
            assert (job.state, job.counts.sent) == (State.DONE, 0)
