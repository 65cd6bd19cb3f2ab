"""Alarms as CloudFormation, Terraform, Prometheus rules and AWS CLI commands, each ready to apply.

The properties of an alarm are written once, with the names of CloudFormation; Terraform and the AWS CLI only spell them
differently. CloudFormation and Prometheus read YAML, and JSON is YAML, also with comments above it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
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


def _properties(alarm: Alarm, sns: str | None) -> dict[str, Any]:
    properties: dict[str, Any] = {"AlarmName": alarm.name, "AlarmDescription": alarm.reason}
    if alarm.metric is None:
        properties["Metrics"] = _queries(alarm)
    else:
        properties |= _metric(alarm, alarm.metric) | {"Statistic": "Maximum", "Period": alarm.period}
    properties |= {
        "EvaluationPeriods": alarm.periods,
        "ComparisonOperator": "GreaterThanThreshold" if alarm.strictly else "GreaterThanOrEqualToThreshold",
        "Threshold": alarm.threshold,
        "TreatMissingData": "notBreaching",
    }
    return properties | ({"AlarmActions": [sns], "OKActions": [sns]} if sns else {})


def _metric(alarm: Alarm, name: str) -> dict[str, Any]:
    dimensions = [{"Name": "QueueName", "Value": alarm.queue}]
    return {"Namespace": "AWS/SQS", "MetricName": name, "Dimensions": dimensions}


def _queries(alarm: Alarm) -> list[dict[str, Any]]:
    """The share that was not deleted, by metric math."""

    def total(name: str, metric: str) -> dict[str, Any]:
        stat = {"Metric": _metric(alarm, metric), "Period": alarm.period, "Stat": "Sum"}
        return {"Id": name, "MetricStat": stat, "ReturnData": False}

    share = {"Id": "share", "Expression": _SHARE, "Label": "percent received and not deleted", "ReturnData": True}
    return [share, total("received", RECEIVED), total("deleted", DELETED)]


def _spelled(name: str, separator: str) -> str:
    """`OKActions` as `ok_actions` or `ok-actions`."""
    return separator.join(re.findall(r"OK|[A-Z][a-z]+", name)).lower()


def _distinct(names: Iterable[str]) -> list[str]:
    """Queues whose names differ only in characters that a tool does not allow get a number."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name}{number}" for number in count(2))
        distinct.append(name if name not in distinct else next(other for other in numbered if other not in distinct))
    return distinct


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


# CloudFormation.


def render_cloudformation(alarms: Sequence[Alarm], sns: str | None = None) -> str:
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Alarms for SQS queues, written by semel alarms",
        "Resources": {
            name: {"Type": "AWS::CloudWatch::Alarm", "Properties": _properties(alarm, sns)}
            for name, alarm in zip(_distinct(map(_logical_id, alarms)), alarms, strict=True)
        },
    }
    return _comments(alarms, sns, "Deploy the stack there: aws cloudformation deploy --region") + _json(template)


def _logical_id(alarm: Alarm) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", alarm.name)) + "Alarm"


# Terraform.


def render_terraform(alarms: Sequence[Alarm], sns: str | None = None) -> str:
    labels = _distinct(remedies.label(re.sub(r"[^A-Za-z0-9_]", "_", alarm.name)) for alarm in alarms)
    resources = [_terraform(alarm, label, sns) for alarm, label in zip(alarms, labels, strict=True)]
    return _comments(alarms, sns, "Apply it with a provider of region") + "\n\n".join(resources) + "\n"


def _terraform(alarm: Alarm, label: str, sns: str | None) -> str:
    properties = _properties(alarm, sns)
    queries = properties.pop("Metrics", ())
    text = remedies.resource("aws_cloudwatch_metric_alarm", label, _terraform_lines(properties))
    return text.removesuffix("}") + "".join(map(_metric_query, queries)) + "}"


def _metric_query(query: Mapping[str, Any]) -> str:
    stat = query.get("MetricStat")
    if stat is None:
        return "\n" + remedies.block("  metric_query", _terraform_lines(query), indent="  ") + "\n"
    metric = {**stat["Metric"], "Period": stat["Period"], "Stat": stat["Stat"]}
    inner = remedies.block("    metric", _terraform_lines(metric), indent="    ")
    return f'\n  metric_query {{\n    id = "{query["Id"]}"\n{inner}\n  }}\n'


def _terraform_lines(properties: Mapping[str, Any]) -> dict[str, str]:
    lines = {_spelled(key, "_"): remedies.hcl(value) for key, value in properties.items()}
    if "Dimensions" in properties:
        lines["dimensions"] = f"{{ QueueName = {remedies.hcl(properties['Dimensions'][0]['Value'])} }}"
    return lines


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
    options = _properties(alarm, sns) | ({"Region": alarm.region} if alarm.region else {})
    return "aws cloudwatch put-metric-alarm " + " ".join(
        f"--{_spelled(name, '-')} {shlex.quote(_option(name, value))}" for name, value in options.items()
    )


def _option(name: str, value: Any) -> str:
    if name == "Dimensions":
        return ",".join(f"{key}={part}" for key, part in value[0].items())
    if name == "Metrics":
        return json.dumps(value)
    return value[0] if isinstance(value, list) else str(value)


FORMATS: Final[Mapping[str, Callable[[Sequence[Alarm], str | None], str]]] = {
    "cloudformation": render_cloudformation,
    "terraform": render_terraform,
    "prometheus": render_prometheus,
    "cli": render_cli,
}
