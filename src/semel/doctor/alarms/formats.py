"""Alarms as CloudFormation, Terraform, Prometheus rules and AWS CLI commands, each ready to apply.

CloudFormation and Prometheus read YAML. JSON is YAML, and with comments above it, it still is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, repeat
from typing import Any, Final

from semel.doctor import remedies
from semel.doctor.alarms.alarms import DELETED, FEWEST_RECEIVED, RECEIVED, Alarm

# A period without a receive has no data point, and then the alarm is off.
_SHARE: Final = f"IF(received >= {FEWEST_RECEIVED}, 100 * (received - FILL(deleted, 0)) / received, 0)"
_SILENT: Final = "No --sns: these alarms show in CloudWatch and notify nobody."


def render(alarms: Sequence[Alarm], form: str, *, sns: str | None = None) -> str:
    """The text in one of `FORMATS`, ending in a line break. `sns`: the topic to notify."""
    return FORMATS[form](alarms, sns)


def _comments(alarms: Sequence[Alarm], sns: str | None, where: str) -> str:
    """The head of a file that cannot name the region itself; `where` comes before its name."""
    lines = [] if sns else [_SILENT]
    regions = sorted({alarm.region for alarm in alarms if alarm.region})
    lines += [f"These alarms are for {region}. {where} {region}" for region in regions]
    return "".join(f"# {line}\n" for line in lines)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _comparison(alarm: Alarm) -> str:
    return "GreaterThanThreshold" if alarm.strictly else "GreaterThanOrEqualToThreshold"


def _dimensions(alarm: Alarm) -> list[dict[str, str]]:
    return [{"Name": "QueueName", "Value": alarm.queue}]


def _queries(alarm: Alarm) -> list[dict[str, Any]]:
    """The share that was not deleted, by metric math."""

    def total(name: str, metric: str) -> dict[str, Any]:
        queue = {"Namespace": "AWS/SQS", "MetricName": metric, "Dimensions": _dimensions(alarm)}
        stat = {"Metric": queue, "Period": alarm.period, "Stat": "Sum"}
        return {"Id": name, "MetricStat": stat, "ReturnData": False}

    share = {"Id": "share", "Expression": _SHARE, "Label": "percent received and not deleted", "ReturnData": True}
    return [share, total("received", RECEIVED), total("deleted", DELETED)]


# CloudFormation.


def render_cloudformation(alarms: Sequence[Alarm], sns: str | None = None) -> str:
    resources = {
        name: {"Type": "AWS::CloudWatch::Alarm", "Properties": _properties(alarm, sns)}
        for name, alarm in zip(_distinct(map(_logical_id, alarms)), alarms, strict=True)
    }
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Alarms for SQS queues, written by semel alarms",
        "Resources": resources,
    }
    deploy = "Deploy the stack there: aws cloudformation deploy --region"
    return _comments(alarms, sns, deploy) + _json(template)


def _properties(alarm: Alarm, sns: str | None) -> dict[str, Any]:
    properties: dict[str, Any] = {"AlarmName": alarm.name, "AlarmDescription": alarm.reason}
    if alarm.metric is None:
        properties["Metrics"] = _queries(alarm)
    else:
        properties |= {
            "Namespace": "AWS/SQS",
            "MetricName": alarm.metric,
            "Dimensions": _dimensions(alarm),
            "Statistic": "Maximum",
            "Period": alarm.period,
        }
    properties |= {
        "EvaluationPeriods": alarm.periods,
        "ComparisonOperator": _comparison(alarm),
        "Threshold": alarm.threshold,
        "TreatMissingData": "notBreaching",
    }
    if sns:
        properties |= {"AlarmActions": [sns], "OKActions": [sns]}
    return properties


def _distinct(names: Iterable[str]) -> list[str]:
    """Queues whose names differ only in characters that a tool does not allow get a number."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name}{number}" for number in count(2))
        distinct.append(name if name not in distinct else next(other for other in numbered if other not in distinct))
    return distinct


def _logical_id(alarm: Alarm) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", alarm.name)) + "Alarm"


# Terraform.


def render_terraform(alarms: Sequence[Alarm], sns: str | None = None) -> str:
    labels = _distinct(remedies.label(re.sub(r"[^A-Za-z0-9_]", "_", alarm.name)) for alarm in alarms)
    head = _comments(alarms, sns, "Apply it with a provider of region")
    return head + "\n\n".join(map(_terraform, alarms, labels, repeat(sns))) + "\n"


