"""Rules 28 to 30: move tasks, their progress and their end."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from .service import INVALID_VALUE, NOT_FOUND, Counts, Sqs, bodies, refused


def kill(sqs: Sqs, source: str, *texts: str, **parameters: Any) -> None:
    """Send messages to `source` and let each become a dead letter (its policy says one delivery)."""
    for body in texts:
        sqs.send(source, body, **parameters)
        assert len(sqs.receive(source, 1, VisibilityTimeout=0)) == 1
        assert sqs.receive(source, 1) == []


def start(sqs: Sqs, dead: str, to: str | None = None, rate: int | None = None) -> str:
    optional: dict[str, Any] = {}
    if to is not None:
        optional["DestinationArn"] = sqs.arn(to)
    if rate is not None:
        optional["MaxNumberOfMessagesPerSecond"] = rate
    handle: str = sqs.start_message_move_task(SourceArn=sqs.arn(dead), **optional)["TaskHandle"]
    return handle


def tasks(sqs: Sqs, dead: str, most: int = 1) -> list[dict[str, Any]]:
    move_tasks: list[dict[str, Any]] = sqs.list_message_move_tasks(SourceArn=sqs.arn(dead), MaxResults=most)["Results"]
    return move_tasks


def finish(sqs: Sqs, dead: str) -> dict[str, Any]:
    """Let time pass until the newest task is over."""
    for _ in range(60):
        (task,) = tasks(sqs, dead)
        if task["Status"] not in ("RUNNING", "CANCELLING"):
            return task
        sqs.advance(1)
    raise AssertionError(f"still under way after a minute: {task}")


@pytest.mark.parametrize("fifo", [False, True])
def test_dead_letters_go_back_where_they_came_from(sqs: Sqs, fifo: bool) -> None:
    """Rule 28: no destination ⇒ each message goes to its own DeadLetterQueueSourceArn."""
    make, suffix = (sqs.create_fifo, ".fifo") if fifo else (sqs.create, "")
    dead = make(f"dead{suffix}")
    first_source = make(f"one{suffix}", RedrivePolicy=sqs.redrive_policy(dead))
    second_source = make(f"two{suffix}", RedrivePolicy=sqs.redrive_policy(dead))
    group = {"MessageGroupId": "g"} if fifo else {}
    kill(sqs, first_source, "from one", **group)
    kill(sqs, second_source, "from two", **group)
    start(sqs, dead)
    assert finish(sqs, dead)["Status"] == "COMPLETED"
    assert bodies(sqs.receive(first_source)) == ["from one"]
    assert bodies(sqs.receive(second_source)) == ["from two"]
    assert sqs.counts(dead) == Counts()


def test_dead_letters_go_where_they_are_told(sqs: Sqs) -> None:
    """Rule 28: DestinationArn."""
    source, dead = sqs.create_pair()
    other = sqs.create("other")
    kill(sqs, source, "a", "b")
    start(sqs, dead, to=other)
    assert finish(sqs, dead)["Status"] == "COMPLETED"
    assert sorted(bodies(sqs.receive(other))) == ["a", "b"]
    assert sqs.counts(source) == Counts()


def test_only_a_dead_letter_queue_can_be_emptied_this_way(sqs: Sqs) -> None:
    """Rule 28: source must be a DLQ of an SQS queue."""
    url, other = sqs.create("orders"), sqs.create("other")
    sqs.send(url)
    with refused(INVALID_VALUE):
        start(sqs, url, to=other)
    assert sqs.counts(url) == Counts(visible=1)


def test_the_oldest_dead_letters_move_first(sqs: Sqs) -> None:
    """Rule 28: oldest first."""
    source, dead = sqs.create_pair()
    for body in ("a", "b", "c", "d"):
        sqs.send(dead, body)
        sqs.advance(1)
    start(sqs, dead, to=source, rate=1)
    received_bodies: list[str] = []
    for _ in range(8):
        sqs.advance(1)
        received_bodies += bodies(sqs.receive(source))
    assert received_bodies == ["a", "b", "c", "d"]


def test_moved_messages_and_new_ones_share_the_queue(sqs: Sqs) -> None:
    """Rule 28: moved messages interleave with new ones."""
    source, dead = sqs.create_pair()
    sqs.send_all(dead, "old 1", "old 2")
    start(sqs, dead, to=source)
    sqs.send(source, "new")
    finish(sqs, dead)
    assert sorted(bodies(sqs.receive(source))) == ["new", "old 1", "old 2"]


def test_a_moved_message_is_a_new_one(sqs: Sqs) -> None:
    """Rule 28: new MessageId, new enqueue time; body and attributes stay."""
    source, dead = sqs.create_pair()
    attributes = {"colour": {"DataType": "String", "StringValue": "red"}}
    kill(sqs, source, "body", MessageAttributes=attributes)
    before = sqs.receive_one(dead, VisibilityTimeout=0)
    sqs.advance(3600)
    start(sqs, dead)
    finish(sqs, dead)
    after = sqs.receive_one(source)
    assert after["MessageId"] != before["MessageId"]
    assert int(after["Attributes"]["SentTimestamp"]) >= int(before["Attributes"]["SentTimestamp"]) + 3_600_000
    assert (after["Body"], after["MessageAttributes"]) == ("body", attributes)


def test_a_moved_message_starts_its_retention_afresh(sqs: Sqs) -> None:
    """Rule 28: retention reset."""
    source, dead = sqs.create_pair(MessageRetentionPeriod=1000)
    kill(sqs, source, "a")
    sqs.advance(900)
    start(sqs, dead)
    finish(sqs, dead)
    sqs.advance(900)
    assert sqs.counts(source) == Counts(visible=1)
    sqs.advance(101)
    assert sqs.counts(source) == Counts()


def test_a_moved_message_may_be_delivered_as_often_as_a_new_one(sqs: Sqs) -> None:
    """Rules 20 and 28: server-side receive count starts afresh."""
    source, dead = sqs.create_pair(max_receives=2)
    sqs.send(source)
    for _ in range(2):
        assert len(sqs.receive(source, VisibilityTimeout=0)) == 1
    assert sqs.receive(source) == []
    start(sqs, dead)
    finish(sqs, dead)
    for _ in range(2):
        assert len(sqs.receive(source, VisibilityTimeout=0)) == 1
    assert sqs.receive(source) == []
    assert sqs.counts(dead) == Counts(visible=1)


def test_fifo_dead_letters_keep_group_and_order(sqs: Sqs) -> None:
    """Rule 28 on FIFO."""
    source, dead = sqs.create_pair(fifo=True)
    kill(sqs, source, "a", "b", "c", MessageGroupId="g")
    start(sqs, dead)
    finish(sqs, dead)
    messages = sqs.receive(source, AttributeNames=["MessageGroupId"])
    assert bodies(messages) == ["a", "b", "c"]
    assert [message["Attributes"]["MessageGroupId"] for message in messages] == ["g"] * 3


def test_the_rate_holds_by_the_clock(sqs: Sqs) -> None:
    """Rules 28 and 29: MaxNumberOfMessagesPerSecond, and the progress that is told."""
    source, dead = sqs.create_pair()
    sqs.send_all(dead, *(f"m{number}" for number in range(10)))
    start(sqs, dead, to=source, rate=2)
    sqs.advance(2)
    (task,) = tasks(sqs, dead)
    assert task["Status"] == "RUNNING"
    assert task["MaxNumberOfMessagesPerSecond"] == 2
    assert 2 <= task["ApproximateNumberOfMessagesMoved"] <= 6
    assert task["ApproximateNumberOfMessagesToMove"] == 10
    assert sqs.counts(source).visible == task["ApproximateNumberOfMessagesMoved"]
    done = finish(sqs, dead)
    assert done["ApproximateNumberOfMessagesMoved"] == 10
    assert sqs.counts(source) == Counts(visible=10)


def test_a_move_wakes_the_long_polls_of_the_destination(sqs: Sqs) -> None:
    """Rules 15 and 28: moved messages are received like any others."""
    source, dead = sqs.create_pair()
    sqs.send(dead, "back")
    start(sqs, dead, to=source)
    finish(sqs, dead)
    assert bodies(sqs.receive(source, WaitTimeSeconds=20)) == ["back"]


def test_a_task_tells_what_it_does(sqs: Sqs) -> None:
    """Rule 29: fields of a running task; StartedTimestamp in ms."""
    source, dead = sqs.create_pair()
    sqs.send_all(dead, "a", "b", "c")
    handle = start(sqs, dead, to=source, rate=1)
    (task,) = tasks(sqs, dead)
    assert task["TaskHandle"] == handle
    assert task["Status"] == "RUNNING"
    assert task["SourceArn"] == sqs.arn(dead)
    assert task["DestinationArn"] == sqs.arn(source)
    assert abs(task["StartedTimestamp"] - sqs.now() * 1000) <= 1
    assert "FailureReason" not in task


def test_a_task_without_destination_or_rate_does_not_tell_them(sqs: Sqs) -> None:
    """Rule 29."""
    source, dead = sqs.create_pair()
    kill(sqs, source, "a")
    start(sqs, dead)
    task = finish(sqs, dead)
    assert not {"DestinationArn", "MaxNumberOfMessagesPerSecond"} & set(task)


def test_a_handle_is_base64_of_task_id_and_source(sqs: Sqs) -> None:
    """Rule 29: handle = base64 JSON {taskId, sourceArn}."""
    source, dead = sqs.create_pair()
    sqs.send(dead)
    handle = json.loads(base64.b64decode(start(sqs, dead, to=source)))
    assert handle["sourceArn"] == sqs.arn(dead)
    assert handle["taskId"]


def test_a_task_that_is_over_has_no_handle(sqs: Sqs) -> None:
    """Rule 29: TaskHandle only while RUNNING."""
    source, dead = sqs.create_pair()
    sqs.send(dead)
    start(sqs, dead, to=source)
    task = finish(sqs, dead)
    assert task["Status"] == "COMPLETED"
    assert "TaskHandle" not in task
    assert task["ApproximateNumberOfMessagesMoved"] == 1


def test_tasks_are_listed_newest_first_and_one_unless_more_are_asked_for(sqs: Sqs) -> None:
    """Rule 29: newest first, default 1."""
    source, dead = sqs.create_pair()
    for number in (1, 2, 3):
        sqs.send_all(dead, *(f"m{n}" for n in range(number)))
        start(sqs, dead, to=source)
        finish(sqs, dead)
        sqs.advance(10)
    assert [task["ApproximateNumberOfMessagesMoved"] for task in tasks(sqs, dead, 10)] == [3, 2, 1]
    assert [task["ApproximateNumberOfMessagesMoved"] for task in tasks(sqs, dead, 2)] == [3, 2]
    assert len(sqs.list_message_move_tasks(SourceArn=sqs.arn(dead))["Results"]) == 1


def test_a_queue_without_tasks_lists_none(sqs: Sqs) -> None:
    """Rule 29."""
    _, dead = sqs.create_pair()
    assert sqs.list_message_move_tasks(SourceArn=sqs.arn(dead)).get("Results", []) == []


def test_a_task_fails_when_its_destination_is_gone(sqs: Sqs) -> None:
    """Rule 29: FAILED + FailureReason, e.g. destination deleted mid-way."""
    _, dead = sqs.create_pair()
    other = sqs.create("other")
    sqs.send_all(dead, *(f"m{number}" for number in range(5)))
    start(sqs, dead, to=other, rate=1)
    sqs.advance(1)
    sqs.delete_queue(QueueUrl=other)
    task = finish(sqs, dead)
    assert task["Status"] == "FAILED"
    assert task["FailureReason"]
    assert "TaskHandle" not in task
    assert sqs.counts(dead).visible >= 1


def test_a_task_on_an_empty_queue_completes(sqs: Sqs) -> None:
    """Rule 29: COMPLETED."""
    source, dead = sqs.create_pair()
    start(sqs, dead, to=source)
    sqs.advance(1)
    task = finish(sqs, dead)
    assert task["Status"] == "COMPLETED"
    assert task.get("ApproximateNumberOfMessagesMoved", 0) == 0


def test_a_second_task_may_start_when_the_first_is_over(sqs: Sqs) -> None:
    """Rule 29; 1.6: 1 active per source queue."""
    source, dead = sqs.create_pair()
    sqs.send_all(dead, "a", "b")
    start(sqs, dead, to=source, rate=1)
    with refused(INVALID_VALUE):
        start(sqs, dead, to=source)
    finish(sqs, dead)
    start(sqs, dead, to=source)


def test_a_cancelled_task_stops_and_takes_nothing_back(sqs: Sqs) -> None:
    """Rule 30: returns count moved; nothing is rolled back."""
    source, dead = sqs.create_pair()
    sqs.send_all(dead, *(f"m{number}" for number in range(10)))
    handle = start(sqs, dead, to=source, rate=1)
    sqs.advance(3)
    moved = sqs.counts(source).visible
    assert 1 <= moved <= 5
    answer = sqs.cancel_message_move_task(TaskHandle=handle)
    assert answer == {"ApproximateNumberOfMessagesMoved": moved}
    assert tasks(sqs, dead)[0]["Status"] in ("CANCELLING", "CANCELLED")
    assert finish(sqs, dead)["Status"] == "CANCELLED"
    sqs.advance(60)
    assert sqs.counts(source) == Counts(visible=moved)
    assert sqs.counts(dead) == Counts(visible=10 - moved)


def test_a_task_can_be_cancelled_only_while_it_runs(sqs: Sqs) -> None:
    """Rule 30."""
    source, dead = sqs.create_pair()
    sqs.send_all(dead, "a", "b")
    handle = start(sqs, dead, to=source, rate=1)
    finish(sqs, dead)
    with refused({NOT_FOUND, INVALID_VALUE}):
        sqs.cancel_message_move_task(TaskHandle=handle)
    assert tasks(sqs, dead)[0]["Status"] == "COMPLETED"


def test_a_cancelled_task_makes_room_for_another(sqs: Sqs) -> None:
    """Rules 29 and 30."""
    source, dead = sqs.create_pair()
    sqs.send_all(dead, "a", "b", "c")
    sqs.cancel_message_move_task(TaskHandle=start(sqs, dead, to=source, rate=1))
    finish(sqs, dead)
    start(sqs, dead, to=source)
    finish(sqs, dead)
    assert sqs.counts(dead) == Counts()
    assert [task["Status"] for task in tasks(sqs, dead, 10)] == ["COMPLETED", "CANCELLED"]
