"""Rules about settings: each reports the smallest case that is wrong, and is silent when it is fixed."""

from __future__ import annotations

import json
import shlex

import pytest

from doctor.made_up import (
    ARN,
    DAY,
    URL,
    behaviour,
    case,
    caused,
    dlq,
    errors,
    finding_of,
    flow,
    ledger,
    look,
    series,
    state,
)
from semel.doctor.model import Cause, Severity


def attributes(command: str) -> dict[str, str]:
    """What a set-queue-attributes command would set."""
    words = shlex.split(command)
    text = words[words.index("--attributes") + 1]
    new_attributes: dict[str, str] = (
        json.loads(text) if text.startswith("{") else dict(pair.split("=") for pair in text.split(","))
    )
    return new_attributes


# Dead letters.


def test_a_queue_without_a_dead_letter_queue_gets_one() -> None:
    bare = state(max_receives=None, dead_letters=None)
    finding = finding_of("no-dead-letter-queue", case(state=bare))
    assert finding.observed == "orders has no dead-letter queue; it keeps messages for 4 d."
    made, tied = finding.remedy.cli
    assert made == (
        "aws sqs create-queue --queue-name orders-dlq --attributes MessageRetentionPeriod=1209600 --region eu-west-1"
    )
    assert json.loads(attributes(tied)["RedrivePolicy"]) == {"deadLetterTargetArn": f"{ARN}-dlq", "maxReceiveCount": 5}
    assert finding.remedy.terraform is not None
    assert "deadLetterTargetArn = aws_sqs_queue.orders-dlq.arn, maxReceiveCount = 5" in finding.remedy.terraform
    assert look("no-dead-letter-queue", case(state=state())) is None


def test_a_dead_letter_queue_needs_none_of_its_own() -> None:
    assert look("no-dead-letter-queue", case(state=state(max_receives=None, dead_letters=None, sources=("a",)))) is None


def test_the_dead_letter_queue_of_a_fifo_queue_is_one_too() -> None:
    finding = finding_of(
        "no-dead-letter-queue", case("a.fifo", state=state("a.fifo", max_receives=None, dead_letters=None))
    )
    assert "--queue-name a-dlq.fifo --attributes FifoQueue=true,MessageRetentionPeriod=1209600" in finding.remedy.cli[0]


@pytest.mark.parametrize(
    ("receives", "words"), [(1, "nothing is ever retried"), (2, "good messages are dead-lettered")]
)
def test_few_receives_are_reported(receives: int, words: str) -> None:
    finding = finding_of("max-receives-low", case(state=state(max_receives=receives)))
    assert f"maxReceiveCount is {receives}" in finding.observed
    assert words in finding.why
    policy = json.loads(attributes(finding.remedy.cli[0])["RedrivePolicy"])
    assert policy == {"deadLetterTargetArn": f"{ARN}-dlq", "maxReceiveCount": 5}
    assert look("max-receives-low", case(state=state(max_receives=3))) is None


@pytest.mark.parametrize(
    ("source", "dead", "severity", "cures"),
    [
        (4 * DAY, 1 * DAY, Severity.CRITICAL, [("orders-dlq", "1209600")]),
        (4 * DAY, 4 * DAY, Severity.WARNING, [("orders-dlq", "1209600")]),
        (14 * DAY, 4 * DAY, Severity.CRITICAL, [("orders-dlq", "1209600"), ("orders", "604800")]),
        (14 * DAY, 14 * DAY, Severity.INFO, [("orders", "604800")]),
    ],
)
def test_dead_letters_that_expire_with_or_before_their_source_are_reported(
    source: float, dead: float, severity: Severity, cures: list[tuple[str, str]]
) -> None:
    finding = finding_of("dead-letter-retention", case(state=state(retention=source, dead_letters=dlq(retention=dead))))
    assert finding.severity is severity
    retentions = [
        (shlex.split(line)[4].rpartition("/")[2], attributes(line)["MessageRetentionPeriod"])
        for line in finding.remedy.cli
    ]
    assert retentions == cures


def test_no_command_lets_a_queue_drop_messages_that_it_still_has() -> None:
    full = state(retention=14 * DAY, visible=3, dead_letters=dlq(retention=14 * DAY))
    remedy = finding_of("dead-letter-retention", case(state=full)).remedy
    assert remedy.cli == ()
    assert remedy.terraform is None
    assert "once no message is older: SQS deletes those at once" in remedy.text
    young = finding_of("dead-letter-retention", case(state=full, series=series([{"oldest": 60.0}]))).remedy
    assert len(young.cli) == 1


def test_dead_letters_that_are_kept_for_longer_are_no_finding_and_on_fifo_their_age_starts_anew() -> None:
    assert look("dead-letter-retention", case(state=state())) is None
    fifo = state("a.fifo", dead_letters=dlq(retention=4 * DAY))
    assert look("dead-letter-retention", case("a.fifo", state=fifo)) is None
    assert look("dead-letter-retention", case(state=state(dead_letters=dlq(retention=None)))) is None


