"""Settings as they should be: the formulas, the limits of SQS, and silence where all is well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.made_up import DAY, behaviour, case, caused, ledger, letters, state, times
from semel.doctor import recommendations
from semel.doctor.model import Case, Cause, Recommendation


def advised(case: Case) -> dict[str, Recommendation]:
    return {one.setting: one for one in recommendations.recommend(case)}


def test_the_timeout_covers_p99_by_half_as_much_again() -> None:
    found = advised(case(behaviour=behaviour(visibility=30.0, hold=times(20.0, 41.0, 50.0))))["visibility timeout"]
    assert (found.value, found.now, found.changes) == ("62 s", "30 s", True)
    assert found.reasons == ("99 % of the messages are held for at most 41 s (× 1.5), the longest for 50 s (× 1.1)",)
    assert found.remedy is not None
    assert "VisibilityTimeout=62" in found.remedy.cli[-1]


def test_the_timeout_is_never_under_the_worst_that_was_seen_by_a_tenth() -> None:
    found = advised(case(behaviour=behaviour(visibility=30.0, hold=times(1.0, 20.0, 100.0))))["visibility timeout"]
    assert found.value == "110 s"


def test_with_a_heartbeat_the_timeout_is_short() -> None:
    hold = times(200.0, 600.0, 3_000.0)
    found = advised(case(behaviour=behaviour(visibility=4_000.0, hold=hold, heartbeats=9, heartbeat_every=10.0)))
    assert found["visibility timeout"].value == "60 s"
    assert "only the wait after a crash" in found["visibility timeout"].reasons[0]


def test_a_timeout_that_will_do_is_left_alone() -> None:
    found = advised(case(behaviour=behaviour(visibility=90.0, hold=times(1.0, 20.0, 25.0))))["visibility timeout"]
    assert (found.value, found.changes, found.remedy) == ("90 s", False, None)


def test_a_timeout_that_hides_messages_for_hours_after_a_crash_is_shortened() -> None:
    found = advised(case(behaviour=behaviour(visibility=43_200.0, hold=times(1.0, 20.0, 25.0))))["visibility timeout"]
    assert (found.value, found.changes) == ("30 s", True)


def test_work_that_is_longer_than_sqs_can_hide_a_message_gets_a_heartbeat_and_the_truth() -> None:
    hold = times(20_000.0, 40_000.0, 42_000.0)
    found = advised(case(behaviour=behaviour(visibility=30.0, hold=hold)))
    assert found["visibility timeout"].value == "12 h"
    assert "SQS allows no more than 12 h" in found["visibility timeout"].reasons[0]
    assert found["heartbeat interval"].value == "20 s"


def test_the_advised_timeout_is_among_those_worth_trying() -> None:
    assert recommendations.worth_trying(behaviour(hold=times(20.0, 41.0, 50.0))) == (62.0,)
    assert recommendations.worth_trying(behaviour(hold=None)) == ()


@given(p99=st.floats(0, 1e6), beyond=st.floats(0, 1e6), heartbeat=st.booleans())
def test_the_timeout_keeps_its_promises_for_any_work(p99: float, beyond: float, heartbeat: bool) -> None:
    hold = times(0.0, p99, p99 + beyond)
    found = recommendations.visibility_for(hold, heartbeat=heartbeat)
    assert 1 <= found <= 43_200
    assert found == int(found)
    if heartbeat:
        assert 30 <= found <= 60
    else:
        assert found >= min(43_200, max(30, hold.p99 * 1.5, hold.most * 1.1)) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("value", "rounded"), [(61.5, 62), (22.000000000000004, 22), (120, 120), (121, 130), (3_601, 3_660)]
)
def test_timeouts_are_rounded_up_the_more_the_longer_they_are(value: float, rounded: float) -> None:
    assert recommendations.round_up(value) == rounded


def test_the_heartbeat_comes_at_a_third_of_the_timeout() -> None:
    slow = behaviour(visibility=60.0, heartbeats=9, heartbeat_every=40.0)
    found = advised(case(behaviour=slow))["heartbeat interval"]
    assert (found.value, found.now, found.changes) == ("20 s", "40 s", True)
    fine = behaviour(visibility=60.0, heartbeats=9, heartbeat_every=25.0)
    assert not advised(case(behaviour=fine))["heartbeat interval"].changes


def test_no_heartbeat_is_advised_where_the_timeout_covers_the_work() -> None:
    found = advised(case(behaviour=behaviour()))["heartbeat interval"]
    assert (found.value, found.changes) == ("none", False)


def test_messages_are_tried_five_times_and_more_often_where_accidents_use_receives_up() -> None:
    assert advised(case(state=state(max_receives=1)))["maxReceiveCount"].value == "5"
    accidents = behaviour(causes=(caused(Cause.CRASH, 50),))
    found = advised(case(state=state(max_receives=5), behaviour=accidents))["maxReceiveCount"]
    assert (found.value, found.changes) == ("7", True)
    assert found.remedy is not None
    assert advised(case(state=state(max_receives=12)))["maxReceiveCount"].changes is False


def test_attempts_that_would_outlast_the_retention_are_fewer() -> None:
    long = state(max_receives=100, visibility=43_200.0, retention=4 * DAY)
    assert advised(case(state=long))["maxReceiveCount"].value == "5"


def test_dead_letters_are_kept_for_as_long_as_sqs_can_and_messages_for_less() -> None:
    found = advised(case(state=state(retention=14 * DAY, dead_letters=letters(retention=4 * DAY))))
    assert (found["dead-letter retention"].value, found["dead-letter retention"].changes) == ("14 days", True)
    assert (found["retention"].value, found["retention"].changes) == ("7 days", True)
    assert advised(case(state=state(retention=600.0)))["retention"].value == "4 days"
    assert not advised(case(state=state()))["retention"].changes


def test_a_shorter_retention_has_no_command_while_the_queue_has_messages() -> None:
    long = letters(retention=14 * DAY)
    full = advised(case(state=state(retention=14 * DAY, visible=1, dead_letters=long)))["retention"].remedy
    assert full is not None
    assert full.cli == ()
    empty = advised(case(state=state(retention=14 * DAY, dead_letters=long)))["retention"].remedy
    assert empty is not None
    assert "MessageRetentionPeriod=604800" in empty.cli[0]


def test_the_ledger_remembers_for_both_retentions_together() -> None:
    found = advised(case(state=state(), ledger=ledger(retention=DAY)))["ledger memory"]
    assert (found.value, found.now, found.changes) == ("18 days", "1 day", True)
    assert advised(case(ledger=ledger()))["ledger memory"].value == "28 days"
    assert not advised(case(state=state(), ledger=ledger(retention=28 * DAY)))["ledger memory"].changes


def test_a_queue_on_which_all_is_well_is_left_as_it_is() -> None:
    well = case(behaviour=behaviour(), state=state(), ledger=ledger(retention=28 * DAY))
    assert [one.setting for one in recommendations.recommend(well) if one.changes] == []


def test_nothing_is_advised_where_nothing_is_known() -> None:
    assert recommendations.recommend(case()) == ()


def test_nothing_is_advised_on_a_dead_letter_queue_or_a_ledger_that_is_not_there() -> None:
    found = advised(case(state=state(dead_letters=None, max_receives=None)))
    assert set(found) == {"maxReceiveCount", "retention"}
    assert "dead-letter" not in found["retention"].reasons[0]
