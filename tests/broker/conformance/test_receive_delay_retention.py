"""Rules 14 to 22: polling, delay, retention, counts."""

from __future__ import annotations

import time

import pytest

from .conftest import Alongside
from .service import Counts, Sqs, bodies, dial, json_call, json_request

DAY = 86_400


# ---- polling --------------------------------------------------------------------------------------------------------


def test_an_empty_queue_answers_without_a_messages_key(sqs: Sqs) -> None:
    """Rule 14."""
    assert sqs.receive_message(QueueUrl=sqs.create()) == {}


def test_an_empty_answer_in_json_is_an_empty_object(json_sqs: Sqs) -> None:
    """Rule 14: `{}`."""
    assert json_call(json_sqs.broker, "ReceiveMessage", {"QueueUrl": json_sqs.create()}).body == b"{}"


@pytest.mark.parametrize("by", ["request", "queue"])
def test_an_empty_long_poll_ends_after_exactly_the_wait(json_sqs: Sqs, by: str) -> None:
    """Rule 14; 1.4: ReceiveMessageWaitTimeSeconds. The one place where real time passes."""
    url = json_sqs.create(**({"ReceiveMessageWaitTimeSeconds": 1} if by == "queue" else {}))
    began = time.monotonic()
    assert json_sqs.receive(url, **({"WaitTimeSeconds": 1} if by == "request" else {})) == []
    assert 0.95 <= time.monotonic() - began < 4


def test_a_long_poll_ends_when_the_clock_passes_its_wait(sqs: Sqs, alongside: Alongside) -> None:
    """Rule 14, by the manual clock."""
    url = sqs.create()
    poll = alongside(sqs.receive, url, WaitTimeSeconds=20)
    for _ in range(100):
        time.sleep(0.02)
        sqs.advance(20)
        if poll.done():
            break
    assert poll.result(timeout=1) == []


@pytest.mark.parametrize("fifo", [False, True])
def test_a_send_wakes_a_long_poll(sqs: Sqs, alongside: Alongside, fifo: bool) -> None:
    """Rule 15: returns as soon as ≥ 1 message is there; it does not wait to fill MaxNumberOfMessages."""
    url = sqs.create_fifo() if fifo else sqs.create()
    poll = alongside(sqs.receive, url, WaitTimeSeconds=20)
    time.sleep(0.05)
    began = time.monotonic()
    sqs.send(url, "news", **({"MessageGroupId": "g"} if fifo else {}))
    assert bodies(poll.result(timeout=10)) == ["news"]
    assert time.monotonic() - began < 8