def test_a_redrive_policy_that_names_no_queue_is_critical() -> None:
    finding = finding_of("dead-letter-queue-missing", case(state=state(dead_letters=dlq(exists=False))))
    assert finding.severity is Severity.CRITICAL
    assert f"names {ARN}-dlq, and that queue does not exist" in finding.observed
    assert "create-queue --queue-name orders-dlq" in finding.remedy.cli[0]
    assert look("dead-letter-queue-missing", case(state=state())) is None
    assert look("dead-letter-queue-missing", case(state=state(dead_letters=dlq(exists=None)))) is None


def test_a_dead_letter_queue_of_another_kind_region_or_account_is_critical() -> None:
    other = dlq(arn="arn:aws:sqs:us-east-1:999999999999:dead.fifo", fifo=True)
    finding = finding_of("dead-letter-queue-mismatch", case(state=state(dead_letters=other)))
    assert finding.observed == (
        "dead.fifo is a FIFO queue and orders a Standard queue; dead.fifo is in region us-east-1 and orders in "
        "eu-west-1; dead.fifo is in account 999999999999 and orders in 123456789012."
    )
    assert look("dead-letter-queue-mismatch", case(state=state())) is None


def test_a_dead_letter_queue_without_an_alarm_gets_one() -> None:
    finding = finding_of("dead-letters-unwatched", case(state=state(), dlq_alarmed=False))
    (command,) = finding.remedy.cli
    assert "--alarm-name 'orders-dlq dead-letters'" in command
    assert "--alarm-actions arn:aws:sns:eu-west-1:123456789012:TOPIC" in command
    assert "--dimensions Name=QueueName,Value=orders-dlq" in command
    assert finding.remedy.terraform is not None
    assert 'resource "aws_cloudwatch_metric_alarm"' in finding.remedy.terraform
    assert look("dead-letters-unwatched", case(state=state(), dlq_alarmed=True)) is None
    assert look("dead-letters-unwatched", case(state=state())) is None  # not known


def test_dead_letters_are_reported_with_the_way_back() -> None:
    finding = finding_of("dead-letters-waiting", case(state=state(dead_letters=dlq(visible=17))))
    assert finding.observed == "17 dead-letter messages in orders-dlq."
    assert f"start-message-move-task --source-arn {ARN}-dlq" in finding.remedy.cli[0]
    assert look("dead-letters-waiting", case(state=state())) is None


def test_a_dead_letter_queue_of_many_is_reported() -> None:
    shared = dlq(sources=(URL, f"{URL}-b"))
    finding = finding_of("dead-letter-queue-shared", case(state=state(dead_letters=shared)))
    assert finding.observed == "orders-dlq is the dead-letter queue of 2 queues: orders, orders-b."
    assert "--queue-name orders-dead --attributes" in finding.remedy.cli[0]  # the usual name is taken
    assert finding.severity is Severity.INFO
    crowd = dlq(sources=tuple(f"q{place}" for place in range(12)))
    assert finding_of("dead-letter-queue-shared", case(state=state(dead_letters=crowd))).severity is Severity.WARNING
    assert look("dead-letter-queue-shared", case(state=state())) is None


@pytest.mark.parametrize("allow", [None, "allowAll"])
def test_a_dead_letter_queue_that_is_open_to_all_is_closed_to_others(allow: str | None) -> None:
    finding = finding_of(
        "dead-letter-queue-open", case(state=state(dead_letters=dlq(allow=allow, sources=("orders",))))
    )
    policy = json.loads(attributes(finding.remedy.cli[0])["RedriveAllowPolicy"])
    assert policy == {"redrivePermission": "byQueue", "sourceQueueArns": [ARN]}
    assert look("dead-letter-queue-open", case(state=state(dead_letters=dlq(allow="byQueue")))) is None


# Receiving and sending.


def test_short_polls_are_reported_and_cost_more_where_there_are_many() -> None:
    finding = finding_of("short-polling", case(state=state(wait=0.0)))
    assert finding.severity is Severity.INFO
    assert attributes(finding.remedy.cli[0]) == {"ReceiveMessageWaitTimeSeconds": "20"}
    busy = finding_of("short-polling", case(state=state(wait=0.0), series=flow(1, 1, empty_receives=600.0)))
    assert busy.severity is Severity.WARNING
    assert "36,000 empty receives an hour (about $10.37 a month)" in busy.observed
    assert look("short-polling", case(state=state(wait=20.0))) is None


def test_a_delay_that_outlasts_the_retention_is_critical() -> None:
    finding = finding_of("delay-misused", case(state=state(delay=900.0, retention=600.0)))
    assert finding.severity is Severity.CRITICAL
    assert attributes(finding.remedy.cli[0]) == {"DelaySeconds": "0", "MessageRetentionPeriod": "345600"}


