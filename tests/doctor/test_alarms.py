"""The alarms that a queue needs: which ones, their thresholds, and whether the tools accept them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

from doctor.made_up import DAY, case, state
from semel.broker import EmbeddedBroker, running
from semel.cli import main
from semel.doctor.alarms import formats as alarm_formats
from semel.doctor.alarms.alarms import Alarm, Kind, alarms_for, read_existing
from semel.doctor.errors import DoctorError
from servers import dynamodb

TOPIC = "arn:aws:sns:eu-west-1:123456789012:ops"


def usual() -> tuple[Alarm, ...]:
    return alarms_for(case(state=state()))


def by_kind(alarms: tuple[Alarm, ...]) -> dict[Kind, Alarm]:
    return {alarm.kind: alarm for alarm in alarms}


# Which, and with what threshold.


def test_a_queue_needs_four_alarms_the_first_on_its_dead_letter_queue() -> None:
    alarms = usual()
    assert [alarm.kind for alarm in alarms] == list(Kind)
    assert [alarm.queue for alarm in alarms] == ["orders-dlq", "orders", "orders", "orders"]
    dead = alarms[0]
    assert (dead.metric, dead.threshold, dead.strictly) == ("ApproximateNumberOfMessagesVisible", 0, True)


@pytest.mark.parametrize(
    ("visibility", "retention", "threshold", "words"),
    [
        (30.0, 4 * DAY, 300, "ten visibility timeouts of 30 s, at least for 5 min"),
        (600.0, 4 * DAY, 6_000, "ten visibility timeouts of 10 min"),
        (3_600.0, 0.5 * DAY, 10_800, "a quarter of the retention of 12 h"),
        (30.0, 120.0, 60, "a quarter of the retention"),
    ],
)
def test_the_age_that_raises_the_alarm_follows_from_timeout_and_retention(
    visibility: float, retention: float, threshold: int, words: str
) -> None:
    alarm = by_kind(alarms_for(case(state=state(visibility=visibility, retention=retention))))[Kind.AGE]
    assert alarm.threshold == threshold
    assert words in alarm.reason


def test_a_queue_without_a_dead_letter_queue_has_no_alarm_on_one_and_such_a_queue_no_other() -> None:
    bare = alarms_for(case(state=state(dead_letters=None, max_receives=None)))
    assert Kind.DEAD_LETTERS not in by_kind(bare)
    (only,) = alarms_for(case("orders-dlq", state=state("orders-dlq", dead_letters=None, sources=("orders",))))
    assert (only.kind, only.queue) == (Kind.DEAD_LETTERS, "orders-dlq")


def test_without_sqs_the_dead_letter_queue_is_the_usual_one_or_the_one_given() -> None:
    assert alarms_for(case())[0].queue == "orders-dlq"
    assert alarms_for(case("a.fifo"))[0].queue == "a-dlq.fifo"
    assert alarms_for(case(), dead_letter_queue="morgue")[0].queue == "morgue"


# CloudFormation.


@pytest.mark.slow
def test_cloudformation_is_accepted_by_its_linter(tmp_path: Path) -> None:
    path = tmp_path / "alarms.yaml"
    path.write_text(alarm_formats.render(usual(), "cloudformation", sns=TOPIC))
    lint = [str(Path(sys.executable).with_name("cfn-lint")), "--regions", "eu-west-1", "--", str(path)]
    done = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_cloudformation_has_an_alarm_each_with_its_reason_and_its_topic() -> None:
    template = yaml.safe_load(alarm_formats.render(usual(), "cloudformation", sns=TOPIC))
    resources = template["Resources"]
    assert len(resources) == 4
    dead = resources["OrdersDlqDeadLettersAlarm"]
    assert dead["Type"] == "AWS::CloudWatch::Alarm"
    assert dead["Properties"] | {"AlarmDescription": ""} == {
        "AlarmName": "orders-dlq dead-letters",
        "AlarmDescription": "",
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateNumberOfMessagesVisible",
        "Dimensions": [{"Name": "QueueName", "Value": "orders-dlq"}],
        "Statistic": "Maximum",
        "Period": 60,
        "EvaluationPeriods": 1,
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": 0,
        "TreatMissingData": "notBreaching",
        "AlarmActions": [TOPIC],
        "OKActions": [TOPIC],
    }
    shares = resources["OrdersNotDeletedAlarm"]["Properties"]["Metrics"]
    assert [query["Id"] for query in shares] == ["share", "received", "deleted"]
    assert [query["ReturnData"] for query in shares] == [True, False, False]


def test_without_a_topic_the_output_says_that_nobody_is_notified() -> None:
    for form in ("cloudformation", "terraform", "cli"):
        assert alarm_formats.render(usual(), form).startswith(
            "# No --sns: these alarms show in CloudWatch and notify nobody."
        )
        assert "notify nobody" not in alarm_formats.render(usual(), form, sns=TOPIC)


def test_queues_whose_names_look_alike_to_a_tool_do_not_take_each_others_alarms() -> None:
    alike = (*alarms_for(case("a-b", state=state("a-b"))), *alarms_for(case("a_b", state=state("a_b"))))
    alike = tuple(alarm for alarm in alike if alarm.kind is Kind.AGE)
    assert len(yaml.safe_load(alarm_formats.render(alike, "cloudformation"))["Resources"]) == 2
    assert re.findall(r'alarm" "(\w+)"', alarm_formats.render(alike, "terraform")) == ["a_b_age", "a_b_age2"]


# Terraform.


def test_terraform_has_a_resource_each_with_balanced_braces_and_the_sums() -> None:
    text = alarm_formats.render(usual(), "terraform", sns=TOPIC)
    assert re.findall(r'^resource "aws_cloudwatch_metric_alarm" "(\w+)" {$', text, re.MULTILINE) == [
        "orders_dlq_dead_letters",
        "orders_age",
        "orders_in_flight",
        "orders_not_deleted",
    ]
    assert text.count("{") == text.count("}")
    assert text.count("metric_query {") == 3
    assert text.count(f'alarm_actions       = ["{TOPIC}"]') == 4
    assert '  dimensions          = { QueueName = "orders-dlq" }' in text
    for line in text.splitlines():
        assert re.fullmatch(r"|#.+|}|resource .* {|\s+\}|\s+(metric_query|metric) \{|\s+\w+ += .+", line), line


# Prometheus.


def test_prometheus_rules_are_of_the_names_that_the_broker_serves() -> None:
    with running(clock="manual") as broker:
        client = broker.client()
        for queue in ("orders", "orders-dlq"):
            client.create_queue(QueueName=queue)
        served = {line.split(" ")[0] for line in broker.metrics().splitlines() if not line.startswith("#")}
    (group,) = yaml.safe_load(alarm_formats.render(usual(), "prometheus"))["groups"]
    assert [rule["alert"] for rule in group["rules"]] == ["SqsDeadLetters", "SqsAge", "SqsInFlight", "SqsNotDeleted"]
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+m", rule["for"])
        named = set(re.findall(r'sqs_\w+\{QueueName="[^"]+"\}', rule["expr"]))
        assert named
        assert named <= served
        assert rule["expr"].count("(") == rule["expr"].count(")")
    assert group["rules"][2]["expr"] == 'sqs_ApproximateNumberOfMessagesNotVisible{QueueName="orders"} >= 96000'


# The AWS CLI, against CloudWatch as moto has it.


@pytest.fixture(scope="module")
def cloudwatch() -> Iterator[dynamodb.Server]:
    with dynamodb.running() as server:  # moto serves all services
        yield server


def shell(server: dynamodb.Server, text: str) -> str:
    settings = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": os.devnull,
    }
    there = f'aws() {{ command aws --endpoint-url {server.url} "$@"; }}\n'
    done = subprocess.run(["sh", "-ec", there + text], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_commands_make_the_alarms_and_the_doctor_finds_them_there(
    cloudwatch: dynamodb.Server, tmp_path: Path
) -> None:
    shell(cloudwatch, alarm_formats.render(usual(), "cli", sns=TOPIC))
    printed = shell(cloudwatch, "aws cloudwatch describe-alarms --output json --region eu-west-1")
    made: dict[str, Any] = {alarm["AlarmName"]: alarm for alarm in json.loads(printed)["MetricAlarms"]}
    assert set(made) == {"orders-dlq dead-letters", "orders age", "orders in-flight", "orders not-deleted"}
    assert made["orders age"]["Threshold"] == 900.0
    assert made["orders age"]["AlarmActions"] == [TOPIC]
    assert [query["Id"] for query in made["orders not-deleted"]["Metrics"]] == ["share", "received", "deleted"]
    path = tmp_path / "alarms.json"
    path.write_text(printed)
    existing = read_existing(path)
    assert existing["orders-dlq"] == {"ApproximateNumberOfMessagesVisible"}
    assert existing["orders"] == {
        "ApproximateAgeOfOldestMessage",
        "ApproximateNumberOfMessagesNotVisible",
        "NumberOfMessagesReceived",
        "NumberOfMessagesDeleted",
    }


def test_a_command_goes_to_the_region_of_its_queue() -> None:
    for line in alarm_formats.commands_for(usual()):
        assert shlex.split(line)[-2:] == ["--region", "eu-west-1"]


# What is there already.


def test_an_alarm_that_is_off_or_of_another_service_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "alarms.json"
    on = {
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateAgeOfOldestMessage",
        "Dimensions": [{"Name": "QueueName", "Value": "orders"}],
    }
    off = {**on, "MetricName": "NumberOfMessagesSent", "ActionsEnabled": False}
    other = {**on, "Namespace": "Mine", "MetricName": "Sent"}
    path.write_text(json.dumps({"MetricAlarms": [on, off, other], "CompositeAlarms": []}))
    assert read_existing(path) == {"orders": {"ApproximateAgeOfOldestMessage"}}


@pytest.mark.parametrize(("text", "words"), [("{}", "no MetricAlarms in it"), ("x", "not JSON")])
def test_a_file_that_holds_no_alarms_is_refused_with_the_command_that_writes_one(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "alarms.json"
    path.write_text(text)
    with pytest.raises(DoctorError, match=f"{words}.*aws cloudwatch describe-alarms"):
        read_existing(path)
    with pytest.raises(DoctorError, match="cannot be read"):
        read_existing(tmp_path / "nowhere")


# The command.


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with running(clock="manual") as started:
        yield started


def test_the_command_takes_thresholds_and_dead_letter_queues_from_sqs(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    client = broker.client()
    client.create_queue(QueueName="morgue")
    policy = json.dumps({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:morgue", "maxReceiveCount": 3})
    for queue in ("orders", "refunds"):
        client.create_queue(QueueName=queue, Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "120"})
    client.create_queue(QueueName="bare")
    assert main(["alarms", "orders", "refunds", "bare", "--endpoint-url", broker.url]) == 0
    printed = capsys.readouterr()
    resources = yaml.safe_load(printed.out)["Resources"]
    assert len(resources) == 1 + 3 * 3  # the two share a dead-letter queue, the third has none
    assert resources["MorgueDeadLettersAlarm"]["Properties"]["Dimensions"][0]["Value"] == "morgue"
    assert resources["OrdersAgeAlarm"]["Properties"]["Threshold"] == 1_200
    assert "bare has no dead-letter queue" in printed.err


def test_the_command_works_offline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alarms", "orders", "--offline", "--dlq", "morgue", "--target", "prometheus"]) == 0
    assert 'QueueName="morgue"' in yaml.safe_load(capsys.readouterr().out)["groups"][0]["rules"][0]["expr"]


def test_a_queue_that_is_not_there_is_an_error_with_the_way_out(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.client().create_queue(QueueName="orders")
    assert main(["alarms", "ordres", "--endpoint-url", broker.url]) == 1
    assert "did you mean orders?" in capsys.readouterr().err


def test_a_dead_letter_queue_is_given_only_where_nobody_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alarms", "orders", "--dlq", "morgue"]) == 2
    assert "--dlq needs --offline and one QUEUE" in capsys.readouterr().err


@pytest.mark.parametrize("topic", ["notarn", "arn:aws:sqs:eu-west-1:123456789012:ops", "arn:aws:sns:eu-west-1:12:ops"])
def test_what_is_no_topic_is_wrong_usage(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alarms", "orders", "--offline", "--sns", topic]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"--sns {topic}: not the ARN of a topic" in printed.err


@pytest.mark.parametrize(
    "arguments",
    [("orders", "--region", "eu-central-1"), ("arn:aws:sqs:eu-central-1:123456789012:orders",)],
    ids=["--region", "ARN"],
)
def test_offline_alarms_go_to_the_region_that_was_given(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["alarms", *arguments, "--offline", "--target", "cli", "--sns", TOPIC]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert shlex.split(line)[-2:] == ["--region", "eu-central-1"]
    for form, words in (
        ("cloudformation", "aws cloudformation deploy --region eu-central-1"),
        ("terraform", "a provider of region eu-central-1"),
    ):
        assert main(["alarms", *arguments, "--offline", "--target", form, "--sns", TOPIC]) == 0
        assert capsys.readouterr().out.partition("\n")[0].endswith(words)
