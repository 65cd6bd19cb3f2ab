"""The cause of each duplicate, from the events of the previous delivery: one story for each cause.

Every story has its own queue, so that one analysis of the log finds all causes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from doctor.stories import START, Event, by_queue, causes, delivery, on_both_engines_at_once, read, success, write
from semel.doctor.engine.contract import Engine
from semel.doctor.logs.mapping import parse
from semel.doctor.model import Behaviour, Cause

BEATING: Final = delivery(
    "a", (0, "received"), (1, "started"), (10, "heartbeat"), (20, "heartbeat"), (45, "recorded"), (46, "deleted")
)
HELD: Final = delivery("a", (0.5, "received"), (0.5, "held"), count=2)
DIED: Final = delivery("a", (0, "received"), (0.01, "claimed"), (0.02, "started"))
AGAIN: Final = delivery("a", (30.5, "received"), (30.51, "duplicate"), (30.52, "deleted"), count=2)


def timed(end: tuple[float, str]) -> list[Event]:
    """With a timeout of 2 s, delivered again after 2.5 s."""
    first = delivery("a", (0, "received"), (0.1, "started"), *([(0.9, "recorded")] if end[1] == "deleted" else []), end)
    again = delivery("a", (2.5, "received"), (2.51, "duplicate"), (2.52, "deleted"), count=2)
    return [event | {"visibility": 2.0} for event in (*first, *again)]


# The story's name, its events, and the duplicates that are in it.
STORIES: Final[list[tuple[str, list[Event], dict[str, int]]]] = [
    ("all went well", [*success("a"), *success("b")], {}),
    (
        "work outlasts its visibility",
        [
            *success("a", work=41),
            *success("a", 30.2, work=41, count=2, worker="w2"),
            *success("b", work=1),
            *success("c", work=2),
        ],
        {"visibility": 1},
    ),
    (
        "a worker notices that it was too late",
        [*delivery("a", (0, "received"), (29.9, "lost", {"error": "about to end"})), *success("a", 31, count=2)],
        {"visibility": 1},
    ),
    (
        "work outlasts its visibility, fails and is put back",
        [*delivery("a", (0, "received"), (0.1, "started"), (33, "retried")), *success("a", 30.1, count=2)],
        {"visibility": 1},
    ),
    ("a heartbeat keeps it hidden", [*BEATING, *success("a", 35, count=2, worker="w2")], {"concurrent": 1}),
    ("a heart that stops", [*BEATING[:-2], *success("a", 51, count=2, worker="w2")], {"crash": 1}),
    ("a worker falls silent", [*DIED, *success("a", 30.1, count=2, worker="w2")], {"crash": 1}),
    ("a delete is lost", [*success("a"), *AGAIN], {"lost-delete": 1}),
    ("two deletes are lost", [*success("a"), *AGAIN, *success("a", 62, count=3)], {"lost-delete": 2}),
    (
        "a delete fails",
        [*success("a")[:-1], *delivery("a", (1.1, "delete_failed", {"error": "500"})), *success("a", 30.1, count=2)],
        {"lost-delete": 1},
    ),
    ("deleted when SQS had shown it again", timed((2.1, "deleted")), {"visibility": 1}),
    ("deleted in time, and back after the timeout", timed((1.0, "deleted")), {"lost-delete": 1}),
    ("deleted within the last tenth of the timeout", timed((1.85, "deleted")), {"visibility": 1}),
    ("deleted just before the last tenth of the timeout", timed((1.75, "deleted")), {"lost-delete": 1}),
    ("recorded when SQS had shown it again", timed((2.1, "recorded")), {"visibility": 1}),
    ("recorded in time, and never deleted", timed((1.0, "recorded")), {"lost-delete": 1}),
    (
        "deleted within the last second of a long timeout",
        [*success("a", work=29.2), *success("a", 30.5, count=2)],
        {"visibility": 1},
    ),
    (
        "deleted before the last second of a long timeout",
        [*success("a", work=28.8), *success("a", 30.5, count=2)],
        {"lost-delete": 1},
    ),
    (
        "a delete fails because it is late",
        [
            *delivery("a", (0, "received"), (0.1, "started"), (28, "recorded"), (30.2, "delete_failed")),
            *success("a", 30.5, count=2),
        ],
        {"visibility": 1},
    ),
    (
        "a clock that is 5 s behind",
        [
            *success("a", work=33),
            *success("a", 30.5 - 5, count=2, worker="late"),
            *success("b", 100 - 5, worker="late", sent_at=START + 100),
        ],
        {"visibility": 1},
    ),
    ("a delete is lost and the message back at once", [*success("a"), *success("a", 9, count=2)], {"lost-delete": 1}),
    (
        "delivered while it is hidden",
        [*success("a"), *delivery("a", (0.5, "received"), (0.51, "bounced"), count=2, worker="w2")],
        {"concurrent": 1},
    ),
    (
        "under way when the delete arrived",
        [
            *success("a"),
            *delivery("a", (1.12, "received"), (1.13, "duplicate"), (1.14, "deleted"), count=2, worker="w2"),
        ],
        {"concurrent": 1},
    ),
    ("handed to the worker that holds it", [*success("a"), *HELD], {"concurrent": 1}),
    (
        "held twice, then put back",
        [*delivery("a", (0, "received"), (0.1, "started"), (3, "retried")), *HELD, *success("a", 9, count=3)],
        {"concurrent": 1},
    ),
    *(
        (f"put back: {step}", [*delivery("a", (0, "received"), (1, step)), *success("a", 2, count=2)], {})
        for step in ("retried", "released", "ledger_down", "bounced")
    ),
    (
        "the producer sends twice",
        [*success("a", key="k"), *success("b", 0.5, key="k"), *success("c", key="other")],
        {"producer": 1},
    ),
    (
        "the producer sends twice, and a worker dies before it knows the key",
        [
            *delivery("a", (0, "received"), key=None),
            *success("a", 30.1, count=2, key="k"),
            *success("b", 0.5, key="k"),
        ],
        {"crash": 1, "producer": 1},
    ),
    (
        "the producer sends twice, and the ledger lets the second one run",
        [
            *delivery("a", (0, "received"), (0.1, "bounced"), key="k"),
            *success("b", 0.05, key="k"),
            *delivery("a", (2, "received"), (2.1, "duplicate"), (2.2, "deleted"), count=2, key="k"),
        ],
        {"producer": 1},
    ),
    (
        "redriven after a failure",
        [
            *delivery("a", (0, "received"), (0.1, "started"), (1, "rejected"), (1.1, "deleted"), key="k"),
            *success("b", 500, key="k"),
        ],
        {"redrive": 1},
    ),
    ("an earlier delivery is in no log", success("a", 40, count=2), {"unknown": 1}),
    (
        "an earlier delivery is in no log, and workers died",
        [*success("b", 40, count=2), *DIED, *success("a", 31, count=2)],
        {"crash": 2},
    ),
    (
        "a delivery in between is in no log",
        [*delivery("a", (0, "received"), (1, "retried")), *success("a", 40, count=3)],
        {"unknown": 1},
    ),
    (
        "nobody knows the timeout",
        [*success("a", work=41, visibility=None), *success("a", 30.2, count=2, visibility=None)],
        {"visibility": 1},
    ),
]


def plain(*steps: tuple[float, str], worker: str | None = None) -> list[Event]:
    """As an application's own log has it: no receive count, no key, no timeout."""
    return [
        event | {"receive_count": None} for event in delivery("a", *steps, worker=worker, key=None, visibility=None)
    ]


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


