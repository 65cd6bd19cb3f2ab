"""Section 2.5, CloudWatch: the metrics of each queue, as the broker exposes them to Prometheus."""

from __future__ import annotations

import re

import pytest

from .service import Broker, Sqs, entries

LINE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)\{(?P<labels>[^}]*)\}\s+(?P<value>\S+)")


def metric(broker: Broker, name: str, queue: str = "orders") -> float:
    """The value of the CloudWatch metric `name` of a queue, in whatever case and with whatever affixes."""
    wanted = name.lower()
    samples: dict[str, float] = {}
    for line in broker.metrics().splitlines():
        match = LINE.match(line)
        if match and f'"{queue}"' in match["labels"]:
            plain = match["name"].replace("_", "").lower()
            if wanted in plain and not plain.endswith(("bucket", "count", "created")):
                samples[match["name"]] = float(match["value"])
    assert len(samples) == 1, (name, samples, broker.metrics())
    return samples.popitem()[1]


def test_sends_are_counted_message_by_message(sqs: Sqs) -> None:
    """2.5: NumberOfMessagesSent; a batch counts each of its messages."""
    url = sqs.create()
    sqs.send(url)
    sqs.send_message_batch(QueueUrl=url, Entries=entries("a", "b"))
    assert metric(sqs.broker, "NumberOfMessagesSent") == 3


def test_receives_are_counted_message_by_message(sqs: Sqs) -> None:
    """2.5: NumberOfMessagesReceived; a redelivery counts again."""
    url = sqs.create()
    sqs.send_all(url, "a", "b")
    sqs.receive(url)
    sqs.advance(30)
    sqs.receive(url)
    assert metric(sqs.broker, "NumberOfMessagesReceived") == 4


def test_each_successful_delete_is_counted(sqs: Sqs) -> None:
    """2.5: NumberOfMessagesDeleted (each successful delete, duplicates too)."""
    url = sqs.create()
    sqs.send(url)
    message = sqs.receive_one(url)
    sqs.delete(url, message)
    sqs.delete(url, message)
    sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}])
    assert metric(sqs.broker, "NumberOfMessagesDeleted") == 3


def test_receives_that_found_nothing_are_counted(sqs: Sqs) -> None:
    """2.5: NumberOfEmptyReceives."""
    url = sqs.create()
    sqs.receive(url)
    sqs.receive(url)
    sqs.send(url)
    sqs.receive(url)
    assert metric(sqs.broker, "NumberOfEmptyReceives") == 2


def test_the_size_of_what_was_sent_is_summed_in_bytes(sqs: Sqs) -> None:
    """2.5: SentMessageSize (bytes)."""
    url = sqs.create()
    sqs.send(url, "x" * 100)
    sqs.send(url, "é" * 50)
    assert metric(sqs.broker, "SentMessageSize") == 200


def test_messages_are_counted_by_what_they_are_doing(sqs: Sqs) -> None:
    """2.5: ApproximateNumberOfMessagesVisible, …NotVisible, …Delayed."""
    url = sqs.create()
    sqs.send_all(url, "a", "b", "c")
    sqs.send(url, "d", DelaySeconds=10)
    sqs.receive(url, 2)
    names = ("Visible", "NotVisible", "Delayed")
    assert [metric(sqs.broker, f"ApproximateNumberOfMessages{name}") for name in names] == [1, 2, 1]


def test_the_age_is_that_of_the_oldest_message(sqs: Sqs) -> None:
    """2.5: ApproximateAgeOfOldestMessage (s)."""
    url = sqs.create()
    sqs.send(url)
    sqs.advance(100)
    sqs.send(url)
    assert metric(sqs.broker, "ApproximateAgeOfOldestMessage") == pytest.approx(100, abs=1)


def test_the_age_skips_messages_received_thrice(sqs: Sqs) -> None:
    """2.5: skips messages received ≥ 3×."""
    url = sqs.create()
    sqs.send(url, "poison")
    sqs.advance(100)
    for _ in range(3):
        sqs.receive_one(url, VisibilityTimeout=0)
    sqs.send(url, "fresh")
    sqs.advance(10)
    assert metric(sqs.broker, "ApproximateAgeOfOldestMessage") == pytest.approx(10, abs=1)


@pytest.mark.parametrize("fifo", [False, True])
def test_the_age_restarts_in_the_dead_letter_queue(sqs: Sqs, fifo: bool) -> None:
    """Rule 19 and 2.5: the age metric restarts on a DLQ move, on both types."""
    source, _ = sqs.create_pair(max_receives=1, fifo=fifo)
    sqs.send(source, **({"MessageGroupId": "g"} if fifo else {}))
    sqs.advance(500)
    sqs.receive(source, VisibilityTimeout=0)
    assert sqs.receive(source) == []
    sqs.advance(20)
    queue = "dead.fifo" if fifo else "dead"
    assert metric(sqs.broker, "ApproximateAgeOfOldestMessage", queue) == pytest.approx(20, abs=1)


def test_groups_in_flight_are_counted_on_fifo(sqs: Sqs) -> None:
    """2.5: ApproximateNumberOfGroupsWithInflightMessages (FIFO)."""
    url = sqs.create_fifo()
    for group in ("g1", "g2", "g3"):
        sqs.send_all(url, f"{group}-1", f"{group}-2", MessageGroupId=group)
    sqs.receive(url, 4)
    assert metric(sqs.broker, "ApproximateNumberOfGroupsWithInflightMessages", "orders.fifo") == 2


def test_each_queue_has_metrics_of_its_own(sqs: Sqs) -> None:
    """2.5: dimension QueueName."""
    sqs.send_all(sqs.create("orders"), "a", "b")
    sqs.send(sqs.create("other"))
    assert metric(sqs.broker, "NumberOfMessagesSent", "orders") == 2
    assert metric(sqs.broker, "NumberOfMessagesSent", "other") == 1
