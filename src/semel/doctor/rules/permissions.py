"""Rules on permissions that are missing: told by a probe with a made-up receipt, or by the errors in the logs."""

from __future__ import annotations

import json
import shlex

from semel.doctor.model import Case, Remedy, Severity
from semel.doctor.rules.rule import Observation, Rule
from semel.doctor.wording import count

ROLE = "ROLE_OF_THE_CONSUMER"
_DENIED = ("accessdenied", "access denied", "not authorized", "kmsaccessdenied")


def _told(case: Case, action: str) -> str | None:
    """Who says that this is not allowed: SQS when it was probed, else an error in the logs."""
    refused = case.state.refused if case.state is not None else {}
    if action in refused:
        return f"SQS refuses {action} to these credentials: {refused[action]}"
    for group in case.behaviour.errors if case.behaviour is not None else ():
        text = group.sample.lower()
        named = action.lower() in text.replace("batch", "")
        if named and any(word in text for word in _DENIED):
            return f"SQS refused {action} {count(group.count, 'time')}: {group.sample[:200]}"
    return None


def _allow(case: Case, actions: tuple[str, ...], resource: str | None = None) -> Remedy:
    arn = resource or (case.state.arn if case.state is not None and case.state.arn else None)
    arn = arn or f"arn:aws:sqs:REGION:ACCOUNT:{case.queue}"
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": arn}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    name = f"semel-{case.queue.replace('.', '-')}"[:128]
    listed = ", ".join(json.dumps(action) for action in actions)
    return Remedy(
        text=f"Allow {', '.join(actions)} on {arn} to the role of the consumers; look at the queue's own policy too.",
        cli=(
            f"aws iam put-role-policy --role-name {ROLE} --policy-name {name} --policy-document {shlex.quote(policy)}",
        ),
        terraform=(
            f'resource "aws_iam_role_policy" "{name}" {{\n'
            f'  role = "{ROLE}"\n'
            "  policy = jsonencode({\n"
            '    Version   = "2012-10-17"\n'
            f'    Statement = [{{ Effect = "Allow", Action = [{listed}], Resource = "{arn}" }}]\n'
            "  })\n}"
        ),
    )


def _delete(case: Case) -> Observation | None:
    told = _told(case, "DeleteMessage")
    if told is None:
        return None
    return Observation(
        observed=f"{told.rstrip('.')}.",
        why="No message is ever deleted: each comes back after its timeout, and takes effect again and again.",
        remedy=_allow(case, ("sqs:DeleteMessage",)),
    )


def _change_visibility(case: Case) -> Observation | None:
    told = _told(case, "ChangeMessageVisibility")
    if told is None:
        return None
    return Observation(
        observed=f"{told.rstrip('.')}.",
        why=(
            "No heartbeat, no delay before another attempt, and nothing can be put back early: work past the "
            "timeout runs twice."
        ),
        remedy=_allow(case, ("sqs:ChangeMessageVisibility",)),
    )


def _kms(case: Case) -> Observation | None:
    refused = case.state.refused if case.state is not None else {}
    told = next(
        (f"SQS refuses {what}: {text}" for what, text in refused.items() if "kms" in f"{what} {text}".lower()), None
    )
    for group in case.behaviour.errors if case.behaviour is not None and told is None else ():
        text = group.sample.lower()
        if "kms" in text and (any(word in text for word in _DENIED) or "disabled" in text or "invalidstate" in text):
            told = f"{count(group.count, 'call')} failed on the key: {group.sample[:200]}"
            break
    if told is None:
        return None
    key = case.state.kms_key if case.state is not None else None
    arn = key if key and key.startswith("arn:") else "arn:aws:kms:REGION:ACCOUNT:key/KEY_ID"
    return Observation(
        observed=f"{told.rstrip('.')}" + (f" (the queue's key is {key})." if key else "."),
        why="Without the key a message can be neither read nor sent: receives fail, though messages are there.",
        remedy=_allow(case, ("kms:Decrypt", "kms:GenerateDataKey"), arn),
    )


RULES = (
    Rule(
        "delete-refused",
        Severity.CRITICAL,
        "the consumers may not delete messages",
        "`--probe`, or logs",
        "allow sqs:DeleteMessage",
        _delete,
    ),
    Rule(
        "change-visibility-refused",
        Severity.WARNING,
        "the consumers may not change the visibility of messages",
        "`--probe`, or logs",
        "allow sqs:ChangeMessageVisibility",
        _change_visibility,
    ),
    Rule(
        "kms-refused",
        Severity.CRITICAL,
        "the key that encrypts the queue may not be used",
        "logs",
        "allow kms:Decrypt",
        _kms,
    ),
)
