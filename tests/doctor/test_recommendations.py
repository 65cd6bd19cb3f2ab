"""Recommended settings: one value each, within the limits of SQS, and none where all is well."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor.made_up import DAY, behaviour, case, caused, dlq, ledger, looping, series, state, times
from semel import durations
from semel.doctor import recommendations
from semel.doctor.model import Case, Cause, Recommendation, Remedy, TimeoutReplay
from semel.doctor.rules import ALL


def recommended(case: Case) -> dict[str, Recommendation]:
    settings = {recommendation.setting: recommendation for recommendation in recommendations.recommend(case)}
    assert len(settings) == len(recommendations.recommend(case))
    return settings


# The visibility timeout.


def test_the_timeout_covers_p99_by_half_as_much_again_and_gives_all_its_reasons() -> None:
    timeout = recommended(case(behaviour=behaviour(visibility=30.0, hold=times(20.0, 41.0, 50.0))))[
        "visibility timeout"
    ]
    assert (timeout.value, timeout.now, timeout.changes) == ("62 s", "30 s", True)
    assert timeout.reasons == (
        "99 % of the messages are held for at most 41 s: × 1.5 is 61.5 s",
        "the client waits for the answer to a receive for up to 60 s (its read timeout)",
        "the longest was held for 50 s: × 1.1 is 55 s",
        "with a heartbeat every 20 s a timeout of 60 s is enough, whatever the longest work takes (up to 12 h)",
    )
    assert timeout.remedy is not None
    assert "VisibilityTimeout=62" in timeout.remedy.cli[-1]


def test_the_timeout_is_never_under_the_longest_by_a_tenth() -> None:
    slow = behaviour(visibility=30.0, hold=times(1.0, 20.0, 100.0))
    assert recommended(case(behaviour=slow))["visibility timeout"].value == "110 s"


def test_with_a_heartbeat_the_work_does_not_matter() -> None:
    hold = times(200.0, 600.0, 3_000.0)
    beating = behaviour(visibility=4_000.0, hold=hold, heartbeats=9, heartbeat_every=10.0)
    timeout = recommended(case(behaviour=beating))["visibility timeout"]
    assert timeout.value == "60 s"
    assert timeout.reasons[:2] == (
        "after a crash a message stays hidden for the timeout, 1 h 7 min now",
        "the heartbeat covers the work, so the timeout is only the wait after a crash",
    )


def test_where_lambda_receives_the_timeout_is_six_times_that_of_the_function() -> None:
    timeout = recommended(case(state=state(visibility=30.0), lambda_timeout=30.0))["visibility timeout"]
    assert (timeout.value, timeout.changes) == ("3 min", True)
    assert timeout.reasons == ("the Lambda function may run for 30 s: AWS asks for at least 6 × that, 3 min",)
    assert "visibility timeout" not in recommended(case(state=state(visibility=180.0), lambda_timeout=30.0))


def test_without_logs_the_timeout_covers_the_read_timeout_and_is_never_shortened() -> None:
    assert recommended(case(state=state(visibility=30.0)))["visibility timeout"].value == "60 s"
    assert "visibility timeout" not in recommended(case(state=state(visibility=43_200.0)))
    assert "visibility timeout" not in recommended(case(state=state(visibility=30.0, sources=("orders",))))


def test_the_default_of_sqs_is_a_reason_only_where_nothing_asks_for_more() -> None:
    quick = case(behaviour=behaviour(visibility=10.0), read_timeout=25.0)
    timeout = recommended(quick)["visibility timeout"]
    assert (timeout.value, timeout.reasons[0]) == ("30 s", "nothing is gained below the default of SQS, 30 s")


def test_a_timeout_that_will_do_is_left_alone() -> None:
    well = case(behaviour=behaviour(visibility=90.0, hold=times(1.0, 20.0, 25.0)))
    timeout = recommended(well)["visibility timeout"]
    assert (timeout.value, timeout.changes, timeout.remedy) == ("90 s", False, None)


def test_a_timeout_that_hides_messages_for_hours_after_a_crash_is_shortened() -> None:
    hours = case(behaviour=behaviour(visibility=43_200.0, hold=times(1.0, 20.0, 25.0)))
    timeout = recommended(hours)["visibility timeout"]
    assert (timeout.value, timeout.changes) == ("60 s", True)
    assert timeout.reasons[0] == "after a crash a message stays hidden for the timeout, 12 h now"


def test_work_that_is_longer_than_sqs_can_hide_a_message_must_be_split() -> None:
    hold = times(20_000.0, 40_000.0, 42_000.0)
    settings = recommended(case(behaviour=behaviour(visibility=30.0, hold=hold)))
    assert settings["visibility timeout"].value == "12 h"
    assert settings["visibility timeout"].reasons[0] == "SQS allows no more than 12 h: shorten the work, or split it"
    assert settings["heartbeat interval"].value == "20 s"


def test_work_that_outlasted_the_timeout_for_an_unknown_time_asks_for_twice_the_timeout() -> None:
    unmeasured = behaviour(visibility=90.0, hold=None, causes=(caused(Cause.VISIBILITY),))
    assert recommended(case(behaviour=unmeasured))["visibility timeout"].value == "3 min"


def test_the_recommended_timeout_is_the_one_to_replay() -> None:
    assert recommendations.worth_trying(behaviour(hold=times(20.0, 41.0, 50.0))) == (62.0,)
    assert recommendations.worth_trying(behaviour(hold=times(20.0, 41.0, 50.0)), read_timeout=90.0) == (90.0,)
    assert recommendations.worth_trying(behaviour(hold=None)) == ()


@given(p99=st.floats(0, 1e6), beyond=st.floats(0, 1e6), heartbeats=st.integers(0, 1))
def test_the_timeout_keeps_its_promises_for_any_work(p99: float, beyond: float, heartbeats: int) -> None:
    hold = times(0.0, p99, p99 + beyond)
    timeout = recommendations.visibility(case(behaviour=behaviour(visibility=None, hold=hold, heartbeats=heartbeats)))
    assert timeout is not None
    assert 60 <= timeout <= 43_200
    assert timeout == int(timeout)
    if heartbeats:
        assert timeout == 60
    else:
        assert timeout >= min(43_200, max(hold.p99 * 1.5, hold.most * 1.1)) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("value", "rounded"), [(61.5, 62), (22.000000000000004, 22), (120, 120), (121, 130), (3_601, 3_660)]
)
def test_timeouts_are_rounded_up_the_more_the_longer_they_are(value: float, rounded: float) -> None:
    assert recommendations.round_up(value) == rounded


# The heartbeat.


def test_the_heartbeat_comes_at_a_third_of_the_recommended_timeout() -> None:
    slow = behaviour(visibility=60.0, heartbeats=9, heartbeat_every=40.0)
    interval = recommended(case(behaviour=slow))["heartbeat interval"]
    assert (interval.value, interval.now, interval.changes) == ("20 s", "40 s", True)
    fine = behaviour(visibility=60.0, heartbeats=9, heartbeat_every=25.0)
    assert not recommended(case(behaviour=fine))["heartbeat interval"].changes
    longer = behaviour(visibility=30.0, heartbeats=9, heartbeat_every=25.0)  # the timeout is to be 60 s
    assert not recommended(case(behaviour=longer))["heartbeat interval"].changes


def test_no_heartbeat_is_recommended_where_the_timeout_covers_the_work() -> None:
    interval = recommended(case(behaviour=behaviour()))["heartbeat interval"]
    assert (interval.value, interval.changes) == ("none", False)


def test_a_heartbeat_is_recommended_where_a_crash_would_hide_a_message_for_long() -> None:
    interval = recommended(case(behaviour=behaviour(hold=times(100.0, 1_000.0, 1_100.0))))["heartbeat interval"]
    assert (interval.value, interval.changes) == ("20 s", True)
    assert interval.reasons[0] == "after a crash a timeout of 25 min hides a message for as long"


# Receives and retention.


def test_messages_are_tried_five_times_and_more_often_where_accidents_use_receives_up() -> None:
    assert recommended(case(state=state(max_receives=1)))["maxReceiveCount"].value == "5"
    accidents = behaviour(causes=(caused(Cause.CRASH, 50),))
    receives = recommended(case(state=state(max_receives=5), behaviour=accidents))["maxReceiveCount"]
    assert (receives.value, receives.changes) == ("7", True)
    assert receives.remedy is not None
    assert recommended(case(state=state(max_receives=12)))["maxReceiveCount"].changes is False


def test_messages_that_always_fail_are_not_tried_for_long() -> None:
    loops = behaviour(loops=1, looping=(looping(),))
    assert recommended(case(state=state(max_receives=50), behaviour=loops))["maxReceiveCount"].value == "5"
    assert recommended(case(state=state(max_receives=50)))["maxReceiveCount"].value == "50"


def test_attempts_that_would_outlast_the_retention_are_fewer() -> None:
    long = state(max_receives=100, visibility=43_200.0, retention=4 * DAY)
    assert recommended(case(state=long))["maxReceiveCount"].value == "5"


def test_dead_letter_messages_are_kept_for_as_long_as_sqs_can_and_messages_for_less() -> None:
    settings = recommended(case(state=state(retention=14 * DAY, dead_letters=dlq(retention=4 * DAY))))
    assert (settings["dead-letter retention"].value, settings["dead-letter retention"].changes) == ("14 d", True)
    assert (settings["retention"].value, settings["retention"].changes) == ("7 d", True)
    assert recommended(case(state=state(retention=600.0)))["retention"].value == "4 d"
    assert not recommended(case(state=state()))["retention"].changes


def test_messages_that_are_about_to_expire_are_kept_for_as_long_as_sqs_can() -> None:
    old = series([{"oldest": 3.5 * DAY}])
    retention = recommended(case(state=state(), series=old))["retention"]
    assert (retention.value, retention.now, retention.changes) == ("14 d", "4 d", True)


def test_a_shorter_retention_has_no_command_while_the_queue_has_messages() -> None:
    full = recommended(case(state=state(retention=14 * DAY, visible=1)))["retention"].remedy
    assert full is not None
    assert (full.cli, full.terraform) == ((), None)
    empty = recommended(case(state=state(retention=14 * DAY)))["retention"].remedy
    assert empty is not None
    assert "MessageRetentionPeriod=604800" in empty.cli[0]


def test_the_ledger_keeps_keys_for_both_retentions_together() -> None:
    retention = recommended(case(state=state(), ledger=ledger(retention=DAY)))["ledger retention"]
    assert (retention.value, retention.now, retention.changes) == ("18 d", "1 d", True)
    assert recommended(case(ledger=ledger()))["ledger retention"].value == "28 d"
    longer = recommended(case(state=state(), ledger=ledger(retention=28 * DAY)))["ledger retention"]
    assert (longer.value, longer.changes) == ("28 d", False)


def test_the_ledger_keeps_keys_for_the_retentions_that_are_recommended() -> None:
    for brief in (
        state(dead_letters=dlq(retention=4 * DAY)),
        state(retention=600.0),
    ):  # to be 4 and 14 days
        assert recommended(case(state=brief, ledger=ledger(retention=8 * DAY)))["ledger retention"].value == "18 d"


def test_a_queue_on_which_all_is_well_is_left_as_it_is() -> None:
    well = case(behaviour=behaviour(), state=state(), ledger=ledger(retention=28 * DAY))
    assert [setting for setting, recommendation in recommended(well).items() if recommendation.changes] == []


def test_nothing_is_recommended_where_nothing_is_known() -> None:
    assert recommendations.recommend(case()) == ()


def test_nothing_is_recommended_for_a_dead_letter_queue_or_a_ledger_that_does_not_exist() -> None:
    settings = recommended(case(state=state(dead_letters=None, max_receives=None)))
    assert set(settings) == {"maxReceiveCount", "retention"}
    assert "dead-letter" not in settings["retention"].reasons[0]


# One value for each setting, wherever it shows.

_DURATION = r"(\d[\d.]* (?:ms|s|min|h|d)(?: \d+ (?:ms|s|min|h))?)"
_SHOWN = {
    "visibility timeout": (
        rf"[Ss]et the visibility timeout(?: of \S+)? to {_DURATION}",
        rf"[Ww]ith {_DURATION}(?: instead of [^:]+)?: ",
        r"VisibilityTimeout=(\d+)",
        r"visibility_timeout_seconds += (\d+)",
    ),
    "timeout with a heartbeat": (rf"with a heartbeat every [^,]+ a timeout of {_DURATION}",),
    "heartbeat interval": (
        rf"heartbeat interval to {_DURATION}",
        rf"send it every {_DURATION}",
        rf"heartbeat every {_DURATION}",
    ),
    "maxReceiveCount": (
        r"maxReceiveCount to (\d+)",
        r"maxReceiveCount is \d+: set it to (\d+)",
        r"after (\d+) receives",
        r'maxReceiveCount\\?": (\d+)',
        r"maxReceiveCount = (\d+)",
    ),
    "retention": (
        rf"retention of orders to {_DURATION}",
        r"/orders --attributes (?:DelaySeconds=0,)?MessageRetentionPeriod=(\d+)",
        r'resource "aws_sqs_queue" "orders" \{[^}]*message_retention_seconds += (\d+)',
    ),
    "dead-letter retention": (
        rf"retention of orders-dlq to {_DURATION}",
        r"-dlq --attributes MessageRetentionPeriod=(\d+)",
        r'resource "aws_sqs_queue" "orders-(?:dlq|dead)" \{[^}]*message_retention_seconds += (\d+)',
    ),
    "ledger retention": (rf"ledger retention to {_DURATION}", r"`retention=(\d+)`"),
}


def shown(text: str, setting: str) -> set[str]:
    """The values of a setting in a text, as people read them."""
    values = {value for pattern in _SHOWN[setting] for value in re.findall(pattern, text)}
    is_count = setting == "maxReceiveCount"
    return {durations.text(float(value)) if value.isdigit() and not is_count else value for value in values}


def remedy_text(remedy: Remedy | None) -> str:
    return "\n".join((remedy.text, *remedy.cli, remedy.terraform or "")) if remedy is not None else ""


seconds = st.one_of(st.integers(1, 50_000).map(float), st.floats(0.01, 2_000.0))
behaviours = st.builds(
    lambda p50, p99, most, measured, causes, **differs: behaviour(
        hold=times(p50, p50 + p99, p50 + p99 + most) if measured else None, causes=tuple(causes), **differs
    ),
    p50=seconds,
    p99=seconds,
    most=seconds,
    measured=st.booleans(),
    causes=st.lists(
        st.builds(caused, st.sampled_from(Cause), st.integers(1, 500)), unique_by=lambda cause: cause.cause
    ),
    visibility=st.one_of(st.none(), st.integers(1, 43_200).map(float)),
    heartbeats=st.integers(0, 1),
    heartbeat_every=st.one_of(st.none(), seconds),
    loops=st.integers(0, 1),
)
states = st.builds(
    state,
    visibility=st.integers(1, 43_200).map(float),
    retention=st.integers(60, 1_209_600).map(float),
    max_receives=st.one_of(st.none(), st.integers(1, 1_000)),
    dead_letters=st.one_of(
        st.none(), st.builds(dlq, retention=st.one_of(st.none(), st.integers(60, 1_209_600).map(float)))
    ),
    delay=st.sampled_from((0.0, 900.0)),
    visible=st.integers(0, 1),
)
cases = st.builds(
    case,
    behaviour=st.one_of(st.none(), behaviours),
    state=st.one_of(st.none(), states),
    series=st.one_of(st.none(), st.floats(0, 1_209_600).map(lambda age: series([{"oldest": age}]))),
    ledger=st.one_of(st.none(), st.builds(ledger, retention=st.one_of(st.none(), seconds))),
    read_timeout=st.floats(1, 900),
    lambda_timeout=st.one_of(st.none(), st.floats(1, 900)),
)


@settings(max_examples=400, deadline=None)
@given(cases)
def test_every_setting_has_one_value_in_all_findings_and_recommendations(case: Case) -> None:
    if case.behaviour is not None:  # as the doctor does before the rules run
        tried = recommendations.worth_trying(case.behaviour, case.read_timeout, case.lambda_timeout)
        replays = tuple(TimeoutReplay(timeout, 1) for timeout in tried)
        case = replace(case, behaviour=replace(case.behaviour, replays=replays))
    by_setting = recommended(case)
    texts = [remedy_text(finding.remedy) for rule in ALL if (finding := rule.look(case)) is not None]
    texts += [remedy_text(recommendation.remedy) for recommendation in by_setting.values()]
    texts += ["\n".join(recommendation.reasons) for recommendation in by_setting.values()]
    for setting in _SHOWN:
        values = {value for text in texts for value in shown(text, setting)}
        if setting in by_setting and by_setting[setting].value != "none":
            values.add(by_setting[setting].value)
        assert len(values) <= 1, (setting, values)
