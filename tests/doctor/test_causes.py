"""The cause of each duplicate, told by the events of the delivery before: one story for each.

Every story happens on a queue of its own, so that one look at the log judges all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from semel.doctor.behaviour import observe

from doctor.stories import Event, done, frame, told
from semel.doctor.model import Behaviour, Cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEATING: Final = told(
    "a", (0, "received"), (1, "started"), (10, "heartbeat"), (20, "heartbeat"), (45, "recorded"), (46, "deleted")
)
HELD: Final = told("a", (0.5, "received"), (0.5, "held"), count=2)
DIED: Final = told("a", (0, "received"), (0.01, "claimed"), (0.02, "started"))
AGAIN: Final = told("a", (30.5, "received"), (30.51, "duplicate"), (30.52, "deleted"), count=2)

# The story's name, its events, and the duplicates that are in it.
STORIES: Final[list[tuple[str, list[Event], dict[str, int]]]] = [
    ("all went well", [*done("a"), *done("b")], {}),
    (
        "work outlasts its visibility",
        [*done("a", work=41), *done("a", 30.2, work=41, count=2, worker="w2"), *done("b", work=1), *done("c", work=2)],
        {"visibility": 1},
    ),
    (
        "a worker notices that it was too late",
        [*told("a", (0, "received"), (29.9, "lost", {"error": "about to end"})), *done("a", 31, count=2)],
        {"visibility": 1},
    ),
    (
        "work outlasts its visibility, fails and is put back",
        [*told("a", (0, "received"), (0.1, "started"), (33, "retried")), *done("a", 30.1, count=2)],
        {"visibility": 1},
    ),
    ("a heartbeat keeps it hidden", [*BEATING, *done("a", 35, count=2, worker="w2")], {"concurrent": 1}),
    ("a heart that stops", [*BEATING[:-2], *done("a", 51, count=2, worker="w2")], {"crash": 1}),
    ("a worker falls silent", [*DIED, *done("a", 30.1, count=2, worker="w2")], {"crash": 1}),
    ("a delete is lost", [*done("a"), *AGAIN], {"lost-delete": 1}),
    ("two deletes are lost", [*done("a"), *AGAIN, *done("a", 62, count=3)], {"lost-delete": 2}),
    (
        "a delete fails",
        [*done("a")[:-1], *told("a", (1.1, "delete_failed", {"error": "500"})), *done("a", 30.1, count=2)],
        {"lost-delete": 1},
    ),
    ("a delete is lost and the message back at once", [*done("a"), *done("a", 9, count=2)], {"lost-delete": 1}),
    (
        "delivered while it is hidden",
        [*done("a"), *told("a", (0.5, "received"), (0.51, "bounced"), count=2, worker="w2")],
        {"concurrent": 1},
    ),
    (
        "under way when the delete arrived",
        [*done("a"), *told("a", (1.12, "received"), (1.13, "duplicate"), (1.14, "deleted"), count=2, worker="w2")],
        {"concurrent": 1},
    ),
    ("handed to the worker that holds it", [*done("a"), *HELD], {"concurrent": 1}),
    (
        "held twice, then put back",
        [*told("a", (0, "received"), (0.1, "started"), (3, "retried")), *HELD, *done("a", 9, count=3)],
        {"concurrent": 1},
    ),
    *(
        (f"put back: {step}", [*told("a", (0, "received"), (1, step)), *done("a", 2, count=2)], {})
        for step in ("retried", "released", "ledger_down", "bounced")
    ),
    (
        "the producer sends twice",
        [*done("a", key="k"), *done("b", 0.5, key="k"), *done("c", key="other")],
        {"producer": 1},
    ),
    (
        "the producer sends twice, and a worker dies before it knows the key",
        [
            *told("a", (0, "received"), key=None),
            *done("a", 30.1, count=2, key="k"),
            *done("b", 0.5, key="k"),
        ],
        {"crash": 1, "producer": 1},
    ),
    (
        "the producer sends twice, and the ledger lets the second one run",
        [
            *told("a", (0, "received"), (0.1, "bounced"), key="k"),
            *done("b", 0.05, key="k"),
            *told("a", (2, "received"), (2.1, "duplicate"), (2.2, "deleted"), count=2, key="k"),
        ],
        {"producer": 1},
    ),
    (
        "redriven after a failure",
        [
            *told("a", (0, "received"), (0.1, "started"), (1, "rejected"), (1.1, "deleted"), key="k"),
            *done("b", 500, key="k"),
        ],
        {"redrive": 1},
    ),
    ("an earlier delivery is in no log", done("a", 40, count=2), {"unknown": 1}),
    (
        "an earlier delivery is in no log, and workers died",
        [*done("b", 40, count=2), *DIED, *done("a", 31, count=2)],
        {"crash": 2},
    ),
    (
        "a delivery in between is in no log",
        [*told("a", (0, "received"), (1, "retried")), *done("a", 40, count=3)],
        {"unknown": 1},
    ),
    (
        "nobody knows the timeout",
        [*done("a", work=41, visibility=None), *done("a", 30.2, count=2, visibility=None)],
        {"visibility": 1},
    ),
]


def plain(*steps: tuple[float, str], worker: str | None = None) -> list[Event]:
    """As an application's own log has it: no receive count, no key, no timeout."""
    return [event | {"receive_count": None} for event in told("a", *steps, worker=worker, key=None, visibility=None)]


