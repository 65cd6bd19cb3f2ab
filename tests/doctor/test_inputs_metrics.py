"""Metrics over time: how CloudWatch exports and the broker's history are read, and what is reported of other input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doctor.made_up import case, finding_of, look, state
from semel.broker import EmbeddedBroker, running
from semel.doctor.errors import DoctorError
from semel.doctor.inputs import metrics
from semel.doctor.model import Case, Point, Series

NOON = 1_794_830_400.0  # 2026-11-16T12:00:00Z


def export(path: Path, *results: dict[str, Any]) -> str:
    path.write_text(json.dumps({"MetricDataResults": list(results), "Messages": []}))
    return str(path)


def result(label: str, values: list[float], times: list[Any] | None = None, identity: str = "m1") -> dict[str, Any]:
    usual = [f"2026-11-16T12:{minute:02}:00+00:00" for minute in range(len(values))]
    return {"Id": identity, "Label": label, "Timestamps": times or usual, "Values": values, "StatusCode": "Complete"}


def only(series: tuple[Series, ...]) -> Series:
    (queue_series,) = series
    return queue_series


# CloudWatch.


def test_all_metrics_of_a_queue_come_together_by_their_time(tmp_path: Path) -> None:
    source = export(
        tmp_path / "cw.json",
        result("NumberOfMessagesSent", [3, 4]),
        result("NumberOfMessagesReceived", [5, 6]),
        result("NumberOfMessagesDeleted", [1, 2]),
        result("NumberOfEmptyReceives", [9, 8]),
        result("ApproximateNumberOfMessagesVisible", [10, 11]),
        result("ApproximateNumberOfMessagesNotVisible", [12, 13]),
        result("ApproximateNumberOfMessagesDelayed", [0, 1]),
        result("ApproximateAgeOfOldestMessage", [60, 61]),
    )
    series = only(metrics.load(source, queues=["orders"]))
    assert (series.queue, series.period, series.source) == ("orders", 60.0, source)
    assert series.points == (
        Point(NOON, 3, 5, 1, 9, 10, 12, 0, 60),
        Point(NOON + 60, 4, 6, 2, 8, 11, 13, 1, 61),
    )


def test_times_may_be_in_any_order_with_gaps_and_in_any_form(tmp_path: Path) -> None:
    times = [NOON + 600, "2026-11-16T12:01:00Z", "2026-11-16T13:00:00+01:00", NOON + 300.0, "nonsense"]
    source = export(tmp_path / "cw.json", result("NumberOfMessagesSent", [5, 2, 1, 4, 9], times))
    series = only(metrics.load(source, queues=["orders"]))
    assert [(point.at - NOON, point.sent) for point in series.points] == [(0, 1), (60, 2), (300, 4), (600, 5)]
    assert series.period == 60.0
    assert series.points[0].received is None


@pytest.mark.parametrize(
    ("label", "identity", "queues", "queue"),
    [
        ("orders NumberOfMessagesSent", "m1", ["orders", "refunds"], "orders"),
        ("AWS/SQS refunds.fifo NumberOfMessagesSent Sum", "m1", [], "refunds.fifo"),
        ("NumberOfMessagesSent (orders)", "m1", [], "orders"),
        ("NumberOfMessagesSent", "m1", ["orders"], "orders"),
        ("Sent", "sent", ["orders"], "orders"),
        ("messages that came in", "sent", ["orders"], "orders"),
        ("orders", "sent", [], "orders"),
    ],
)
def test_the_queue_is_found_in_the_label_or_is_the_only_one(
    tmp_path: Path, label: str, identity: str, queues: list[str], queue: str
) -> None:
    source = export(tmp_path / "cw.json", result(label, [1], identity=identity))
    series = only(metrics.load(source, queues=queues))
    assert series.queue == queue
    assert series.points[0].sent == 1


def test_the_user_can_say_whose_metrics_they_are(tmp_path: Path) -> None:
    source = export(tmp_path / "cw.json", result("NumberOfMessagesSent", [1]))
    assert only(metrics.load(f"orders={source}", queues=["orders", "refunds"])).queue == "orders"
    odd = export(tmp_path / "a=b.json", result("NumberOfMessagesSent", [1]))
    assert only(metrics.load(odd, queues=["orders"])).queue == "orders"


def test_metrics_of_other_queues_are_left_out(tmp_path: Path) -> None:
    source = export(
        tmp_path / "cw.json", result("orders NumberOfMessagesSent", [1]), result("refunds NumberOfMessagesSent", [2])
    )
    assert [series.queue for series in metrics.load(source, queues=["https://sqs/1/orders"])] == ["orders"]
    assert [series.queue for series in metrics.load(source)] == ["orders", "refunds"]


def test_metrics_that_name_no_queue_among_several_are_refused_with_the_way_out(tmp_path: Path) -> None:
    source = export(tmp_path / "cw.json", result("NumberOfMessagesSent", [1]))
    with pytest.raises(DoctorError, match="does not say of which queue it is; write --metrics QUEUE="):
        metrics.load(source, queues=["orders", "refunds"])


def test_a_label_that_is_not_known_is_noted_with_what_was_expected(tmp_path: Path) -> None:
    source = export(tmp_path / "cw.json", result("NumberOfMessagesSent", [1]), result("CPUUtilization", [7]))
    notes: list[str] = []
    assert only(metrics.load(source, queues=["orders"], notes=notes)).points[0].sent == 1
    (note,) = notes
    assert "'CPUUtilization' left out; a label has one of NumberOfMessagesSent" in note
    alone = export(tmp_path / "alone.json", result("CPUUtilization", [7]))
    with pytest.raises(DoctorError, match="'CPUUtilization' is no metric of SQS"):
        metrics.load(alone, queues=["orders"])


def test_get_metric_statistics_is_understood_too(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    points = [
        {"Timestamp": "2026-11-16T12:05:00Z", "Sum": 7.0, "Maximum": 1.0, "Unit": "Count"},
        {"Timestamp": "2026-11-16T12:00:00Z", "Sum": 5.0, "Maximum": 1.0, "Unit": "Count"},
    ]
    path.write_text(json.dumps({"Label": "NumberOfMessagesDeleted", "Datapoints": points}))
    series = only(metrics.load(str(path), queues=["orders"]))
    assert ([point.deleted for point in series.points], series.period) == ([5.0, 7.0], 300.0)
    path.write_text(json.dumps({"Label": "ApproximateNumberOfMessagesVisible", "Datapoints": points}))
    assert only(metrics.load(str(path), queues=["orders"])).points[0].visible == 1.0


def test_several_files_make_one_series_for_each_queue(tmp_path: Path) -> None:
    first = export(tmp_path / "a.json", result("NumberOfMessagesSent", [1, 2]))
    second = export(tmp_path / "b.json", result("NumberOfMessagesDeleted", [3, 4, 5]))
    series = only(metrics.load_all([first, second], queues=["orders"]))
    assert [(point.sent, point.deleted) for point in series.points] == [(1, 3), (2, 4), (None, 5)]
    assert series.source == f"{first}, {second}"


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", "not JSON", '{"MetricAlarms": []}'])
def test_a_file_that_has_no_metrics_is_refused_with_what_to_give(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cw.json"
    path.write_text(text)
    with pytest.raises(DoctorError, match="get-metric-data"):
        metrics.load(str(path), queues=["orders"])


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(DoctorError, match=r"--metrics nowhere.json: nowhere.json cannot be read"):
        metrics.load("nowhere.json", queues=["orders"])


@pytest.mark.parametrize("values", [[None, "x", True], []])
def test_values_that_are_no_numbers_are_left_out(tmp_path: Path, values: list[Any]) -> None:
    source = export(tmp_path / "cw.json", result("NumberOfMessagesSent", [*values, 4.0]))
    assert [point.sent for point in only(metrics.load(source, queues=["orders"])).points] == [4.0]


# The broker.


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running(clock="manual") as started:
        yield started


def test_the_history_of_a_broker_is_a_series_with_what_happened_in_each_period(broker: EmbeddedBroker) -> None:
    client = broker.client()
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    client.create_queue(QueueName="refunds")
    start = broker.clock.now()
    client.send_message(QueueUrl=url, MessageBody="1")
    client.send_message(QueueUrl=url, MessageBody="2")
    broker.clock.advance(10)
    client.receive_message(QueueUrl=url)
    broker.clock.advance(10)
    series = only(metrics.load(broker.url, queues=["orders"]))
    assert (series.queue, series.period) == ("orders", 10.0)
    assert series.source == f"the broker at {broker.url.removeprefix('http://')}"
    assert [point.at - start for point in series.points] == pytest.approx([0, 10])
    assert [(point.sent, point.received, point.deleted) for point in series.points] == [(2, 0, 0), (0, 1, 0)]
    assert [(point.visible, point.in_flight) for point in series.points] == [(2, 0), (1, 1)]
    assert {series.queue for series in metrics.load(broker.url)} == {"orders", "refunds"}


def test_a_broker_that_was_restarted_has_no_negative_rate(tmp_path: Path) -> None:
    def sent(bodies: str) -> list[float | None]:
        with running(clock="manual", data=tmp_path / "data") as broker:
            client = broker.client()
            url = client.create_queue(QueueName="orders")["QueueUrl"]
            for body in bodies:
                client.send_message(QueueUrl=url, MessageBody=body)
            broker.clock.advance(10)
            return [point.sent for point in only(metrics.load(broker.url, queues=["orders"])).points]

    assert sent("abcde") == [5]
    assert sent("f") == [1]


def test_a_history_that_was_saved_is_read_like_the_broker(broker: EmbeddedBroker, tmp_path: Path) -> None:
    broker.client().create_queue(QueueName="orders")
    broker.clock.advance(10)
    path = tmp_path / "history.json"
    path.write_text(json.dumps(broker.admin("GET", "history")))
    assert only(metrics.load(str(path), queues=["orders"])).points == only(metrics.load(broker.url)).points


def test_a_poison_message_in_a_real_broker_is_found_though_its_age_says_nothing(broker: EmbeddedBroker) -> None:
    client = broker.client()
    url = client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "20"})["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="poison")
    for _ in range(8):
        client.receive_message(QueueUrl=url)
        broker.clock.advance(20)
    finding = finding_of("age-hides-poison", case(series=only(metrics.load(broker.url, queues=["orders"]))))
    assert "The queue holds 1 message or more all the time" in finding.observed
    client.purge_queue(QueueUrl=url)
    for _ in range(2):
        broker.clock.advance(20)
    assert look("age-hides-poison", case(series=only(metrics.load(broker.url, queues=["orders"])))) is None


def test_a_broker_that_checks_signatures_is_asked_with_the_key_pair_of_the_address(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("[me]\naws_access_key_id = KEY\naws_secret_access_key = SECRET\n")
    with running(clock="manual", credentials=users) as broker:
        broker.client().create_queue(QueueName="orders")
        broker.clock.advance(10)
        host = broker.url.removeprefix("http://")
        series = only(metrics.load(f"http://KEY:SECRET@{host}"))
        assert series.queue == "orders"
        assert "SECRET" not in series.source
        with pytest.raises(DoctorError, match="it asks for credentials; write them into the address") as refused:
            metrics.load(f"http://KEY:WRONG@{host}")
        assert "WRONG" not in str(refused.value)


def test_an_address_where_no_broker_answers_is_an_error_that_says_so() -> None:
    with pytest.raises(DoctorError, match=r"--metrics http://127.0.0.1:9: no answer"):
        metrics.load("http://127.0.0.1:9")


def test_a_consumer_that_never_deletes_is_found_in_the_metrics_of_a_real_broker(broker: EmbeddedBroker) -> None:
    client = broker.client()
    url = client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "120"})["QueueUrl"]

    def work(periods: int, *, deletes: bool) -> None:
        for _ in range(periods):
            for _ in range(3):
                entries: Any = [{"Id": str(place), "MessageBody": "x"} for place in range(10)]
                client.send_message_batch(QueueUrl=url, Entries=entries)
                received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
                if deletes:
                    done: Any = [
                        {"Id": message["MessageId"], "ReceiptHandle": message["ReceiptHandle"]} for message in received
                    ]
                    client.delete_message_batch(QueueUrl=url, Entries=done)
            broker.clock.advance(10)

    def current_case() -> Case:
        attributes = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        timeout = float(attributes["VisibilityTimeout"])
        return case(state=state(visibility=timeout), series=only(metrics.load(broker.url, queues=["orders"])))

    work(40, deletes=False)
    assert "In flight stays near 330: 3.0 messages a second" in finding_of("in-flight-plateau", current_case()).observed
    assert (
        "1,200 messages were received" not in finding_of("received-not-deleted", current_case()).observed
    )  # some are still in flight
    assert "0 deleted" in finding_of("received-not-deleted", current_case()).observed
    client.purge_queue(QueueUrl=url)
    since = broker.clock.now()
    work(40, deletes=True)
    cured = current_case()
    assert cured.series is not None
    later = replace(cured.series, points=tuple(point for point in cured.series.points if point.at >= since))
    for rule in ("in-flight-plateau", "received-not-deleted"):
        assert look(rule, replace(cured, series=later)) is None
