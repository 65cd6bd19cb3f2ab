"""The life of one message on Semel's broker: sent, redelivered, dead-lettered, redriven, done.

    pip install 'semel[testing]'
    python examples/broker_tour.py

Uses the broker with plain boto3, exactly as a program uses AWS. The broker's clock is manual, so nobody has to wait for
a visibility timeout.
"""

from __future__ import annotations

import json
import tempfile
from typing import TYPE_CHECKING

from semel.broker import EmbeddedBroker, running

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef


def report(step: str, what: str) -> None:
    print(f"  {step:<12} {what}")


def depth(sqs: SQSClient, name: str) -> str:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    visible, in_flight = counts["ApproximateNumberOfMessages"], counts["ApproximateNumberOfMessagesNotVisible"]
    return f"{name}: {visible} visible, {in_flight} in flight"


def receive(sqs: SQSClient, url: str) -> MessageTypeDef | None:
    answer = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"])
    return answer["Messages"][0] if "Messages" in answer else None


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running(data=folder, clock="manual") as broker:
        print(f"Semel's SQS is listening on {broker.url}, durable in {folder}\n")
        tour(broker, broker.client())
    print("\nSame calls, same answers as on AWS; no account, no network, no waiting.")


def tour(broker: EmbeddedBroker, sqs: SQSClient) -> None:
    dead = sqs.create_queue(QueueName="orders-dlq")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    orders = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "30", "RedrivePolicy": policy})[
        "QueueUrl"
    ]

    sent = sqs.send_message(QueueUrl=orders, MessageBody='{"order": 7, "euro": 40}')
    report("send", f"message {sent['MessageId'][:8]} · {depth(sqs, 'orders')}")

    first = receive(sqs, orders)
    assert first is not None
    report("receive", f"delivery {first['Attributes']['ApproximateReceiveCount']}; the worker dies before it deletes")

    assert receive(sqs, orders) is None
    report("receive", "nothing: it is hidden for 30 seconds")

    broker.clock.advance(31)
    again = receive(sqs, orders)
    assert again is not None
    count = again["Attributes"]["ApproximateReceiveCount"]
    report("redelivery", f"delivery {count} of the same message: this is how people get charged twice")

    broker.clock.advance(31)
    assert receive(sqs, orders) is None
    report("dead letter", f"two deliveries were allowed, the third moves it · {depth(sqs, 'orders-dlq')}")

    sqs.start_message_move_task(SourceArn=arn)
    task = sqs.list_message_move_tasks(SourceArn=arn)["Results"][0]
    report(
        "redrive",
        f"{task['Status'].lower()}, {task['ApproximateNumberOfMessagesMoved']} moved back · {depth(sqs, 'orders')}",
    )

    last = receive(sqs, orders)
    assert last is not None
    assert last["Body"] == first["Body"]
    assert last["MessageId"] != first["MessageId"]
    report("receive", f"the same order under a new id, {last['MessageId'][:8]}: a redrive is a new message to SQS")
    sqs.delete_message(QueueUrl=orders, ReceiptHandle=last["ReceiptHandle"])
    report("delete", f"{depth(sqs, 'orders')} · {depth(sqs, 'orders-dlq')}")


if __name__ == "__main__":
    main()
