"""Worker processes that die: when they are restarted, and what happens to their metrics and commands."""

from __future__ import annotations

from prometheus_client.core import Metric

from semel.consumer.worker_process import CommandsInForce, MetricsHistory, RestartDelay
from semel.telemetry.metrics import Metrics
from semel.telemetry.worker_control import Action, Command


def page(completed: int) -> list[Metric]:
    """What a process with so many completed messages, and five slots free, replies."""
    metrics = Metrics()
    queue = metrics.queue("orders")
    queue.completed.add(completed)
    queue.gauge("in_flight", lambda: 5.0)
    return metrics.families()


def value(families: list[Metric], name: str) -> float | None:
    values = [sample.value for family in families for sample in family.samples if sample.name == f"semel_{name}"]
    return values[0] if values else None


def samples(families: list[Metric]) -> int:
    return sum(len(family.samples) for family in families)


def test_a_worker_that_keeps_dying_is_restarted_more_and_more_slowly() -> None:
    delay = RestartDelay()
    assert [delay.after(lifetime=0.1) for _ in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]


def test_a_worker_that_was_well_for_a_minute_is_restarted_at_once_again() -> None:
    delay = RestartDelay()
    assert [delay.after(lifetime) for lifetime in (1, 1, 1, 59, 60, 1)] == [0, 1, 2, 4, 0, 1]


def test_what_a_dead_process_has_counted_stays_in_the_sum_and_its_gauges_do_not() -> None:
    history = MetricsHistory()
    alive = history.families(page(completed=3))
    assert (value(alive, "completed_total"), value(alive, "in_flight")) == (3, 5)
    silent = history.families(None)  # dead, and its supervisor has not noticed yet
    assert (value(silent, "completed_total"), value(silent, "in_flight")) == (3, None)
    history.process_died()
    waiting = history.families(None)
    assert (value(waiting, "completed_total"), value(waiting, "in_flight")) == (3, None)
    restarted = history.families(page(completed=2))
    assert (value(restarted, "completed_total"), value(restarted, "in_flight")) == (5, 5)


def test_however_often_a_worker_dies_its_metrics_take_the_space_of_one_process() -> None:
    history = MetricsHistory()
    for _ in range(100):
        history.families(page(completed=1))
        history.process_died()
    total = history.families(page(completed=1))
    assert value(total, "completed_total") == 101
    assert samples(total) == samples(page(completed=101))
    assert sum(samples(families) for families in vars(history).values()) <= 2 * samples(total)


def test_a_worker_that_starts_later_gets_the_last_command_for_each_queue() -> None:
    commands = CommandsInForce()
    of_one, of_all = Command(Action.PAUSE, "orders"), Command(Action.RESUME)
    commands.add(Command(Action.RESUME, "orders"))
    commands.add(Command(Action.CONCURRENCY, "orders", 4))
    commands.add(of_one)
    assert commands.in_order() == (Command(Action.CONCURRENCY, "orders", 4), of_one)
    commands.add(of_all)
    assert commands.in_order() == (Command(Action.CONCURRENCY, "orders", 4), of_all)
    commands.add(of_one)
    assert commands.in_order() == (Command(Action.CONCURRENCY, "orders", 4), of_all, of_one)
