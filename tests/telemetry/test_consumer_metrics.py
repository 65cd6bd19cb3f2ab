"""The metrics: Prometheus reads what was counted, from one process or from several."""

from __future__ import annotations

import math
import pickle
import sys
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from semel.errors import SemelError
from semel.telemetry.exposition import merged, text, without_gauges
from semel.telemetry.metrics import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    Metrics,
    QueueMetrics,
)


def samples(page: str) -> dict[tuple[str, ...], float]:
    """{(name, queue, le): value}, as Prometheus' own client reads the page."""
    return {
        tuple(part for part in (sample.name, sample.labels.get("queue"), sample.labels.get("le")) if part): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def filled(scale: int = 1) -> Metrics:
    metrics = Metrics()
    queue = metrics.queue("orders")
    queue.received.add(10 * scale)
    queue.handler.observe_all([0.003 * scale, 0.2])
    queue.gauge("in_flight", lambda: 3 * scale)
    queue.gauge("oldest_in_flight_seconds", lambda: 7.5 * scale)
    queue.gauge("circuit_open", lambda: scale % 2)
    return metrics


# One page.


def test_prometheus_reads_what_was_counted() -> None:
    figures = samples(filled().text())
    assert figures["semel_received_total", "orders"] == 10
    assert figures["semel_claimed_total", "orders"] == 0, "also what has not happened yet, so that rates begin at once"
    assert figures["semel_in_flight", "orders"] == 3
    assert figures["semel_handler_seconds_count", "orders"] == 2
    assert figures["semel_handler_seconds_sum", "orders"] == pytest.approx(0.203)
    assert figures["semel_handler_seconds_bucket", "orders", "0.0025"] == 0
    assert figures["semel_handler_seconds_bucket", "orders", "0.005"] == 1
    assert figures["semel_handler_seconds_bucket", "orders", "0.25"] == 2
    assert figures["semel_handler_seconds_bucket", "orders", "+Inf"] == 2


def test_each_family_has_its_type_and_help() -> None:
    metrics = filled()
    for name in GAUGES:
        metrics.queue("orders").gauge(name, lambda: 1)
    families = {family.name: family for family in text_string_to_metric_families(metrics.text())}
    assert {name: families[f"semel_{name}"].type for name in COUNTERS} == dict.fromkeys(COUNTERS, "counter")
    assert {families[f"semel_{name}_{unit}"].type for name, (unit, _, _) in HISTOGRAMS.items()} == {"histogram"}
    assert {families[f"semel_{name}"].type for name in GAUGES} == {"gauge"}
    assert all(family.documentation for family in families.values())


def test_a_value_on_a_bound_counts_as_within_it() -> None:
    queue = Metrics().queue("orders")
    queue.batch_fill.observe(0)
    queue.batch_fill.observe(10)
    up_to, total = queue.batch_fill.read()
    assert (up_to[0], up_to[-2], up_to[-1], total) == (1, 2, 2, 10)


def test_observing_many_at_once_is_observing_each() -> None:
    values = [0.0, 0.001, 0.0011, 5.0, 1e6]
    histogram_of_each, histogram_of_all = Metrics().queue("q").handler, Metrics().queue("q").handler
    for value in values:
        histogram_of_each.observe(value)
    histogram_of_all.observe_all(values)
    assert histogram_of_each.read() == histogram_of_all.read()


@pytest.mark.parametrize("queue", ['a"b', "a\\b", "a\nb", "a b{}", "ключ", "orders.fifo"])
def test_any_queue_name_makes_a_valid_page(queue: str) -> None:
    metrics = Metrics()
    metrics.queue(queue).received.add(4)
    assert samples(metrics.text())["semel_received_total", queue] == 4
    assert samples(text(merged([metrics.families(), metrics.families()])))["semel_received_total", queue] == 8


def test_a_gauge_is_asked_each_time_and_one_that_fails_costs_only_itself() -> None:
    metrics, values = Metrics(), iter([1.0, 2.0])
    queue = metrics.queue("orders")
    queue.gauge("in_flight", lambda: next(values))
    queue.gauge("receivers", lambda: 1 / 0)
    queue.gauge("free_slots", lambda: math.inf)
    assert samples(metrics.text())["semel_in_flight", "orders"] == 1
    figures = samples(metrics.text())
    assert figures["semel_in_flight", "orders"] == 2
    assert figures["semel_free_slots", "orders"] == math.inf
    assert ("semel_receivers", "orders") not in figures


def test_a_counter_that_is_kept_elsewhere_is_shown_and_needs_no_queue() -> None:
    metrics = Metrics()
    metrics.queue().counter("attempts_dropped", lambda: 12)
    metrics.queue("orders")
    figures = samples(metrics.text())
    assert figures["semel_attempts_dropped_total",] == 12
    assert [name for name in figures if len(name) == 1] == [("semel_attempts_dropped_total",)]


def test_the_metrics_of_a_queue_are_made_once() -> None:
    metrics = Metrics()
    assert metrics.queue("orders") is metrics.queue("orders")


@pytest.mark.parametrize("what", ["gauge", "counter"])
def test_an_unknown_name_is_refused_with_those_that_exist(what: str) -> None:
    with pytest.raises(SemelError, match=rf"unknown {what} 'in_fligth'; the {what}s are "):
        getattr(Metrics().queue("orders"), what)("in_fligth", lambda: 1)


def test_every_counter_and_histogram_is_declared_for_the_type_checker() -> None:
    assert set(QueueMetrics.__annotations__) == COUNTERS.keys() | HISTOGRAMS.keys()


def test_threads_lose_no_count() -> None:
    queue = Metrics().queue("orders")

    def work() -> None:
        for _ in range(5_000):
            queue.received.add()
            queue.handler.observe(0.5)

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
    assert queue.received.value == 20_000
    assert queue.handler.read()[0][-1] == 20_000
    assert queue.handler.read()[1] == 10_000


# Several processes.


def test_pages_of_several_processes_become_one() -> None:
    figures = samples(text(merged([filled(1).families(), filled(2).families()])))
    assert figures["semel_received_total", "orders"] == 30
    assert figures["semel_handler_seconds_count", "orders"] == 4
    assert figures["semel_handler_seconds_bucket", "orders", "0.005"] == 1
    assert figures["semel_handler_seconds_bucket", "orders", "0.01"] == 2
    assert figures["semel_in_flight", "orders"] == 9, "all of them together"
    assert figures["semel_oldest_in_flight_seconds", "orders"] == 15, "the oldest of all"
    assert figures["semel_circuit_open", "orders"] == 1, "one that is open is worth knowing"


def test_pages_with_different_queues_stay_valid() -> None:
    other = Metrics()
    other.queue("payments").received.add(5)
    page = text(merged([filled().families(), other.families()]))
    figures = samples(page)
    assert (figures["semel_received_total", "orders"], figures["semel_received_total", "payments"]) == (10, 5)
    assert page.count("# TYPE semel_received_total ") == 1


def test_one_process_merged_is_that_process_also_after_the_way_through_a_pipe() -> None:
    assert text(merged([pickle.loads(pickle.dumps(filled().families()))])) == filled().text()


def test_what_an_ended_process_counted_stays_and_its_gauges_go() -> None:
    ended = without_gauges(filled().families())
    assert not any(name[0] == "semel_in_flight" for name in samples(text(ended)))
    figures = samples(text(merged([ended, filled(2).families()])))
    assert figures["semel_received_total", "orders"] == 30
    assert figures["semel_in_flight", "orders"] == 6


def test_what_many_ended_processes_counted_takes_the_room_of_one() -> None:
    ended = without_gauges(filled().families())
    size = len(samples(text(ended)))
    for _ in range(9):
        ended = merged([ended, without_gauges(filled().families())])
    assert samples(text(ended))["semel_received_total", "orders"] == 100
    assert text(ended).count("\nsemel_") == size


def test_no_process_at_all_is_an_empty_page() -> None:
    assert samples(text(merged([]))) == {}
