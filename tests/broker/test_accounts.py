"""A broker for several accounts and regions, with real boto3 clients: what each may do with the others' queues."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from botocore.exceptions import ClientError

from semel.broker import running
from semel.broker.auth import user_id_of
from semel.broker.embedded_broker import EmbeddedBroker
from semel.errors import SemelError
from semel.sqs.client import Client
from semel.sqs.client.admin import Admin

HOME, AWAY = "000000000000", "111122223333"
NON_EXISTENT = "AWS.SimpleQueueService.NonExistentQueue"
PROFILES = f"""
[ops]
aws_access_key_id = AKIAOPS
aws_secret_access_key = ops
[alice]
aws_access_key_id = AKIAALICE
aws_secret_access_key = alice
aws_account_id = {AWAY}
[bob]
aws_access_key_id = AKIABOB
aws_secret_access_key = bob
aws_account_id = {AWAY}
aws_user_id = AIDABOB
"""
ALICE, BOB = f"arn:aws:iam::{AWAY}:user/alice", f"arn:aws:iam::{AWAY}:user/bob"
ARN = f"arn:aws:sqs:us-east-1:{HOME}:orders"


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    path.write_text(PROFILES)
    return path


class Users:
    """The clients of one broker, by profile and region; closed at the end."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self._clients: dict[tuple[str, str], Any] = {}

    def __call__(self, profile: str, region: str = "us-east-1") -> Any:
        if (profile, region) not in self._clients:
            keys = {"aws_access_key_id": f"AKIA{profile.upper()}", "aws_secret_access_key": profile}
            self._clients[profile, region] = self.broker.client(region_name=region, **keys)
        return self._clients[profile, region]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.fixture
def users(credentials: Path) -> Iterator[Users]:
    with running(credentials=credentials, clock="manual") as broker:
        users = Users(broker)
        yield users
        users.close()


@contextmanager
def refused(code: str, text: str = "", status: int = 400) -> Iterator[None]:
    with pytest.raises(ClientError) as caught:
        yield
    answer: Any = caught.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
    assert text in answer["Error"]["Message"]


def denied(text: str = "") -> Any:
    return refused("AccessDenied", text, 403)


def set_policy(client: Any, url: str, *statements: dict[str, Any]) -> None:
    usual = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": ARN}
    policy = {"Version": "2012-10-17", "Statement": [usual | statement for statement in statements]}
    client.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(policy)})


# Accounts.


def test_each_user_has_the_queues_of_their_account(users: Users) -> None:
    home = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    away = users("alice").create_queue(QueueName="orders")["QueueUrl"]
    assert home == f"{users.broker.url}/{HOME}/orders"
    assert away == f"{users.broker.url}/{AWAY}/orders"
    assert users("bob").list_queues()["QueueUrls"] == [away]
    assert users("ops").list_queues()["QueueUrls"] == [home]
    users("bob").send_message(QueueUrl=away, MessageBody="1")
    assert len(users("alice").receive_message(QueueUrl=away)["Messages"]) == 1


def test_the_sender_is_a_user_id_and_never_the_access_key(users: Users) -> None:
    url = users("alice").create_queue(QueueName="orders")["QueueUrl"]
    for profile in ("alice", "bob"):
        users(profile).send_message(QueueUrl=url, MessageBody="1")
    answer = users("alice").receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["SenderId"])
    senders = {message["Attributes"]["SenderId"] for message in answer["Messages"]}
    assert senders == {user_id_of(AWAY, "alice"), "AIDABOB"}


def test_a_region_is_its_own_also_where_signatures_are_checked(users: Users) -> None:
    users("ops").create_queue(QueueName="orders")
    there = users("ops", "eu-west-1")
    assert "QueueUrls" not in there.list_queues()
    with refused(NON_EXISTENT):
        there.send_message(QueueUrl="orders", MessageBody="1")


def test_an_account_in_a_url_is_taken_at_its_word(users: Users) -> None:
    """Unlike where signatures are not checked."""
    users("ops").create_queue(QueueName="orders")
    with refused(NON_EXISTENT):
        users("ops").send_message(QueueUrl="https://sqs.us-east-1.amazonaws.com/123456789012/orders", MessageBody="1")


# Permissions.


