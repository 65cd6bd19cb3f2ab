"""The broker's history of its metrics: what a sample contains, when it is taken, and how long it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from semel.broker import EmbeddedBroker, running
from semel.broker.engine import Engine
from semel.broker.engine.schema import open_database
from semel.broker.metric_history import KEPT, MOST_ANSWERED, MOST_QUEUES, PERIOD, History
from semel.errors import SemelError


@pytest.fixture
def sqs() -> Iterator[EmbeddedBroker]:
    with running(clock="manual") as broker:
        yield broker


def history(sqs: EmbeddedBroker, query: str = "") -> dict[str, Any]:
    return sqs.admin("GET", f"history{query}")


def orders(sqs: EmbeddedBroker) -> dict[str, list[float]]:
    return cast("dict[str, list[float]]", history(sqs, "?queue=orders")["queues"]["orders"])


def test_a_sample_says_what_happened_since_the_one_before_and_how_full_the_queue_was(sqs: EmbeddedBroker) -> None:
    client = sqs.client()
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    start = sqs.clock.now()
    for body in "abc":
        client.send_message(QueueUrl=url, MessageBody=body)
    sqs.clock.advance(10)
    (message,) = client.receive_message(QueueUrl=url)["Messages"]
    client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    client.receive_message(QueueUrl=url)
    sqs.clock.advance(10)
    for _ in range(2):
        client.receive_message(QueueUrl=url)
    sqs.clock.advance(10)
    samples = orders(sqs)
    assert [at - start for at in samples["at"]] == pytest.approx([10, 20, 30])
    assert samples["seconds"] == [10, 10, 10]
    assert samples["sent"] == [3, 0, 0]
    assert samples["received"] == [0, 2, 1]
    assert samples["deleted"] == [0, 1, 0]
    assert samples["empty_receives"] == [0, 0, 1]
    assert samples["visible"] == [3, 1, 0]
    assert samples["in_flight"] == [0, 1, 2]
    assert samples["oldest_age"] == pytest.approx([10, 20, 30])


def test_there_is_one_sample_for_each_ten_seconds_however_many_calls_there_are(sqs: EmbeddedBroker) -> None:
    sqs.client().create_queue(QueueName="orders")
    for _ in range(12):
        sqs.clock.advance(5)
    assert orders(sqs)["seconds"] == [10] * 6


def test_a_clock_that_jumps_leaves_one_sample_that_says_how_long_its_period_was(sqs: EmbeddedBroker) -> None:
    sqs.client().create_queue(QueueName="orders")
    sqs.clock.advance(10)
    sqs.clock.advance(3_600)
    assert orders(sqs)["seconds"] == [10, 3_600]


def test_only_what_is_asked_for_is_answered(sqs: EmbeddedBroker) -> None:
    for name in ("orders", "refunds", "mail"):
        sqs.client().create_queue(QueueName=name)
    for _ in range(3):
        sqs.clock.advance(10)
    assert set(history(sqs)["queues"]) == {"orders", "refunds", "mail"}
    assert set(history(sqs, "?queue=orders&queue=mail")["queues"]) == {"orders", "mail"}
    last = orders(sqs)["at"][-1]
    assert history(sqs, f"?queue=orders&since={last - 10}")["queues"]["orders"]["at"] == [last]
    assert history(sqs, "?queue=nobody")["queues"] == {}
    assert history(sqs)["period"] == PERIOD
    with pytest.raises(SemelError, match="since is in seconds since 1970, not 'yesterday'"):
        history(sqs, "?since=yesterday")


def test_a_queue_that_is_deleted_is_forgotten_and_one_that_is_made_anew_begins_at_nothing() -> None:
    with running(clock="manual", cooldowns=False) as sqs:
        client = sqs.client()
        url = client.create_queue(QueueName="orders")["QueueUrl"]
        for _ in range(5):
            client.send_message(QueueUrl=url, MessageBody="a")
        sqs.clock.advance(10)
        client.delete_queue(QueueUrl=url)
        sqs.clock.advance(10)
        assert history(sqs)["queues"] == {}
        client.create_queue(QueueName="orders")
        client.send_message(QueueUrl=url, MessageBody="a")
        sqs.clock.advance(10)
        assert orders(sqs)["sent"] == [1]


# Its bounds, at no broker's expense.


@pytest.fixture
def engine() -> Iterator[Engine]:
    from random import Random

    made = Engine(open_database(None), Random(7), account="0" * 12, region="us-east-1")
    made.begin()
    yield made
    made.rollback()
    made.close()


def create(engine: Engine, name: str) -> None:
    from semel.broker.engine import Caller

    engine.perform("CreateQueue", {"QueueName": name}, Caller(1_000, "http://localhost", "test", None))


def test_six_hours_are_kept_and_the_oldest_go_first(engine: Engine) -> None:
    create(engine, "orders")
    history = History(engine)
    for place in range(KEPT + 5):
        history.take(1_000_000 + place * PERIOD * 1000)
    at = history.described()["queues"]["orders"]["at"]
    assert len(at) == KEPT
    assert at == sorted(at)
    assert at[0] == 1_000 + 5 * PERIOD
    assert at[-1] == 1_000 + (KEPT + 4) * PERIOD
    assert history.described(since=at[-3])["queues"]["orders"]["at"] == at[-2:]


def test_a_hundred_queues_are_kept_and_the_others_counted(engine: Engine) -> None:
    for place in range(MOST_QUEUES + 3):
        create(engine, f"q{place}")
    history = History(engine)
    history.take(1_000_000)
    described = history.described()
    assert len(described["queues"]) == MOST_QUEUES
    assert described["left_out"] == 3


def test_an_answer_about_many_queues_has_the_newest_samples_of_each(engine: Engine) -> None:
    for place in range(MOST_QUEUES):
        create(engine, f"q{place}")
    history = History(engine)
    most = MOST_ANSWERED // MOST_QUEUES
    for place in range(most + 2):
        history.take(1_000_000 + place * PERIOD * 1000)
    at = history.described()["queues"]["q0"]["at"]
    assert len(at) == most
    assert at[-1] == 1_000 + (most + 1) * PERIOD


def test_a_sample_of_queues_in_which_nothing_happens_writes_nothing(engine: Engine) -> None:
    for place in range(5):
        create(engine, f"q{place}")
    engine.flush()
    history = History(engine)
    history.take(1_000_000)
    before = engine.store.db.total_changes
    history.take(1_010_000)
    assert engine.store.db.total_changes == before


def test_nothing_is_due_right_after_a_sample_and_a_timer_may_be_a_little_early(engine: Engine) -> None:
    history = History(engine)
    assert history.due <= 1_000_000
    history.take(1_000_000)
    assert 1_000_000 + PERIOD * 900 < history.due <= 1_000_000 + PERIOD * 1000