def test_a_delay_that_is_as_long_as_the_visibility_timeout_is_reported() -> None:
    finding = finding_of("delay-misused", case(state=state(delay=120.0, visibility=90.0)))
    assert finding.severity is Severity.WARNING
    assert finding_of("delay-misused", case(state=state(delay=5.0))).severity is Severity.INFO
    assert look("delay-misused", case(state=state())) is None


def test_a_delay_for_one_message_of_a_fifo_queue_is_reported_from_the_senders_errors() -> None:
    text = (
        "InvalidParameterValue: Value 2 for parameter DelaySeconds is invalid. Reason: The request include "
        "parameter that is not valid for this queue type."
    )
    finding = finding_of("delay-misused", case("a.fifo", behaviour=behaviour("a.fifo", errors=errors(text, 4))))
    assert finding.observed == "SQS refused 4 sends: a FIFO queue does not allow a delay for a single message."


# FIFO.


def test_a_fifo_queue_near_its_throughput_is_reported() -> None:
    busy = series([{"sent": 60 * 100.0}, {"sent": 60 * 290.0}, {"sent": 60 * 50.0}])
    finding = finding_of("fifo-throughput", case("a.fifo", state=state("a.fifo"), series=busy))
    assert (
        "At its peak 290 messages a second were sent: 290 calls a second, if each is a call of its own"
        in finding.observed
    )
    assert attributes(finding.remedy.cli[0]) == {
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }
    batched = case("a.fifo", state=state("a.fifo"), series=busy, behaviour=behaviour("a.fifo", batch_fill=8.0))
    assert look("fifo-throughput", batched) is None
    assert look("fifo-throughput", case("a.fifo", state=state("a.fifo", high_throughput=True), series=busy)) is None


def test_deduplication_by_content_is_reported_and_matters_where_messages_are_tried_again() -> None:
    plain = case("a.fifo", state=state("a.fifo", content_dedup=True))
    assert finding_of("fifo-content-dedup", plain).severity is Severity.INFO
    busy = behaviour("a.fifo", retries=12, causes=(caused(Cause.PRODUCER, 3),))
    finding = finding_of(
        "fifo-content-dedup", case("a.fifo", state=state("a.fifo", content_dedup=True), behaviour=busy)
    )
    assert finding.severity is Severity.WARNING
    assert "3 keys came twice nevertheless and 12 attempts were returned to the queue" in finding.observed
    assert attributes(finding.remedy.cli[0]) == {"ContentBasedDeduplication": "false"}
    assert look("fifo-content-dedup", case("a.fifo", state=state("a.fifo"))) is None


# The ledger.


def test_a_ledger_that_forgets_before_the_queue_does_is_critical() -> None:
    finding = finding_of("ledger-forgets", case(state=state(), ledger=ledger(retention=1 * DAY)))
    assert finding.severity is Severity.CRITICAL
    assert "keeps keys for 1 d; orders keeps messages for 4 d, and its dead-letter queue for 14 d." in finding.observed
    assert (
        finding_of("ledger-forgets", case(state=state(), ledger=ledger(retention=5 * DAY))).severity is Severity.WARNING
    )
    assert look("ledger-forgets", case(state=state(), ledger=ledger(retention=18 * DAY))) is None
    assert look("ledger-forgets", case(state=state(), ledger=ledger())) is None
    assert "28 d" in finding_of("ledger-forgets", case(ledger=ledger(retention=20 * DAY))).observed


def test_a_redis_that_evicts_is_critical() -> None:
    finding = finding_of("ledger-evicts", case(ledger=ledger(eviction="allkeys-lru")))
    assert finding.severity is Severity.CRITICAL
    assert finding.remedy.cli == ("redis-cli -u redis://ledger:6379/0 CONFIG SET maxmemory-policy noeviction",)
    assert look("ledger-evicts", case(ledger=ledger(eviction="noeviction"))) is None
    assert look("ledger-evicts", case(ledger=ledger())) is None


# Permissions.


@pytest.mark.parametrize(
    ("action", "rule", "severity"),
    [
        ("DeleteMessage", "delete-refused", Severity.CRITICAL),
        ("ChangeMessageVisibility", "change-visibility-refused", Severity.WARNING),
        ("kms:Decrypt", "kms-refused", Severity.CRITICAL),
    ],
)
def test_a_permission_that_a_probe_misses_is_reported(action: str, rule: str, severity: Severity) -> None:
    finding = finding_of(rule, case(state=state(refused={action: "no identity-based policy allows it"})))
    assert finding.severity is severity
    assert "no identity-based policy allows it." in finding.observed
    words = shlex.split(finding.remedy.cli[0])
    (statement,) = json.loads(words[words.index("--policy-document") + 1])["Statement"]
    assert statement["Effect"] == "Allow"
    assert (action if ":" in action else f"sqs:{action}") in statement["Action"]
    assert look(rule, case(state=state())) is None
