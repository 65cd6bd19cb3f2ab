"""Rules on missing permissions: shown by a probe with an invalid receipt handle, or by the errors in the logs."""

from __future__ import annotations

import json
import shlex

from semel.doctor import remedies
from semel.doctor.model import Case, ErrorGroup, Remedy, Severity
from semel.doctor.rules.rule import Observation, rule
from semel.text import count

ROLE = "ROLE_OF_THE_CONSUMER"
_DENIED = ("accessdenied", "access denied", "not authorized", "kmsaccessdenied")


@rule(
    "delete-refused",
    Severity.CRITICAL,
    title="the consumers may not delete messages",
    needs="`--probe`, or logs",
    remedy="allow sqs:DeleteMessage",
)
def delete_refused(case: Case) -> Observation | None:
    return _refused(
        case,
        "DeleteMessage",
        "No message is ever deleted: each comes back after its timeout, and takes effect again and again.",
    )


@rule(
    "change-visibility-refused",
    Severity.WARNING,
    title="the consumers may not change the visibility of messages",
    needs="`--probe`, or logs",
    remedy="allow sqs:ChangeMessageVisibility",
)
def change_visibility_refused(case: Case) -> Observation | None:
    return _refused(
        case,
        "ChangeMessageVisibility",
        "There is no heartbeat, no delay before a retry and no early return to the queue: work that outlasts the "
        "timeout runs twice.",
    )


@rule(
    "kms-refused",
    Severity.CRITICAL,
    title="the key that encrypts the queue may not be used",
    needs="logs",
    remedy="allow kms:Decrypt",
)
def kms_refused(case: Case) -> Observation | None:
    refusals = case.state.refused.items() if case.state is not None else ()
    observed = [f"SQS refuses {what}: {text}" for what, text in refusals if "kms" in f"{what} {text}".lower()]
    for group in _errors(case):
        text = group.sample.lower()
        if "kms" in text and any(word in text for word in (*_DENIED, "disabled", "invalidstate")):
            observed.append(f"{count(group.count, 'call')} failed on the key: {group.sample[:200]}")
    if not observed:
        return None
    key = case.state.kms_key if case.state is not None else None
    arn = key if key and key.startswith("arn:") else "arn:aws:kms:REGION:ACCOUNT:key/KEY_ID"
    return Observation(
        observed=observed[0].rstrip(".") + (f" (the queue's key is {key})." if key else "."),
        why="Without the key a message can be neither read nor sent: receives fail although there are messages.",
        remedy=_allow(case, ("kms:Decrypt", "kms:GenerateDataKey"), arn),
    )


def _refused(case: Case, action: str, why: str) -> Observation | None:
    """The probe says that SQS refuses this action, or the errors in the logs do."""
    refusal = case.state.refused.get(action) if case.state is not None else None
    observed = [f"SQS refuses {action} to these credentials: {refusal}"] if refusal is not None else []
    for group in _errors(case):
        text = group.sample.lower()
        if action.lower() in text.replace("batch", "") and any(word in text for word in _DENIED):
            observed.append(f"SQS refused {action} {count(group.count, 'time')}: {group.sample[:200]}")
    if not observed:
        return None
    arn = (case.state.arn if case.state is not None else "") or remedies.neighbour_arn("", case.queue)
    return Observation(f"{observed[0].rstrip('.')}.", why, _allow(case, (f"sqs:{action}",), arn))


def _errors(case: Case) -> tuple[ErrorGroup, ...]:
    return case.behaviour.errors if case.behaviour is not None else ()


def _allow(case: Case, actions: tuple[str, ...], arn: str) -> Remedy:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": arn}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    name = f"semel-{case.queue.replace('.', '-')}"[:128]
    return Remedy(
        text=f"Allow {', '.join(actions)} on {arn} to the role of the consumers; check the queue's own policy too.",
        cli=(
            f"aws iam put-role-policy --role-name {ROLE} --policy-name {name} --policy-document {shlex.quote(policy)}",
        ),
        terraform=(
            f'resource "aws_iam_role_policy" "{name}" {{\n'
            f'  role = "{ROLE}"\n'
            "  policy = jsonencode({\n"
            '    Version   = "2012-10-17"\n'
            f'    Statement = [{{ Effect = "Allow", Action = {json.dumps(actions)}, Resource = "{arn}" }}]\n'
            "  })\n}"
        ),
    )
