"""Redrive with a move task of SQS: only on request, and only for messages that carry their keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dlq.redrives import BROKER, MODES, SQS, Site, at, site
from semel.dlq.jobs import Job, State
from semel.dlq.redrive.plan import Engine, PlanError, RedrivePlan
from semel.sqs import Client


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def either(request: pytest.FixtureRequest) -> Iterator[Site]:
    with site(BROKER, fifo=request.param) as either:
        yield either


def rest_of(place: Site) -> Any:
    def rest(_job: Job, seconds: float) -> None:
        place.place.clock.advance(seconds)

    return rest


def move(place: Site, **options: Any) -> Job:
    return place.redrive(**({"engine": "sqs-move", "rest": rest_of(place)} | options))


def moved(job: Job) -> bool:
    return any("SQS moves the messages" in line.text for line in job.messages)


def test_messages_that_carry_their_keys_are_moved_and_run_under_them(either: Site) -> None:
    either.dead_letter("a1", "a2", "b1")
    job = move(either)
    assert (job.state, job.reason) == (State.DONE, "")
    assert moved(job)
    assert (job.counts.sent, job.counts.deleted, job.total) == (3, 3, 3)
    assert either.dead_names() == []
    keys = [attributes["semel-key"] for attributes in either.attributes()]
    assert sorted(keys) == ["a1", "a2", "b1"]
    assert keys.index("a1") < keys.index("a2")
    assert sorted(either.processed()) == ["a1", "a2", "b1"]


def test_a_move_is_made_only_if_it_is_asked_for(either: Site) -> None:
    """What SQS moves by itself nobody watches: a redrive that stops when messages come back must not be one."""
    either.dead_letter("a1", "a2", "b1")
    job = either.redrive()
    assert (job.state, moved(job), either.dead_names()) == (State.DONE, False, [])
    assert {attributes["semel-redrives"] for attributes in either.attributes()} == {"1"}


def test_one_message_without_a_key_is_reason_enough_not_to_move_any(either: Site) -> None:
    either.dead_letter("a1", "b1")
    either.moved("c1")
    job = move(either)
    assert job.state is State.FAILED
    assert "does not carry its key" in job.reason
    assert sorted(either.dead_names("visible")) == ["a1", "b1", "c1"]


def test_messages_of_several_queues_are_not_moved_into_one(either: Site) -> None:
    other = "invoices.fifo" if either.fifo else "invoices"
    either.place.queue(other, dlq=either.dead)
    either.dead_letter("a1")
    home, either.queue = either.queue, other
    either.dead_letter("b1")
    either.queue = home
    job = move(either)
    assert job.state is State.FAILED
    assert "messages go to" in job.reason
    assert sorted(either.dead_names("visible")) == ["a1", "b1"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"where": "country"}, "a filter"),
        ({"ids": ("x",)}, "ids"),
        ({"all": True, "limit": 5}, "a limit"),
        ({"all": True, "rate": 0.5}, "a rate of 0.5"),
        ({"all": True, "rate": 501}, "a rate of 501"),
        ({"all": True, "stop_after_failures": 1}, "a stop after failures"),
        ({"all": True, "canary": 1}, "a canary"),
        ({"all": True, "canary_wait": 5}, "a canary"),
        ({"all": True, "dry_run": True}, "a dry run"),
    ],
)
def test_what_a_move_cannot_honour_is_refused_and_not_ignored(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanError, match=f"SQS's move task cannot have {named}"):
        RedrivePlan(queue="dead", engine=Engine.SQS_MOVE, **({"canary": 0} | options))


def test_a_redrive_of_semels_own_messages_stops_when_they_come_back() -> None:
    with site(BROKER) as standard:
        names = [f"{n:03}" for n in range(30)]
        standard.dead_letter(*names)

        def fail() -> None:
            standard.dead_letter()  # a worker rejects all that is in the queue

        now = [0.0]

        def monotonic() -> float:
            now[0] += 10.0
            return now[0]

        job = standard.redrive(rate=5, stop_after_failures=2, monotonic=monotonic, crash=at("after_send", fail))
        assert job.state is State.STOPPED
        assert "came back" in job.reason
        assert job.counts.sent < 30


def test_a_move_that_somebody_else_cancels_is_not_done(either: Site) -> None:
    either.dead_letter(*[f"{chr(97 + n)}1" for n in range(10)])

    def rest(_job: Job, seconds: float) -> None:
        either.place.clock.advance(1)
        tasks = either.place.client.call("ListMessageMoveTasks", {"SourceArn": either.client.queue(either.dead).arn})
        (handle,) = [task["TaskHandle"] for task in tasks["Results"] if task["Status"] == "RUNNING"]
        either.place.client.call("CancelMessageMoveTask", {"TaskHandle": handle})

    job = either.redrive(engine="sqs-move", rate=2, rest=rest)
    assert job.state is State.FAILED
    assert "cancelled by somebody else" in job.reason


def test_a_move_that_ended_before_is_not_mistaken_for_this_one(either: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQS lists a task a moment after it was started; until then the newest on the list is another."""
    either.dead_letter("a1")
    assert move(either).state is State.DONE
    either.dead_letter("b1", "c1")  # its worker rejects a1 too
    call, late = Client.call, [2]

    def listed_late(client: Client, operation: str, params: Any, **options: Any) -> Any:
        answer = call(client, operation, params, **options)
        if operation == "ListMessageMoveTasks" and len(answer["Results"]) > 1 and late[0]:
            late[0] -= 1
            return {"Results": answer["Results"][1:]}
        return answer

    monkeypatch.setattr(Client, "call", listed_late)
    job = move(either)
    assert (job.state, job.counts.sent, late) == (State.DONE, 3, [0])
    assert either.dead_names() == []


