"""Rules about behaviour: each reports the smallest case that is wrong, and is silent when it is fixed."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.made_up import (
    NOON,
    behaviour,
    case,
    caused,
    errors,
    finding_of,
    flow,
    ledger,
    look,
    looping,
    series,
    state,
    times,
)
from semel.doctor.errors import DoctorError
from semel.doctor.model import Behaviour, Cause, Severity, TimeoutReplay, Window
from semel.doctor.rules import ALL, choose

SLOW = times(20.0, 41.0, 55.0)


def late(**differs: Any) -> Behaviour:
    usual: dict[str, Any] = {
        "visibility": 30.0,
        "hold": SLOW,
        "causes": (caused(Cause.VISIBILITY, overrun=times(4.0, 9.0, 12.0)),),
        "replays": (TimeoutReplay(30.0, 32), TimeoutReplay(45.0, 9), TimeoutReplay(62.0, 1), TimeoutReplay(120.0, 0)),
    }
    return behaviour(**(usual | differs))


def test_a_timeout_that_is_too_short_is_reported_with_its_cost_and_the_timeout_that_cures_it() -> None:
    finding = finding_of("duplicates-visibility", case(behaviour=late(), state=state(visibility=30.0)))
    assert finding.severity is Severity.WARNING
    assert finding.observed == (
        "The visibility timeout is 30 s but P99 is 41 s: 3.2 % of 1,000 messages (32 duplicates); the handler "
        "ran again for 30, 96 s of work wasted; they ended 4 s after the timeout (P50), at most 12 s."
    )
    assert finding.remedy.text.startswith(
        "Set the visibility timeout of orders to 62 s. With 62 s instead of 30 s: 3.2 % -> 0.1 % duplicates. Or enable "
        "a heartbeat: with a heartbeat every 20 s a timeout of 60 s is enough, whatever the longest work takes (up to "
        "12 h). Until then, "
    )
    assert finding.remedy.cli == (
        "aws sqs set-queue-attributes --queue-url https://sqs.eu-west-1.amazonaws.com/123456789012/orders "
        "--attributes VisibilityTimeout=62 --region eu-west-1",
    )
    assert finding.remedy.terraform == (
        'resource "aws_sqs_queue" "orders" {\n'
        '  name                       = "orders"\n'
        "  visibility_timeout_seconds = 62\n"
        "}"
    )
    assert finding.figures["recommended"] == 62.0
    assert look("duplicates-visibility", case(behaviour=behaviour())) is None


def test_a_duplicate_for_which_no_handler_ran_is_only_worth_a_word() -> None:
    quiet = late(causes=(caused(Cause.VISIBILITY, ran=0),))
    assert finding_of("duplicates-visibility", case(behaviour=quiet)).severity is Severity.INFO


def test_a_queue_whose_url_is_not_known_is_looked_up_by_the_cure_itself() -> None:
    remedy = finding_of("duplicates-visibility", case(behaviour=late())).remedy
    assert remedy.cli == (
        "QUEUE_URL=$(aws sqs get-queue-url --queue-name orders --query QueueUrl --output text)",
        'aws sqs set-queue-attributes --queue-url "$QUEUE_URL" --attributes VisibilityTimeout=62',
    )


def test_a_timeout_that_would_have_changed_nothing_is_no_promise() -> None:
    remedy = finding_of("duplicates-visibility", case(behaviour=late(replays=(TimeoutReplay(62.0, 32),)))).remedy
    assert "A longer timeout alone would not have prevented duplicates here." in remedy.text
    assert "->" not in remedy.text
    assert "->" not in finding_of("duplicates-visibility", case(behaviour=late(replays=()))).remedy.text
    risky = behaviour(visibility=30.0, hold=SLOW, replays=(TimeoutReplay(62.0, 0),))
    assert "duplicates" not in finding_of("visibility-short", case(behaviour=risky)).remedy.text  # there are none yet


def test_a_change_that_is_too_small_for_a_share_is_reported_in_numbers() -> None:
    few = late(messages=100_000, replays=(TimeoutReplay(62.0, 31),))
    remedy = finding_of("duplicates-visibility", case(behaviour=few)).remedy
    assert "With 62 s instead of 30 s: 32 -> 31 duplicates." in remedy.text


def test_a_consumer_that_asks_for_another_timeout_than_the_queue_has_is_pointed_at() -> None:
    remedy = finding_of("duplicates-visibility", case(behaviour=late(), state=state(visibility=90.0))).remedy
    assert remedy.text.startswith("Set the visibility timeout to 62 s where the consumers ask for 30 s")
    assert remedy.cli == ()  # it would change nothing for them


def test_a_timeout_that_will_do_is_not_blamed_for_old_duplicates_or_late_heartbeats() -> None:
    old = finding_of("duplicates-visibility", case(behaviour=late(visibility=90.0))).remedy
    assert old.text.startswith("The timeout of 90 s, the last in force, is long enough: look only")
    assert old.cli == ()
    beating = finding_of(
        "duplicates-visibility", case(behaviour=late(visibility=60.0, heartbeats=5, heartbeat_every=20.0))
    )
    assert beating.remedy.text.startswith("The timeout of 60 s, the last in force, is long enough; the heartbeat")


@pytest.mark.parametrize(
    ("cause", "rule", "words"),
    [
        (Cause.CRASH, "duplicates-crash", "Workers stopped without recording an outcome"),
        (Cause.LOST_DELETE, "duplicates-lost-delete", "although their outcome was recorded in time"),
        (Cause.PRODUCER, "duplicates-producer", "The same key came in messages with different ids"),
        (Cause.REDRIVE, "duplicates-redrive", "Keys that had failed came again"),
        (Cause.CONCURRENT, "duplicates-concurrent", "while they were hidden"),
        (Cause.UNKNOWN, "duplicates-unknown", "not in these logs"),
    ],
)
def test_each_cause_has_its_rule_which_says_how_many_and_what_they_cost(cause: Cause, rule: str, words: str) -> None:
    finding = finding_of(rule, case(behaviour=behaviour(causes=(caused(cause),))))
    assert words in finding.observed
    assert (
        "3.2 % of 1,000 messages (32 duplicates); the handler ran again for 30, 96 s of work wasted" in finding.observed
    )
    assert finding.figures["duplicates"] == 32
    informs = cause in (Cause.REDRIVE, Cause.UNKNOWN)
    assert finding.severity is (Severity.INFO if informs else Severity.WARNING)
    others = tuple(caused(other) for other in Cause if other is not cause)
    assert look(rule, case(behaviour=behaviour(causes=others))) is None
    assert look(rule, case()) is None


def test_a_single_crash_among_many_messages_is_only_worth_a_word() -> None:
    rare = behaviour(messages=100_000, causes=(caused(Cause.CRASH, duplicates=3, ran=3),))
    finding = finding_of("duplicates-crash", case(behaviour=rare))
    assert finding.severity is Severity.INFO
    assert "under 0.1 %" in finding.observed


def test_effects_that_happened_twice_are_critical_and_name_the_causes() -> None:
    finding = finding_of(
        "doubled-effects", case(behaviour=behaviour(doubled=3, effects=1_003, causes=(caused(Cause.CRASH, 4),)))
    )
    assert finding.severity is Severity.CRITICAL
    assert finding.observed == (
        "3 keys took effect more than once: 1,003 effects for 1,000 messages; duplicates by cause: crash (4)."
    )
    assert look("doubled-effects", case(behaviour=behaviour(causes=(caused(Cause.CRASH),)))) is None


# Failing.


def test_messages_that_loop_are_named_with_their_error_and_get_a_dead_letter_queue_if_there_is_none() -> None:
    loops = behaviour(loops=2, looping=(looping("m-1", error="KeyError: 'id'"), looping("m-2", 3)))
    bare = state(max_receives=None, dead_letters=None)
    finding = finding_of("poison-loops", case(behaviour=loops, state=bare))
    assert finding.observed == (
        "2 messages came 3 times or more; the worst (m-1) 40 times; ids: m-1, m-2; most often: KeyError: 'id'."
    )
    assert finding.remedy.cli[0].startswith("aws sqs create-queue --queue-name orders-dlq")
    assert finding_of("poison-loops", case(behaviour=loops, state=state())).remedy.cli == ()
    assert look("poison-loops", case(behaviour=behaviour(), state=bare)) is None


def test_a_redrive_policy_that_lets_messages_loop_for_long_is_pointed_at() -> None:
    loops = behaviour(loops=1, looping=(looping(),))
    assert (
        "maxReceiveCount is 100"
        in finding_of("poison-loops", case(behaviour=loops, state=state(max_receives=100))).remedy.text
    )


def test_accidents_leave_messages_that_loop_more_receives() -> None:
    loops = behaviour(loops=1, looping=(looping(),), causes=(caused(Cause.CRASH, 50),))
    remedy = finding_of("poison-loops", case(behaviour=loops, state=state(max_receives=100))).remedy
    assert remedy.text.startswith("maxReceiveCount is 100: set it to 7.")


def test_errors_are_reported_by_group_with_their_share() -> None:
    finding = finding_of(
        "failing", case(behaviour=behaviour(failures=50, errors=errors("Timeout: card service\n", 50)))
    )
    assert finding.observed == (
        "50 of 1,000 attempts (5.0 %) ended in an error: 50 × Timeout: card service (50 messages)."
    )
    assert finding.severity is Severity.WARNING
    assert finding_of("failing", case(behaviour=behaviour(failures=5))).severity is Severity.INFO
    assert look("failing", case(behaviour=behaviour())) is None


def test_poison_that_the_age_hides_is_found_from_logs_and_metrics_together() -> None:
    loops = behaviour(loops=1, looping=(looping("m-1", 40, span=3_600),))
    young = series([{"oldest": 20.0}] * 60)
    finding = finding_of("age-hides-poison", case(behaviour=loops, series=young))
    assert finding.observed == (
        "Message m-1 has come back for 1 h (40 receives), while the age of the oldest message never showed "
        "more than 20 s."
    )
    honest = series([{"oldest": 60.0 * place} for place in range(60)])
    assert look("age-hides-poison", case(behaviour=loops, series=honest)) is None


def test_poison_that_the_age_hides_is_found_from_metrics_alone() -> None:
    hidden = series([{"visible": 2.0, "in_flight": 1.0, "oldest": 0.0}] * 5)
    assert (
        "The queue holds 3 messages or more all the time"
        in finding_of("age-hides-poison", case(series=hidden)).observed
    )
    emptied = series([{"visible": 2.0, "oldest": 0.0}] * 4 + [{"visible": 0.0, "oldest": 0.0}])
    assert look("age-hides-poison", case(series=emptied)) is None


# Time.


def test_a_timeout_below_p99_is_reported_before_the_first_duplicate() -> None:
    risky = behaviour(visibility=None, hold=SLOW, wait=times(1.0, 12.0, 15.0))
    finding = finding_of("visibility-short", case(behaviour=risky, state=state(visibility=30.0)))
    assert finding.observed == (
        "The visibility timeout is 30 s, and P99 from the receive to the delete is 41 s, 12 s of it before the handler "
        "starts; the longest was 55 s."
    )
    assert "VisibilityTimeout=62" in finding.remedy.cli[0]
    assert look("visibility-short", case(behaviour=risky, state=state(visibility=62.0))) is None


def test_a_timeout_below_six_times_that_of_the_lambda_function_is_reported() -> None:
    finding = finding_of("visibility-short", case(state=state(visibility=90.0), lambda_timeout=30.0))
    assert finding.observed == (
        "The visibility timeout is 90 s, and the Lambda function may run for 30 s: AWS asks for 6 × that."
    )
    assert finding.remedy.text == "Set the visibility timeout of orders to 3 min."
    assert finding.severity is Severity.INFO
    shorter = case(state=state(visibility=20.0), lambda_timeout=30.0)
    assert finding_of("visibility-short", shorter).severity is Severity.WARNING
    assert look("visibility-under-read-timeout", shorter) is None  # no client of ours receives
    assert look("visibility-short", case(state=state(visibility=180.0), lambda_timeout=30.0)) is None


def test_no_heartbeat_is_proposed_where_lambda_receives() -> None:
    finding = finding_of("visibility-short", case(behaviour=behaviour(visibility=30.0, hold=SLOW), lambda_timeout=5.0))
    assert finding.remedy.text == "Set the visibility timeout of orders to 62 s."


def test_a_timeout_that_has_shown_its_duplicates_is_reported_once() -> None:
    assert look("visibility-short", case(behaviour=late())) is None


def test_a_timeout_below_p99_is_no_matter_while_a_heartbeat_is_on() -> None:
    beating = behaviour(visibility=30.0, hold=SLOW, heartbeats=100, heartbeat_every=10.0)
    assert look("visibility-short", case(behaviour=beating)) is None


def test_work_and_wait_count_together_where_the_hold_was_not_measured() -> None:
    apart = behaviour(hold=None, work=times(1.0, 20.0, 21.0), wait=times(1.0, 15.0, 16.0), visibility=30.0)
    assert finding_of("visibility-short", case(behaviour=apart)).figures["p99"] == 35.0


def test_a_timeout_below_the_clients_read_timeout_is_reported() -> None:
    finding = finding_of("visibility-under-read-timeout", case(state=state(visibility=30.0)))
    assert finding.observed == "The visibility timeout is 30 s, the read timeout of the client 60 s."
    assert "VisibilityTimeout=60" in finding.remedy.cli[0]
    assert look("visibility-under-read-timeout", case(state=state(visibility=60.0))) is None
    assert look("visibility-under-read-timeout", case(state=state(visibility=30.0), read_timeout=25.0)) is None


def test_a_heartbeat_that_comes_too_seldom_is_reported() -> None:
    slow = behaviour(visibility=30.0, heartbeats=10, heartbeat_every=15.0)
    finding = finding_of("heartbeat-slow", case(behaviour=slow))
    assert finding.observed == "The heartbeat comes every 15 s, with a visibility timeout of 30 s."
    assert finding.remedy.text == "Set the visibility timeout of orders to 60 s."  # for which 15 s will do
    seldom = behaviour(visibility=60.0, heartbeats=10, heartbeat_every=50.0)
    assert finding_of("heartbeat-slow", case(behaviour=seldom)).remedy.text == "Set the heartbeat interval to 20 s."
    assert (
        look("heartbeat-slow", case(behaviour=behaviour(visibility=30.0, heartbeats=1, heartbeat_every=10.0))) is None
    )


def test_clocks_that_are_off_are_reported_worst_first() -> None:
    finding = finding_of("clock-skew", case(behaviour=behaviour(skew={"web1": 0.2, "web2": 2.0, "web3": -40.0})))
    assert finding.observed == "Clocks differ from that of SQS by up to 40 s: web3 (40 s), web2 (2 s)."
    assert finding.severity is Severity.WARNING
    assert finding_of("clock-skew", case(behaviour=behaviour(skew={"web2": 2.0}))).severity is Severity.INFO
    assert look("clock-skew", case(behaviour=behaviour(skew={"web1": 0.2}))) is None


def test_messages_that_are_about_to_expire_are_critical() -> None:
    old = series([{"oldest": 80_000.0}])
    finding = finding_of("age-near-retention", case(state=state(retention=86_400.0), series=old))
    assert finding.severity is Severity.CRITICAL
    assert finding.observed == "The oldest message is 22 h 13 min old, and the queue keeps messages for 1 d."
    assert look("age-near-retention", case(state=state(retention=1_209_600.0), series=old)) is None


# The flow.


def test_in_flight_near_the_cap_is_reported_from_the_attributes_and_from_the_metrics() -> None:
    assert (
        "100,000 messages are in flight, 83 % of the 120,000"
        in finding_of("in-flight-near-cap", case(state=state(in_flight=100_000))).observed
    )
    finding = finding_of("in-flight-near-cap", case("orders.fifo", series=series([{"in_flight": 119_000.0}])))
    assert "were, at the highest, in flight" in finding.observed
    assert "without an error" in finding.why
    assert look("in-flight-near-cap", case(state=state(in_flight=90_000))) is None


def test_more_received_than_deleted_is_reported_from_metrics() -> None:
    finding = finding_of("received-not-deleted", case(series=flow(100, 80)))
    assert (
        finding.observed == "In 30 min 3,000 messages were received and 2,400 deleted, by the metrics: 20 % came back."
    )
    assert look("received-not-deleted", case(series=flow(100, 98))) is None


def test_what_is_still_in_flight_is_no_drift() -> None:
    growing = series([{"received": 100.0, "deleted": 80.0, "in_flight": 20.0 * place} for place in range(30)])
    assert look("received-not-deleted", case(series=growing)) is None


def test_a_drift_that_is_over_is_no_drift() -> None:
    over = series([{"received": 100.0, "deleted": 50.0}] * 15 + [{"received": 100.0, "deleted": 100.0}] * 15)
    assert look("received-not-deleted", case(series=over)) is None


def test_more_received_than_deleted_is_reported_from_logs() -> None:
    def windows(deleted: int) -> tuple[Window, ...]:
        return tuple(Window(NOON + 60 * place, 0, 100, deleted, 0) for place in range(10))

    finding = finding_of("received-not-deleted", case(behaviour=behaviour(windows=windows(60), retries=7)))
    assert "by the logs" in finding.observed
    assert "The logs explain 7 of them" in finding.observed
    assert look("received-not-deleted", case(behaviour=behaviour(windows=windows(100)))) is None
    assert look("received-not-deleted", case(behaviour=behaviour(windows=windows(0)))) is None  # does not log deletes


def test_messages_that_sit_out_their_timeout_are_reported() -> None:
    finding = finding_of("in-flight-plateau", case(state=state(visibility=90.0), series=flow(120, 10, in_flight=180.0)))
    assert finding.observed == (
        "In flight stays near 180: 2.0 messages a second times the visibility timeout of 90 s (180)."
    )
    assert finding.severity is Severity.WARNING
    assert look("in-flight-plateau", case(state=state(visibility=90.0), series=flow(120, 120, in_flight=20.0))) is None
    moving = series([{"received": 120.0, "in_flight": 18.0 * place} for place in range(20)])
    assert look("in-flight-plateau", case(state=state(visibility=90.0), series=moving)) is None


# Permissions and the ledger, from the logs.


def test_a_refused_delete_is_reported_from_the_errors_of_the_consumers() -> None:
    text = "An error occurred (AccessDenied) when calling the DeleteMessageBatch operation: not authorized"
    finding = finding_of("delete-refused", case(behaviour=behaviour(errors=errors(text))))
    assert finding.severity is Severity.CRITICAL
    assert "SQS refused DeleteMessage 5 times" in finding.observed
    other = errors("An error occurred (AccessDenied) when calling the SendMessage operation")
    assert look("delete-refused", case(behaviour=behaviour(errors=other))) is None


def test_a_key_that_may_not_be_used_is_reported_from_the_errors_of_the_consumers() -> None:
    text = "An error occurred (KMS.AccessDeniedException) when calling the ReceiveMessage operation"
    finding = finding_of(
        "kms-refused", case(behaviour=behaviour(errors=errors(text)), state=state(kms_key="alias/orders"))
    )
    assert "the queue's key is alias/orders" in finding.observed
    assert "kms:Decrypt" in finding.remedy.cli[0]
    assert look("kms-refused", case(behaviour=behaviour(errors=errors("KeyError")))) is None


# Batches, groups.


def test_messages_that_are_fetched_one_by_one_are_reported_where_there_are_many() -> None:
    busy = behaviour(batch_fill=1.0, deliveries=36_000)
    assert (
        "A receive returns 1.0 messages, at 10.0 messages a second"
        in finding_of("single-receives", case(behaviour=busy)).observed
    )
    assert look("single-receives", case(behaviour=behaviour(batch_fill=8.0, deliveries=36_000))) is None
    assert look("single-receives", case(behaviour=behaviour(batch_fill=1.0))) is None  # few messages: nothing to fetch
    backlog = case(behaviour=behaviour(batch_fill=1.0), state=state(visible=5_000))
    assert "and 5,000 messages wait" in finding_of("single-receives", backlog).observed


def test_a_fifo_queue_with_one_group_is_reported() -> None:
    finding = finding_of("fifo-one-group", case("orders.fifo", behaviour=behaviour("orders.fifo", groups=1, workers=4)))
    assert finding.observed == "All 1,000 messages are in one message group, and 4 workers share it."
    assert look("fifo-one-group", case("orders.fifo", behaviour=behaviour("orders.fifo", groups=7))) is None
    assert look("fifo-one-group", case(behaviour=behaviour(groups=0))) is None


# All of them.


def test_a_queue_on_which_all_is_well_has_no_finding() -> None:
    well = case(
        behaviour=behaviour(batch_fill=7.0),
        state=state(),
        series=flow(100, 100, in_flight=3.0, visible=0.0, oldest=1.0, empty_receives=3.0, sent=100.0),
        ledger=ledger(retention=28 * 86_400.0, eviction="noeviction"),
        dlq_alarmed=True,
    )
    assert [rule.look(well) for rule in ALL if rule.look(well) is not None] == []


def test_nothing_is_found_where_nothing_is_known() -> None:
    assert [rule.look(case()) for rule in ALL if rule.look(case()) is not None] == []


def test_rules_are_chosen_and_left_out_by_name() -> None:
    assert [rule.name for rule in choose(["failing", "doubled-effects"])] == ["doubled-effects", "failing"]
    assert len(choose([], ["failing"])) == len(ALL) - 1
    assert len({rule.name for rule in ALL}) == len(ALL)


def test_a_rule_that_does_not_exist_is_refused_with_the_names_that_are_near() -> None:
    with pytest.raises(
        DoctorError, match=r"--rule visibility-shrt: there is no such rule; did you mean visibility-short"
    ):
        choose(["visibility-shrt"])
    with pytest.raises(DoctorError, match="--ignore 12345: there is no such rule; choose from doubled-effects"):
        choose([], ["12345"])