def test_a_send_wakes_a_long_poll_that_arrives_in_the_same_instant(json_sqs: Sqs) -> None:
    """Rule 15: however the two meet, the poll does not sleep on while a message is there."""
    url = json_sqs.create()
    poll = json_request("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 20})
    send = json_request("SendMessage", {"QueueUrl": url, "MessageBody": "news"})
    with dial(json_sqs.broker) as receiver, dial(json_sqs.broker) as sender:
        for _ in range(30):
            receiver.sendall(poll)
            sender.sendall(send)
            assert b'"news"' in receiver.recv(65536)
            assert b'"MessageId"' in sender.recv(65536)


def test_a_batch_send_wakes_several_long_polls(sqs: Sqs, alongside: Alongside) -> None:
    """Rule 15: every waiting poll gets its share, none gets the same message."""
    url = sqs.create()
    polls = [alongside(sqs.receive, url, 1, WaitTimeSeconds=20) for _ in range(3)]
    time.sleep(0.05)
    batch = [{"Id": body, "MessageBody": body} for body in "abc"]
    sqs.send_message_batch(QueueUrl=url, Entries=batch)
    assert sorted(body for poll in polls for body in bodies(poll.result(timeout=10))) == ["a", "b", "c"]


def test_a_message_that_is_there_ends_a_long_poll_at_once(sqs: Sqs) -> None:
    """Rule 15."""
    url = sqs.create()
    sqs.send(url)
    began = time.monotonic()
    assert len(sqs.receive(url, WaitTimeSeconds=20)) == 1
    assert time.monotonic() - began < 8


def test_a_wait_of_zero_overrides_the_queues(sqs: Sqs) -> None:
    """Rule 15: WaitTimeSeconds=0 in the request overrides a queue wait > 0."""
    url = sqs.create(ReceiveMessageWaitTimeSeconds=20)
    began = time.monotonic()
    assert sqs.receive(url, WaitTimeSeconds=0) == []
    assert time.monotonic() - began < 8


def test_the_queues_wait_makes_a_receive_a_long_poll(sqs: Sqs, alongside: Alongside) -> None:
    """Rule 15; 1.4: ReceiveMessageWaitTimeSeconds."""
    url = sqs.create(ReceiveMessageWaitTimeSeconds=20)
    poll = alongside(sqs.receive, url)
    time.sleep(0.1)
    assert not poll.done()
    sqs.send(url, "news")
    assert bodies(poll.result(timeout=10)) == ["news"]


@pytest.mark.parametrize("fifo", [False, True])
def test_the_end_of_a_timeout_wakes_a_long_poll(sqs: Sqs, alongside: Alongside, fifo: bool) -> None:
    """Rule 15: as soon as a message is there, also one whose visibility ended."""
    url = sqs.create_fifo(VisibilityTimeout=5) if fifo else sqs.create(VisibilityTimeout=5)
    sqs.send(url, "again", **({"MessageGroupId": "g"} if fifo else {}))
    sqs.receive_one(url)
    poll = alongside(sqs.receive, url, WaitTimeSeconds=20)
    time.sleep(0.05)
    sqs.advance(5)
    assert bodies(poll.result(timeout=10)) == ["again"]


@pytest.mark.parametrize("fifo", [False, True])
def test_the_end_of_a_delay_wakes_a_long_poll(sqs: Sqs, alongside: Alongside, fifo: bool) -> None:
    """Rule 15: as soon as a message is there, also one whose delay ended."""
    url = sqs.create_fifo(DelaySeconds=5) if fifo else sqs.create(DelaySeconds=5)
    sqs.send(url, "late", **({"MessageGroupId": "g"} if fifo else {}))
    poll = alongside(sqs.receive, url, WaitTimeSeconds=20)
    time.sleep(0.05)
    sqs.advance(5)
    assert bodies(poll.result(timeout=10)) == ["late"]


def test_deleting_the_group_in_flight_wakes_a_long_poll(sqs: Sqs, alongside: Alongside) -> None:
    """Rules 15 and 36: the next of the group is there once the first is gone."""
    url = sqs.create_fifo()
    sqs.send_all(url, "a", "b", MessageGroupId="g")
    first = sqs.receive_one(url)
    poll = alongside(sqs.receive, url, WaitTimeSeconds=20)
    time.sleep(0.05)
    sqs.delete(url, first)
    assert bodies(poll.result(timeout=10)) == ["b"]


@pytest.mark.parametrize("most", [1, 3, 10])
def test_a_short_poll_returns_as_many_as_were_asked_for(sqs: Sqs, most: int) -> None:
    """Rule 16: like other emulators we return the maximum, unless a fault is set."""
    url = sqs.create()
    batch = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(10)]
    sqs.send_message_batch(QueueUrl=url, Entries=batch)
    assert len(sqs.receive(url, most)) == most
    assert len(sqs.receive(url)) == 10 - most


# ---- delay ----------------------------------------------------------------------------------------------------------


def test_a_message_can_be_delayed_by_itself(sqs: Sqs) -> None:
    """Rule 17."""
    url = sqs.create()
    sqs.send(url, DelaySeconds=900)
    sqs.advance(899.5)
    assert sqs.receive(url) == []
    sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


