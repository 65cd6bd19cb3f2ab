"""The lifecycle of a message: the table, written out a second time, and rules that no sequence of events breaks."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.consumer.lifecycle import (
    BEATING,
    ENDS,
    LATE,
    LEASED,
    TRANSITIONS,
    Action,
    Event,
    ImpossibleStep,
    State,
    step,
)

EXPECTED: Final = """
RECEIVED      WON         CLAIMED
RECEIVED      FOUND_DONE  RECORDED      STOP_BEAT DELETE END
RECEIVED      HELD        CLAIMED_ELSEWHERE       STOP_BEAT HIDE_FOR_LEASE END
RECEIVED      CONFLICT    DISPUTED      CLAIM_APART
RECEIVED      LEDGER_DOWN BACKING_OFF   STOP_BEAT HIDE_FOR_RETRY END
RECEIVED      GIVE_UP     RELEASED      STOP_BEAT SHOW END
RECEIVED      VISIBLE     LOST          STOP_BEAT END

DISPUTED      WON         REJECTED      DEAD_LETTER
DISPUTED      FOUND_DONE  RECORDED      STOP_BEAT DELETE END
DISPUTED      HELD        CLAIMED_ELSEWHERE       STOP_BEAT HIDE_FOR_LEASE END
DISPUTED      LEDGER_DOWN BACKING_OFF   STOP_BEAT HIDE_FOR_RETRY END
DISPUTED      GIVE_UP     RELEASED      STOP_BEAT SHOW END
DISPUTED      VISIBLE     LOST          STOP_BEAT END

CLAIMED       STARTED     WORKING
CLAIMED       SUCCEEDED   DONE          RECORD
CLAIMED       REFUSED     REJECTED      DEAD_LETTER
CLAIMED       GIVE_UP     RELEASED      STOP_BEAT GIVE_BACK_UNTRIED SHOW END
CLAIMED       LOST        LOST          STOP_BEAT GIVE_BACK_UNTRIED END
CLAIMED       VISIBLE     LOST          STOP_BEAT GIVE_BACK_UNTRIED END

WORKING       SUCCEEDED   DONE          RECORD
WORKING       COMMITTED   RECORDED      STOP_BEAT DELETE END
WORKING       FAILED      BACKING_OFF   STOP_BEAT GIVE_BACK HIDE_FOR_RETRY END
WORKING       REFUSED     REJECTED      DEAD_LETTER
WORKING       LEDGER_DOWN BACKING_OFF   STOP_BEAT GIVE_BACK_UNTRIED HIDE_FOR_RETRY END
WORKING       FENCED      LOST          STOP_BEAT END
WORKING       ABANDONED   RELEASED      STOP_BEAT GIVE_BACK SHOW END
WORKING       GIVE_UP     RELEASED      STOP_BEAT GIVE_BACK_UNTRIED SHOW END
WORKING       LOST        LOST_AT_WORK  NOTIFY_LOST
WORKING       VISIBLE     WORKING

DONE          RECORDED    RECORDED      STOP_BEAT DELETE END
DONE          FENCED      LOST          STOP_BEAT END
DONE          LOST        DONE
DONE          VISIBLE     DONE

REJECTED      DEAD_LETTERED      DEAD_LETTERED        RECORD_REJECTED
REJECTED      DLQ_FAILED  BACKING_OFF   STOP_BEAT GIVE_BACK HIDE_FOR_RETRY END
REJECTED      LOST        REJECTED
REJECTED      VISIBLE     REJECTED
DEAD_LETTERED        RECORDED    RECORDED      STOP_BEAT DELETE END
DEAD_LETTERED        FENCED      LOST          STOP_BEAT END
DEAD_LETTERED        LOST        DEAD_LETTERED
DEAD_LETTERED        VISIBLE     DEAD_LETTERED

LOST_AT_WORK  SUCCEEDED   DONE          RECORD
LOST_AT_WORK  COMMITTED   RECORDED      STOP_BEAT DELETE END
LOST_AT_WORK  FAILED      LOST          STOP_BEAT GIVE_BACK END
LOST_AT_WORK  REFUSED     LOST          STOP_BEAT GIVE_BACK END
LOST_AT_WORK  LEDGER_DOWN LOST          STOP_BEAT GIVE_BACK END
LOST_AT_WORK  ABANDONED   LOST          STOP_BEAT GIVE_BACK END
LOST_AT_WORK  FENCED      LOST          STOP_BEAT END
LOST_AT_WORK  GIVE_UP     LOST          STOP_BEAT GIVE_BACK_UNTRIED END
LOST_AT_WORK  LOST        LOST_AT_WORK
LOST_AT_WORK  VISIBLE     LOST_AT_WORK

