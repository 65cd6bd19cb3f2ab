"""Rules 42 to 47, 49 and 50: the life of a queue, its permissions and tags, and the shape of batch answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

import semel.broker

from .conftest import Alongside
from .service import (
    ACCOUNT,
    DELETED_RECENTLY,
    INVALID_VALUE,
    NON_EXISTENT_QUEUE,
    PURGE_IN_PROGRESS,
    REGION,
    Counts,
    Message,
    Sqs,
    SqsError,
    bodies,
    dial,
    entries,
    json_call,
    json_request,
    query_call,
    refusal,
    refused,
)

# ---- create ---------------------------------------------------------------------------------------------------------


def test_creating_a_queue_again_gives_the_same_url(sqs: Sqs) -> None:
    """Rule 42: equal or no attributes ⇒ same URL."""
    url = sqs.create("orders", DelaySeconds=5, VisibilityTimeout=60)
    assert sqs.create("orders") == url
    assert sqs.create("orders", DelaySeconds=5) == url
    assert sqs.create("orders", DelaySeconds=5, VisibilityTimeout=60) == url
    assert sqs.attributes(url)["VisibilityTimeout"] == "60"


def test_naming_a_default_is_no_difference(sqs: Sqs) -> None:
    """Rule 42: the value counts, not who set it."""
    url = sqs.create("orders")
    assert sqs.create("orders", VisibilityTimeout=30, MessageRetentionPeriod=345600) == url


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VisibilityTimeout", "31"),
        ("MessageRetentionPeriod", "60"),
        ("DelaySeconds", "1"),
        ("MaximumMessageSize", "1024"),
        ("ReceiveMessageWaitTimeSeconds", "1"),
        ("SqsManagedSseEnabled", "false"),
        ("Policy", '{"Version": "2012-10-17", "Statement": []}'),
    ],
)
def test_creating_a_queue_again_with_another_value_is_refused(sqs: Sqs, name: str, value: str) -> None:
    """Rule 42: any named attribute different ⇒ QueueAlreadyExists."""
    url = sqs.create("orders")
    before = sqs.attributes(url)
    text = f"A queue already exists with the same name and a different value for attribute {name}"
    with refused("QueueAlreadyExists", text):
        sqs.create("orders", **{name: value})
    assert sqs.attributes(url) == before


def test_creating_again_compares_with_what_is_now(sqs: Sqs) -> None:
    """Rule 42: compares with current attributes, not those at creation."""
    url = sqs.create("orders", DelaySeconds=5)
    sqs.set(url, DelaySeconds=9)
    assert sqs.create("orders", DelaySeconds=9) == url
    with refused("QueueAlreadyExists"):
        sqs.create("orders", DelaySeconds=5)


def test_creating_a_fifo_queue_again_gives_the_same_url(sqs: Sqs) -> None:
    """Rule 42 on FIFO."""
    url = sqs.create("orders.fifo", FifoQueue=True)
    assert sqs.create("orders.fifo", FifoQueue=True) == url
    with refused("QueueAlreadyExists"):
        sqs.create("orders.fifo", FifoQueue=True, ContentBasedDeduplication=True)


def test_creating_a_queue_again_keeps_its_messages(sqs: Sqs) -> None:
    """Rule 42."""
    url = sqs.create("orders")
    sqs.send(url, "kept")
    sqs.create("orders")
    assert bodies(sqs.receive(url)) == ["kept"]


def test_a_fifo_name_needs_the_fifo_attribute(sqs: Sqs) -> None:
    """Rule 43: `.fifo` name without FifoQueue=true."""
    with refused(INVALID_VALUE):
        sqs.create("orders.fifo")
    with refused({INVALID_VALUE, "InvalidAttributeValue", "InvalidAttributeName"}):
        sqs.create("orders.fifo", FifoQueue=False)


def test_the_fifo_attribute_needs_a_fifo_name(sqs: Sqs) -> None:
    """Rule 43: FifoQueue without `.fifo`."""
    with refused(INVALID_VALUE):
        sqs.create("orders", FifoQueue=True)


def test_a_slash_is_no_character_of_a_name(sqs: Sqs) -> None:
    """Rule 43."""
    with refused(INVALID_VALUE):
        sqs.create("a/b")


# ---- delete ---------------------------------------------------------------------------------------------------------


def test_a_deleted_queue_is_gone_with_its_messages(sqs: Sqs) -> None:
    """Rule 44."""
    url = sqs.create("orders")
    sqs.send(url)
    sqs.delete_queue(QueueUrl=url)
    with refused(NON_EXISTENT_QUEUE):
        sqs.send(url)
    with refused(NON_EXISTENT_QUEUE):
        sqs.delete_queue(QueueUrl=url)
    assert sqs.list_queues() == {}


def test_a_queue_can_be_created_again_after_a_minute_and_is_empty(sqs: Sqs) -> None:
    """Rule 44; 1.6: re-create after delete: 60 s."""
    url = sqs.create("orders", DelaySeconds=5)
    sqs.tag_queue(QueueUrl=url, Tags={"team": "blue"})
    sqs.send(url)
    sqs.delete_queue(QueueUrl=url)
    sqs.advance(59)
    with refused(DELETED_RECENTLY):
        sqs.create("orders")
    sqs.advance(2)
    assert sqs.create("orders") == url
    assert sqs.attributes(url)["DelaySeconds"] == "0"
    assert sqs.counts(url) == Counts()
    assert sqs.list_queue_tags(QueueUrl=url) == {}


def assert_ended_empty(poll: Future[list[Message]]) -> None:
    """The poll is over, without a message; whether by an empty answer or a refusal is left open."""
    error = poll.exception(timeout=10)
    if error is None:
        assert poll.result() == []
    else:
        assert isinstance(error, SqsError)
        assert error.code == NON_EXISTENT_QUEUE


def test_deleting_a_queue_ends_its_long_polls(sqs: Sqs, alongside: Alongside) -> None:
    """Rule 44: parked long polls must end."""
    url = sqs.create("orders")
    poll = alongside(sqs.receive, url, WaitTimeSeconds=20)
    time.sleep(0.1)
    sqs.delete_queue(QueueUrl=url)
    assert_ended_empty(poll)


def test_deleting_a_queue_ends_a_long_poll_that_arrives_in_the_same_instant(json_sqs: Sqs) -> None:
    """Rule 44: however the two meet, the poll ends."""
    with dial(json_sqs.broker) as receiver, dial(json_sqs.broker) as other:
        for number in range(10):
            url = json_sqs.create(f"q{number}")
            receiver.sendall(json_request("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 20}))
            other.sendall(json_request("DeleteQueue", {"QueueUrl": url}))
            assert receiver.recv(65536).startswith(b"HTTP/1.1 ")
            assert other.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_handle_of_a_queues_former_life_does_nothing(sqs: Sqs) -> None:
    """Rules 11 and 44: the new queue's messages are not the old one's."""
    url = sqs.create("orders")
    sqs.send(url, "old")
    old = sqs.receive_one(url)
    sqs.delete_queue(QueueUrl=url)
    sqs.advance(61)
    sqs.create("orders")
    sqs.send(url, "new")
    error = refusal(lambda: sqs.delete(url, old))
    assert error is None or error.code in ("ReceiptHandleIsInvalid", INVALID_VALUE)
    assert bodies(sqs.receive(url)) == ["new"]


def test_a_fifo_queue_created_again_has_forgotten_its_deduplication(sqs: Sqs) -> None:
    """Rules 31 and 44: a new queue has a window of its own."""
    url = sqs.create_fifo()
    sqs.send(url, "a", MessageGroupId="g")
    sqs.delete_queue(QueueUrl=url)
    sqs.advance(61)
    time.sleep(0.1)  # the broker may tidy up by now: nothing of the old queue may be taken for the new one's
    sqs.create_fifo()
    sqs.send(url, "a", MessageGroupId="g")
    assert bodies(sqs.receive(url)) == ["a"]


def test_a_new_queue_inherits_nothing_of_a_deleted_one(sqs: Sqs) -> None:
    """Rules 31, 36, 39 and 44: neither dedup ids, nor groups in flight, nor receive attempts."""
    old = sqs.create_fifo("old.fifo")
    sqs.send(old, "a", MessageGroupId="g")
    sqs.send(old, "b", MessageGroupId="g")
    assert bodies(sqs.receive(old, 1, ReceiveRequestAttemptId="try")) == ["a"]
    sqs.delete_queue(QueueUrl=old)
    sqs.advance(1)
    time.sleep(0.1)
    new = sqs.create_fifo("new.fifo")
    assert sqs.counts(new) == Counts()
    sqs.send(new, "a", MessageGroupId="g")
    assert bodies(sqs.receive(new, ReceiveRequestAttemptId="try")) == ["a"]


@pytest.fixture(params=["json", "query"])
def hurried(request: pytest.FixtureRequest) -> Iterator[Sqs]:
    """A broker whose 60-second limits are switched off."""
    with semel.broker.running(clock="manual", cooldowns=False) as broker:
        service = Sqs(broker, request.param)
        yield service
        service.client.close()


def test_a_queue_created_again_does_not_feed_the_polls_of_the_old_one(hurried: Sqs, alongside: Alongside) -> None:
    """Rule 44: a re-created queue must not feed them."""
    url = hurried.create("orders")
    poll = alongside(hurried.receive, url, WaitTimeSeconds=20)
    time.sleep(0.1)
    hurried.delete_queue(QueueUrl=url)
    hurried.create("orders")
    hurried.send(url, "new")
    assert_ended_empty(poll)
    assert bodies(hurried.receive(url)) == ["new"]


# ---- purge ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fifo", [False, True])
def test_a_purge_removes_all_there_is(sqs: Sqs, fifo: bool) -> None:
    """Rule 45: visible, in-flight and delayed."""
    url = sqs.create_fifo() if fifo else sqs.create()
    extra = {"MessageGroupId": "g"} if fifo else {}
    sqs.send_all(url, "a", "b", "c", **extra)
    sqs.receive_one(url)
    if fifo:
        sqs.set(url, DelaySeconds=900)
        sqs.send(url, "d", MessageGroupId="h")
    else:
        sqs.send(url, "d", DelaySeconds=900)
    sqs.purge_queue(QueueUrl=url)
    assert sqs.counts(url) == Counts()
    sqs.advance(1000)
    assert sqs.receive(url) == []


def test_a_purge_leaves_what_comes_after_it(sqs: Sqs) -> None:
    """Rule 45."""
    url = sqs.create_fifo()
    sqs.send(url, "before", MessageGroupId="g")
    held = sqs.receive_one(url)
    sqs.purge_queue(QueueUrl=url)
    sqs.send(url, "after", MessageGroupId="g")
    assert bodies(sqs.receive(url)) == ["after"]
    assert held["Body"] == "before"


def test_a_purge_leaves_the_queue_as_it_is(sqs: Sqs) -> None:
    """Rule 45: messages only."""
    url = sqs.create(DelaySeconds=5)
    sqs.tag_queue(QueueUrl=url, Tags={"team": "blue"})
    sqs.purge_queue(QueueUrl=url)
    assert sqs.attributes(url)["DelaySeconds"] == "5"
    assert sqs.list_queue_tags(QueueUrl=url) == {"Tags": {"team": "blue"}}


def test_a_purge_is_allowed_once_a_minute(sqs: Sqs) -> None:
    """Rule 45: 60 s limit, for each queue by itself."""
    url, other = sqs.create("orders"), sqs.create("other")
    sqs.purge_queue(QueueUrl=url)
    sqs.purge_queue(QueueUrl=other)
    sqs.advance(59)
    with refused(PURGE_IN_PROGRESS):
        sqs.purge_queue(QueueUrl=url)
    sqs.advance(2)
    sqs.purge_queue(QueueUrl=url)


def test_the_minute_between_purges_can_be_switched_off(hurried: Sqs) -> None:
    """Rule 45: must be switchable: client test suites purge between scenarios."""
    url = hurried.create("orders")
    for _ in range(3):
        hurried.send(url)
        hurried.purge_queue(QueueUrl=url)
        assert hurried.counts(url) == Counts()


def test_the_minute_between_delete_and_create_can_be_switched_off(hurried: Sqs) -> None:
    """1.6: re-create after delete; switched off with the other."""
    for _ in range(3):
        hurried.delete_queue(QueueUrl=hurried.create("orders"))
    hurried.create("orders")


# ---- permissions ----------------------------------------------------------------------------------------------------

ROOT = "arn:aws:iam::{}:root"


def test_a_permission_is_written_into_the_policy(sqs: Sqs) -> None:
    """Rule 46: one account and one action stand alone."""
    url = sqs.create("orders")
    sqs.add_permission(QueueUrl=url, Label="send", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders"
    assert json.loads(sqs.attributes(url)["Policy"]) == {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "send",
                "Effect": "Allow",
                "Principal": {"AWS": ROOT.format("111122223333")},
                "Action": "SQS:SendMessage",
                "Resource": arn,
            }
        ],
    }


def test_several_accounts_and_actions_are_lists(sqs: Sqs) -> None:
    """Rule 46: Principal: {AWS: arn or [arns]}, Action: "SQS:X" or list."""
    url = sqs.create("orders")
    accounts, actions = ["111122223333", "444455556666"], ["SendMessage", "ReceiveMessage"]
    sqs.add_permission(QueueUrl=url, Label="both", AWSAccountIds=accounts, Actions=actions)
    (statement,) = json.loads(sqs.attributes(url)["Policy"])["Statement"]
    assert statement["Principal"] == {"AWS": [ROOT.format(account) for account in accounts]}
    assert statement["Action"] == ["SQS:SendMessage", "SQS:ReceiveMessage"]


def test_all_actions_are_a_star(sqs: Sqs) -> None:
    """Rule 46: "SQS:X"."""
    url = sqs.create("orders")
    sqs.add_permission(QueueUrl=url, Label="all", AWSAccountIds=["111122223333"], Actions=["*"])
    (statement,) = json.loads(sqs.attributes(url)["Policy"])["Statement"]
    assert statement["Action"] == "SQS:*"


def test_permissions_come_and_go_by_label_and_the_last_takes_the_policy_along(sqs: Sqs) -> None:
    """Rule 46: last RemovePermission drops Policy."""
    url = sqs.create("orders")
    for label in ("one", "two"):
        sqs.add_permission(QueueUrl=url, Label=label, AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    sids = [statement["Sid"] for statement in json.loads(sqs.attributes(url)["Policy"])["Statement"]]
    assert sids == ["one", "two"]
    sqs.remove_permission(QueueUrl=url, Label="one")
    (statement,) = json.loads(sqs.attributes(url)["Policy"])["Statement"]
    assert statement["Sid"] == "two"
    sqs.remove_permission(QueueUrl=url, Label="two")
    assert "Policy" not in sqs.attributes(url)


def test_a_permission_joins_a_policy_that_is_there(sqs: Sqs) -> None:
    """Rule 46 on a queue whose Policy was set by hand."""
    own = {
        "Version": "2012-10-17",
        "Statement": [{"Sid": "own", "Effect": "Deny", "Principal": "*", "Action": "SQS:*", "Resource": "*"}],
    }
    url = sqs.create("orders", Policy=own)
    sqs.add_permission(QueueUrl=url, Label="more", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    policy = json.loads(sqs.attributes(url)["Policy"])
    assert [statement["Sid"] for statement in policy["Statement"]] == ["own", "more"]
    assert policy["Statement"][0] == own["Statement"][0]


def test_a_permission_takes_at_most_seven_actions(sqs: Sqs) -> None:
    """1.2: OverLimit; 1.4: 7 actions/statement."""
    url = sqs.create("orders")
    actions = ["SendMessage", "ReceiveMessage", "DeleteMessage", "PurgeQueue", "GetQueueUrl", "GetQueueAttributes"]
    actions += ["ChangeMessageVisibility"]
    sqs.add_permission(QueueUrl=url, Label="seven", AWSAccountIds=["111122223333"], Actions=actions)
    with refused("OverLimit"):
        sqs.add_permission(
            QueueUrl=url, Label="eight", AWSAccountIds=["111122223333"], Actions=[*actions, "ListQueueTags"]
        )


# ---- tags -----------------------------------------------------------------------------------------------------------


def test_tags_are_kept_overwritten_and_taken_away(sqs: Sqs) -> None:
    """Rule 47: case-sensitive, overwrite by key, untag of unknown key is fine."""
    url = sqs.create()
    sqs.tag_queue(QueueUrl=url, Tags={"Team": "blue", "team": "red"})
    sqs.tag_queue(QueueUrl=url, Tags={"team": "green", "cost": "7"})
    assert sqs.list_queue_tags(QueueUrl=url) == {"Tags": {"Team": "blue", "team": "green", "cost": "7"}}
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "absent"])
    assert sqs.list_queue_tags(QueueUrl=url) == {"Tags": {"Team": "blue", "cost": "7"}}


def test_no_tags_is_no_key(sqs: Sqs) -> None:
    """Rule 47: no tags ⇒ no `Tags` key."""
    url = sqs.create()
    assert sqs.list_queue_tags(QueueUrl=url) == {}
    sqs.tag_queue(QueueUrl=url, Tags={"a": "b"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["a"])
    assert sqs.list_queue_tags(QueueUrl=url) == {}


def test_tags_can_be_given_at_creation(sqs: Sqs) -> None:
    """Rule 47; 1.2: CreateQueue `tags` (lower-case t)."""
    url = sqs.create_queue(QueueName="orders", tags={"team": "blue", "é": "ü <&>"})["QueueUrl"]
    assert sqs.list_queue_tags(QueueUrl=url) == {"Tags": {"team": "blue", "é": "ü <&>"}}


# ---- batch answers --------------------------------------------------------------------------------------------------


def test_batch_answers_leave_out_empty_lists(sqs: Sqs) -> None:
    """Rule 50, on all three batches."""
    url = sqs.create(MaximumMessageSize=1024)
    assert set(sqs.send_message_batch(QueueUrl=url, Entries=entries("a"))) == {"Successful"}
    assert set(sqs.send_message_batch(QueueUrl=url, Entries=entries("x" * 1025))) == {"Failed"}
    good = [{"Id": "a", "ReceiptHandle": sqs.receive_one(url)["ReceiptHandle"]}]
    bad = [{"Id": "a", "ReceiptHandle": "garbage"}]
    for batch, expected in ((good, "Successful"), (bad, "Failed")):
        changes = [{**entry, "VisibilityTimeout": 60} for entry in batch]
        assert set(sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes)) == {expected}
        assert set(sqs.delete_message_batch(QueueUrl=url, Entries=batch)) == {expected}


def test_batch_answers_leave_out_empty_lists_on_the_wire(json_sqs: Sqs) -> None:
    """Rule 50, byte by byte."""
    url = json_sqs.create()
    answer = json_call(json_sqs.broker, "SendMessageBatch", {"QueueUrl": url, "Entries": entries("a")})
    assert set(answer.json()) == {"Successful"}
    entry = "SendMessageBatchRequestEntry.1"
    fields = {"QueueUrl": url, f"{entry}.Id": "a", f"{entry}.MessageBody": "x"}
    result = query_call(json_sqs.broker, "SendMessageBatch", fields).xml().find("SendMessageBatchResult")
    assert result is not None
    assert [element.tag for element in result] == ["SendMessageBatchResultEntry"]


def test_successes_come_in_the_order_of_the_entries(sqs: Sqs) -> None:
    """Rule 50 and 1.2: each answer names its entry."""
    url = sqs.create()
    batch = [{"Id": name, "MessageBody": name} for name in ("z", "a", "m")]
    answer = sqs.send_message_batch(QueueUrl=url, Entries=batch)
    assert [entry["Id"] for entry in answer["Successful"]] == ["z", "a", "m"]


def test_a_carriage_return_survives_everywhere(sqs: Sqs) -> None:
    """Rule 49: CR must survive the XML round trip, in bodies, attributes and tags."""
    url = sqs.create()
    value = "a\rb\r\nc\n"
    sqs.send(url, value, MessageAttributes={"a": {"DataType": "String", "StringValue": value}})
    message = sqs.receive_one(url)
    assert message["Body"] == value
    assert message["MessageAttributes"]["a"]["StringValue"] == value
