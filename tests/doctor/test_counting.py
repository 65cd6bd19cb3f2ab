"""Random logs, counted by Spark and by a few lines of plain Python: the same duplicates, for the same causes."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from semel.doctor.behaviour import observe
from semel.doctor.deliveries import CODES

from doctor.stories import START, Event, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES, MESSAGES = 40, 12
STEPS = tuple(step.value for step in CODES)
SETTLED = {"recorded", "skipped", "rejected", "duplicate"}
PUT_BACK = {"retried", "released", "ledger_down", "bounced", "conflict"}
OUTCOMES = SETTLED | PUT_BACK | {"lost", "fenced"}


def random_log(random: Random, queue: str) -> list[Event]:
    """Anything goes: steps in any order, deliveries that overlap, counts that are missing."""
    events = []
    for number in range(MESSAGES):
        key = f"k{random.randrange(MESSAGES)}" if random.random() < 0.7 else None
        at = random.uniform(0, 100)
        for count in sorted(random.sample(range(1, 6), random.randrange(1, 5))):
            steps = [(at, "received")] if random.random() < 0.9 else []
            steps += [(at + random.expovariate(0.1), random.choice(STEPS)) for _ in range(random.randrange(1, 5))]
            common = {
                "queue": queue,
                "message_id": f"m{number}",
                "key": key,
                "receive_count": count,
                "visibility": 30.0,
            }
            events += [common | {"at": START + when, "step": step} for when, step in steps]
            at += random.choice((0.2, 5.0, 29.9, 31.0, 45.0))
    random.shuffle(events)
    return events


def counted(events: list[Event]) -> dict[str, int]:
    by_message: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        by_message[event["message_id"]][event["receive_count"]].append(event)
    causes: Counter[str] = Counter()
    for deliveries in by_message.values():
        told = sorted((Told(some) for some in deliveries.values()), key=lambda one: (one.begun, one.count))
        causes.update(filter(None, (cause_of(told[:place], one) for place, one in enumerate(told))))
    died = causes["crash"]
    causes["crash" if died else "unknown"] += causes.pop("unlogged", 0)
    causes.update(shared(by_message))
    return {cause: count for cause, count in causes.items() if count}


class Told:
    """What is known of one delivery."""

    def __init__(self, events: list[Event]) -> None:
        def times(*steps: str) -> list[float]:
            return [event["at"] for event in events if event["step"] in steps]

        self.count: int = events[0]["receive_count"]
        self.steps = {event["step"] for event in events}
        self.begun = min(times("received") or times("started") or times(*STEPS))
        self.last = max(times(*STEPS))
        self.outcome = max(times(*OUTCOMES), default=None)
        self.deleted = min(times("deleted"), default=None)
        hides = times("received", "heartbeat") or ([self.begun] if "started" in self.steps else [])
        self.deadline = max(hides) + 30 if hides else None


def cause_of(before: list[Told], this: Told) -> str | None:
    missed = this.count > (before[-1].count if before else 0) + 1
    if missed and this.count > 1:
        return "unlogged"
    holders = [one for one in before if "held" not in one.steps]
    if not holders:
        return None
    earlier, at = holders[-1], this.begun
    deadlines = [one.deadline for one in before if one.deadline is not None]
    too_soon = bool(deadlines) and at < max(deadlines) - 1.0
    settled = earlier.steps & SETTLED
    if earlier.steps & PUT_BACK and not settled and earlier.outcome is not None and earlier.outcome <= at + 0.25:
        return None
    if earlier.deleted is not None and earlier.deleted <= at and not (too_soon and earlier.deleted > at - 0.25):
        return "lost-delete"
    if too_soon:
        return "concurrent"
    if earlier.last > at or (earlier.steps & {"lost", "fenced"} and not settled):
        return "visibility"
    return "lost-delete" if settled else "crash"


def shared(by_message: dict[str, dict[int, list[Event]]]) -> Counter[str]:
    by_key: dict[str, list[tuple[float, str, float, bool]]] = defaultdict(list)
    for name, deliveries in by_message.items():
        told = [Told(some) for some in deliveries.values()]
        key = next(event["key"] for some in deliveries.values() for event in some)
        if key is not None:
            effects = any("recorded" in one.steps for one in told)
            by_key[key].append((min(one.begun for one in told), name, max(one.last for one in told), effects))
    found: Counter[str] = Counter()
    for messages in by_key.values():
        messages.sort()
        for (_, _, last, took_effect), (begun, *_) in pairwise(messages):
            found["redrive" if not took_effect and last <= begun + 0.25 else "producer"] += 1
    return found


@pytest.mark.slow
def test_random_logs_are_counted_as_plain_python_counts_them(spark: SparkSession) -> None:
    logs = {f"queue-{seed}": random_log(Random(seed), f"queue-{seed}") for seed in range(QUEUES)}
    found = observe(frame(spark, [event for events in logs.values() for event in events])).behaviours
    told = {one.queue: {caused.cause.value: caused.duplicates for caused in one.causes} for one in found}
    expected = {queue: counted(events) for queue, events in logs.items()}
    assert {cause for causes in expected.values() for cause in causes} == CAUSES  # all of them happen
    assert told == expected
    for one in found:
        assert (one.messages, one.deliveries) == plainly(logs[one.queue])


CAUSES = {"visibility", "crash", "lost-delete", "producer", "redrive", "concurrent", "unknown"}


def plainly(events: list[Event]) -> tuple[int, int]:
    ids: set[Any] = {event["message_id"] for event in events}
    return len(ids), len({(event["message_id"], event["receive_count"]) for event in events})