def calls(url: str) -> dict[str, Callable[[Any], Any]]:
    """Every operation on a queue, by the permission that it needs; a batch is beside its single one."""
    entry = {"Id": "a", "ReceiptHandle": "x"}
    return {
        "sendmessage": lambda c: c.send_message(QueueUrl=url, MessageBody="1"),
        "sendmessage batch": lambda c: c.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "1"}]),
        "receivemessage": lambda c: c.receive_message(QueueUrl=url, WaitTimeSeconds=0),
        "deletemessage": lambda c: c.delete_message(QueueUrl=url, ReceiptHandle="x"),
        "deletemessage batch": lambda c: c.delete_message_batch(QueueUrl=url, Entries=[entry]),
        "changemessagevisibility": lambda c: c.change_message_visibility(
            QueueUrl=url, ReceiptHandle="x", VisibilityTimeout=0
        ),
        "changemessagevisibility batch": lambda c: c.change_message_visibility_batch(
            QueueUrl=url, Entries=[entry | {"VisibilityTimeout": 0}]
        ),
        "getqueueattributes": lambda c: c.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]),
        "getqueueurl": lambda c: c.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId=HOME),
        "listdeadlettersourcequeues": lambda c: c.list_dead_letter_source_queues(QueueUrl=url),
        "purgequeue": lambda c: c.purge_queue(QueueUrl=url),
    }


def owner_calls(url: str) -> dict[str, Callable[[Any], Any]]:
    return {
        "addpermission": lambda c: c.add_permission(
            QueueUrl=url, Label="l", AWSAccountIds=[AWAY], Actions=["SendMessage"]
        ),
        "removepermission": lambda c: c.remove_permission(QueueUrl=url, Label="l"),
        "setqueueattributes": lambda c: c.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "1"}),
        "tagqueue": lambda c: c.tag_queue(QueueUrl=url, Tags={"a": "b"}),
        "untagqueue": lambda c: c.untag_queue(QueueUrl=url, TagKeys=["a"]),
        "listqueuetags": lambda c: c.list_queue_tags(QueueUrl=url),
        "startmessagemovetask": lambda c: c.start_message_move_task(SourceArn=ARN),
        "listmessagemovetasks": lambda c: c.list_message_move_tasks(SourceArn=ARN),
        "deletequeue": lambda c: c.delete_queue(QueueUrl=url),
    }


def carried_out(call: Callable[[Any], Any], client: Any) -> bool:
    """Whether it got past the permissions; it may then fail by another rule."""
    try:
        call(client)
    except ClientError as error:
        return error.response["Error"]["Code"] != "AccessDenied"
    return True


def test_another_account_may_do_nothing_without_a_policy(users: Users) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    for name, call in (calls(url) | owner_calls(url)).items():
        action = f"sqs:{name.split()[0]}"
        reason = f"because no resource-based policy allows the {action} action"
        with denied(f"User: {ALICE} is not authorized to perform: {action} on resource: {ARN} {reason}"):
            call(users("alice"))
    assert users("ops").list_queues()["QueueUrls"] == [url]


@pytest.mark.parametrize("granted", sorted({name.split()[0] for name in calls("")}))
def test_a_permission_is_for_its_action_and_the_batch_of_it(users: Users, granted: str) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    set_policy(users("ops"), url, {"Principal": {"AWS": AWAY}, "Action": f"sqs:{granted}"})
    for name, call in calls(url).items():
        assert carried_out(call, users("alice")) is (name.split()[0] == granted), name


def test_what_is_for_the_owner_alone_no_policy_can_permit(users: Users) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    set_policy(users("ops"), url, {"Action": "*"})
    assert all(carried_out(call, users("alice")) for call in calls(url).values())
    for call in owner_calls(url).values():
        with denied("because no resource-based policy allows"):
            call(users("alice"))


def test_the_owner_may_do_everything_that_no_deny_forbids(users: Users) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    users("ops").send_message(QueueUrl=url, MessageBody="1")
    set_policy(users("ops"), url, {"Effect": "Deny", "Action": "sqs:SendMessage"})
    with denied("sqs:sendmessage on resource: " + ARN + " with an explicit deny in a resource-based policy"):
        users("ops").send_message(QueueUrl=url, MessageBody="1")
    assert len(users("ops").receive_message(QueueUrl=url)["Messages"]) == 1
    set_policy(users("ops"), url, {"Effect": "Deny", "Action": "sqs:CreateQueue"})
    with denied("sqs:createqueue"):
        users("ops").create_queue(QueueName="orders")
    users("ops").set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    users("ops").send_message(QueueUrl=url, MessageBody="1")


def test_a_policy_tells_users_of_one_account_apart(users: Users) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    set_policy(
        users("ops"),
        url,
        {"Principal": {"AWS": f"arn:aws:iam::{AWAY}:root"}},
        {"Effect": "Deny", "Principal": {"AWS": BOB}},
    )
    users("alice").send_message(QueueUrl=url, MessageBody="1")
    with denied(f"User: {BOB} "):
        users("bob").send_message(QueueUrl=url, MessageBody="1")


