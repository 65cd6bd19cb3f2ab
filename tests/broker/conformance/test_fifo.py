"""Rules 31 to 39: deduplication, sequence numbers, groups, and ReceiveRequestAttemptId."""

from __future__ import annotations

import hashlib

import pytest

from .service import Counts, Sqs, bodies, entries, refused


def sha(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def send(sqs: Sqs, url: str, body: str, group: str = "g", dedup: str | None = None) -> dict[str, str]:
    extra = {} if dedup is None else {"MessageDeduplicationId": dedup}
    return sqs.send(url, body, MessageGroupId=group, **extra)


# ---- deduplication --------------------------------------------------------------------------------------------------


def test_the_same_id_within_five_minutes_is_dropped(sqs: Sqs) -> None:
    """Rule 31: dedup window 5 min."""
    url = sqs.create_fifo()
    send(sqs, url, "a", dedup="d")
    sqs.advance(299)
    send(sqs, url, "a", dedup="d")
    assert sqs.counts(url) == Counts(visible=1)
    sqs.advance(2)
    send(sqs, url, "a", dedup="d")
    assert sqs.counts(url) == Counts(visible=2)


def test_a_duplicate_does_not_extend_the_window(sqs: Sqs) -> None:
    """Rule 31: from the first accepted send."""
    url = sqs.create_fifo()
    send(sqs, url, "a", dedup="d")
    for _ in range(2):
        sqs.advance(149)
        send(sqs, url, "a", dedup="d")
    assert sqs.counts(url) == Counts(visible=1)
    sqs.advance(3)
    send(sqs, url, "a", dedup="d")
    assert sqs.counts(url) == Counts(visible=2)


def test_the_window_survives_receive_and_delete(sqs: Sqs) -> None:
    """Rule 31."""
    url = sqs.create_fifo()
    send(sqs, url, "a", dedup="d")
    message = sqs.receive_one(url)
    send(sqs, url, "a", dedup="d")
    sqs.delete(url, message)
    send(sqs, url, "a", dedup="d")
    assert sqs.counts(url) == Counts()
    sqs.advance(301)
    send(sqs, url, "a", dedup="d")
    assert sqs.counts(url) == Counts(visible=1)


def test_the_window_survives_the_end_of_retention(sqs: Sqs) -> None:
    """Rule 31: five minutes, even if the message lives one."""
    url = sqs.create_fifo(MessageRetentionPeriod=60)
    send(sqs, url, "a", dedup="d")
    sqs.advance(120)
    send(sqs, url, "a", dedup="d")
    assert sqs.counts(url) == Counts()


def test_a_purge_clears_the_window(sqs: Sqs) -> None:
    """Rule 31: PurgeQueue clears it."""
    url = sqs.create_fifo()
    first = send(sqs, url, "a", dedup="d")
    sqs.purge_queue(QueueUrl=url)
    second = send(sqs, url, "a", dedup="d")
    assert second["MessageId"] != first["MessageId"]
    assert sqs.counts(url) == Counts(visible=1)


def test_deduplication_is_for_the_whole_queue_by_default(sqs: Sqs) -> None:
    """Rule 32: the same id in another group is dropped."""
    url = sqs.create_fifo()
    first = send(sqs, url, "a", "g1", "d")
    second = send(sqs, url, "a", "g2", "d")
    assert second["MessageId"] == first["MessageId"]
    assert sqs.counts(url) == Counts(visible=1)


@pytest.mark.parametrize("limit", ["perQueue", "perMessageGroupId"])
def test_deduplication_is_per_group_if_the_queue_was_created_so(sqs: Sqs, limit: str) -> None:
    """Rule 32: iff DeduplicationScope=messageGroup at creation (also without perMessageGroupId)."""
    url = sqs.create_fifo(DeduplicationScope="messageGroup", FifoThroughputLimit=limit)
    first = send(sqs, url, "a", "g1", "d")
    second = send(sqs, url, "a", "g2", "d")
    assert second["MessageId"] != first["MessageId"]
    assert send(sqs, url, "a", "g1", "d")["MessageId"] == first["MessageId"]
    assert sqs.counts(url) == Counts(visible=2)


def test_content_based_deduplication_is_per_group_as_well(sqs: Sqs) -> None:
    """Rules 32 and 33."""
    url = sqs.create_fifo(DeduplicationScope="messageGroup")
    for group in ("g1", "g2", "g1"):
        send(sqs, url, "same", group)
    assert sqs.counts(url) == Counts(visible=2)


@pytest.mark.parametrize(("created", "toggled", "kept"), [("queue", "messageGroup", 1), ("messageGroup", "queue", 2)])
def test_toggling_the_scope_changes_the_attribute_not_the_behaviour(
    sqs: Sqs, created: str, toggled: str, kept: int
) -> None:
    """Rule 32; 1.4: behaviour does not follow after creation."""
    url = sqs.create_fifo(DeduplicationScope=created)
    sqs.set(url, DeduplicationScope=toggled)
    assert sqs.attributes(url, "DeduplicationScope") == {"DeduplicationScope": toggled}
    send(sqs, url, "a", "g1", "d")
    send(sqs, url, "a", "g2", "d")
    assert sqs.counts(url) == Counts(visible=kept)


def test_the_id_made_from_content_is_the_sha_256_of_the_body(sqs: Sqs) -> None:
    """Rule 33: hex SHA-256 of the body only."""
    url = sqs.create_fifo()
    send(sqs, url, "é body")
    assert sqs.receive_one(url)["Attributes"]["MessageDeduplicationId"] == sha("é body")


def test_the_id_made_from_content_ignores_attributes(sqs: Sqs) -> None:
    """Rule 33: of the body only."""
    url = sqs.create_fifo()
    for colour in ("red", "blue"):
        attributes = {"colour": {"DataType": "String", "StringValue": colour}}
        sqs.send(url, "same", MessageGroupId="g", MessageAttributes=attributes)
    assert sqs.counts(url) == Counts(visible=1)


def test_an_explicit_id_wins_over_the_content(sqs: Sqs) -> None:
    """Rule 33: explicit id wins."""
    url = sqs.create_fifo()
    send(sqs, url, "same", dedup="d1")
    send(sqs, url, "same", dedup="d2")
    send(sqs, url, "other", dedup="d1")
    assert bodies(sqs.receive(url)) == ["same", "same"]


def test_an_explicit_id_that_equals_the_hash_is_a_duplicate(sqs: Sqs) -> None:
    """Rule 33: explicit id equal to that hash is a duplicate of it."""
    url = sqs.create_fifo()
    first = send(sqs, url, "body")
    assert send(sqs, url, "other", dedup=sha("body"))["MessageId"] == first["MessageId"]
    assert sqs.counts(url) == Counts(visible=1)


def test_content_based_deduplication_can_be_switched_on_later(sqs: Sqs) -> None:
    """Rule 33; 1.4: ContentBasedDeduplication: RW FIFO."""
    url = sqs.create_fifo(ContentBasedDeduplication=False)
    with refused("InvalidParameterValue"):
        send(sqs, url, "a")
    sqs.set(url, ContentBasedDeduplication=True)
    send(sqs, url, "a")
    send(sqs, url, "a")
    assert sqs.counts(url) == Counts(visible=1)


def test_a_duplicate_is_answered_like_the_original(sqs: Sqs) -> None:
    """Rule 34: 200 with MD5s, the original MessageId and SequenceNumber; not enqueued."""
    url = sqs.create_fifo()
    attributes = {"colour": {"DataType": "String", "StringValue": "red"}}
    first = sqs.send(url, "a", MessageGroupId="g", MessageAttributes=attributes)
    again = sqs.send(url, "a", MessageGroupId="g", MessageAttributes=attributes)
    assert again == first
    assert {"MD5OfMessageBody", "MD5OfMessageAttributes", "MessageId", "SequenceNumber"} <= set(again)
    assert sqs.counts(url) == Counts(visible=1)


def test_a_duplicate_in_a_batch_is_answered_like_the_original(sqs: Sqs) -> None:
    """Rule 34, within one batch and against an earlier send."""
    url = sqs.create_fifo()
    first = send(sqs, url, "a")
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries("a", "b", "b", MessageGroupId="g"))
    answer_a, answer_b, answer_b_again = answer["Successful"]
    assert (answer_a["MessageId"], answer_a["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    assert (answer_b_again["MessageId"], answer_b_again["SequenceNumber"]) == (
        answer_b["MessageId"],
        answer_b["SequenceNumber"],
    )
    assert bodies(sqs.receive(url)) == ["a", "b"]


def test_a_duplicate_does_not_wake_or_unblock_anything(sqs: Sqs) -> None:
    """Rule 34: not enqueued."""
    url = sqs.create_fifo()
    send(sqs, url, "a")
    sqs.delete(url, sqs.receive_one(url))
    send(sqs, url, "a")
    assert sqs.receive(url) == []


# ---- sequence -------------------------------------------------------------------------------------------------------


def test_sequence_numbers_have_twenty_digits_and_grow(sqs: Sqs) -> None:
    """Rule 35: 20 digits in practice, strictly increasing per group."""
    url = sqs.create_fifo()
    numbers = [send(sqs, url, f"m{number}")["SequenceNumber"] for number in range(5)]
    batch = entries(*(f"b{number}" for number in range(5)), MessageGroupId="g")
    numbers += [entry["SequenceNumber"] for entry in sqs.send_message_batch(QueueUrl=url, Entries=batch)["Successful"]]
    assert all(len(number) == 20 and number.isdecimal() for number in numbers)
    values = [int(number) for number in numbers]
    assert values == sorted(set(values))
    received = sqs.receive(url, AttributeNames=["SequenceNumber"])
    assert [message["Attributes"]["SequenceNumber"] for message in received] == numbers


def test_sequence_numbers_grow_on_after_a_purge_and_a_delete(sqs: Sqs) -> None:
    """Rule 35: strictly increasing, whatever became of the earlier ones."""
    url = sqs.create_fifo()
    first = send(sqs, url, "a")
    sqs.delete(url, sqs.receive_one(url))
    second = send(sqs, url, "b")
    sqs.purge_queue(QueueUrl=url)
    third = send(sqs, url, "c")
    assert int(first["SequenceNumber"]) < int(second["SequenceNumber"]) < int(third["SequenceNumber"])


# ---- groups ---------------------------------------------------------------------------------------------------------


def test_a_group_in_flight_yields_nothing_more(sqs: Sqs) -> None:
    """Rule 36: a group with any message in flight yields nothing in later calls."""
    url = sqs.create_fifo()
    sqs.send_all(url, "a", "b", MessageGroupId="g")
    assert bodies(sqs.receive(url, 1)) == ["a"]
    assert sqs.receive(url) == []
    sqs.send(url, "c", MessageGroupId="g")
    assert sqs.receive(url) == []


def test_other_groups_go_on(sqs: Sqs) -> None:
    """Rule 36."""
    url = sqs.create_fifo()
    for group in ("g1", "g2", "g3"):
        sqs.send_all(url, f"{group}-1", f"{group}-2", MessageGroupId=group)
    assert bodies(sqs.receive(url, 1)) == ["g1-1"]
    assert bodies(sqs.receive(url, 2)) == ["g2-1", "g2-2"]
    assert bodies(sqs.receive(url)) == ["g3-1", "g3-2"]
    assert sqs.receive(url) == []


def test_the_next_of_a_group_comes_after_the_delete(sqs: Sqs) -> None:
    """Rule 36."""
    url = sqs.create_fifo()
    sqs.send_all(url, "a", "b", "c", MessageGroupId="g")
    received_bodies = []
    for _ in range(3):
        message = sqs.receive_one(url)
        received_bodies.append(message["Body"])
        sqs.delete(url, message)
    assert received_bodies == ["a", "b", "c"]


def test_a_call_fills_up_from_the_same_group_first(sqs: Sqs) -> None:
    """Rule 37: sent g1,g2,g1 with Max 2 ⇒ g1-1, g1-2."""
    url = sqs.create_fifo()
    for body, group in (("g1-1", "g1"), ("g2-1", "g2"), ("g1-2", "g1")):
        send(sqs, url, body, group)
    assert bodies(sqs.receive(url, 2)) == ["g1-1", "g1-2"]


def test_a_call_goes_to_the_next_group_when_the_first_is_used_up(sqs: Sqs) -> None:
    """Rule 37: before taking the next one."""
    url = sqs.create_fifo()
    for body, group in (("g1-1", "g1"), ("g2-1", "g2"), ("g1-2", "g1"), ("g3-1", "g3"), ("g2-2", "g2")):
        send(sqs, url, body, group)
    assert bodies(sqs.receive(url)) == ["g1-1", "g1-2", "g2-1", "g2-2", "g3-1"]


def test_order_within_a_group_holds_over_batches(sqs: Sqs) -> None:
    """Rules 36 and 37."""
    url = sqs.create_fifo()
    sent = [f"m{number:02}" for number in range(25)]
    for first in range(0, 25, 10):
        batch = entries(*sent[first : first + 10], MessageGroupId="g")
        sqs.send_message_batch(QueueUrl=url, Entries=batch)
    received_bodies: list[str] = []
    while messages := sqs.receive(url, 7):
        received_bodies += bodies(messages)
        for message in messages:
            sqs.delete(url, message)
    assert received_bodies == sent


def test_a_half_deleted_batch_keeps_its_group_blocked(sqs: Sqs) -> None:
    """Rule 38: until all are deleted or expired."""
    url = sqs.create_fifo()
    sqs.send_all(url, "a", "b", "c", "d", MessageGroupId="g")
    first, second, third = sqs.receive(url, 3)
    sqs.delete(url, first)
    assert sqs.receive(url) == []
    sqs.delete(url, third)
    assert sqs.receive(url) == []
    sqs.delete(url, second)
    assert bodies(sqs.receive(url)) == ["d"]


def test_what_was_not_deleted_comes_back_in_order(sqs: Sqs) -> None:
    """Rule 38: expiry puts them back in original order."""
    url = sqs.create_fifo()
    sqs.send_all(url, "a", "b", "c", "d", MessageGroupId="g")
    messages = sqs.receive(url, 3)
    sqs.delete(url, messages[1])
    sqs.advance(30)
    assert bodies(sqs.receive(url)) == ["a", "c", "d"]


def test_what_was_released_comes_back_in_order(sqs: Sqs) -> None:
    """Rule 38: release puts them back in original order."""
    url = sqs.create_fifo()
    sqs.send_all(url, "a", "b", "c", "d", MessageGroupId="g")
    messages = sqs.receive(url, 3)
    for message in reversed(messages):
        sqs.change(url, message, 0)
    assert bodies(sqs.receive(url)) == ["a", "b", "c", "d"]


def test_an_extended_message_holds_back_those_after_it(sqs: Sqs) -> None:
    """Rule 38: those before it come back, those after it wait."""
    url = sqs.create_fifo()
    sqs.send_all(url, "a", "b", "c", "d", MessageGroupId="g")
    first, middle, _ = sqs.receive(url, 3)
    sqs.change(url, middle, 100)
    sqs.advance(31)
    (again,) = sqs.receive(url)
    assert again["Body"] == first["Body"]
    sqs.delete(url, again)
    assert sqs.receive(url) == []
    sqs.advance(70)
    assert bodies(sqs.receive(url)) == ["b", "c", "d"]


def test_a_delayed_message_holds_back_its_group(sqs: Sqs) -> None:
    """Rules 17 and 36: order comes first; the queue's delay is the same for all."""
    url = sqs.create_fifo(DelaySeconds=10)
    send(sqs, url, "a")
    sqs.advance(5)
    send(sqs, url, "b")
    sqs.advance(5)
    assert bodies(sqs.receive(url)) == ["a"]
    sqs.advance(5)
    assert sqs.receive(url) == []


# ---- receive attempts -----------------------------------------------------------------------------------------------


def test_the_same_attempt_gets_the_same_messages_and_handles(sqs: Sqs) -> None:
    """Rule 39: within 5 min the same id returns the same messages with the same handles."""
    url = sqs.create_fifo()
    sqs.send_all(url, "a", "b", MessageGroupId="g")
    sqs.send(url, "c", MessageGroupId="h")
    first = sqs.receive(url, VisibilityTimeout=100, ReceiveRequestAttemptId="try")
    again = sqs.receive(url, VisibilityTimeout=100, ReceiveRequestAttemptId="try")
    assert bodies(again) == ["a", "b", "c"]
    assert [m["ReceiptHandle"] for m in again] == [m["ReceiptHandle"] for m in first]
    for message in first:
        sqs.delete(url, message)
    assert sqs.counts(url) == Counts()


def test_another_attempt_gets_nothing(sqs: Sqs) -> None:
    """Rules 36 and 39."""
    url = sqs.create_fifo()
    send(sqs, url, "a")
    sqs.receive(url, ReceiveRequestAttemptId="one")
    assert sqs.receive(url, ReceiveRequestAttemptId="two") == []
    assert sqs.receive(url) == []


def test_the_same_attempt_restarts_the_visibility(sqs: Sqs) -> None:
    """Rule 39: restarts their visibility."""
    url = sqs.create_fifo()
    send(sqs, url, "a")
    first = sqs.receive(url, ReceiveRequestAttemptId="try")
    sqs.advance(20)
    assert len(sqs.receive(url, ReceiveRequestAttemptId="try")) == 1
    sqs.advance(20)
    assert sqs.receive(url) == []
    sqs.delete(url, first[0])
    assert sqs.counts(url) == Counts()


def test_an_attempt_is_void_once_a_message_was_deleted(sqs: Sqs) -> None:
    """Rule 39: unless one was deleted."""
    url = sqs.create_fifo()
    sqs.send(url, "a", MessageGroupId="g")
    sqs.send(url, "b", MessageGroupId="h")
    first = sqs.receive(url, ReceiveRequestAttemptId="try")
    sqs.delete(url, first[0])
    assert sqs.receive(url, ReceiveRequestAttemptId="try") == []


def test_an_attempt_is_void_once_a_visibility_was_changed(sqs: Sqs) -> None:
    """Rule 39: unless its visibility changed."""
    url = sqs.create_fifo()
    sqs.send(url, "a", MessageGroupId="g")
    sqs.send(url, "b", MessageGroupId="h")
    first = sqs.receive(url, ReceiveRequestAttemptId="try")
    sqs.change(url, first[0], 100)
    assert sqs.receive(url, ReceiveRequestAttemptId="try") == []


def test_an_attempt_is_forgotten_after_five_minutes(sqs: Sqs) -> None:
    """Rule 39: within 5 min."""
    url = sqs.create_fifo()
    send(sqs, url, "a")
    sqs.receive(url, VisibilityTimeout=1000, ReceiveRequestAttemptId="try")
    sqs.advance(301)
    assert sqs.receive(url, ReceiveRequestAttemptId="try") == []


def test_an_attempt_belongs_to_one_queue(sqs: Sqs) -> None:
    """Rule 39."""
    first_queue, second_queue = sqs.create_fifo("one.fifo"), sqs.create_fifo("two.fifo")
    send(sqs, first_queue, "a")
    send(sqs, second_queue, "b")
    assert bodies(sqs.receive(first_queue, ReceiveRequestAttemptId="try")) == ["a"]
    assert bodies(sqs.receive(second_queue, ReceiveRequestAttemptId="try")) == ["b"]


def test_an_attempt_that_got_nothing_may_get_something_later(sqs: Sqs) -> None:
    """Rule 39: nothing was received, so there is nothing to repeat."""
    url = sqs.create_fifo()
    assert sqs.receive(url, ReceiveRequestAttemptId="try") == []
    send(sqs, url, "a")
    assert bodies(sqs.receive(url, ReceiveRequestAttemptId="try")) == ["a"]


# ---- turns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["put back", "timed out", "deleted"])
def test_groups_take_turns(sqs: Sqs, end: str) -> None:
    """Rule 54: a group from which a message was received goes behind those that were not."""
    url = sqs.create_fifo()
    for round_number in range(3):
        for group in "abc":
            send(sqs, url, f"{group}{round_number}", group, dedup=f"{group}{round_number}")
    received_bodies = []
    for _ in range(6):
        message = sqs.receive_one(url, VisibilityTimeout=30)
        received_bodies.append(message["Body"])
        if end == "put back":
            sqs.change(url, message, 0)
        elif end == "timed out":
            sqs.advance(31)
        else:
            sqs.delete(url, message)
    if end == "deleted":
        assert received_bodies == ["a0", "b0", "c0", "a1", "b1", "c1"]
    else:
        assert received_bodies == ["a0", "b0", "c0"] * 2


def test_a_receive_fills_up_from_one_group_before_the_next_takes_its_turn(sqs: Sqs) -> None:
    """Rule 54: within a group the order never changes."""
    url = sqs.create_fifo()
    for group, body in ("a1", "b1", "a2", "b2", "a3"):
        send(sqs, url, group + body, group, dedup=group + body)
    first = sqs.receive(url, 2, VisibilityTimeout=0)
    assert bodies(first) == ["a1", "a2"]
    assert bodies(sqs.receive(url, 3, VisibilityTimeout=0)) == ["b1", "b2", "a1"]


def test_a_busy_group_does_not_make_another_wait_for_ever(sqs: Sqs) -> None:
    """Rule 54: nor does one that is empty each time its message was deleted, and then gets another."""
    url = sqs.create_fifo()
    for number in range(4):
        send(sqs, url, f"patient {number}", "patient", dedup=f"p{number}")
    groups = []
    for number in range(6):
        send(sqs, url, f"busy {number}", "busy", dedup=f"b{number}")
        message = sqs.receive_one(url)
        groups.append(message["Body"].split()[0])
        sqs.delete(url, message)
    assert groups.count("patient") >= 3
