"""Cases for tests of the rules: a healthy queue, with the differences that a test sets."""

from __future__ import annotations

from typing import Any, Final

from semel.doctor.model import (
    Behaviour,
    Case,
    Cause,
    CauseSummary,
    DeadLetters,
    ErrorGroup,
    Finding,
    LedgerState,
    LoopingMessage,
    Point,
    QueueState,
    Series,
    Times,
)
from semel.doctor.rules import choose

DAY: Final = 86_400.0
URL: Final = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
ARN: Final = "arn:aws:sqs:eu-west-1:123456789012:orders"
NOON: Final = 1_800_000_000.0


def times(p50: float, p99: float, most: float, count: int = 1_000) -> Times:
    return Times(count=count, p50=p50, p90=(p50 + p99) / 2, p99=p99, p999=(p99 + most) / 2, most=most)


def behaviour(queue: str = "orders", **differs: Any) -> Behaviour:
    """A thousand messages in an hour, each held for a second or two, without problems."""
    usual: dict[str, Any] = {
        "first_at": NOON,
        "last_at": NOON + 3_600,
        "events": 5_000,
        "deliveries": 1_000,
        "attempts": 1_000,
        "messages": 1_000,
        "effects": 1_000,
        "doubled": 0,
        "retries": 0,
        "hold": times(1.0, 2.0, 3.0),
        "visibility": 90.0,
    }
    return Behaviour(queue=queue, **(usual | differs))


def caused(cause: Cause, duplicates: int = 32, ran: int = 30, **differs: Any) -> CauseSummary:
    return CauseSummary(cause=cause, duplicates=duplicates, ran=ran, **{"wasted": 96.0, **differs})


def dlq(**differs: Any) -> DeadLetters:
    usual: dict[str, Any] = {
        "arn": f"{ARN}-dlq",
        "exists": True,
        "url": f"{URL}-dlq",
        "retention": 14 * DAY,
        "visible": 0,
        "sources": ("orders",),
        "allow": "byQueue",
    }
    return DeadLetters(**(usual | differs))


def state(queue: str = "orders", **differs: Any) -> QueueState:
    """A queue with good settings."""
    usual: dict[str, Any] = {
        "url": URL.replace("orders", queue),
        "arn": ARN.replace("orders", queue),
        "fifo": queue.endswith(".fifo"),
        "visibility": 90.0,
        "wait": 20.0,
        "max_receives": 5,
        "dead_letters": dlq(),
    }
    return QueueState(queue=queue, **(usual | differs))


def series(points: list[dict[str, float]], period: float = 60.0, start: float = NOON) -> Series:
    measured = tuple(Point(at=start + place * period, **point) for place, point in enumerate(points))
    return Series(queue="orders", period=period, points=measured, source="made up")


def flow(received: float, deleted: float, points: int = 30, **also: float) -> Series:
    """The same figures in every minute."""
    return series([{"received": received, "deleted": deleted, **also}] * points)


def looping(
    message_id: str = "m-1", receive_count: int = 40, span: float = 7_200, error: str | None = None
) -> LoopingMessage:
    return LoopingMessage(message_id, None, receive_count, receive_count, NOON, NOON + span, error)


def errors(sample: str, count: int = 5) -> tuple[ErrorGroup, ...]:
    return (ErrorGroup("f", sample, count, count, NOON, NOON + 60, ("m-1",)),)


def ledger(**differs: Any) -> LedgerState:
    return LedgerState(**{"where": "redis://ledger:6379/0", **differs})


def case(queue: str = "orders", **known: Any) -> Case:
    return Case(queue=queue, **{"now": NOON + 3_600, **known})


def look(rule: str, case: Case) -> Finding | None:
    (chosen,) = choose([rule])
    return chosen.look(case)


def finding_of(rule: str, case: Case) -> Finding:
    finding = look(rule, case)
    assert finding is not None, f"{rule} is silent"
    assert finding.rule == rule
    assert finding.queue == case.queue
    return finding