def _terraform(alarm: Alarm, label: str, sns: str | None) -> str:
    lines = {
        "alarm_name": remedies.hcl(alarm.name),
        "alarm_description": remedies.hcl(alarm.reason),
        "comparison_operator": remedies.hcl(_comparison(alarm)),
        "threshold": str(alarm.threshold),
        "evaluation_periods": str(alarm.periods),
        "treat_missing_data": remedies.hcl("notBreaching"),
    }
    blocks = ""
    if alarm.metric is None:
        blocks = "\n" + "\n".join(_metric_query(alarm, query) for query in _queries(alarm))
    else:
        lines |= {
            "namespace": remedies.hcl("AWS/SQS"),
            "metric_name": remedies.hcl(alarm.metric),
            "dimensions": f"{{ QueueName = {remedies.hcl(alarm.queue)} }}",
            "statistic": remedies.hcl("Maximum"),
            "period": str(alarm.period),
        }
    if sns:
        lines |= {"alarm_actions": f"[{remedies.hcl(sns)}]", "ok_actions": f"[{remedies.hcl(sns)}]"}
    text = remedies.resource("aws_cloudwatch_metric_alarm", label, lines)
    return text.removesuffix("}") + blocks + "}" if blocks else text


def _metric_query(alarm: Alarm, query: Mapping[str, Any]) -> str:
    if "Expression" in query:
        body = (
            f"    expression  = {remedies.hcl(query['Expression'])}\n"
            f"    label       = {remedies.hcl(query['Label'])}\n"
            "    return_data = true\n"
        )
        return f'  metric_query {{\n    id          = "{query["Id"]}"\n{body}  }}\n'
    metric = query["MetricStat"]["Metric"]
    return (
        f'  metric_query {{\n    id = "{query["Id"]}"\n    metric {{\n'
        f'      namespace   = "AWS/SQS"\n      metric_name = "{metric["MetricName"]}"\n'
        f"      dimensions  = {{ QueueName = {remedies.hcl(alarm.queue)} }}\n"
        f'      period      = {alarm.period}\n      stat        = "Sum"\n    }}\n  }}\n'
    )


# Prometheus: the names that the broker serves at /metrics.


def render_prometheus(alarms: Sequence[Alarm], sns: str | None = None) -> str:  # noqa: ARG001 - Alertmanager sends
    rules = [
        {
            "alert": _alert(alarm),
            "expr": _promql(alarm),
            "for": f"{alarm.period * alarm.periods // 60}m",
            "labels": {"severity": "warning", "queue": alarm.queue},
            "annotations": {"summary": alarm.name, "description": alarm.reason},
        }
        for alarm in alarms
    ]
    return _json({"groups": [{"name": "sqs", "rules": rules}]})


def _alert(alarm: Alarm) -> str:
    return "Sqs" + "".join(word.title() for word in alarm.kind.value.split("-"))


def _promql(alarm: Alarm) -> str:
    queue = f'{{QueueName="{alarm.queue}"}}'
    if alarm.metric is not None:
        return f"sqs_{alarm.metric}{queue} {'>' if alarm.strictly else '>='} {alarm.threshold}"
    window = f"[{alarm.period // 60}m]"
    received, deleted = (f"increase(sqs_{name}_total{queue}{window})" for name in (RECEIVED, DELETED))
    return f"100 * ({received} - {deleted}) / {received} > {alarm.threshold} and {received} >= {FEWEST_RECEIVED}"


# The AWS CLI.


def render_cli(alarms: Sequence[Alarm], sns: str | None = None) -> str:
    head = "" if sns else f"# {_SILENT}\n"
    return head + "\n".join(commands_for(alarms, sns)) + "\n"


def commands_for(alarms: Sequence[Alarm], sns: str | None = None) -> list[str]:
    return [_command(alarm, sns) for alarm in alarms]


def _command(alarm: Alarm, sns: str | None) -> str:
    options = {"alarm-name": alarm.name, "alarm-description": alarm.reason}
    if alarm.metric is None:
        options["metrics"] = json.dumps(_queries(alarm))
    else:
        options |= {
            "namespace": "AWS/SQS",
            "metric-name": alarm.metric,
            "dimensions": f"Name=QueueName,Value={alarm.queue}",
            "statistic": "Maximum",
            "period": str(alarm.period),
        }
    options |= {
        "evaluation-periods": str(alarm.periods),
        "comparison-operator": _comparison(alarm),
        "threshold": str(alarm.threshold),
        "treat-missing-data": "notBreaching",
    }
    if sns:
        options |= {"alarm-actions": sns, "ok-actions": sns}
    if alarm.region:
        options["region"] = alarm.region
    return "aws cloudwatch put-metric-alarm " + " ".join(
        f"--{name} {shlex.quote(value)}" for name, value in options.items()
    )


FORMATS: Final[Mapping[str, Callable[[Sequence[Alarm], str | None], str]]] = {
    "cloudformation": render_cloudformation,
    "terraform": render_terraform,
    "prometheus": render_prometheus,
    "cli": render_cli,
}
