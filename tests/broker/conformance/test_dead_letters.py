"""Rules 23 to 27: when a message is dead-lettered, what it keeps, and which queues may use a dead-letter queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .service import (
    ACCOUNT,
    BAD_ATTRIBUTE_VALUE,
    INVALID_VALUE,
    NON_EXISTENT_QUEUE,
    REGION,
    Counts,
    Sqs,
    bodies,
    refused,
)
from .test_message_attributes import TRACE, binary, text

NOT_ALLOWED = {INVALID_VALUE, BAD_ATTRIBUTE_VALUE}


def group(fifo: bool, name: str = "g") -> dict[str, str]:
    return {"MessageGroupId": name} if fifo else {}


# ---- the move -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_a_message_is_delivered_as_often_as_the_policy_says(sqs: Sqs, times: int, fifo: bool) -> None:
    """Rule 23: maxReceiveCount = N ⇒ delivered N times; on receive N+1 it is not returned and moves."""
    source, dead = sqs.create_pair(max_receives=times, fifo=fifo)
    sqs.send(source, **group(fifo))
    for _ in range(times):
        assert len(sqs.receive(source)) == 1
        sqs.advance(30)
    assert sqs.receive(source) == []
    assert sqs.counts(source) == Counts()
    assert sqs.counts(dead) == Counts(visible=1)


@pytest.mark.parametrize("fifo", [False, True])
def test_nothing_moves_when_the_timeout_ends(sqs: Sqs, fifo: bool) -> None:
    """Rule 23: lazy; only a receive moves it."""
    source, dead = sqs.create_pair(max_receives=1, fifo=fifo)
    sqs.send(source, **group(fifo))
    sqs.receive_one(source)
    sqs.advance(90)
    assert sqs.counts(source) == Counts(visible=1)
    assert sqs.counts(dead) == Counts()


def test_the_receive_that_moves_a_message_still_returns_the_others(sqs: Sqs) -> None:
    """Rule 23: the dead letter is left out, the rest of the answer is not."""
    source, dead = sqs.create_pair(max_receives=1)
    sqs.send(source, "bad")
    sqs.receive_one(source)
    sqs.advance(30)
    sqs.send_all(source, "good", "better")
    assert sorted(bodies(sqs.receive(source))) == ["better", "good"]
    assert bodies(sqs.receive(dead)) == ["bad"]


def test_a_release_counts_as_a_delivery_as_well(sqs: Sqs) -> None:
    """Rule 23: every receive counts, however it ended."""
    source, dead = sqs.create_pair(max_receives=2)
    sqs.send(source)
    for _ in range(2):
        sqs.change(source, sqs.receive_one(source), 0)
    assert sqs.receive(source) == []
    assert sqs.counts(dead) == Counts(visible=1)


def test_a_message_deleted_in_time_never_moves(sqs: Sqs) -> None:
    """Rule 23."""
    source, dead = sqs.create_pair(max_receives=1)
    sqs.send(source)
    sqs.delete(source, sqs.receive_one(source))
    sqs.advance(60)
    assert sqs.receive(source) == []
    assert sqs.counts(dead) == Counts()


def test_a_policy_set_later_counts_the_receives_so_far(sqs: Sqs) -> None:
    """Rules 20 and 23: the decision uses the count in the present queue."""
    source, dead = sqs.create("source"), sqs.create("dead")
    sqs.send(source)
    for _ in range(3):
        sqs.receive_one(source, VisibilityTimeout=0)
    sqs.set(source, RedrivePolicy=sqs.redrive_policy(dead, 3))
    assert sqs.receive(source) == []
    assert sqs.counts(dead) == Counts(visible=1)


@pytest.mark.parametrize("fifo", [False, True])
def test_a_dead_letter_keeps_what_it_was(sqs: Sqs, fifo: bool) -> None:
    """Rule 24: MessageId, body, attributes, trace header; adds DeadLetterQueueSourceArn."""
    source, dead = sqs.create_pair(max_receives=1, fifo=fifo)
    attributes = {"colour": text("red"), "icon": binary(b"\0\1")}
    trace = {"AWSTraceHeader": text(TRACE)}
    sqs.send(source, "body", MessageAttributes=attributes, MessageSystemAttributes=trace, **group(fifo))
    before = sqs.receive_one(source, VisibilityTimeout=0)
    assert "DeadLetterQueueSourceArn" not in before["Attributes"]
    sqs.receive(source)
    after = sqs.receive_one(dead)
    for name in ("MessageId", "Body", "MD5OfBody", "MessageAttributes", "MD5OfMessageAttributes"):
        assert after[name] == before[name]
    assert after["Attributes"]["AWSTraceHeader"] == TRACE
    assert after["Attributes"]["SenderId"] == before["Attributes"]["SenderId"]
    assert after["Attributes"]["DeadLetterQueueSourceArn"] == sqs.arn(source)
    assert after["Attributes"].get("MessageGroupId") == before["Attributes"].get("MessageGroupId")


def test_the_source_of_a_dead_letter_can_be_asked_for_alone(sqs: Sqs) -> None:
    """Rule 24; 1.5: DeadLetterQueueSourceArn."""
    source, dead = sqs.create_pair(max_receives=1)
    sqs.send(source)
    sqs.receive(source, VisibilityTimeout=0)
    sqs.receive(source)
    (message,) = sqs.receive(dead, AttributeNames=["DeadLetterQueueSourceArn"])
    assert message["Attributes"] == {"DeadLetterQueueSourceArn": sqs.arn(source)}


def test_a_fifo_dead_letter_gets_its_message_id_as_deduplication_id(sqs: Sqs) -> None:
    """Rule 25."""
    source, dead = sqs.create_pair(max_receives=1, fifo=True)
    sent = sqs.send(source, MessageGroupId="g", MessageDeduplicationId="d")
    sqs.receive(source, VisibilityTimeout=0)
    assert sqs.receive(source) == []
    assert sqs.receive_one(dead)["Attributes"]["MessageDeduplicationId"] == sent["MessageId"]


def test_a_fifo_dead_letter_queue_swallows_no_dead_letter(sqs: Sqs) -> None:
    """Rule 25: so the DLQ cannot swallow it: the same id was sent there within five minutes."""
    source, dead = sqs.create_pair(max_receives=1, fifo=True)
    sqs.send(dead, "same", MessageGroupId="g", MessageDeduplicationId="d")
    sqs.send(source, "same", MessageGroupId="g", MessageDeduplicationId="d")
    sqs.receive(source, VisibilityTimeout=0)
    assert sqs.receive(source) == []
    assert sqs.counts(dead) == Counts(visible=2)


def test_a_group_goes_on_after_its_dead_letter(sqs: Sqs) -> None:
    """Rule 25: the group must become free again afterwards."""
    source, dead = sqs.create_pair(max_receives=1, fifo=True)
    sqs.send_all(source, "bad", "next", MessageGroupId="g")
    assert bodies(sqs.receive(source, 1)) == ["bad"]
    sqs.advance(30)
    received_bodies = bodies(sqs.receive(source)) or bodies(sqs.receive(source))
    assert received_bodies == ["next"]
    assert bodies(sqs.receive(dead)) == ["bad"]


# ---- the policy -----------------------------------------------------------------------------------------------------


def redrive(**keys: object) -> str:
    return json.dumps(keys)


def refuse_policy(sqs: Sqs, value: str, codes: str | set[str] = INVALID_VALUE) -> None:
    """Refused on create and on set alike, and nothing is changed."""
    with refused(codes):
        sqs.create("refused", RedrivePolicy=value)
    url = sqs.create("accepted")
    with refused(codes):
        sqs.set(url, RedrivePolicy=value)
    assert "RedrivePolicy" not in sqs.attributes(url)


@pytest.mark.parametrize(
    "arn", ["garbage", "", "arn:aws:sqs", f"arn:aws:sns:{REGION}:{ACCOUNT}:dead", f"arn:aws:sqs:{REGION}:{ACCOUNT}:"]
)
def test_a_malformed_arn_is_refused_before_it_is_looked_up(sqs: Sqs, arn: str) -> None:
    """Rule 26."""
    refuse_policy(sqs, redrive(deadLetterTargetArn=arn, maxReceiveCount=1))


def test_a_dead_letter_queue_that_does_not_exist_is_refused(sqs: Sqs) -> None:
    """Rule 26: looked up once it is well formed."""
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:absent"
    value = redrive(deadLetterTargetArn=arn, maxReceiveCount=1)
    refuse_policy(sqs, value, {INVALID_VALUE, NON_EXISTENT_QUEUE})


@pytest.mark.parametrize("count", [0, -1, 1001, "0", "many", 1.5, None, [1]])
def test_a_wrong_receive_count_is_refused(sqs: Sqs, count: Any) -> None:
    """Rule 26: count outside 1–1000 ⇒ InvalidParameterValue."""
    refuse_policy(sqs, sqs.redrive_policy(sqs.create("dead"), count))


def test_missing_keys_are_refused(sqs: Sqs) -> None:
    """Rule 26: missing keys ⇒ InvalidParameterValue."""
    refuse_policy(sqs, redrive(deadLetterTargetArn=sqs.arn(sqs.create("dead"))))


@pytest.mark.parametrize("value", ['{"maxReceiveCount": 3}', "{}", "no json", "[]", "7", '"text"'])
def test_what_is_no_redrive_policy_is_refused(sqs: Sqs, value: str) -> None:
    """Rule 26: missing keys; 1.4: JSON `{deadLetterTargetArn, maxReceiveCount}`."""
    refuse_policy(sqs, value, NOT_ALLOWED)


def test_a_dead_letter_queue_must_be_of_the_same_type(sqs: Sqs) -> None:
    """Rule 26."""
    fifo, standard = sqs.create_fifo("dead.fifo"), sqs.create("dead")
    with refused(INVALID_VALUE):
        sqs.create("source", RedrivePolicy=sqs.redrive_policy(fifo))
    with refused(INVALID_VALUE):
        sqs.create_fifo("source.fifo", RedrivePolicy=sqs.redrive_policy(standard))


@pytest.mark.parametrize(("region", "account"), [("eu-west-1", ACCOUNT), (REGION, "999999999999")])
def test_a_dead_letter_queue_must_be_of_the_same_account_and_region(sqs: Sqs, region: str, account: str) -> None:
    """Rule 26."""
    sqs.create("dead")
    value = redrive(deadLetterTargetArn=f"arn:aws:sqs:{region}:{account}:dead", maxReceiveCount=1)
    refuse_policy(sqs, value, {INVALID_VALUE, NON_EXISTENT_QUEUE})


def test_a_queue_that_denies_all_gets_no_new_sources(sqs: Sqs) -> None:
    """Rule 27: RedriveAllowPolicy is checked when a source sets its RedrivePolicy."""
    dead = sqs.create("dead", RedriveAllowPolicy={"redrivePermission": "denyAll"})
    with refused(NOT_ALLOWED):
        sqs.create("source", RedrivePolicy=sqs.redrive_policy(dead))
    with refused(NOT_ALLOWED):
        sqs.set(sqs.create("other"), RedrivePolicy=sqs.redrive_policy(dead))
    sqs.set(dead, RedriveAllowPolicy={"redrivePermission": "allowAll"})
    sqs.create("source", RedrivePolicy=sqs.redrive_policy(dead))


def test_a_queue_may_name_its_sources(sqs: Sqs) -> None:
    """Rule 27; 1.4: byQueue."""
    friend, stranger = sqs.create("friend"), sqs.create("stranger")
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": [sqs.arn(friend)]}
    dead = sqs.create("dead", RedriveAllowPolicy=allow)
    sqs.set(friend, RedrivePolicy=sqs.redrive_policy(dead))
    with refused(NOT_ALLOWED):
        sqs.set(stranger, RedrivePolicy=sqs.redrive_policy(dead))


def test_a_source_that_is_already_there_goes_on(sqs: Sqs) -> None:
    """Rule 27: the check is made when the source sets its policy, not at the move."""
    source, dead = sqs.create_pair(max_receives=1)
    sqs.set(dead, RedriveAllowPolicy={"redrivePermission": "denyAll"})
    sqs.send(source)
    sqs.receive(source, VisibilityTimeout=0)
    assert sqs.receive(source) == []
    assert sqs.counts(dead) == Counts(visible=1)


def test_the_sources_of_a_dead_letter_queue_are_listed(sqs: Sqs) -> None:
    """Rule 27: ListDeadLetterSourceQueues is the reverse index."""
    dead = sqs.create("dead")
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead).get("queueUrls", []) == []
    sources = [sqs.create(f"s{number}", RedrivePolicy=sqs.redrive_policy(dead)) for number in range(3)]
    sqs.create("unrelated")
    assert sorted(sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"]) == sources
    sqs.set(sources[0], RedrivePolicy="")
    sqs.delete_queue(QueueUrl=sources[1])
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [sources[2]]


def test_the_sources_of_a_dead_letter_queue_come_in_pages(sqs: Sqs) -> None:
    """Rule 27; 1.6: NextToken only if MaxResults given."""
    dead = sqs.create("dead")
    sources = [sqs.create(f"s{number}", RedrivePolicy=sqs.redrive_policy(dead)) for number in range(5)]
    assert "NextToken" not in sqs.list_dead_letter_source_queues(QueueUrl=dead)
    first = sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=3)
    second = sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=3, NextToken=first["NextToken"])
    assert "NextToken" not in second
    assert len(first["queueUrls"]) == 3
    assert sorted(first["queueUrls"] + second["queueUrls"]) == sources