# With a timeout of 2 s.
PLAIN: Final[list[tuple[str, list[Event], dict[str, int]]]] = [
    (
        "two at once",
        plain((0, "started"), (2.1, "started"), (3, "recorded"), (5.1, "recorded")),
        {"visibility": 1},
    ),
    ("the first one died", plain((0, "started"), (2.1, "started"), (3, "recorded")), {"crash": 1}),
    (
        "two workers",
        [*plain((0, "started"), (3, "recorded"), worker="w1"), *plain((2.1, "started"), worker="w2")],
        {"visibility": 1},
    ),
    (
        "deleted, and back",
        plain((0, "received"), (0.1, "started"), (1, "recorded"), (1.1, "deleted"), (9, "received"), (9.1, "started")),
        {"lost-delete": 1},
    ),
    ("failed, and tried again", plain((0, "started"), (1, "retried"), (1.1, "started"), (2, "recorded")), {}),
]


def observed(spark: SparkSession, stories: list[tuple[str, list[Event], Any]], **how: Any) -> dict[str, Behaviour]:
    events = [event | {"queue": name} for name, some, _ in stories for event in some]
    return {one.queue: one for one in observe(frame(spark, events), **how).behaviours}


@pytest.fixture(scope="module")
def behaviours(spark: SparkSession) -> dict[str, Behaviour]:
    return observed(spark, STORIES)


@pytest.fixture(scope="module")
def plain_behaviours(spark: SparkSession) -> dict[str, Behaviour]:
    return observed(spark, PLAIN, exact=False, visibility={"": 2.0})


def causes(behaviour: Behaviour) -> dict[str, int]:
    return {caused.cause.value: caused.duplicates for caused in behaviour.causes}


@pytest.mark.parametrize(("name", "expected"), [(name, expected) for name, _, expected in STORIES])
def test_each_duplicate_has_its_cause(behaviours: dict[str, Behaviour], name: str, expected: dict[str, int]) -> None:
    assert causes(behaviours[name]) == expected


@pytest.mark.parametrize(("name", "expected"), [(name, expected) for name, _, expected in PLAIN])
def test_without_a_receive_count_the_order_tells_deliveries_apart(
    plain_behaviours: dict[str, Behaviour], name: str, expected: dict[str, int]
) -> None:
    assert causes(plain_behaviours[name]) == expected


@pytest.mark.parametrize(
    ("name", "ran"),
    [("the producer sends twice", 1), ("the producer sends twice, and the ledger lets the second one run", 0)],
)
def test_a_second_sending_ran_again_only_if_another_had_run(
    behaviours: dict[str, Behaviour], name: str, ran: int
) -> None:
    (producer,) = behaviours[name].causes
    assert (producer.cause, producer.ran) == (Cause.PRODUCER, ran)
    assert (producer.wasted > 0) is (ran > 0)


def test_work_past_its_visibility_is_measured_and_its_events_are_the_evidence(behaviours: dict[str, Behaviour]) -> None:
    behaviour = behaviours["work outlasts its visibility"]
    (caused,) = behaviour.causes
    assert (caused.cause, caused.duplicates, caused.ran) == (Cause.VISIBILITY, 1, 1)
    assert caused.overrun is not None
    assert caused.overrun.most == pytest.approx(11.05, abs=0.01)  # deleted 41.05 s after the receive, with 30 s
    assert caused.wasted == pytest.approx(41, abs=0.1)
    assert (behaviour.messages, behaviour.deliveries, behaviour.attempts, behaviour.effects) == (3, 4, 4, 4)
    assert behaviour.doubled == 1
    (example,) = caused.examples
    (caused_by_slow_work,) = behaviours["work outlasts its visibility, fails and is put back"].causes[0].examples
    assert example.message_id == "a"
    assert [event.step for event in example.events].count("recorded") == 2
    assert {event.worker for event in example.events} == {"w1", "w2"}
    late = next(event for event in caused_by_slow_work.events if event.step == "retried")
    assert late.at > caused_by_slow_work.at  # what the earlier one did too late is the proof


def test_what_the_ledger_caught_did_not_run_and_doubled_nothing(behaviours: dict[str, Behaviour]) -> None:
    healed = behaviours["a delete is lost"]
    assert (healed.causes[0].ran, healed.causes[0].wasted, healed.doubled) == (0, 0.0, 0)
    assert behaviours["a worker falls silent"].doubled == 0


def test_what_comes_and_goes_without_work_says_nothing_of_how_long_work_takes(behaviours: dict[str, Behaviour]) -> None:
    for story in ("a delete is lost", "delivered while it is hidden", "handed to the worker that holds it"):
        hold = behaviours[story].hold
        assert hold is not None
        assert hold.count == 1, story
        assert hold.most == pytest.approx(1.05), story


def test_what_is_put_back_counts_as_a_retry(behaviours: dict[str, Behaviour]) -> None:
    assert behaviours["put back: retried"].retries == 1
    assert behaviours["held twice, then put back"].retries == 1
    assert behaviours["delivered while it is hidden"].retries == 0


def test_the_evidence_of_a_shared_key_is_the_story_of_both_messages(behaviours: dict[str, Behaviour]) -> None:
    behaviour = behaviours["the producer sends twice"]
    (example,) = behaviour.causes[0].examples
    assert example.message_id == "b"
    assert {event.message_id for event in example.events} == {"a", "b"}
    first, second = behaviours["redriven after a failure"].causes[0].examples[0].events[:1], example.events
    assert (first[0].message_id, [event.at for event in second]) == ("a", sorted(event.at for event in second))
    assert behaviour.doubled == 1


def test_ends_in_another_order_belong_to_their_own_beginnings(plain_behaviours: dict[str, Behaviour]) -> None:
    both = plain_behaviours["two at once"]
    assert both.work is not None
    assert both.work.most == pytest.approx(3)
    assert both.doubled == 1
    assert plain_behaviours["two workers"].effects == 1
