"""The metrics: what Prometheus reads is what was counted, from one process or from several."""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from semel.errors import SemelError
from semel.telemetry.metrics import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    Lane,
    Metrics,
    merge_snapshots,
    merge_texts,
    without_gauges,
)


def samples(text: str) -> dict[tuple[str, ...], float]:
    """{(name, queue, le): value}, as Prometheus' own client reads the page."""
    return {
        tuple(part for part in (one.name, one.labels.get("queue"), one.labels.get("le")) if part): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def filled(scale: int = 1) -> Metrics:
    metrics = Metrics()
    lane = metrics.lane("orders")
    lane.received.add(10 * scale)
    lane.handler.observe_all([0.003 * scale, 0.2])
    lane.gauge("in_flight", lambda: 3 * scale)
    lane.gauge("oldest_in_flight_seconds", lambda: 7.5 * scale)
    lane.gauge("circuit_open", lambda: scale % 2)
    return metrics


# One page.


def test_prometheus_reads_what_was_counted() -> None:
    found = samples(filled().text())
    assert found["semel_received_total", "orders"] == 10
    assert found["semel_claimed_total", "orders"] == 0, "also what has not happened yet, so that rates begin at once"
    assert found["semel_in_flight", "orders"] == 3
    assert found["semel_handler_seconds_count", "orders"] == 2
    assert found["semel_handler_seconds_sum", "orders"] == pytest.approx(0.203)
    assert found["semel_handler_seconds_bucket", "orders", "0.0025"] == 0
    assert found["semel_handler_seconds_bucket", "orders", "0.005"] == 1
    assert found["semel_handler_seconds_bucket", "orders", "0.25"] == 2
    assert found["semel_handler_seconds_bucket", "orders", "+Inf"] == 2


def test_each_family_has_its_type_and_help() -> None:
    metrics = filled()
    for name in GAUGES:
        metrics.lane("orders").gauge(name, lambda: 1)
    families = {family.name: family for family in text_string_to_metric_families(metrics.text())}
    assert {name: families[f"semel_{name}"].type for name in COUNTERS} == dict.fromkeys(COUNTERS, "counter")
    assert {families[f"semel_{name}_{unit}"].type for name, (unit, _, _) in HISTOGRAMS.items()} == {"histogram"}
    assert {families[f"semel_{name}"].type for name in GAUGES} == {"gauge"}
    assert all(family.documentation for family in families.values())


def test_a_value_on_a_bound_counts_as_within_it() -> None:
    lane = Metrics().lane("orders")
    lane.batch_fill.observe(0)
    lane.batch_fill.observe(10)
    up_to, total = lane.batch_fill.read()
    assert (up_to[0], up_to[-2], up_to[-1], total) == (1, 2, 2, 10)


def test_observing_many_at_once_is_observing_each() -> None:
    values = [0.0, 0.001, 0.0011, 5.0, 1e6]
    one, all_ = Metrics().lane("q").handler, Metrics().lane("q").handler
    for value in values:
        one.observe(value)
    all_.observe_all(values)
    assert one.read() == all_.read()


@pytest.mark.parametrize("queue", ['a"b', "a\\b", "a\nb", "a b{}", "ключ", "orders.fifo"])
def test_any_queue_name_makes_a_valid_page(queue: str) -> None:
    metrics = Metrics()
    metrics.lane(queue).received.add(4)
    assert samples(metrics.text())["semel_received_total", queue] == 4
    assert samples(merge_texts([metrics.text(), metrics.text()]))["semel_received_total", queue] == 8


def test_a_gauge_is_asked_each_time_and_one_that_fails_costs_only_itself() -> None:
    metrics, values = Metrics(), iter([1.0, 2.0])
    lane = metrics.lane("orders")
    lane.gauge("in_flight", lambda: next(values))
    lane.gauge("receivers", lambda: 1 / 0)
    lane.gauge("permits_free", lambda: math.inf)
    assert samples(metrics.text())["semel_in_flight", "orders"] == 1
    found = samples(metrics.text())
    assert found["semel_in_flight", "orders"] == 2
    assert found["semel_permits_free", "orders"] == math.inf
    assert ("semel_receivers", "orders") not in found


def test_a_counter_that_is_kept_elsewhere_is_shown_and_needs_no_queue() -> None:
    metrics = Metrics()
    metrics.lane().counter("attempts_dropped", lambda: 12)
    metrics.lane("orders")
    found = samples(metrics.text())
    assert found["semel_attempts_dropped_total",] == 12
    assert [name for name in found if len(name) == 1] == [("semel_attempts_dropped_total",)]


def test_a_lane_is_made_once() -> None:
    metrics = Metrics()
    assert metrics.lane("orders") is metrics.lane("orders")


@pytest.mark.parametrize("what", ["gauge", "counter"])
def test_an_unknown_name_is_refused_with_those_that_exist(what: str) -> None:
    with pytest.raises(SemelError, match=rf"there is no {what} 'in_fligth'; there are: "):
        getattr(Metrics().lane("orders"), what)("in_fligth", lambda: 1)


def test_every_counter_and_histogram_is_declared_for_the_type_checker() -> None:
    assert set(Lane.__annotations__) == COUNTERS.keys() | HISTOGRAMS.keys()


def test_threads_lose_no_count() -> None:
    lane = Metrics().lane("orders")

    def work() -> None:
        for _ in range(5_000):
            lane.received.add()
            lane.handler.observe(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert lane.received.value == 20_000
    assert lane.handler.read()[0][-1] == 20_000
    assert lane.handler.read()[1] == 10_000


def test_a_snapshot_has_the_same_figures_as_plain_values() -> None:
    found = filled().snapshot()["orders"]
    assert found["received"] == 10
    assert found["in_flight"] == 3
    assert found["handler"]["count"] == 2
    assert found["handler"]["buckets"]["0.005"] == 1
    assert found["handler"]["buckets"]["+Inf"] == 2
    assert "receivers" not in found


# Several processes.


def test_pages_of_several_processes_become_one() -> None:
    found = samples(merge_texts([filled(1).text(), filled(2).text()]))
    assert found["semel_received_total", "orders"] == 30
    assert found["semel_handler_seconds_count", "orders"] == 4
    assert found["semel_handler_seconds_bucket", "orders", "0.005"] == 1
    assert found["semel_handler_seconds_bucket", "orders", "0.01"] == 2
    assert found["semel_in_flight", "orders"] == 9, "all of them together"
    assert found["semel_oldest_in_flight_seconds", "orders"] == 15, "the oldest of all"
    assert found["semel_circuit_open", "orders"] == 1, "one that is open is worth knowing"


def test_pages_with_different_queues_stay_valid() -> None:
    other = Metrics()
    other.lane("payments").received.add(5)
    text = merge_texts([filled().text(), other.text()])
    found = samples(text)
    assert (found["semel_received_total", "orders"], found["semel_received_total", "payments"]) == (10, 5)
    assert text.count("# TYPE semel_received_total ") == 1


def test_one_page_merged_is_that_page() -> None:
    assert samples(merge_texts([filled().text()])) == samples(filled().text())


def test_what_an_ended_process_counted_stays_and_its_gauges_go() -> None:
    ended = without_gauges(filled().text())
    assert not any(name[0] == "semel_in_flight" for name in samples(ended))
    found = samples(merge_texts([ended, filled(2).text()]))
    assert found["semel_received_total", "orders"] == 30
    assert found["semel_in_flight", "orders"] == 6


def test_no_process_at_all_is_an_empty_page() -> None:
    assert samples(merge_texts([])) == {}


def test_snapshots_merge_as_pages_do() -> None:
    merged: dict[str, Any] = merge_snapshots(
        [filled(1).snapshot(), filled(2).snapshot(), {"payments": {"received": 1}}]
    )
    assert merged["payments"] == {"received": 1}
    orders = merged["orders"]
    assert (orders["received"], orders["in_flight"], orders["oldest_in_flight_seconds"]) == (30, 9, 15)
    assert orders["handler"]["count"] == 4
    assert orders["handler"]["buckets"]["0.005"] == 1
    assert orders["handler"]["buckets"]["+Inf"] == 4