def analysed(
    engine: Engine, folder: Path, stories: list[tuple[str, list[Event], Any]], **options: Any
) -> dict[str, Behaviour]:
    log = write(folder / "log.jsonl", [event | {"queue": name} for name, events, _ in stories for event in events])
    return by_queue(read(engine, log, **options))


@pytest.fixture(scope="module")
def behaviours(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Behaviour]:
    return analysed(engine, tmp_path_factory.mktemp("stories"), STORIES)


@pytest.fixture(scope="module")
def plain_behaviours(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Behaviour]:
    mapping = parse("id=.message_id,time=.at,event=.step,queue=.queue,worker=.worker")
    return analysed(engine, tmp_path_factory.mktemp("plain"), PLAIN, mapping=mapping, visibility={"": 2.0})


@on_both_engines_at_once
def test_each_duplicate_has_its_cause(behaviours: dict[str, Behaviour]) -> None:
    assert {name: causes(behaviours[name]) for name, _, _ in STORIES} == {name: wanted for name, _, wanted in STORIES}


def test_without_a_receive_count_the_order_tells_deliveries_apart(plain_behaviours: dict[str, Behaviour]) -> None:
    expected = {name: wanted for name, _, wanted in PLAIN}
    assert {name: causes(behaviour) for name, behaviour in plain_behaviours.items()} == expected


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
    lost_delete = behaviours["a delete is lost"]
    assert (lost_delete.causes[0].ran, lost_delete.causes[0].wasted, lost_delete.doubled) == (0, 0.0, 0)
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