def test_a_queue_delays_every_message(sqs: Sqs) -> None:
    """Rule 17; 1.4: DelaySeconds."""
    url = sqs.create(DelaySeconds=10)
    sqs.send(url)
    sqs.advance(9.5)
    assert sqs.receive(url) == []
    sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


@pytest.mark.parametrize("seconds", [0, 5, 60])
def test_the_messages_delay_overrides_the_queues(sqs: Sqs, seconds: int) -> None:
    """Rule 17: per-message overrides the queue's, also explicit 0."""
    url = sqs.create(DelaySeconds=30)
    sqs.send(url, DelaySeconds=seconds)
    if seconds:
        sqs.advance(seconds - 0.5)
        assert sqs.receive(url) == []
        sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


def test_each_entry_of_a_batch_has_its_own_delay(sqs: Sqs) -> None:
    """Rule 17, SendMessageBatch."""
    url = sqs.create(DelaySeconds=30)
    batch = [
        {"Id": "a", "MessageBody": "now", "DelaySeconds": 0},
        {"Id": "b", "MessageBody": "soon", "DelaySeconds": 5},
        {"Id": "c", "MessageBody": "later"},
    ]
    sqs.send_message_batch(QueueUrl=url, Entries=batch)
    assert bodies(sqs.receive(url)) == ["now"]
    sqs.advance(5)
    assert bodies(sqs.receive(url)) == ["soon"]
    sqs.advance(25)
    assert "later" in bodies(sqs.receive(url))


@pytest.mark.parametrize(("before", "after"), [(100, 10), (10, 100)])
def test_a_change_of_the_queues_delay_is_not_retroactive_on_standard(sqs: Sqs, before: int, after: int) -> None:
    """Rule 17."""
    url = sqs.create(DelaySeconds=before)
    sqs.send(url)
    sqs.set(url, DelaySeconds=after)
    sqs.advance(before - 0.5)
    assert sqs.receive(url) == []
    sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


@pytest.mark.parametrize(("before", "after"), [(100, 10), (10, 100)])
def test_a_change_of_the_queues_delay_is_retroactive_on_fifo(sqs: Sqs, before: int, after: int) -> None:
    """Rule 17."""
    url = sqs.create_fifo(DelaySeconds=before)
    sqs.send(url, MessageGroupId="g")
    sqs.set(url, DelaySeconds=after)
    sqs.advance(after - 0.5)
    assert sqs.receive(url) == []
    sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


def test_a_delay_that_shrinks_below_the_age_ends_at_once_on_fifo(sqs: Sqs) -> None:
    """Rule 17: retroactive on FIFO."""
    url = sqs.create_fifo(DelaySeconds=100)
    sqs.send(url, MessageGroupId="g")
    sqs.advance(50)
    sqs.set(url, DelaySeconds=10)
    assert len(sqs.receive(url)) == 1


def test_a_zero_on_a_fifo_message_means_the_queues_delay(sqs: Sqs) -> None:
    """Rule 17: FIFO: per-message > 0 rejected (1.3), 0 accepted but means "queue delay"."""
    url = sqs.create_fifo(DelaySeconds=10)
    sqs.send(url, MessageGroupId="g", DelaySeconds=0)
    assert sqs.receive(url) == []
    sqs.advance(10)
    assert len(sqs.receive(url)) == 1


def test_a_delayed_message_is_not_in_flight(sqs: Sqs) -> None:
    """Rule 17: delayed ≠ in flight in the counts."""
    url = sqs.create()
    sqs.send(url, DelaySeconds=10)
    assert sqs.counts(url) == Counts(delayed=1)
    sqs.advance(10)
    assert sqs.counts(url) == Counts(visible=1)


# ---- retention ------------------------------------------------------------------------------------------------------


