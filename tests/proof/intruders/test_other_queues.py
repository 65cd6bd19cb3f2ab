"""Queues of another account: neither its users nor receipt handles of other queues change anything there.

`tests/broker/test_accounts.py` tests every call with the queue's ordinary address; here are the ways around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from semel.broker import EmbeddedBroker, running
from suite import slow

OWNER, THIEF = "000000000000", "222222222222"
BODY: Final = "for the owner only"
PROFILES: Final = f"""
[owner]
aws_access_key_id = AKIAOWNER
aws_secret_access_key = owner
[thief]
aws_access_key_id = AKIATHIEF
aws_secret_access_key = thief
aws_account_id = {THIEF}
"""


class Both:
    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.owner: Any = broker.client(aws_access_key_id="AKIAOWNER", aws_secret_access_key="owner")
        self.thief: Any = broker.client(aws_access_key_id="AKIATHIEF", aws_secret_access_key="thief")
        self.theirs: str = self.owner.create_queue(QueueName="orders")["QueueUrl"]
        self.mine: str = self.thief.create_queue(QueueName="orders")["QueueUrl"]

    def send(self) -> str:
        """Send a message of the owner and receive it. Returns its receipt handle."""
        self.owner.send_message(QueueUrl=self.theirs, MessageBody=BODY)
        (message,) = self.owner.receive_message(QueueUrl=self.theirs, VisibilityTimeout=600)["Messages"]
        return str(message["ReceiptHandle"])

    def bodies(self) -> list[str]:
        return [message["Body"] for message in self.broker.peek("orders")]


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    (tmp_path / "credentials").write_text(PROFILES)
    with running(credentials=tmp_path / "credentials", clock="manual", cooldowns=False) as broker:
        both = Both(broker)
        yield both
        both.owner.close()
        both.thief.close()


def test_a_handle_of_another_accounts_message_opens_nothing_at_a_queue_of_ones_own(both: Both) -> None:
    refuses(both.thief, both.mine, both.send())
    assert both.bodies() == [BODY]
    assert [message["State"] for message in both.broker.peek("orders")] == ["in_flight"]


def refuses(client: Any, url: str, handle: str) -> None:
    with pytest.raises(ClientError, match="ReceiptHandleIsInvalid"):
        client.delete_message(QueueUrl=url, ReceiptHandle=handle)
    with pytest.raises(ClientError, match="ReceiptHandleIsInvalid"):
        client.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)


def test_no_handle_can_be_made_out_of_another(both: Both) -> None:
    handle = both.send()
    for place, character in enumerate(handle):
        refuses(both.owner, both.theirs, handle[:place] + ("B" if character == "A" else "A") + handle[place + 1 :])
    assert [message["State"] for message in both.broker.peek("orders")] == ["in_flight"]


@pytest.mark.parametrize(
    "form",
    [
        "{url}/000000000000/orders",
        "{url}/queue/us-east-1/000000000000/orders",
        "{url}/222222222222/../000000000000/orders",
        *slow(
            "{url}/222222222222/%2e%2e/000000000000/orders",
            "{url}//000000000000//orders",
            "{url}/000000000000%2Forders",
            "{url}/000000000000/orders/",
            "{url}/000000000000/orders?x=/222222222222/orders",
            "{url}/000000000000/orders#/222222222222/orders",
            "https://sqs.us-east-1.amazonaws.com/000000000000/orders",
            "http://222222222222@127.0.0.1/000000000000/orders",
            "arn:aws:sqs:us-east-1:000000000000:orders",
            "000000000000/orders",
            "orders\x00",
        ),
    ],
)
def test_no_way_to_write_the_address_of_another_accounts_queue_gives_its_messages(both: Both, form: str) -> None:
    both.owner.send_message(QueueUrl=both.theirs, MessageBody=BODY)
    url = form.format(url=both.broker.url)
    got: dict[str, Any] = {}
    with suppress(ClientError):
        got = dict(both.thief.receive_message(QueueUrl=url))
    with suppress(ClientError):
        both.thief.purge_queue(QueueUrl=url)
    with suppress(ClientError):
        both.thief.delete_queue(QueueUrl=url)
    assert BODY not in str(got)
    assert [message["State"] for message in both.broker.peek("orders")] == ["visible"]


def test_no_move_task_takes_messages_out_of_another_accounts_queue_or_puts_any_in(both: Both) -> None:
    both.owner.send_message(QueueUrl=both.theirs, MessageBody=BODY)
    their_arn, my_arn = (f"arn:aws:sqs:us-east-1:{account}:orders" for account in (OWNER, THIEF))
    their_dlq = both.owner.create_queue(QueueName="their-dlq")["QueueUrl"]
    their_dlq_arn = f"arn:aws:sqs:us-east-1:{OWNER}:their-dlq"
    policy = f'{{"deadLetterTargetArn": "{their_dlq_arn}", "maxReceiveCount": "1"}}'
    both.owner.set_queue_attributes(QueueUrl=both.theirs, Attributes={"RedrivePolicy": policy})
    both.owner.send_message(QueueUrl=their_dlq, MessageBody="dead")
    my_dlq = both.thief.create_queue(QueueName="mine-dlq")["QueueUrl"]
    my_dlq_arn = f"arn:aws:sqs:us-east-1:{THIEF}:mine-dlq"
    policy = f'{{"deadLetterTargetArn": "{my_dlq_arn}", "maxReceiveCount": "1"}}'
    both.thief.set_queue_attributes(QueueUrl=both.mine, Attributes={"RedrivePolicy": policy})
    both.thief.send_message(QueueUrl=my_dlq, MessageBody="planted")
    for arguments in (
        {"SourceArn": their_arn, "DestinationArn": my_arn},
        {"SourceArn": their_arn},
        {"SourceArn": their_dlq_arn, "DestinationArn": my_arn},
        {"SourceArn": their_dlq_arn, "DestinationArn": their_arn},
        {"SourceArn": my_dlq_arn, "DestinationArn": their_arn},
    ):
        with suppress(ClientError):
            both.thief.start_message_move_task(**arguments)
    both.broker.clock.advance(60)
    assert both.bodies() == [BODY]
    assert [message["Body"] for message in both.broker.peek("their-dlq")] == ["dead"]


def test_no_redrive_policy_sends_another_accounts_queue_what_it_did_not_ask_for(both: Both) -> None:
    policy = f'{{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:{OWNER}:orders", "maxReceiveCount": "1"}}'
    with suppress(ClientError):
        both.thief.set_queue_attributes(QueueUrl=both.mine, Attributes={"RedrivePolicy": policy})
    both.thief.send_message(QueueUrl=both.mine, MessageBody="planted")
    for _ in range(3):
        both.thief.receive_message(QueueUrl=both.mine, VisibilityTimeout=1)
        both.broker.clock.advance(2)
    assert both.bodies() == []


def test_lists_show_another_account_nothing(both: Both) -> None:
    both.owner.create_queue(QueueName="orders-secret")
    assert both.thief.list_queues()["QueueUrls"] == [both.mine]
    with pytest.raises(ClientError, match=r"AccessDenied|NonExistentQueue"):
        both.thief.get_queue_url(QueueName="orders-secret", QueueOwnerAWSAccountId=OWNER)


@pytest.mark.parametrize("end", ["purged", "deleted and made again"])
def test_a_handle_of_a_queue_that_was_emptied_touches_no_later_message(both: Both, end: str) -> None:
    handle = both.send()
    if end == "purged":
        both.owner.purge_queue(QueueUrl=both.theirs)
    else:
        both.owner.delete_queue(QueueUrl=both.theirs)
        both.owner.create_queue(QueueName="orders")
    both.owner.send_message(QueueUrl=both.theirs, MessageBody=BODY)
    with suppress(ClientError):
        both.owner.change_message_visibility(QueueUrl=both.theirs, ReceiptHandle=handle, VisibilityTimeout=600)
    with suppress(ClientError):
        both.owner.delete_message(QueueUrl=both.theirs, ReceiptHandle=handle)
    assert [(message["Body"], message["State"]) for message in both.broker.peek("orders")] == [(BODY, "visible")]