@pytest.mark.parametrize(
    ("condition", "agrees"),
    [
        ({"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}, True),
        ({"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}}, False),
        ({"Bool": {"aws:SecureTransport": "false"}}, True),
        ({"StringEquals": {"aws:username": "alice"}}, True),
        ({"StringEquals": {"aws:userid": user_id_of(AWAY, "alice")}}, True),
        ({"StringLike": {"aws:UserAgent": "Boto3/*"}}, True),
        ({"ArnEquals": {"aws:SourceArn": "arn:aws:sns:*:*:*"}}, False),
        ({"DateGreaterThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}}, True),
        ({"StringSomething": {"aws:username": "alice"}}, False),
    ],
)
def test_conditions_are_about_the_call(users: Users, condition: dict[str, Any], agrees: bool) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    set_policy(users("ops"), url, {"Condition": condition})
    assert carried_out(calls(url)["sendmessage"], users("alice")) is agrees


def test_the_time_of_a_condition_is_the_brokers(users: Users) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    ends = str(int(users.broker.clock.now()) + 60)
    set_policy(users("ops"), url, {"Condition": {"DateLessThan": {"aws:CurrentTime": ends}}})
    send = calls(url)["sendmessage"]
    assert carried_out(send, users("alice"))
    users.broker.clock.advance(61)
    assert not carried_out(send, users("alice"))


def test_a_forwarded_address_is_not_believed(users: Users) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    set_policy(users("ops"), url, {"Condition": {"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}}})
    client = users("alice")
    client.meta.events.register(
        "before-send.sqs", lambda request, **_: request.headers.update({"X-Forwarded-For": "192.0.2.7"})
    )
    with denied():
        client.send_message(QueueUrl=url, MessageBody="1")


def test_add_and_remove_permission_change_what_is_enforced(users: Users) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    send = calls(url)["sendmessage"]
    users("ops").add_permission(QueueUrl=url, Label="l", AWSAccountIds=[AWAY], Actions=["SendMessage"])
    assert carried_out(send, users("alice"))
    assert not carried_out(calls(url)["receivemessage"], users("alice"))
    users("ops").remove_permission(QueueUrl=url, Label="l")
    assert not carried_out(send, users("alice"))


def test_a_poll_that_waits_ends_when_its_permission_does(users: Users) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    set_policy(users("ops"), url, {})
    alice = users("alice")
    with ThreadPoolExecutor() as pool:
        poll = pool.submit(alice.receive_message, QueueUrl=url, WaitTimeSeconds=5)
        users.broker.clock.advance(0.1)
        users("ops").set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
        users("ops").send_message(QueueUrl=url, MessageBody="1")
        with denied():
            poll.result(20)
    assert len(users("ops").receive_message(QueueUrl=url)["Messages"]) == 1


def test_a_queue_of_another_account_that_does_not_exist_is_just_that(users: Users) -> None:
    url = f"{users.broker.url}/{HOME}/orders"
    for call in calls(url).values():
        with refused(NON_EXISTENT):
            call(users("alice"))


def test_a_move_task_of_another_account_cannot_be_cancelled(users: Users) -> None:
    ops = users("ops")
    ops.create_queue(QueueName="orders")
    redrive = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 1})
    ops.create_queue(QueueName="source", Attributes={"RedrivePolicy": redrive})
    for _ in range(3):
        ops.send_message(QueueUrl="orders", MessageBody="1")
    destination = f"arn:aws:sqs:us-east-1:{HOME}:source"
    how = {"SourceArn": ARN, "DestinationArn": destination, "MaxNumberOfMessagesPerSecond": 1}
    handle = ops.start_message_move_task(**how)["TaskHandle"]
    with denied("sqs:cancelmessagemovetask"):
        users("alice").cancel_message_move_task(TaskHandle=handle)
    ops.delete_queue(QueueUrl="orders")
    with refused("ResourceNotFoundException", "SourceArn", 404):
        users("alice").cancel_message_move_task(TaskHandle=handle)


@pytest.mark.parametrize(
    "action", ["AddPermission", "RemovePermission", "CreateQueue", "DeleteQueue", "ListQueues", "SetQueueAttributes"]
)
def test_add_permission_refuses_what_is_for_the_owner_alone(users: Users, action: str) -> None:
    url = users("ops").create_queue(QueueName="orders")["QueueUrl"]
    with refused("InvalidParameterValue", f"Value SQS:{action} for parameter ActionName is invalid. Reason: Only the"):
        users("ops").add_permission(QueueUrl=url, Label="l", AWSAccountIds=[AWAY], Actions=["SendMessage", action])


def test_policies_do_not_count_where_signatures_are_not_checked() -> None:
    with running() as broker:
        ops, alice = broker.client(), broker.client(aws_access_key_id=AWAY)
        url = ops.create_queue(QueueName="orders")["QueueUrl"]
        set_policy(ops, url, {"Effect": "Deny"})
        assert all(carried_out(call, alice) for call in calls(url).values())
        ops.close()
        alice.close()


# The admin interface.


def test_the_admin_interface_is_for_users_of_the_brokers_own_account(users: Users) -> None:
    users("alice").create_queue(QueueName="orders")
    with Client(users.broker.url, "us-east-1", access_key="AKIAOPS", secret_key="ops") as client:
        assert Admin(client).clock()["manual"]
    with Client(users.broker.url, "us-east-1", access_key="AKIAALICE", secret_key="alice") as client:
        for ask in (Admin(client).queues, lambda: Admin(client).peek("orders")):
            with pytest.raises(SemelError, match=f"only users of the broker's own account, {HOME}, may"):
                ask()
    assert users.broker.peek(f"arn:aws:sqs:us-east-1:{AWAY}:orders") == []


def metrics(broker: EmbeddedBroker, name: str) -> set[str]:
    return {line for line in broker.metrics().splitlines() if line.startswith(name)}


def test_queues_of_other_regions_and_accounts_go_by_their_arns() -> None:
    with running(clock="manual") as broker:
        home, ireland = broker.client(), broker.client(region_name="eu-west-1")
        for client, body in ((home, "here"), (ireland, "there")):
            client.create_queue(QueueName="orders")
            client.send_message(QueueUrl="orders", MessageBody=body)
        there = f"arn:aws:sqs:eu-west-1:{HOME}:orders"
        here = f"arn:aws:sqs:us-east-1:{HOME}:orders"

        rows = broker.admin("GET", "queues")["queues"]
        assert [(row["name"], row["arn"], row["visible"]) for row in rows] == [(there, there, 1), ("orders", here, 1)]
        for name, body in (("orders", "here"), (here, "here"), (there, "there")):
            assert [message["Body"] for message in broker.peek(name)] == [body]
        (message,) = broker.peek(there)
        path = f"queues/{quote(there, safe='')}/receive"
        assert len(broker.admin("POST", path, {"ids": [message["MessageId"]]})["Messages"]) == 1

        broker.clock.advance(20)
        assert set(broker.admin("GET", "history")["queues"]) == {"orders", there}
        assert set(broker.admin("GET", f"history?queue={quote(there)}")["queues"]) == {there}
        assert metrics(broker, "sqs_NumberOfMessagesSent_total{") == {
            'sqs_NumberOfMessagesSent_total{QueueName="orders"} 1.0',
            f'sqs_NumberOfMessagesSent_total{{AccountId="{HOME}",QueueName="orders",Region="eu-west-1"}} 1.0',
        }
        home.close()
        ireland.close()


def test_a_fault_of_one_queue_leaves_that_of_the_same_name_alone() -> None:
    with running() as broker:
        home, ireland = broker.client(), broker.client(region_name="eu-west-1")
        for client in (home, ireland):
            client.create_queue(QueueName="orders")
        there = f"arn:aws:sqs:eu-west-1:{HOME}:orders"
        broker.faults.set("throttle", 1, queue=there)
        home.send_message(QueueUrl="orders", MessageBody="1")
        with refused("RequestThrottled", status=403):
            ireland.send_message(QueueUrl=f"{broker.url}/{HOME}/orders", MessageBody="1")
        assert broker.admin("GET", "faults")["faults"] == [{"kind": "throttle", "queue": there, "rate": 1}]
        labels = f'AccountId="{HOME}",QueueName="orders",Region="eu-west-1",kind="throttle"'
        assert metrics(broker, "semel_faults_injected_total{") == {f"semel_faults_injected_total{{{labels}}} 1.0"}
        broker.faults.clear()
        broker.faults.set("throttle", 1, queue=f"arn:aws:sqs:us-east-1:{HOME}:orders")
        ireland.send_message(QueueUrl="orders", MessageBody="1")
        with refused("RequestThrottled", status=403):
            home.send_message(QueueUrl="orders", MessageBody="1")
        home.close()
        ireland.close()


def test_faults_inside_the_rules_are_of_one_queue_too() -> None:
    with running() as broker:
        home, ireland = broker.client(), broker.client(region_name="eu-west-1")
        for kind in ("lost-delete", "duplicate"):
            broker.faults.clear()
            broker.faults.set(kind, 1, queue=f"arn:aws:sqs:eu-west-1:{HOME}:{kind}")
            for client in (home, ireland):
                client.create_queue(QueueName=kind)
                client.send_message(QueueUrl=kind, MessageBody="1")
                (message,) = client.receive_message(QueueUrl=kind)["Messages"]
                client.delete_message(QueueUrl=kind, ReceiptHandle=message["ReceiptHandle"])
            assert broker.faults.counts()[kind] == 1
        home.close()
        ireland.close()


def test_semels_own_tools_see_the_queues_of_their_region() -> None:
    with running() as broker, Client(broker.url, "us-east-1") as home, Client(broker.url, "eu-west-1") as ireland:
        for client in (home, ireland):
            client.create_queue("orders").send(client.region)
            client.create_queue(client.region)
        for client in (home, ireland):
            admin = Admin.of(client)
            assert admin is not None
            assert [row["name"] for row in admin.queues()] == sorted(["orders", client.region])
            assert [message["Body"] for message in admin.peek("orders").messages] == [client.region]
            admin.set_fault("duplicate", 0.5, queue="orders")
        arn = f"arn:aws:sqs:eu-west-1:{HOME}:orders"
        assert [setting["queue"] for setting in broker.admin("GET", "faults")["faults"]] == ["orders", arn]
        admin = Admin(ireland)
        here = f"arn:aws:sqs:us-east-1:{HOME}:orders"
        assert [setting["queue"] for setting in admin.faults()["faults"]] == [here, "orders"]


# Data folders.


def test_a_restart_keeps_queues_in_their_regions_and_accounts(tmp_path: Path) -> None:
    callers = [("us-east-1", "x"), ("eu-west-1", "x"), ("us-east-1", AWAY), ("eu-west-1", AWAY)]
    with running(data=tmp_path / "data") as broker:
        for region, key in callers:
            client = broker.client(region_name=region, aws_access_key_id=key)
            client.create_queue(QueueName="orders", Attributes={"Policy": json.dumps({"Statement": []})})
            client.send_message(QueueUrl="orders", MessageBody=f"{region} {key}")
            client.create_queue(QueueName="gone")
            client.close()
        client = broker.client(region_name="eu-west-1")
        client.delete_queue(QueueUrl="gone")
        client.close()
    with running(data=tmp_path / "data") as broker:
        for region, key in callers:
            client = broker.client(region_name=region, aws_access_key_id=key)
            (message,) = client.receive_message(QueueUrl="orders")["Messages"]
            assert message["Body"] == f"{region} {key}"
            if (region, key) == ("eu-west-1", "x"):
                with refused("AWS.SimpleQueueService.QueueDeletedRecently"):
                    client.create_queue(QueueName="gone")
            else:
                client.create_queue(QueueName="gone")
            client.close()


def test_a_broker_of_another_region_finds_the_queues_where_they_were_made(tmp_path: Path) -> None:
    with running(data=tmp_path) as broker:
        client = broker.client()
        client.create_queue(QueueName="orders")
        client.send_message(QueueUrl="orders", MessageBody="1")
        client.close()
    with running(data=tmp_path, region="eu-west-1") as broker:
        here, there = broker.client(), broker.client(region_name="us-east-1")
        assert "QueueUrls" not in here.list_queues()
        assert len(there.receive_message(QueueUrl="orders")["Messages"]) == 1
        here.close()
        there.close()


def test_queues_that_were_written_without_a_region_become_the_brokers_own(tmp_path: Path) -> None:
    with running(data=tmp_path) as broker:
        client = broker.client()
        client.create_queue(QueueName="orders")
        client.create_queue(QueueName="gone")
        client.delete_queue(QueueUrl="gone")
        client.close()
    with sqlite3.connect(tmp_path / "broker.db") as database:
        database.execute("UPDATE queues SET region = '', account = ''")
        database.execute("UPDATE deleted_queues SET region = '', account = ''")
    database.close()
    for region in ("eu-west-1", "us-east-1"):
        with running(data=tmp_path, region=region, account=AWAY) as broker:
            client = broker.client(region_name="eu-west-1")
            assert client.list_queues()["QueueUrls"] == [f"{broker.url}/{AWAY}/orders"]
            with refused("AWS.SimpleQueueService.QueueDeletedRecently"):
                client.create_queue(QueueName="gone")
            client.close()
