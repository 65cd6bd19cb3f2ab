"""What is checked before an app receives its first message. `semel run` logs it, `semel run --explain` prints it.

The rule: a check changes nothing, neither in SQS nor in the ledger. If several hosts may work and no ledger was chosen,
that is an error. Anything that may be intended is a warning.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from semel.consumer.settings import duration_text
from semel.errors import SemelError
from semel.ledger.sqlite.ledger import IN_MEMORY, SqliteLedger
from semel.messages.dead_letter_queue import MAX_REDELIVERY, redelivery_period
from semel.sqs import limits
from semel.sqs.errors import SqsError
from semel.sqs.hosts import is_loopback

if TYPE_CHECKING:
    from semel.consumer.queue_setup import QueueSetup
    from semel.ledger.contract import Ledger
    from semel.sqs import Queue

SHARED_LEDGERS: Final = "postgresql://…, redis://… or dynamodb://…"


def check_ledger_is_chosen(endpoint: str) -> None:
    """For an app without a configured ledger. Raises SemelError unless SQS is on this machine."""
    if not _is_local(endpoint):
        raise SemelError(
            f"no ledger is configured, and SQS at {endpoint} is not on this machine: all hosts and containers that run "
            f"this app need the same ledger; set SEMEL_LEDGER, --ledger or App(ledger=…) to {SHARED_LEDGERS}, or, if "
            "there is only one host, to sqlite:///semel-ledger.db"
        )


def check_ledger_is_shared(ledger: Ledger) -> None:
    """For an app in several processes of this machine."""
    if isinstance(ledger, SqliteLedger) and ledger.path == IN_MEMORY:
        raise SemelError(
            "a ledger in memory belongs to one process, and this app runs in several: each message could run once per "
            "process; use a file, such as sqlite:///ledger.db"
        )


def warnings(setups: Sequence[QueueSetup], ledger: Ledger, endpoint: str) -> list[str]:
    """What a user should know before the app runs, in one or two sentences each."""
    checks = [_ledger_is_not_shared(ledger, endpoint)]
    for setup in setups:
        checks += [_no_dead_letter_queue(setup), _retention_is_short(setup, ledger)]
    return [warning for warning in checks if warning is not None]


def _ledger_is_not_shared(ledger: Ledger, endpoint: str) -> str | None:
    if not isinstance(ledger, SqliteLedger) or _is_local(endpoint):
        return None
    place = "in the memory of this process"
    if ledger.path != IN_MEMORY:
        place = f"the SQLite file {os.path.abspath(ledger.path)}"
    return (
        f"the ledger is {place}, and SQS at {endpoint} is not on this machine: workers on other hosts or in other "
        "containers do not see this ledger, and each message may then run once per host; if there are any, set "
        f"SEMEL_LEDGER, --ledger or App(ledger=…) to {SHARED_LEDGERS}"
    )


def _no_dead_letter_queue(setup: QueueSetup) -> str | None:
    if setup.dead_letters is not None:
        return None
    return (
        f"the queue {setup.name} has no dead-letter queue: a message that always fails is tried again until the "
        "queue's retention ends, and is lost then; give the queue a RedrivePolicy, or run with --create-dlq"
    )


def _retention_is_short(setup: QueueSetup, ledger: Ledger) -> str | None:
    retention = ledger.retention if setup.settings.retention is None else setup.settings.retention
    if retention >= MAX_REDELIVERY:  # no queue needs more: no call to SQS
        return None
    of_queue = _retention_of(setup.queue)
    of_dlq = 0.0 if setup.dead_letters is None else _retention_of(setup.dead_letters)
    needed = redelivery_period(of_queue, of_dlq)
    if retention >= needed:
        return None
    dlq = (
        ""
        if setup.dead_letters is None
        else f" and its dead-letter queue {setup.dead_letters.name} {duration_text(of_dlq)}"
    )
    return (
        f"the ledger keeps keys for {duration_text(retention)}, but the queue {setup.name} keeps messages for "
        f"{duration_text(of_queue)}{dlq}: a message that is delivered again after its key has expired runs again; set "
        f"retention='{duration_text(needed)}' on the handler or the app, or SEMEL_RETENTION={duration_text(needed)}"
    )


def _retention_of(queue: Queue) -> float:
    try:
        return float(queue.attributes("MessageRetentionPeriod")["MessageRetentionPeriod"])
    except (SqsError, KeyError):  # a dead-letter queue may be in another account
        return float(limits.MAX_RETENTION)


def _is_local(endpoint: str) -> bool:
    return is_loopback(urlsplit(endpoint).hostname or "")
