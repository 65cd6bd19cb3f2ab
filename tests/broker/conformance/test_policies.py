"""Queue policies when signatures are checked, with both protocols. Section 3, rules 63, 64 and 66; 1.4, Policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.broker import running

from .service import ACCESS_DENIED, ACCOUNT, INVALID_VALUE, NON_EXISTENT_QUEUE, REGION, Sqs, refused

OTHER = "111122223333"
ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders"
USER = f"arn:aws:iam::{OTHER}:user/guest"
OWNERS = (
    "AddPermission", "RemovePermission", "CreateQueue", "DeleteQueue", "ListQueues", "SetQueueAttributes", "TagQueue",
    "UntagQueue", "ListQueueTags", "StartMessageMoveTask", "ListMessageMoveTasks", "CancelMessageMoveTask",
)  # fmt: skip


@pytest.fixture(params=["json", "query"])
def owner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sqs]:
    path = tmp_path / "credentials"
    path.write_text(
        "[owner]\naws_access_key_id = OWNER\naws_secret_access_key = o\n"
        f"[guest]\naws_access_key_id = GUEST\naws_secret_access_key = g\naws_account_id = {OTHER}\n"
    )
    with running(credentials=path) as broker:
        service = Sqs(broker, request.param, access_key="OWNER", secret="o")
        yield service
        service.client.close()


@pytest.fixture
def guest(owner: Sqs) -> Iterator[Sqs]:
    service = owner.beside(access_key="GUEST", secret="g")
    yield service
    service.client.close()


def test_another_account_needs_the_permission_of_the_queues_policy(owner: Sqs, guest: Sqs) -> None:
    """Rule 64."""
    url = owner.create()
    action = "sqs:sendmessage"
    text = f"User: {USER} is not authorized to perform: {action} on resource: {ARN} "
    with refused(ACCESS_DENIED, f"{text}because no resource-based policy allows the {action} action"):
        guest.send(url)
    owner.add_permission(QueueUrl=url, Label="guest", AWSAccountIds=[OTHER], Actions=["SendMessage"])
    guest.send(url)
    with refused(ACCESS_DENIED):
        guest.receive(url)
    policy = json.loads(owner.attributes(url, "Policy")["Policy"])
    deny = {"Effect": "Deny", "Principal": {"AWS": USER}, "Action": "SQS:*", "Resource": ARN}
    owner.set(url, Policy={**policy, "Statement": [*policy["Statement"], deny]})
    with refused(ACCESS_DENIED, f"{text}with an explicit deny in a resource-based policy"):
        guest.send(url)


def test_a_queue_of_another_account_is_found_by_name_where_its_policy_lets(owner: Sqs, guest: Sqs) -> None:
    """Rule 64."""
    url = owner.create()
    with refused(ACCESS_DENIED):
        guest.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId=ACCOUNT)
    owner.add_permission(QueueUrl=url, Label="guest", AWSAccountIds=[OTHER], Actions=["GetQueueUrl"])
    assert guest.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId=ACCOUNT)["QueueUrl"] == url
    with refused(NON_EXISTENT_QUEUE):
        guest.get_queue_url(QueueName="orders")
    with refused(NON_EXISTENT_QUEUE):
        guest.get_queue_url(QueueName="others", QueueOwnerAWSAccountId=ACCOUNT)


def test_the_sender_is_the_user(owner: Sqs, guest: Sqs) -> None:
    """Rule 66: an id of the form that IAM gives its users."""
    url = owner.create()
    owner.add_permission(QueueUrl=url, Label="guest", AWSAccountIds=[OTHER], Actions=["SendMessage"])
    owner.send(url)
    guest.send(url)
    senders = [message["Attributes"]["SenderId"] for message in owner.receive(url, AttributeNames=["SenderId"])]
    assert [sender[:4] for sender in senders] == ["AIDA", "AIDA"]
    assert [len(sender) for sender in senders] == [21, 21]
    assert len(set(senders)) == 2


@pytest.mark.parametrize("action", OWNERS)
def test_add_permission_refuses_what_only_the_owner_may_do(sqs: Sqs, action: str) -> None:
    """Rule 63; nothing is permitted then."""
    url = sqs.create()
    reason = "Only the queue owner is allowed to invoke this action."
    with refused(INVALID_VALUE, f"Value SQS:{action} for parameter ActionName is invalid. Reason: {reason}"):
        sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=[OTHER], Actions=["SendMessage", action])
    assert "Policy" not in sqs.attributes(url)


def test_add_permission_counts_actions_before_it_looks_at_them(sqs: Sqs) -> None:
    """Rule 63, and 1.4: seven actions at most."""
    url = sqs.create()
    with refused("OverLimit"):
        sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=[OTHER], Actions=list(OWNERS[:8]))


def test_a_policy_with_an_unknown_operator_can_be_set(sqs: Sqs) -> None:
    """1.4: Policy. It permits nothing where it counts."""
    condition = {"StringSomething": {"aws:username": "x"}}
    policy = {
        "Statement": {
            "Effect": "Allow",
            "Principal": "*",
            "Action": "sqs:*",
            "Resource": "*",
            "Condition": condition,
        }
    }
    url = sqs.create(Policy=policy)
    assert json.loads(sqs.attributes(url, "Policy")["Policy"]) == policy
