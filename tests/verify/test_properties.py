"""A correct history is ok in any order of its events; a fault in it is found, with its key."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.verify import EventKind, HistoryEvent, check
from semel.verify.merge import in_order, sorted_events
from suite import effort
from verify.events import event, findings_of

SETTINGS: Final = settings(max_examples=effort(fast=20, full=200), deadline=None)
GROUPS: Final = ("", "", "g", "h")
ENDS: Final = ("done", "done", "done", "dead", "redriven", "refused", "waiting", "sent twice")


@dataclass
class KeyEvents:
    """What happens to one key, step by step."""

    key: str
    group: str
    steps: list[HistoryEvent]
    end: str


def key_events(number: int, group: str, end: str, crashes: int, random: Random) -> KeyEvents:
    key, message, queue = f"k{number}", f"m{number}", "orders.fifo"
    fields: dict[str, Any] = {"queue": queue, "group": group}

    def step(kind: str, **more: Any) -> HistoryEvent:
        named = {"message": message} if random.random() < 0.5 else {}
        event_key = key if random.random() < 0.5 or not named else ""
        return event(kind, event_key, **{**fields, **named, **more})

    send = event("send", key, message=message, **fields)
    steps = [step("deliver") for _ in range(crashes)]  # workers that died
    steps += [step("claim", fence=fence, worker=f"w{fence}") for fence in range(1, crashes + 1)]
    effect = event("effect", key, message=message, fence=crashes + 1, worker="w", **fields)
    done = [step("deliver"), effect, step("record", fence=crashes + 1), step("delete")]
    dead = [step("deliver"), event("dead_letter", key, message=message, **fields), step("delete")]
    again = [event("send", key, message=f"{message}-again", **fields)]
    ends = {
        "done": done,
        "dead": dead,
        "redriven": [*dead, *again, *done],
        "refused": [event("refuse", key, message=message, **fields), step("delete")],
        "waiting": [],
        "sent twice": [*again, *done, event("delete", key, message=f"{message}-again", **fields)],
    }
    return KeyEvents(key, group, [send, *steps, *ends[end]], end)


@st.composite
def histories(draw: st.DrawFn) -> list[HistoryEvent]:
    """Many keys at once; within a group one after the other."""
    random = Random(draw(st.integers(0, 1 << 32)))  # drawing each step would take most of the time
    shapes = draw(st.lists(st.tuples(*map(st.sampled_from, (GROUPS, ENDS, range(3)))), min_size=2, max_size=12))
    keys = [key_events(number, group, end, crashes, random) for number, (group, end, crashes) in enumerate(shapes)]
    blocked: set[str] = set()
    for each in keys:  # behind a message that waits, all of its group wait
        if each.group and (each.group in blocked or each.end == "waiting"):
            blocked.add(each.group)
            each.steps, each.end = each.steps[:1], "waiting"
    sends = [each.steps.pop(0) for each in keys]
    queues: dict[str, list[KeyEvents]] = {}
    for each in keys:
        queues.setdefault(each.group or each.key, []).append(each)
    events = list(sends)
    while busy := [keys for keys in queues.values() if any(each.steps for each in keys)]:
        ahead = next(each for each in random.choice(busy) if each.steps)
        events.append(ahead.steps.pop(0))
    events += [event("present", each.key, queue="orders.fifo") for each in keys if each.end == "waiting"]
    # What the other checks need to be made at all.
    return [*events, *(event(kind, "other", queue="orders.fifo", fence=9) for kind in ("send", "effect", "delete"))]


@SETTINGS
@given(histories())
def test_a_correct_history_is_ok(events: list[HistoryEvent]) -> None:
    assert findings_of(check(events)) == []
    assert findings_of(check(events, logged=EventKind)) == []
    assert findings_of(check(events, effects="at-least-once")) == []


def effects_of(events: list[HistoryEvent]) -> list[int]:
    return [place for place, each in enumerate(events) if each.kind is EventKind.EFFECT and each.key != "other"]


@SETTINGS
@given(histories(), st.data())
def test_a_dropped_effect_is_found(events: list[HistoryEvent], data: st.DataObject) -> None:
    if places := effects_of(events):
        place = data.draw(st.sampled_from(places))
        assert ("lost", events[place].key) in findings_of(check(events[:place] + events[place + 1 :]))


@SETTINGS
@given(histories(), st.data())
def test_a_doubled_effect_is_found_and_nothing_else(events: list[HistoryEvent], data: st.DataObject) -> None:
    if places := effects_of(events):
        place = data.draw(st.sampled_from(places))
        again = data.draw(st.integers(place, len(events)))
        doubled = [*events[:again], events[place], *events[again:]]
        key = events[place].key
        assert findings_of(check(doubled)) == [("doubled", key)]
        allowed = check(doubled, effects="at-least-once")
        assert (allowed.ok, [repeat.key for repeat in allowed.repeats]) == (True, [key])


@SETTINGS
@given(histories(), st.data())
def test_two_effects_of_a_group_that_change_places_are_found(events: list[HistoryEvent], data: st.DataObject) -> None:
    left = {each.key for each in events if each.kind in (EventKind.DEAD_LETTER, EventKind.REFUSE)}
    places = [place for place in effects_of(events) if events[place].group and events[place].key not in left]
    pairs = [(a, b) for a in places for b in places if a < b and events[a].group == events[b].group]
    if pairs:
        first, second = data.draw(st.sampled_from(pairs))
        swapped = list(events)
        swapped[first], swapped[second] = events[second], events[first]
        assert ("reordered", events[second].key) in findings_of(check(swapped))


@SETTINGS
@given(histories(), st.data())
def test_a_delete_that_comes_too_early_is_found(events: list[HistoryEvent], data: st.DataObject) -> None:
    if places := effects_of(events):
        place = data.draw(st.sampled_from(places))
        key = events[place].key
        if any(each.kind is EventKind.DEAD_LETTER and each.key == key for each in events):
            return  # it was deleted before, rightly
        early = event("delete", key, queue=events[place].queue)
        assert findings_of(check([*events[:place], early, *events[place:]])) == [("deleted-early", key)]


@SETTINGS
@given(histories(), st.data())
def test_an_effect_or_a_record_by_an_older_fence_is_found(events: list[HistoryEvent], data: st.DataObject) -> None:
    if places := effects_of(events):
        effect = events[data.draw(st.sampled_from(places))]
        kind = data.draw(st.sampled_from((EventKind.EFFECT, EventKind.RECORD)))
        zombie = msgspec.structs.replace(effect, kind=kind, fence=0, worker="zombie")
        assert ("stale", effect.key) in findings_of(check([*events, zombie], effects="at-least-once"))


@SETTINGS
@given(histories())
def test_an_effect_of_a_key_that_was_never_sent_is_found(events: list[HistoryEvent]) -> None:
    stranger = event("effect", "stranger", message="m-stranger", queue="orders.fifo")
    assert findings_of(check([*events, stranger])) == [("unknown", "stranger")]


@SETTINGS
@given(histories(), st.data())
def test_a_message_that_vanishes_from_a_queue_is_found(events: list[HistoryEvent], data: st.DataObject) -> None:
    waiting = [each for each in events if each.kind is EventKind.PRESENT]
    if waiting:
        gone = data.draw(st.sampled_from(waiting))
        assert findings_of(check([each for each in events if each is not gone])) == [("lost", gone.key)]


@SETTINGS
@given(histories(), st.data())
def test_a_history_without_a_kind_of_events_raises_no_false_alarm(
    events: list[HistoryEvent], data: st.DataObject
) -> None:
    """Leaving out dead letters, refusals and what is present is not: these are excuses."""
    kinds = (EventKind.SEND, EventKind.DELIVER, EventKind.CLAIM, EventKind.RECORD, EventKind.DELETE)
    missing = data.draw(st.sets(st.sampled_from(kinds)))
    verdict = check([each for each in events if each.kind not in missing])
    assert findings_of(verdict) == []


@SETTINGS
@given(histories(), st.integers(1, 4), st.integers(0, 1 << 32))
def test_the_order_is_the_same_whichever_file_an_event_is_in(events: list[HistoryEvent], files: int, seed: int) -> None:
    timed = [msgspec.structs.replace(each, time=float(at)) for at, each in enumerate(events)]
    parts: list[list[HistoryEvent]] = [[] for _ in range(files)]
    random = Random(seed)
    for each in timed:
        random.choice(parts).append(each)
    sources = [partial(iter, part) for part in parts]
    assert list(in_order(sources)) == timed
    assert list(sorted_events(sources)) == timed