def test_a_move_that_a_killed_process_left_in_sqs_is_followed_by_the_next_run(either: Site) -> None:
    either.dead_letter(*[f"{chr(97 + n)}1" for n in range(10)])
    source, target = either.client.queue(either.dead), either.client.queue(either.queue)
    task = {"SourceArn": source.arn, "DestinationArn": target.arn, "MaxNumberOfMessagesPerSecond": 2}
    handle = either.place.client.call("StartMessageMoveTask", task)["TaskHandle"]
    job = move(either)
    assert (job.state, job.counts.sent, job.result["task_handle"]) == (State.DONE, 10, handle)
    assert any("is running already" in line.text for line in job.messages)
    assert len(either.names()) == 10


def test_a_move_to_another_queue_that_is_running_is_named_and_left_alone(either: Site) -> None:
    either.dead_letter(*[f"{chr(97 + n)}1" for n in range(10)])
    other = either.place.queue("elsewhere.fifo" if either.fifo else "elsewhere")
    source = either.client.queue(either.dead)
    task = {"SourceArn": source.arn, "DestinationArn": other.arn, "MaxNumberOfMessagesPerSecond": 1}
    handle = either.place.client.call("StartMessageMoveTask", task)["TaskHandle"]
    job = move(either)
    assert job.state is State.FAILED
    assert f"cancel-message-move-task --task-handle {handle}" in job.reason


def test_a_rate_is_handed_on(either: Site) -> None:
    either.dead_letter("a1", "b1", "c1")
    job = move(either, rate=2)
    assert moved(job)
    task = either.place.client.call("ListMessageMoveTasks", {"SourceArn": either.client.queue(either.dead).arn})
    assert task["Results"][0]["MaxNumberOfMessagesPerSecond"] == 2
    assert sorted(either.names()) == ["a1", "b1", "c1"]


def test_a_cancelled_move_ends_the_task_and_the_rest_stays(either: Site) -> None:
    either.dead_letter(*[f"{chr(97 + n)}1" for n in range(10)])
    job = Job("redrive", either.dead)

    def rest(_job: Job, seconds: float) -> None:
        either.place.clock.advance(1)
        if job.counts.sent >= 4:
            job.cancel()

    job.run(either.redriver(engine="sqs-move", rate=2, rest=rest).run)
    assert job.state is State.CANCELLED
    either.place.clock.advance(60)
    assert len(either.names()) == job.counts.sent < 10
    assert len(either.names()) + len(either.dead_names("visible")) == 10


def test_a_paused_move_stands_still_and_goes_on_with_the_rest(either: Site) -> None:
    either.dead_letter(*[f"{chr(97 + n)}1" for n in range(10)])
    job = Job("redrive", either.dead)
    stood: list[tuple[int, int]] = []

    def rest(_job: Job, seconds: float) -> None:
        either.place.clock.advance(1)
        if job.counts.sent >= 4 and not stood:
            job.pause()

    real = job.checkpoint

    def checkpoint(before_pause: Any = None) -> None:
        if job.pausing:
            before = len(either.names())
            either.place.clock.advance(60)
            stood.append((before, len(either.names())))
            job.resume()
        real(before_pause)

    job.checkpoint = checkpoint  # type: ignore[method-assign]
    job.run(either.redriver(engine="sqs-move", rate=2, rest=rest).run)
    assert (job.state, job.reason) == (State.DONE, "")
    assert stood
    assert stood[0][0] == stood[0][1] < 10
    assert len(either.names()) == 10
    assert job.counts.sent == 10


def test_on_sqs_it_is_said_how_many_messages_were_not_checked() -> None:
    with site(SQS) as standard:
        standard.dead_letter(*[f"{n:03}" for n in range(101)])
        job = move(standard)
        assert (job.state, moved(job), job.counts.sent) == (State.DONE, True, 101)
        assert any("only 100 were checked" in line.text for line in job.messages)


def test_a_queue_without_messages_is_done_at_once() -> None:
    for mode in MODES:
        with site(mode) as standard:
            job = move(standard)
            assert (job.state, job.counts.sent) == (State.DONE, 0)