def test_a_message_vanishes_at_the_end_of_its_retention(sqs: Sqs) -> None:
    """Rule 18; 1.4: MessageRetentionPeriod."""
    url = sqs.create(MessageRetentionPeriod=60)
    sqs.send(url)
    sqs.advance(59)
    assert sqs.counts(url) == Counts(visible=1)
    sqs.advance(2)
    assert sqs.counts(url) == Counts()
    assert sqs.receive(url) == []


def test_messages_are_kept_four_days_by_default(sqs: Sqs) -> None:
    """Rule 18; 1.4: 345600."""
    url = sqs.create()
    sqs.send(url)
    sqs.advance(4 * DAY - 10)
    assert sqs.counts(url) == Counts(visible=1)
    sqs.advance(11)
    assert sqs.counts(url) == Counts()


def test_retention_runs_on_while_a_message_is_in_flight(sqs: Sqs) -> None:
    """Rule 18: expired messages vanish also when in flight; from SentTimestamp, not from a receive."""
    url = sqs.create(MessageRetentionPeriod=60)
    sqs.send(url)
    sqs.advance(50)
    message = sqs.receive_one(url, VisibilityTimeout=300)
    sqs.advance(11)
    assert sqs.counts(url) == Counts()
    sqs.delete(url, message)


def test_retention_runs_on_while_a_message_is_delayed(sqs: Sqs) -> None:
    """Rule 18: expired messages vanish also when delayed."""
    url = sqs.create(MessageRetentionPeriod=60)
    sqs.send(url, DelaySeconds=900)
    assert sqs.counts(url) == Counts(delayed=1)
    sqs.advance(61)
    assert sqs.counts(url) == Counts()
    sqs.advance(900)
    assert sqs.receive(url) == []


def test_an_expired_fifo_message_frees_its_group(sqs: Sqs) -> None:
    """Rules 18 and 36."""
    url = sqs.create_fifo(MessageRetentionPeriod=60)
    sqs.send(url, "old", MessageGroupId="g")
    sqs.advance(30)
    sqs.send(url, "young", MessageGroupId="g")
    sqs.receive(url, 1, VisibilityTimeout=300)
    sqs.advance(31)
    assert bodies(sqs.receive(url)) == ["young"]


def test_lowering_the_retention_expires_old_messages(sqs: Sqs) -> None:
    """Rule 18; 1.4: may expire existing messages; propagation up to 15 min."""
    url = sqs.create()
    sqs.send(url, "old")
    sqs.advance(7200)
    sqs.send(url, "young")
    sqs.set(url, MessageRetentionPeriod=3600)
    sqs.advance(900)
    assert bodies(sqs.receive(url)) == ["young"]


def test_raising_the_retention_keeps_messages_longer(sqs: Sqs) -> None:
    """Rule 18: the period is the queue's, counted from SentTimestamp."""
    url = sqs.create(MessageRetentionPeriod=7200)
    sqs.send(url)
    sqs.set(url, MessageRetentionPeriod=14 * DAY)
    sqs.advance(14 * DAY - 10)
    assert sqs.counts(url) == Counts(visible=1)
    sqs.advance(11)
    assert sqs.counts(url) == Counts()


@pytest.mark.parametrize(("fifo", "lives"), [(False, 100), (True, 150)])
def test_a_dead_letter_expires_by_the_rule_of_its_type(sqs: Sqs, fifo: bool, lives: int) -> None:
    """Rule 19: standard keeps the enqueue time for expiry, FIFO resets it."""
    source, dead = sqs.create_pair(max_receives=1, fifo=fifo)
    sqs.set(dead, MessageRetentionPeriod=100)
    sqs.send(source, **({"MessageGroupId": "g"} if fifo else {}))
    sqs.receive_one(source)
    sqs.advance(50)
    assert sqs.receive(source) == []
    assert sqs.counts(dead) == Counts(visible=1)
    sqs.advance(lives - 51)
    assert sqs.counts(dead) == Counts(visible=1)
    sqs.advance(2)
    assert sqs.counts(dead) == Counts()


