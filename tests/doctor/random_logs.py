"""Random attempt logs: steps in any order, overlapping deliveries, missing fields, clocks that differ, messages with
hundreds of events. Times are whole microseconds after START.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from doctor.stories import START, Event
from semel.doctor.events import FLAGS

SECOND: Final = 1_000_000
MESSAGES: Final = 12
STEPS: Final = tuple(step.value for step in FLAGS)
VISIBILITY: Final = (2.0, 30.0)
CLOCKS: Final = {"w1": 0, "w2": 150_000, "w3": -2_300_000}  # microseconds by which a worker's clock is off
ERRORS: Final = ("timeout after 31 s", "timeout after 7 s", "order 4711 not found", 'é\t"quoted"')


def random_log(random: Random, queue: str, *, grid: int = 1) -> list[Event]:
    """The events of one queue, in any order. Times are multiples of `grid` microseconds: a coarse grid creates ties."""
    visibility, known, groups = random.choice(VISIBILITY), random.choice((0.0, 0.5, 1.0)), random.random() < 0.3
    events: list[Event] = []
    for number in range(MESSAGES):
        begin = random.randrange(100 * SECOND)
        message = {
            "queue": queue,
            "message_id": f"m{number}",
            "key": f"k{random.randrange(MESSAGES)}" if random.random() < 0.7 else None,
            "group": f"g{random.randrange(4)}" if groups else None,
            "sent_at": _at(begin - random.randrange(20 * SECOND), grid) if random.random() < 0.8 else None,
        }
        is_hot = number == 0 and random.random() < 0.2
        counts = range(1, 90) if is_hot else sorted(random.sample(range(1, 6), random.randrange(1, 5)))
        for count in counts:
            worker = random.choice((*CLOCKS, None))
            common = message | {"receive_count": count, "worker": worker, "handler": random.choice(("charge", None))}
            clock = CLOCKS.get(worker or "", 0)
            for time, step in _steps(random, begin):
                events.append(
                    common
                    | {
                        "at": _at(time + clock, grid),
                        "step": step,
                        "key": message["key"] if random.random() < 0.9 else None,
                    }
                    | {"visibility": visibility if random.random() <= known else None}
                    | _details(random, step)
                )
            begin += random.choice((SECOND // 5, 5 * SECOND, 30 * SECOND - SECOND // 10, 31 * SECOND, 45 * SECOND))
    random.shuffle(events)
    return events


def _steps(random: Random, begin: int) -> list[tuple[int, str]]:
    steps = [(begin, "received")] if random.random() < 0.9 else []
    if random.random() < 0.3:
        steps += [(begin + beat * 10 * SECOND, "heartbeat") for beat in range(1, random.randrange(2, 5))]
    steps += [(_later(random, begin), random.choice(STEPS)) for _ in range(random.randrange(1, 5))]
    if random.random() < 0.3:
        end = _later(random, begin)
        steps += [(begin, "started"), (end, "recorded"), (end + SECOND // 20, "deleted")]
    return steps


def _later(random: Random, begin: int) -> int:
    return begin + int(random.expovariate(0.1) * SECOND)


def _details(random: Random, step: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if step in ("started", "recorded", "retried", "rejected") and random.random() < 0.5:
        details["seconds"] = random.randrange(1, 5 * SECOND) / SECOND
    if step in ("retried", "rejected", "lost", "delete_failed") and random.random() < 0.7:
        details["error"] = random.choice(ERRORS)
    return details


def _at(time: int, grid: int) -> float:
    """Seconds since 1970, from which the microseconds can be recovered."""
    return (int(START) * SECOND + time - time % grid) / SECOND
