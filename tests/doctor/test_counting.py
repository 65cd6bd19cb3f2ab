"""Random logs, counted by the engines and by a few lines of plain Python: the same duplicates with the same causes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

from doctor.random_logs import SECOND, STEPS, random_log
from doctor.stories import Event, by_queue, causes, read, write
from semel.doctor.engine.contract import Engine
from semel.doctor.model import Cause
from suite import effort

FINISHED: Final = {"recorded", "skipped", "rejected", "duplicate"}
RETURNED: Final = {"retried", "released", "ledger_down", "bounced", "conflict"}
LOST: Final = {"lost", "fenced"}
SLACK: Final = SECOND // 4


def test_random_logs_are_counted_as_plain_python_counts_them(engine: Engine, tmp_path: Path) -> None:
    logs = {f"queue-{seed}": random_log(Random(seed), f"queue-{seed}") for seed in range(effort(fast=40, full=400))}
    log = write(tmp_path / "log.jsonl", [event for events in logs.values() for event in events])
    behaviours = by_queue(read(engine, log))
    deliveries = {queue: deliveries_of(events) for queue, events in logs.items()}
    behind = clocks_behind(
        [delivery for messages in deliveries.values() for message in messages for delivery in message]
    )
    expected = {queue: counted(messages, behind) for queue, messages in deliveries.items()}
    assert {cause for counts in expected.values() for cause in counts} == {*Cause}  # all of them happen
    assert {queue: causes(behaviour) for queue, behaviour in behaviours.items()} == expected
    totals = {queue: (behaviour.messages, behaviour.deliveries) for queue, behaviour in behaviours.items()}
    assert totals == {queue: messages_and_deliveries(events) for queue, events in logs.items()}


def messages_and_deliveries(events: Sequence[Event]) -> tuple[int, int]:
    deliveries = {(event["message_id"], event["receive_count"]) for event in events}
    return len({message for message, _ in deliveries}), len(deliveries)


def deliveries_of(events: Sequence[Event]) -> list[list[Delivery]]:
    """By message."""
    by_message: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        by_message[event["message_id"]][event["receive_count"]].append(event)
    return [list(map(Delivery, deliveries.values())) for deliveries in by_message.values()]


def clocks_behind(deliveries: Sequence[Delivery]) -> dict[str | None, int]:
    """By how much the clock of a worker is behind that of SQS, at least."""
    behind: dict[str | None, int] = defaultdict(int)
    for delivery in deliveries:
        if delivery.worker is not None and delivery.sent is not None:
            behind[delivery.worker] = max(behind[delivery.worker], delivery.sent - delivery.begin)
    return behind


def counted(messages: Sequence[Sequence[Delivery]], behind: Mapping[str | None, int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for message in messages:
        corrected = [delivery.later(behind.get(delivery.worker, 0)) for delivery in message]
        ordered = sorted(corrected, key=lambda delivery: (delivery.begin, delivery.count))
        counts.update(filter(None, (cause_of(ordered[:place], this) for place, this in enumerate(ordered))))
    died = counts["crash"] > 0
    counts["crash" if died else "unknown"] += counts.pop("unlogged", 0)
    counts.update(shared_keys(messages))
    return {cause: count for cause, count in counts.items() if count}


class Delivery:
    """What is known of one delivery, in microseconds."""

    def __init__(self, events: Sequence[Event]) -> None:
        def times(*steps: str) -> list[int]:
            return [microseconds(event["at"]) for event in events if event["step"] in steps]

        def hidden(*steps: str) -> list[tuple[int, int]]:
            known = [event for event in events if event["step"] in steps and event["visibility"] is not None]
            return [(microseconds(event["at"]), microseconds(event["visibility"])) for event in known]

        self.count: int = events[0]["receive_count"]
        self.worker: str | None = events[0]["worker"]
        self.sent = None if events[0]["sent_at"] is None else microseconds(events[0]["sent_at"])
        self.key: str | None = next((event["key"] for event in events if event["key"] is not None), None)
        self.steps = {event["step"] for event in events}
        waits = [
            microseconds(event["seconds"]) for event in events if event["step"] == "started" and "seconds" in event
        ]
        started = [time - min(waits, default=0) for time in times("started")]
        self.begin = min(times("received") or started or times(*STEPS))
        self.last = max(times(*STEPS))
        self.outcome = max(times(*FINISHED, *RETURNED, *LOST), default=None)
        self.deleted = min(times("deleted"), default=None)
        self.timeout = max((timeout for _, timeout in hidden("received", "started")), default=None)
        ends = [time + timeout for time, timeout in hidden("received", "heartbeat")]
        ends += [] if ends or self.timeout is None else [self.begin + self.timeout]
        self.deadline = max(ends, default=None)

    def later(self, behind: int) -> Delivery:
        """By a clock that is right."""
        corrected = copy(self)
        corrected.begin, corrected.last = self.begin + behind, self.last + behind
        for name in ("outcome", "deleted", "deadline"):
            if (time := getattr(self, name)) is not None:
                setattr(corrected, name, time + behind)
        return corrected


def microseconds(seconds: float) -> int:
    return round(seconds * SECOND)


def cause_of(before: Sequence[Delivery], this: Delivery) -> str | None:
    if this.count > 1 and this.count > (before[-1].count if before else 0) + 1:
        return "unlogged"
    holders = [delivery for delivery in before if "held" not in delivery.steps]
    if not holders:
        return None
    earlier = holders[-1]
    deadlines = [delivery.deadline for delivery in before if delivery.deadline is not None]
    margin = SECOND if this.timeout is None else min(this.timeout // 10, SECOND)
    deadline = max(deadlines) - margin if deadlines else None
    too_soon = deadline is not None and this.begin < deadline
    finished = earlier.steps & FINISHED

    def too_late(time: int) -> str:
        return "visibility" if deadline is not None and time > deadline else "lost-delete"

    if earlier.steps & RETURNED and not finished and (earlier.outcome or 0) <= this.begin + SLACK:
        return None
    at_once = too_soon and earlier.deleted is not None and earlier.deleted > this.begin - SLACK
    if earlier.deleted is not None and earlier.deleted <= this.begin and not at_once:
        return too_late(earlier.deleted)
    if too_soon:
        return "concurrent"
    if earlier.last > this.begin or (earlier.steps & LOST and not finished):
        return "visibility"
    return too_late(earlier.last) if finished else "crash"


def shared_keys(messages: Sequence[Sequence[Delivery]]) -> Counter[str]:
    by_key: dict[str, list[list[Delivery]]] = defaultdict(list)
    for deliveries in messages:
        with_key = [delivery for delivery in deliveries if delivery.key is not None]
        if with_key and with_key[0].key is not None:
            by_key[with_key[0].key].append(with_key)
    counts: Counter[str] = Counter()
    for sharing in by_key.values():
        for earlier, this in pairwise(
            sorted(sharing, key=lambda deliveries: min(delivery.begin for delivery in deliveries))
        ):
            steps = set[str]().union(*(delivery.steps for delivery in earlier))
            failed = not steps & {"recorded", "duplicate"} and not ("bounced" in steps and "started" not in steps)
            over = max(delivery.last for delivery in earlier) <= min(delivery.begin for delivery in this) + SLACK
            counts["redrive" if failed and over else "producer"] += 1
    return counts
