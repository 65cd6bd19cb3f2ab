"""Regions and accounts: what a QueueUrl, a name and an ARN mean, and for whom. Section 3, rules 53, 64 and 66."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Alongside
from .service import (
    ACCOUNT,
    BAD_HANDLE,
    DELETED_RECENTLY,
    INVALID_VALUE,
    NON_EXISTENT_QUEUE,
    NOT_FOUND,
    REGION,
    Sqs,
    bodies,
    entries,
    query_call,
    refused,
)

OTHER = "111122223333"
NOBODYS = "123456789012"


@pytest.fixture
def ireland(sqs: Sqs) -> Iterator[Sqs]:
    """The same broker, called for another region."""
    service = sqs.beside(region="eu-west-1")
    yield service
    service.client.close()


@pytest.fixture
def other(sqs: Sqs) -> Iterator[Sqs]:
    """The same broker, called by another account: an access key of 12 digits is one."""
    service = sqs.beside(access_key=OTHER)
    yield service
    service.client.close()


@pytest.fixture(params=["region", "account"])
def elsewhere(request: pytest.FixtureRequest) -> Sqs:
    name = "ireland" if request.param == "region" else "other"
    service: Sqs = request.getfixturevalue(name)
    return service


# Queues of one name.


def test_queues_of_one_name_in_two_regions_or_accounts_are_two_queues(sqs: Sqs, elsewhere: Sqs) -> None:
    """Rule 64."""
    here = sqs.create("orders", VisibilityTimeout=10)
    there = elsewhere.create("orders", VisibilityTimeout=20)
    sqs.send(here, "here")
    elsewhere.send(there, "there")
    assert bodies(sqs.receive(here)) == ["here"]
    assert bodies(elsewhere.receive(there)) == ["there"]
    assert sqs.attributes(here, "VisibilityTimeout") == {"VisibilityTimeout": "10"}
    assert elsewhere.attributes(there, "VisibilityTimeout") == {"VisibilityTimeout": "20"}
    elsewhere.delete_queue(QueueUrl=there)
    assert sqs.get_queue_url(QueueName="orders")["QueueUrl"] == here
    with refused(NON_EXISTENT_QUEUE):
        elsewhere.get_queue_url(QueueName="orders")


def test_the_arn_and_the_url_are_those_of_the_callers_region_and_account(sqs: Sqs, ireland: Sqs, other: Sqs) -> None:
    """Rule 64."""
    here, there, others = sqs.create(), ireland.create(), other.create()
    assert sqs.arn(here) == f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders"
    assert ireland.arn(there) == f"arn:aws:sqs:eu-west-1:{ACCOUNT}:orders"
    assert other.arn(others) == f"arn:aws:sqs:{REGION}:{OTHER}:orders"
    assert here == there == f"{sqs.broker.url}/{ACCOUNT}/orders"
    assert others == f"{sqs.broker.url}/{OTHER}/orders"


def test_a_list_has_the_queues_of_the_callers_region_and_account_alone(sqs: Sqs, elsewhere: Sqs) -> None:
    """Rule 64, and 1.2: pages are of that list too."""
    for name in ("a", "c", "e"):
        sqs.create(name)
    mine = [elsewhere.create(name) for name in ("b", "c", "d")]
    assert elsewhere.list_queues()["QueueUrls"] == mine
    assert elsewhere.list_queues(QueueNamePrefix="c")["QueueUrls"] == mine[1:2]
    page = elsewhere.list_queues(MaxResults=2)
    assert page["QueueUrls"] == mine[:2]
    assert elsewhere.list_queues(MaxResults=2, NextToken=page["NextToken"])["QueueUrls"] == mine[2:]


def test_a_deleted_name_is_free_at_once_in_another_region_or_account(sqs: Sqs, elsewhere: Sqs) -> None:
    """Rule 64, and 1.6: the 60 seconds are those of one queue."""
    sqs.delete_queue(QueueUrl=sqs.create())
    elsewhere.create()
    with refused(DELETED_RECENTLY):
        sqs.create()


def test_a_receipt_handle_is_of_no_use_in_another_region_or_account(sqs: Sqs, elsewhere: Sqs) -> None:
    """Rules 11 and 64."""
    here, there = sqs.create(), elsewhere.create()
    sqs.send(here)
    with refused(BAD_HANDLE):
        elsewhere.delete(there, sqs.receive_one(here))


def test_a_long_poll_is_woken_by_its_own_queue(sqs: Sqs, elsewhere: Sqs, alongside: Alongside) -> None:
    """Rules 15 and 64."""
    here, there = sqs.create(), elsewhere.create()
    poll = alongside(elsewhere.receive, there, WaitTimeSeconds=20)
    sender = sqs.beside(region=elsewhere.client.meta.region_name, access_key=_key(elsewhere))
    sqs.send(here, "here")
    sender.send(there, "there")
    assert bodies(poll.result(10)) == ["there"]
    sender.client.close()


def _key(service: Sqs) -> str:
    return str(service.client._request_signer._credentials.access_key)


# Who the caller is.


@pytest.mark.parametrize("region", ["elasticmq", "local", "us-east-1a"])
def test_a_name_that_is_no_region_stands_for_the_brokers_own(sqs: Sqs, region: str) -> None:
    """Rule 64: unsure on AWS, which serves no such region."""
    url = sqs.create()
    client = sqs.beside(region=region)
    assert client.list_queues()["QueueUrls"] == [url]
    assert client.arn(client.create("new")) == f"arn:aws:sqs:{REGION}:{ACCOUNT}:new"
    client.client.close()


@pytest.mark.parametrize("key", ["11112222333", "1111222233334", "11112222333x", "AKIA1111222233334444"])
def test_an_access_key_is_an_account_only_if_it_looks_like_one(sqs: Sqs, key: str) -> None:
    """Rule 64."""
    client = sqs.beside(access_key=key)
    assert client.create() == f"{sqs.broker.url}/{ACCOUNT}/orders"
    client.client.close()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Basic eDp5"},
        {"Authorization": "AWS4-HMAC-SHA256 Credential=x"},
        {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/sqs/aws4_request, SignedHeaders=host, Signature=0"},
        {"Authorization": "AWS4-HMAC-SHA256 SignedHeaders=host, Signature=0"},
    ],
)
def test_a_call_that_says_no_region_is_for_the_brokers_own(json_sqs: Sqs, headers: dict[str, str]) -> None:
    """Rule 64."""
    answer = query_call(json_sqs.broker, "CreateQueue", {"QueueName": "orders"}, headers=headers)
    assert answer.status == 200
    assert json_sqs.arn("orders") == f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders"


@pytest.mark.parametrize(
    "header",
    [
        "AWS4-HMAC-SHA256 Credential=a/20260101/eu-west-1/sqs/aws4_request, SignedHeaders=host, Signature=0",
        "AWS4-HMAC-SHA256 Credential=a/20260101/eu-west-1/sqs/aws4_request,SignedHeaders=host,Signature=0",
        "AWS4-HMAC-SHA256 SignedHeaders=host, Credential=a/20260101/eu-west-1/sqs/aws4_request, Signature=0",
        "AWS4-HMAC-SHA256 Credential=a/20260101/eu-west-1/sqs/aws4_request SignedHeaders=host Signature=0",
        "AWS4-HMAC-SHA256 Credential=a/b/20260101/eu-west-1/sqs/aws4_request, SignedHeaders=host, Signature=0",
    ],
)
def test_the_region_is_that_of_the_credential_scope_however_it_is_written(json_sqs: Sqs, header: str) -> None:
    """Rule 64."""
    for _ in range(2):
        query_call(json_sqs.broker, "CreateQueue", {"QueueName": "orders"}, headers={"Authorization": header})
    ireland = json_sqs.beside(region="eu-west-1")
    assert "QueueUrls" in ireland.list_queues()
    assert "QueueUrls" not in json_sqs.list_queues()
    ireland.client.close()


def test_callers_whose_headers_begin_alike_are_told_apart(json_sqs: Sqs) -> None:
    """Rule 64."""
    start = "AWS4-HMAC-SHA256 SignedHeaders=host, Credential=a/20260101/"
    for region in ("eu-west-1", "eu-west-2"):
        headers = {"Authorization": f"{start}{region}/sqs/aws4_request, Signature=0"}
        query_call(json_sqs.broker, "CreateQueue", {"QueueName": region}, headers=headers)
        there = json_sqs.beside(region=region)
        assert there.list_queues()["QueueUrls"] == [f"{json_sqs.broker.url}/{ACCOUNT}/{region}"]
        there.client.close()


def test_a_presigned_address_is_for_the_region_that_it_was_signed_for(json_sqs: Sqs) -> None:
    """Rule 64: X-Amz-Credential."""
    fields = {"QueueName": "orders", "X-Amz-Credential": f"{OTHER}/20260101/eu-west-1/sqs/aws4_request"}
    answer = query_call(json_sqs.broker, "CreateQueue", fields, method="GET")
    assert answer.xml().findtext(".//QueueUrl") == f"{json_sqs.broker.url}/{OTHER}/orders"
    ireland = json_sqs.beside(region="eu-west-1", access_key=OTHER)
    assert ireland.arn("orders") == f"arn:aws:sqs:eu-west-1:{OTHER}:orders"
    ireland.client.close()


def test_the_sender_is_the_account_where_nobody_knows_the_user(sqs: Sqs, other: Sqs) -> None:
    """Rule 66: never the access key."""
    url = sqs.create()
    sqs.send(url)
    other.send(url)
    senders = [message["Attributes"]["SenderId"] for message in sqs.receive(url, AttributeNames=["SenderId"])]
    assert sorted(senders) == [ACCOUNT, OTHER]


# What a QueueUrl means.


def test_a_queue_url_may_be_the_bare_name_on_every_operation(sqs: Sqs) -> None:
    """Rule 53."""
    queue, dead = "orders", "dead"
    sqs.create(queue)
    sqs.create(dead)
    sqs.set(queue, RedrivePolicy=sqs.redrive_policy(dead))
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [f"{sqs.broker.url}/{ACCOUNT}/{queue}"]
    sqs.tag_queue(QueueUrl=queue, Tags={"a": "1"})
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"a": "1"}
    sqs.untag_queue(QueueUrl=queue, TagKeys=["a"])
    sqs.add_permission(QueueUrl=queue, Label="l", AWSAccountIds=[OTHER], Actions=["SendMessage"])
    sqs.remove_permission(QueueUrl=queue, Label="l")
    sqs.send(queue, "1")
    sqs.send_message_batch(QueueUrl=queue, Entries=entries("2", "3"))
    first, second, third = sqs.receive(queue)
    sqs.change(queue, first, 60)
    sqs.change_message_visibility_batch(
        QueueUrl=queue, Entries=[{"Id": "a", "ReceiptHandle": second["ReceiptHandle"], "VisibilityTimeout": 60}]
    )
    sqs.delete(queue, first)
    sqs.delete_message_batch(
        QueueUrl=queue,
        Entries=[{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate((second, third))],
    )
    assert sqs.counts(queue) == (0, 0, 0)
    sqs.purge_queue(QueueUrl=queue)
    sqs.delete_queue(QueueUrl=queue)
    with refused(NON_EXISTENT_QUEUE):
        sqs.send(queue)


def test_a_bare_name_is_that_of_the_callers_region_and_account(sqs: Sqs, elsewhere: Sqs) -> None:
    """Rule 53."""
    sqs.create()
    with refused(NON_EXISTENT_QUEUE):
        elsewhere.send("orders")
    elsewhere.create()
    elsewhere.send("orders", "there")
    assert sqs.counts("orders").visible == 0
    assert elsewhere.counts("orders").visible == 1


FORMS: dict[str, str] = {
    "its own": "{broker}/000000000000/orders",
    "another host": "http://localhost:4566/000000000000/orders",
    "AWS": "https://sqs.us-east-1.amazonaws.com/000000000000/orders",
    "AWS's tutorials": "https://sqs.us-east-1.amazonaws.com/123456789012/orders",
    "AWS, another region in the host": "https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
    "AWS, before regions": "https://queue.amazonaws.com/123456789012/orders",
    "AWS, the older name": "https://us-east-1.queue.amazonaws.com/123456789012/orders",
    "AWS, the older name of another region": "https://eu-west-1.queue.amazonaws.com/123456789012/orders",
    "ElasticMQ": "http://localhost:9324/queue/orders",
    "ElasticMQ, with an account": "http://localhost:9324/000000000000/orders",
    "LocalStack's standard form": "http://sqs.us-east-1.localhost.localstack.cloud:4566/000000000000/orders",
    "LocalStack's domain form": "http://us-east-1.queue.localhost.localstack.cloud:4566/000000000000/orders",
    "LocalStack's path form": "http://localhost:4566/queue/us-east-1/000000000000/orders",
    "no account": "{broker}/orders",
    "only a path": "/000000000000/orders",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_queue_url_is_understood_in_every_form_that_configurations_have(sqs: Sqs, form: str) -> None:
    """Rule 64, and 1.1: the queue URL."""
    sqs.create()
    url = form.format(broker=sqs.broker.url)
    sqs.send(url, "1")
    assert bodies(sqs.receive(url)) == ["1"]
    sqs.set(url, VisibilityTimeout=7)
    assert sqs.attributes("orders", "VisibilityTimeout") == {"VisibilityTimeout": "7"}


@pytest.mark.parametrize("path", ["/000000000000/orders", "/queue/orders", "/queue/us-east-1/000000000000/orders"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_form_may_be_sent_to_the_queues_own_path(json_sqs: Sqs, path: str, method: str) -> None:
    """Rule 64, and 1.1: the Query protocol at the path of the queue URL."""
    json_sqs.create()
    assert query_call(json_sqs.broker, "SendMessage", {"MessageBody": "1"}, path=path, method=method).status == 200
    assert json_sqs.counts("orders").visible == 1


def test_only_the_region_in_localstacks_path_form_counts(sqs: Sqs, ireland: Sqs) -> None:
    """Rule 64: everywhere else the credential scope does."""
    sqs.create()
    ireland.create()
    ireland.send("https://sqs.us-east-1.amazonaws.com/000000000000/orders", "there")
    ireland.send("http://us-east-1.queue.localhost.localstack.cloud:4566/000000000000/orders", "there")
    assert sqs.counts("orders").visible == 0
    ireland.send("http://localhost:4566/queue/us-east-1/000000000000/orders", "here")
    sqs.send("http://localhost:4566/queue/eu-west-1/000000000000/orders", "there")
    assert bodies(sqs.receive("orders")) == ["here"]
    assert bodies(ireland.receive("orders")) == ["there", "there", "there"]


def test_an_account_that_nobody_has_stands_for_the_callers_own(sqs: Sqs, other: Sqs) -> None:
    """Rule 64: only until somebody has it."""
    url = f"https://sqs.us-east-1.amazonaws.com/{NOBODYS}/orders"
    sqs.create()
    other.create()
    sqs.send(url, "here")
    other.send(url, "there")
    assert bodies(sqs.receive(f"{sqs.broker.url}/{ACCOUNT}/orders")) == ["here"]
    assert bodies(sqs.receive(f"{sqs.broker.url}/{OTHER}/orders")) == ["there"]
    somebody = sqs.beside(access_key=NOBODYS)
    somebody.create("another")
    with refused(NON_EXISTENT_QUEUE):
        sqs.send(url)
    somebody.create("orders")
    sqs.send(url, "theirs")
    assert bodies(somebody.receive("orders")) == ["theirs"]
    somebody.client.close()


def test_the_brokers_own_account_is_never_taken_for_another(sqs: Sqs, other: Sqs) -> None:
    """Rule 64."""
    other.create()
    with refused(NON_EXISTENT_QUEUE):
        other.send(f"{sqs.broker.url}/{ACCOUNT}/orders")


# Names and ARNs of others.


def test_the_owner_in_get_queue_url_finds_the_queue_of_that_account(sqs: Sqs, other: Sqs) -> None:
    """Rule 64: an account that nobody has does not stand for another here."""
    theirs = other.create()
    url = sqs.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId=OTHER)["QueueUrl"]
    assert url == theirs
    with refused(NON_EXISTENT_QUEUE):
        sqs.get_queue_url(QueueName="orders")
    sqs.create()
    for owner in (NOBODYS, "x"):
        with refused(NON_EXISTENT_QUEUE):
            sqs.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId=owner)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda sqs: sqs.beside(region="eu-west-1"), "Dead-letter queue must be in same region as the source."),
        (lambda sqs: sqs.beside(access_key=OTHER), "Dead-letter target owner should be same as the source."),
    ],
)
def test_a_dead_letter_queue_elsewhere_is_refused(sqs: Sqs, make: Callable[[Sqs], Sqs], reason: str) -> None:
    """Rules 26 and 64."""
    elsewhere = make(sqs)
    arn = elsewhere.arn(elsewhere.create("dead"))
    sqs.create("dead")
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    text = f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}"
    with refused(INVALID_VALUE, text):
        sqs.create("source", RedrivePolicy=policy)
    url = sqs.create("source")
    with refused(INVALID_VALUE, text):
        sqs.set(url, RedrivePolicy=policy)
    elsewhere.client.close()


def test_dead_letters_stay_in_their_region_and_account(sqs: Sqs, elsewhere: Sqs) -> None:
    """Rules 23 and 64: with queues of the same names everywhere."""
    sqs.create_pair()
    source, dead = elsewhere.create_pair()
    elsewhere.send(source, "1")
    elsewhere.receive(source, VisibilityTimeout=0)
    assert elsewhere.receive(source) == []
    message = elsewhere.receive_one(dead)
    assert (message["Body"], message["Attributes"]["DeadLetterQueueSourceArn"]) == ("1", elsewhere.arn(source))
    assert sqs.counts("dead") == (0, 0, 0)
    assert elsewhere.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [source]


def test_a_move_task_is_of_one_region_and_account(sqs: Sqs, elsewhere: Sqs) -> None:
    """Rules 28 and 64: with queues of the same names everywhere."""
    sqs.create_pair()
    source, dead = elsewhere.create_pair()
    elsewhere.send(source, "1")
    elsewhere.receive(source, VisibilityTimeout=0)
    elsewhere.receive(source)
    arn = elsewhere.arn(dead)
    elsewhere.start_message_move_task(SourceArn=arn)
    elsewhere.advance(1)
    assert elsewhere.list_message_move_tasks(SourceArn=arn)["Results"][0]["Status"] == "COMPLETED"
    assert bodies(elsewhere.receive(source)) == ["1"]
    assert sqs.counts("source") == (0, 0, 0)
    assert sqs.list_message_move_tasks(SourceArn=sqs.arn("dead")).get("Results", []) == []


def test_a_move_task_of_another_region_cannot_be_reached(sqs: Sqs, ireland: Sqs) -> None:
    """Rules 30 and 64."""
    source, dead = ireland.create_pair()
    ireland.send_all(source, "1", "2")
    ireland.receive(source, VisibilityTimeout=0)
    ireland.receive(source)
    arn = ireland.arn(dead)
    handle = ireland.start_message_move_task(SourceArn=arn, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    calls: list[Callable[[], Any]] = [
        lambda: sqs.start_message_move_task(SourceArn=arn),
        lambda: sqs.list_message_move_tasks(SourceArn=arn),
        lambda: sqs.cancel_message_move_task(TaskHandle=handle),
    ]
    for call in calls:
        with refused(NOT_FOUND):
            call()
    ireland.cancel_message_move_task(TaskHandle=handle)


def test_a_move_to_a_queue_elsewhere_is_refused(sqs: Sqs, elsewhere: Sqs) -> None:
    """Rules 28 and 64."""
    _, dead = sqs.create_pair()
    destination = elsewhere.arn(elsewhere.create("target"))
    with refused({NOT_FOUND, INVALID_VALUE}):
        sqs.start_message_move_task(SourceArn=sqs.arn(dead), DestinationArn=destination)
