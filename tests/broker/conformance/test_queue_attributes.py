"""Section 1.4: every attribute of a queue: its range, its default, and the effect of setting it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .service import (
    ACCOUNT,
    BAD_ATTRIBUTE_NAME,
    BAD_ATTRIBUTE_VALUE,
    INVALID_VALUE,
    REGION,
    Counts,
    Sqs,
    refused,
)

BAD_VALUE = {BAD_ATTRIBUTE_VALUE, INVALID_VALUE}

STANDARD = {
    "VisibilityTimeout": "30",
    "MessageRetentionPeriod": "345600",
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
}
FIFO = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
RANGES = {
    "VisibilityTimeout": (0, 43200),
    "MessageRetentionPeriod": (60, 1209600),
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1024, 1048576),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "KmsDataKeyReusePeriodSeconds": (60, 86400),
}


def test_a_fresh_standard_queue_has_twelve_attributes(sqs: Sqs) -> None:
    """1.4: defaults; `All` of a fresh standard queue = 12 names."""
    attributes = sqs.attributes(sqs.create("orders"))
    assert len(attributes) == 12
    now = str(int(sqs.now()))
    assert attributes == STANDARD | {
        "QueueArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders",
        "CreatedTimestamp": now,
        "LastModifiedTimestamp": now,
    }


def test_a_fresh_fifo_queue_has_four_more(sqs: Sqs) -> None:
    """1.4: defaults; of a FIFO queue +4."""
    attributes = sqs.attributes(sqs.create("orders.fifo", FifoQueue=True))
    assert len(attributes) == 16
    assert FIFO.items() <= attributes.items()
    assert STANDARD.items() <= attributes.items()


def test_nothing_asked_for_is_nothing_told(sqs: Sqs) -> None:
    """1.4: no AttributeNames ⇒ no Attributes key at all."""
    assert sqs.get_queue_attributes(QueueUrl=sqs.create()) == {}


def test_only_what_is_asked_for_is_told(sqs: Sqs) -> None:
    """1.4: GetQueueAttributes by name."""
    url = sqs.create()
    assert set(sqs.attributes(url, "QueueArn", "DelaySeconds")) == {"QueueArn", "DelaySeconds"}


@pytest.mark.parametrize("name", ["Colour", "visibilitytimeout"])
def test_an_unknown_name_is_refused_everywhere(sqs: Sqs, name: str) -> None:
    """1.4: unknown name ⇒ InvalidAttributeName."""
    url = sqs.create("orders")
    with refused(BAD_ATTRIBUTE_NAME):
        sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn", name])
    with refused(BAD_ATTRIBUTE_NAME):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={name: "1"})
    with refused(BAD_ATTRIBUTE_NAME):
        sqs.create_queue(QueueName="others", Attributes={name: "1"})


@pytest.mark.parametrize("name", RANGES)
def test_both_ends_of_the_range_are_accepted(sqs: Sqs, name: str) -> None:
    """1.4: range, on create and on set."""
    low, high = RANGES[name]
    for value in (low, high):
        url = sqs.create(f"q{value}", **{name: value})
        assert sqs.attributes(url, name) == {name: str(value)}
    url = sqs.create("orders")
    for value in (low, high):
        sqs.set(url, **{name: value})
        assert sqs.attributes(url, name) == {name: str(value)}


@pytest.mark.parametrize("name", RANGES)
def test_outside_the_range_is_refused_and_nothing_changes(sqs: Sqs, name: str) -> None:
    """1.4: range, on create and on set; InvalidAttributeValue."""
    low, high = RANGES[name]
    url = sqs.create("orders")
    before = sqs.attributes(url)
    for value in (str(low - 1), str(high + 1), "many", "1.5"):
        with refused(BAD_ATTRIBUTE_VALUE):
            sqs.create("others", **{name: value})
        with refused(BAD_ATTRIBUTE_VALUE):
            sqs.set(url, **{name: value})
    assert sqs.attributes(url) == before
    assert sqs.list_queues()["QueueUrls"] == [url]


@pytest.mark.parametrize(
    "name",
    [
        "QueueArn",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    ],
)
def test_what_is_only_read_cannot_be_set(sqs: Sqs, name: str) -> None:
    """1.4: `R` in the column `set`."""
    with refused(BAD_ATTRIBUTE_NAME):
        sqs.set(sqs.create("orders"), **{name: "1"})
    with refused(BAD_ATTRIBUTE_NAME):
        sqs.create("others", **{name: "1"})


def test_all_cannot_be_set(sqs: Sqs) -> None:
    """1.4: `All` is a question, not an attribute."""
    with refused(BAD_ATTRIBUTE_NAME):
        sqs.set(sqs.create(), All="1")


def test_a_bad_attribute_among_good_ones_changes_nothing(sqs: Sqs) -> None:
    """1.4: SetQueueAttributes is all or nothing."""
    url = sqs.create()
    with refused(BAD_ATTRIBUTE_VALUE):
        sqs.set(url, DelaySeconds=5, VisibilityTimeout=43201)
    assert sqs.attributes(url, "DelaySeconds", "VisibilityTimeout") == {"DelaySeconds": "0", "VisibilityTimeout": "30"}


def test_timestamps_are_in_seconds_and_a_change_moves_one_of_them(sqs: Sqs) -> None:
    """1.4: CreatedTimestamp, LastModifiedTimestamp: epoch seconds."""
    url = sqs.create()
    created = int(sqs.now())
    sqs.advance(100)
    sqs.set(url, DelaySeconds=1)
    attributes = sqs.attributes(url, "CreatedTimestamp", "LastModifiedTimestamp")
    assert int(attributes["CreatedTimestamp"]) == created
    assert int(attributes["LastModifiedTimestamp"]) == int(sqs.now())


@pytest.mark.parametrize("fifo", [False, True])
def test_counts_tell_visible_in_flight_and_delayed_apart(sqs: Sqs, fifo: bool) -> None:
    """1.4: ApproximateNumberOfMessages / …NotVisible / …Delayed."""
    url = sqs.create_fifo(DelaySeconds=10) if fifo else sqs.create(DelaySeconds=10)
    extra = {"MessageGroupId": "g"} if fifo else {}
    sqs.send_all(url, "a", "b", **extra)
    assert sqs.counts(url) == Counts(delayed=2)
    sqs.advance(10)
    assert sqs.counts(url) == Counts(visible=2)
    message = sqs.receive_one(url)
    assert sqs.counts(url) == Counts(visible=1, in_flight=1)
    sqs.delete(url, message)
    assert sqs.counts(url) == Counts(visible=1)


def test_the_queues_own_maximum_is_what_counts(sqs: Sqs) -> None:
    """1.4: MaximumMessageSize."""
    url = sqs.create(MaximumMessageSize=1024)
    sqs.send(url, "x" * 1024)
    with refused(INVALID_VALUE):
        sqs.send(url, "x" * 1025)
    sqs.set(url, MaximumMessageSize=1025)
    sqs.send(url, "x" * 1025)


# ---- policies -------------------------------------------------------------------------------------------------------


def statement(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "Sid": f"s{number}",
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::111122223333:root"},
        "Action": "SQS:SendMessage",
        "Resource": f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders",
        **changes,
    }


def policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def test_a_policy_is_kept_and_an_empty_one_deletes_it(sqs: Sqs) -> None:
    """1.4: Policy: "" deletes it."""
    url = sqs.create("orders", Policy=policy(statement()))
    assert json.loads(sqs.attributes(url)["Policy"]) == policy(statement())
    sqs.set(url, Policy="")
    assert "Policy" not in sqs.attributes(url)
    sqs.set(url, Policy=policy(statement(1)))
    assert json.loads(sqs.attributes(url, "Policy")["Policy"]) == policy(statement(1))


TWENTY = policy(*(statement(number, Resource="*") for number in range(20)))
PRINCIPALS = [f"arn:aws:iam::{number:012}:root" for number in range(51)]
CONDITIONS = {f"Op{number}": {"aws:SourceArn": "x"} for number in range(11)}
ACTIONS = [
    "SQS:SendMessage",
    "SQS:ReceiveMessage",
    "SQS:DeleteMessage",
    "SQS:PurgeQueue",
    "SQS:GetQueueUrl",
    "SQS:GetQueueAttributes",
    "SQS:ChangeMessageVisibility",
    "SQS:ListQueueTags",
]


@pytest.mark.parametrize(
    "value",
    [
        TWENTY,
        policy(statement(Principal={"AWS": PRINCIPALS[:50]})),
        policy(statement(Action=ACTIONS[:7])),
    ],
    ids=["twenty-statements", "fifty-principals", "seven-actions"],
)
def test_a_policy_may_be_as_big_as_its_limits(sqs: Sqs, value: dict[str, Any]) -> None:
    """1.4: Policy: 20 statements, 50 principals, 7 actions/statement."""
    assert json.loads(sqs.attributes(sqs.create(Policy=value))["Policy"]) == value


@pytest.mark.parametrize(
    "value",
    [
        "not json",
        "[]",
        "7",
        policy(statement(Resource="x" * 8192)),
        policy(*(statement(number, Resource="*") for number in range(21))),
        policy(statement(Principal={"AWS": PRINCIPALS})),
        policy(statement(Condition=CONDITIONS)),
        policy(statement(Action=ACTIONS)),
    ],
    ids=[
        "no-json",
        "a-list",
        "a-number",
        "too-long",
        "21-statements",
        "51-principals",
        "11-conditions",
        "eight-actions",
    ],
)
def test_a_policy_past_its_limits_is_refused(sqs: Sqs, value: object) -> None:
    """1.4: Policy: JSON; ≤ 8192 bytes, 20 statements, 50 principals, 10 conditions, 7 actions/statement."""
    url = sqs.create()
    with refused({BAD_ATTRIBUTE_VALUE, "OverLimit"}):
        sqs.set(url, Policy=value)
    assert "Policy" not in sqs.attributes(url)


@pytest.mark.parametrize("count", [3, "3"])
def test_a_redrive_policy_takes_its_count_as_number_or_text(sqs: Sqs, count: object) -> None:
    """1.4: RedrivePolicy: count may be int or string."""
    dead = sqs.create("dead")
    url = sqs.create("orders", RedrivePolicy=sqs.redrive_policy(dead, count))
    redrive_policy = json.loads(sqs.attributes(url)["RedrivePolicy"])
    assert redrive_policy["deadLetterTargetArn"] == sqs.arn(dead)
    assert int(redrive_policy["maxReceiveCount"]) == 3
    for _ in range(2):
        assert sqs.receive(url) == []
    sqs.send(url)
    for _ in range(3):
        assert len(sqs.receive(url, VisibilityTimeout=0)) == 1
    assert sqs.receive(url) == []
    assert sqs.counts(dead) == Counts(visible=1)


def test_an_empty_redrive_policy_removes_it(sqs: Sqs) -> None:
    """1.4: RedrivePolicy: "" removes the policy."""
    source, dead = sqs.create_pair(max_receives=1)
    sqs.set(source, RedrivePolicy="")
    assert "RedrivePolicy" not in sqs.attributes(source)
    sqs.send(source)
    for _ in range(3):
        assert len(sqs.receive(source, VisibilityTimeout=0)) == 1
    assert sqs.counts(dead) == Counts()


@pytest.mark.parametrize("count", [1, 1000])
def test_the_receive_count_of_a_redrive_policy_has_a_range(sqs: Sqs, count: int) -> None:
    """1.4: RedrivePolicy: range 1–1000. (Outside it: rule 26.)"""
    url = sqs.create("orders", RedrivePolicy=sqs.redrive_policy(sqs.create("dead"), count))
    assert int(json.loads(sqs.attributes(url)["RedrivePolicy"])["maxReceiveCount"]) == count


@pytest.mark.parametrize(
    "value",
    [
        {"redrivePermission": "allowAll"},
        {"redrivePermission": "denyAll"},
        {"redrivePermission": "byQueue", "sourceQueueArns": [f"arn:aws:sqs:{REGION}:{ACCOUNT}:a"]},
        {
            "redrivePermission": "byQueue",
            "sourceQueueArns": [f"arn:aws:sqs:{REGION}:{ACCOUNT}:q{number}" for number in range(10)],
        },
    ],
)
def test_a_redrive_allow_policy_is_kept(sqs: Sqs, value: dict[str, Any]) -> None:
    """1.4: RedriveAllowPolicy."""
    url = sqs.create()
    sqs.set(url, RedriveAllowPolicy=value)
    assert json.loads(sqs.attributes(url, "RedriveAllowPolicy")["RedriveAllowPolicy"]) == value


@pytest.mark.parametrize(
    "value",
    [
        "no json",
        {},
        {"redrivePermission": "perhaps"},
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "allowAll", "sourceQueueArns": [f"arn:aws:sqs:{REGION}:{ACCOUNT}:a"]},
        {"redrivePermission": "denyAll", "sourceQueueArns": [f"arn:aws:sqs:{REGION}:{ACCOUNT}:a"]},
        {
            "redrivePermission": "byQueue",
            "sourceQueueArns": [f"arn:aws:sqs:{REGION}:{ACCOUNT}:q{number}" for number in range(11)],
        },
    ],
)
def test_a_wrong_redrive_allow_policy_is_refused(sqs: Sqs, value: object) -> None:
    """1.4: RedriveAllowPolicy: one of three permissions; sourceQueueArns ≤ 10, byQueue only."""
    with refused(BAD_VALUE):
        sqs.set(sqs.create(), RedriveAllowPolicy=value)


# ---- FIFO and encryption --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ContentBasedDeduplication", "maybe"),
        ("DeduplicationScope", "galaxy"),
        ("FifoThroughputLimit", "none"),
        ("SqsManagedSseEnabled", "maybe"),
    ],
)
def test_a_choice_outside_the_list_is_refused(sqs: Sqs, name: str, value: str) -> None:
    """1.4: values."""
    with refused(BAD_ATTRIBUTE_VALUE):
        sqs.set(sqs.create_fifo("orders.fifo"), **{name: value})
    with refused(BAD_ATTRIBUTE_VALUE):
        sqs.create_fifo("others.fifo", **{name: value})


def test_fifo_attributes_can_be_changed(sqs: Sqs) -> None:
    """1.4: RW FIFO."""
    url = sqs.create_fifo(ContentBasedDeduplication=False)
    changes = {
        "ContentBasedDeduplication": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }
    sqs.set(url, **changes)
    assert sqs.attributes(url, *changes) == changes


def test_throughput_per_group_needs_deduplication_per_group(sqs: Sqs) -> None:
    """1.4: FifoThroughputLimit: perMessageGroupId (only with messageGroup)."""
    with refused(BAD_VALUE):
        sqs.create_fifo("a.fifo", FifoThroughputLimit="perMessageGroupId")
    with refused(BAD_VALUE):
        sqs.set(sqs.create_fifo("b.fifo"), FifoThroughputLimit="perMessageGroupId")
    sqs.create_fifo("c.fifo", FifoThroughputLimit="perMessageGroupId", DeduplicationScope="messageGroup")


def test_a_throughput_limit_is_for_fifo_only(sqs: Sqs) -> None:
    """1.4: FifoThroughputLimit: RW FIFO."""
    with refused(BAD_ATTRIBUTE_NAME):
        sqs.create("orders", FifoThroughputLimit="perQueue")


def test_a_kms_key_switches_the_other_encryption_off(sqs: Sqs) -> None:
    """1.4: KmsMasterKeyId: setting it flips SqsManagedSseEnabled to false."""
    url = sqs.create()
    sqs.set(url, KmsMasterKeyId="alias/aws/sqs")
    attributes = sqs.attributes(url)
    assert attributes["KmsMasterKeyId"] == "alias/aws/sqs"
    assert attributes["SqsManagedSseEnabled"] == "false"
    created = sqs.attributes(sqs.create("others", KmsMasterKeyId="alias/aws/sqs"))
    assert created["SqsManagedSseEnabled"] == "false"


def test_the_reuse_period_is_told_only_when_it_is_not_the_default(sqs: Sqs) -> None:
    """1.4: KmsDataKeyReusePeriodSeconds: default 300, at default value it is not returned."""
    url = sqs.create(KmsMasterKeyId="alias/aws/sqs", KmsDataKeyReusePeriodSeconds=300)
    assert "KmsDataKeyReusePeriodSeconds" not in sqs.attributes(url)
    sqs.set(url, KmsDataKeyReusePeriodSeconds=600)
    assert sqs.attributes(url)["KmsDataKeyReusePeriodSeconds"] == "600"


def test_the_other_encryption_can_be_switched_off(sqs: Sqs) -> None:
    """1.4: SqsManagedSseEnabled: RW."""
    url = sqs.create(SqsManagedSseEnabled=False)
    assert sqs.attributes(url)["SqsManagedSseEnabled"] == "false"
    sqs.set(url, SqsManagedSseEnabled=True)
    assert sqs.attributes(url)["SqsManagedSseEnabled"] == "true"


def test_booleans_may_be_capitalised(sqs: Sqs) -> None:
    """Rule 52: "True" and "False" are accepted, and returned in lower case."""
    capitalised = {"FifoQueue": "True", "ContentBasedDeduplication": "True", "SqsManagedSseEnabled": "False"}
    lower_case = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "SqsManagedSseEnabled": "false"}
    url = sqs.create("orders.fifo", **capitalised)
    assert sqs.attributes(url, *capitalised) == lower_case
    sqs.set(url, ContentBasedDeduplication="False", SqsManagedSseEnabled="True", FifoQueue="True")
    changed = {"FifoQueue": "true", "ContentBasedDeduplication": "false", "SqsManagedSseEnabled": "true"}
    assert sqs.attributes(url, *capitalised) == changed


def test_a_capitalised_boolean_means_what_it_says(sqs: Sqs) -> None:
    """Rule 52: it is not merely kept."""
    url = sqs.create("orders.fifo", FifoQueue="True", ContentBasedDeduplication="True")
    first, second = sqs.send_all(url, "same", "same", MessageGroupId="g")
    assert first["MessageId"] == second["MessageId"]
    # The same attributes, so the same queue; and the other value is another one.
    assert sqs.create("orders.fifo", FifoQueue="True", ContentBasedDeduplication="true") == url
    with refused("QueueAlreadyExists"):
        sqs.create("orders.fifo", FifoQueue="true", ContentBasedDeduplication="False")
    with refused(BAD_ATTRIBUTE_VALUE):
        sqs.set(url, FifoQueue="False")
    with refused(INVALID_VALUE):
        sqs.create("standard", FifoQueue="True")


@pytest.mark.parametrize("value", ["TRUE", "yes", "1", "", "tRUE", " true"])
def test_no_other_spelling_of_a_boolean_is_accepted(sqs: Sqs, value: str) -> None:
    """Rule 52: these two, and lower case."""
    with refused(BAD_ATTRIBUTE_VALUE):
        sqs.create("orders", SqsManagedSseEnabled=value)