# ---- counts and times -----------------------------------------------------------------------------------------------


def test_the_receive_count_goes_on_in_the_dead_letter_queue(sqs: Sqs) -> None:
    """Rule 20: DLQ receive of a maxReceiveCount-1 message shows 2."""
    source, dead = sqs.create_pair(max_receives=1)
    sqs.send(source)
    assert sqs.receive_one(source, VisibilityTimeout=0)["Attributes"]["ApproximateReceiveCount"] == "1"
    assert sqs.receive(source) == []
    assert sqs.receive_one(dead)["Attributes"]["ApproximateReceiveCount"] == "2"


def test_a_chain_of_dead_letter_queues_counts_in_each_by_itself(sqs: Sqs) -> None:
    """Rule 20: the decision uses the count in the present queue, the attribute counts across all."""
    last = sqs.create("last")
    middle = sqs.create("middle", RedrivePolicy=sqs.redrive_policy(last, 2))
    first = sqs.create("first", RedrivePolicy=sqs.redrive_policy(middle, 3))
    sqs.send(first)
    receive_counts = []
    for url, times in ((first, 3), (middle, 2), (last, 2)):
        for _ in range(times):
            receive_counts.append(sqs.receive_one(url, VisibilityTimeout=0)["Attributes"]["ApproximateReceiveCount"])
        if url != last:
            assert sqs.receive(url, VisibilityTimeout=0) == []
    assert receive_counts == ["1", "2", "3", "4", "5", "6", "7"]


def test_the_first_receive_is_timed_once(sqs: Sqs) -> None:
    """Rule 21."""
    url = sqs.create()
    sqs.send(url)
    sqs.advance(5)
    first = sqs.receive_one(url)["Attributes"]
    name = "ApproximateFirstReceiveTimestamp"
    for _ in range(3):
        sqs.advance(60)
        assert sqs.receive_one(url)["Attributes"][name] == first[name]
    assert int(first[name]) - int(first["SentTimestamp"]) == pytest.approx(5000, abs=2)


@pytest.mark.parametrize("fifo", [False, True])
def test_the_time_of_sending_survives_the_move_to_the_dead_letter_queue(sqs: Sqs, fifo: bool) -> None:
    """Rule 21."""
    source, dead = sqs.create_pair(max_receives=1, fifo=fifo)
    sqs.send(source, **({"MessageGroupId": "g"} if fifo else {}))
    before = sqs.receive_one(source)["Attributes"]
    sqs.advance(60)
    assert sqs.receive(source) == []
    sqs.advance(60)
    after = sqs.receive_one(dead)["Attributes"]
    assert after["SentTimestamp"] == before["SentTimestamp"]


def test_a_standard_message_received_thrice_goes_to_the_back(sqs: Sqs) -> None:
    """Rule 22: after 3+ receives without delete."""
    url = sqs.create()
    sqs.send_all(url, "stubborn", "patient")
    received_bodies = [sqs.receive_one(url, VisibilityTimeout=0)["Body"] for _ in range(5)]
    assert "patient" in received_bodies


def test_a_fifo_message_never_loses_its_place(sqs: Sqs) -> None:
    """Rule 22: FIFO never reorders."""
    url = sqs.create_fifo()
    sqs.send_all(url, "first", "second", MessageGroupId="g")
    assert [sqs.receive_one(url, VisibilityTimeout=0)["Body"] for _ in range(8)] == ["first"] * 8


def test_messages_of_a_standard_queue_come_about_in_order(sqs: Sqs) -> None:
    """Rule 22 leaves order alone otherwise: one sender, one receiver, nothing lost, nothing twice."""
    url = sqs.create()
    sent = [f"m{number}" for number in range(25)]
    sqs.send_all(url, *sent)
    received_bodies: list[str] = []
    while batch := sqs.receive(url):
        received_bodies += bodies(batch)
    assert sorted(received_bodies) == sorted(sent)
