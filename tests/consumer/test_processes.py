"""Worker processes that die: how soon they are restarted, and what stays of their metrics and commands."""

from __future__ import annotations

from semel.consumer.worker_process import CommandsInForce, MetricsHistory, RestartDelay
from semel.telemetry.control import Action, Command
from semel.telemetry.metrics import Metrics


def page(completed: int) -> str:
    """What a process with so many completed messages, and five slots free, replies."""
    metrics = Metrics()
    lane = metrics.lane("orders")
    lane.completed.add(completed)
    lane.gauge("in_flight", lambda: 5.0)
    return metrics.text()


def value(text: str, name: str) -> float | None:
    found = [
        float(line.split()[-1]) for line in text.splitlines() if line.startswith(f'semel_{name}{{queue="orders"}}')
    ]
    return found[0] if found else None


def test_a_worker_that_keeps_dying_is_restarted_more_and_more_slowly() -> None:
    delay = RestartDelay()
    assert [delay.after(lifetime=0.1) for _ in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]


def test_a_worker_that_was_well_for_a_minute_is_restarted_at_once_again() -> None:
    delay = RestartDelay()
    assert [delay.after(lifetime) for lifetime in (1, 1, 1, 59, 60, 1)] == [0, 1, 2, 4, 0, 1]


def test_what_a_dead_process_has_counted_stays_in_the_sum_and_its_gauges_do_not() -> None:
    history = MetricsHistory()
    alive = history.page(page(completed=3))
    assert (value(alive, "completed_total"), value(alive, "in_flight")) == (3, 5)
    silent = history.page(None)  # dead, and its supervisor has not noticed yet
    assert (value(silent, "completed_total"), value(silent, "in_flight")) == (3, None)
    history.process_died()
    waiting = history.page(None)
    assert (value(waiting, "completed_total"), value(waiting, "in_flight")) == (3, None)
    restarted = history.page(page(completed=2))
    assert (value(restarted, "completed_total"), value(restarted, "in_flight")) == (5, 5)


def test_however_often_a_worker_dies_its_metrics_take_the_space_of_one_page() -> None:
    history = MetricsHistory()
    for _ in range(100):
        history.page(page(completed=1))
        history.process_died()
    total = history.page(page(completed=1))
    assert value(total, "completed_total") == 101
    assert len(total) <= len(page(completed=101))
    assert sum(len(text) for text in vars(history).values()) <= 2 * len(total)


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