RECORDED      DELETED     ACKED
RECORDED      LOST        RECORDED
RECORDED      VISIBLE     RECORDED

LOST          WON         LOST          GIVE_BACK_UNTRIED
RELEASED      WON         RELEASED      GIVE_BACK_UNTRIED
"""


class Row(NamedTuple):
    state: State
    event: Event
    after: State
    actions: tuple[Action, ...]


def rows() -> list[Row]:
    split = [line.split() for line in EXPECTED.splitlines() if line.strip()]
    return [
        Row(State[state], Event[event], State[after], tuple(Action[name] for name in actions))
        for state, event, after, *actions in split
    ]


ROWS: Final = {(row.state, row.event): row for row in rows()}
DELETES: Final = frozenset({Action.DELETE})
RETURNS: Final = frozenset({Action.HIDE_FOR_LEASE, Action.HIDE_FOR_RETRY, Action.SHOW})
GIVES_BACK: Final = frozenset({Action.GIVE_BACK, Action.GIVE_BACK_UNTRIED})
OUTCOME_IS_WRITTEN: Final = frozenset({Event.RECORDED, Event.COMMITTED, Event.FOUND_DONE})


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: f"{row.state.name}-{row.event.name}")
def test_each_event_leads_to_its_state_and_its_actions(row: Row) -> None:
    assert step(row.state, row.event) == (row.after, row.actions)


def test_the_table_has_no_step_that_is_not_spelled_out_here() -> None:
    assert set(TRANSITIONS) == set(ROWS)


def test_what_cannot_happen_is_refused_by_name() -> None:
    for state in State:
        for event in Event:
            if (state, event) in ROWS or (state in ENDS and event in LATE):
                continue
            with pytest.raises(ImpossibleStep, match=f"{event.name} cannot happen to a message that is {state.name}"):
                step(state, event)


def test_late_words_about_a_life_that_has_ended_change_nothing() -> None:
    late = {
        Event.LOST, Event.VISIBLE, Event.GIVE_UP, Event.DELETED, Event.FOUND_DONE, Event.HELD, Event.CONFLICT,
        Event.LEDGER_DOWN,
    }  # fmt: skip
    assert late == LATE
    for end in ENDS:
        for event in late:
            assert step(end, event) == (end, ())


def test_a_claim_that_is_won_after_its_message_was_let_go_is_given_back_as_not_tried() -> None:
    for end in (State.LOST, State.RELEASED):
        assert step(end, Event.WON) == (end, (Action.GIVE_BACK_UNTRIED,))


def test_the_heartbeat_extends_the_lease_of_whatever_it_keeps_hidden_and_we_hold() -> None:
    assert LEASED < BEATING
    assert {State.RECEIVED, State.DISPUTED} == BEATING - LEASED
    assert not BEATING & ENDS


def test_every_state_can_be_reached_and_from_every_state_an_end_can() -> None:
    reached, todo = {State.RECEIVED}, [State.RECEIVED]
    while todo:
        state = todo.pop()
        fresh = {row.after for row in ROWS.values() if row.state is state} - reached
        reached |= fresh
        todo += fresh
    assert reached == set(State)
    ending = set(ENDS)
    while more := {row.state for row in ROWS.values() if row.after in ending} - ending:
        ending |= more
    assert ending == set(State)


class Past(NamedTuple):
    """One step of a life that was lived."""

    state: State
    event: Event
    after: State
    actions: tuple[Action, ...]


def possible(state: State) -> list[Event]:
    """Asked of the code itself, so that a step that sneaks into it is walked too."""
    events = []
    for event in Event:
        try:
            step(state, event)
        except ImpossibleStep:
            continue
        events.append(event)
    return events


POSSIBLE: Final = {state: possible(state) for state in State}


@st.composite
def lives(draw: st.DrawFn) -> list[Past]:
    """A whole life, with whatever was said too late after its end."""
    state, life = State.RECEIVED, list[Past]()
    late = draw(st.integers(0, 3))
    while state not in ENDS or late:
        late -= state in ENDS
        chosen = POSSIBLE[state]
        if len(life) > 30:  # long enough: no more going round in circles
            chosen = [event for event in chosen if step(state, event)[0] is not state] or chosen
        event = draw(st.sampled_from(chosen))
        after, actions = step(state, event)
        life.append(Past(state, event, after, actions))
        state = after
    return life


def actions_of(life: list[Past]) -> list[Action]:
    return [action for past in life for action in past.actions]


@given(lives())
def test_no_sequence_of_events_deletes_before_the_ledger_has_the_outcome(life: list[Past]) -> None:
    written = False
    for past in life:
        written = written or past.event in OUTCOME_IS_WRITTEN
        if Action.DELETE in past.actions:
            assert written


@given(lives())
def test_the_heartbeat_has_stopped_before_a_message_is_deleted_hidden_or_shown(life: list[Past]) -> None:
    done = actions_of(life)
    assert done.count(Action.STOP_BEAT) == 1
    stopped = done.index(Action.STOP_BEAT)
    assert all(place > stopped for place, action in enumerate(done) if action in DELETES | RETURNS)


@given(lives())
def test_the_heartbeat_beats_exactly_in_the_states_that_say_so(life: list[Past]) -> None:
    stopped = False
    for past in life:
        stopped = stopped or Action.STOP_BEAT in past.actions
        assert (past.after in BEATING) is not stopped


@given(lives())
def test_every_life_ends_and_frees_its_slot_once(life: list[Past]) -> None:
    done = actions_of(life)
    assert life[-1].after in ENDS
    assert done.count(Action.END) == 1
    # What comes after that is a claim which nobody has a use for any more.
    assert set(done[done.index(Action.END) + 1 :]) <= {Action.GIVE_BACK_UNTRIED}


@given(lives())
def test_a_message_goes_one_way_only(life: list[Past]) -> None:
    """Deleted, or hidden, or shown, or left alone: never two of them."""
    assert sum(action in DELETES | RETURNS for action in actions_of(life)) <= 1


@given(lives())
def test_a_claim_is_given_back_before_its_message_goes_back(life: list[Past]) -> None:
    won = given_back = False
    for past in life:
        won = won or past.event is Event.WON
        for action in past.actions:
            given_back = given_back or action in GIVES_BACK
            if action in RETURNS and won:
                assert given_back


@given(lives())
def test_a_claim_is_recorded_or_given_back_or_left_to_its_successor(life: list[Past]) -> None:
    if not any(past.event is Event.WON for past in life):
        return
    done = set(actions_of(life))
    last = next(past.event for past in life if Action.END in past.actions)
    ended = done & (GIVES_BACK | {Action.RECORD, Action.RECORD_REJECTED})
    assert ended or last in (Event.COMMITTED, Event.FENCED)


@given(lives())
def test_work_that_has_succeeded_is_recorded_whatever_was_lost_and_only_its_fence_can_undo_it(life: list[Past]) -> None:
    for place, past in enumerate(life):
        if past.event is not Event.SUCCEEDED:
            continue
        assert past.actions == (Action.RECORD,)
        end = next(later for later in life[place + 1 :] if Action.END in later.actions)
        assert end.event in (Event.RECORDED, Event.FENCED)


@given(lives())
def test_once_lost_at_work_nothing_is_shown_hidden_or_dead_lettered_and_only_what_is_written_is_deleted(
    life: list[Past],
) -> None:
    lost = [place for place, past in enumerate(life) if past.after is State.LOST_AT_WORK]
    if not lost:
        return
    later = life[lost[0] + 1 :]
    done = set(actions_of(later))
    assert not done & {Action.RECORD_REJECTED, Action.DEAD_LETTER}
    assert not done & RETURNS
    if Action.DELETE in done:
        assert any(past.event in (Event.COMMITTED, Event.RECORDED) for past in later)


@given(lives())
def test_a_handler_is_told_only_that_its_claim_may_be_gone_not_that_others_see_its_message(life: list[Past]) -> None:
    for past in life:
        if Action.NOTIFY_LOST in past.actions:
            assert past.event is Event.LOST
        if past.event is Event.VISIBLE and past.state is State.WORKING:
            assert past.after is State.WORKING


@given(lives())
def test_a_dead_letter_is_recorded_as_rejected_and_only_a_handled_message_as_done(life: list[Past]) -> None:
    for past in life:
        if Action.RECORD in past.actions:
            assert past.event is Event.SUCCEEDED
        if Action.RECORD_REJECTED in past.actions:
            assert past.event is Event.DEAD_LETTERED
