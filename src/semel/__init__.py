"""Semel: process every SQS message exactly once, in effect.

The public names and packages, each loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from semel.version import __version__

if TYPE_CHECKING:
    from semel.consumer.app import App as App
    from semel.consumer.backoff import Exponential as Exponential
    from semel.consumer.backoff import Fixed as Fixed
    from semel.consumer.backoff import Schedule as Schedule
    from semel.consumer.batch import Batch as Batch
    from semel.consumer.batch import Item as Item
    from semel.consumer.context import Context as Context
    from semel.consumer.context import Message as Message
    from semel.consumer.outcomes import Lost as Lost
    from semel.consumer.outcomes import Reject as Reject
    from semel.consumer.outcomes import Retry as Retry
    from semel.consumer.outcomes import Skip as Skip
    from semel.errors import SemelError as SemelError
    from semel.ledger.contract import Ledger as Ledger
    from semel.ledger.contract import Transaction as Transaction
    from semel.ledger.dynamodb.ledger import DynamoLedger as DynamoLedger
    from semel.ledger.idempotent.decorator import idempotent as idempotent
    from semel.ledger.postgres.ledger import PostgresLedger as PostgresLedger
    from semel.ledger.redis.ledger import RedisLedger as RedisLedger
    from semel.ledger.sqlite.ledger import SqliteLedger as SqliteLedger
    from semel.sqs.client import Client as Client

_WHERE: Final = {
    "App": "consumer.app",
    "Batch": "consumer.batch",
    "Client": "sqs.client",
    "Context": "consumer.context",
    "DynamoLedger": "ledger.dynamodb.ledger",
    "Exponential": "consumer.backoff",
    "Fixed": "consumer.backoff",
    "Item": "consumer.batch",
    "Ledger": "ledger.contract",
    "Lost": "consumer.outcomes",
    "Message": "consumer.context",
    "PostgresLedger": "ledger.postgres.ledger",
    "RedisLedger": "ledger.redis.ledger",
    "Reject": "consumer.outcomes",
    "Retry": "consumer.outcomes",
    "Schedule": "consumer.backoff",
    "SemelError": "errors",
    "Skip": "consumer.outcomes",
    "SqliteLedger": "ledger.sqlite.ledger",
    "Transaction": "ledger.contract",
    "idempotent": "ledger.idempotent.decorator",
}
_EXTRAS: Final = {"PostgresLedger": "postgres", "RedisLedger": "redis"}
_PACKAGES: Final = frozenset(
    {
        "broker",
        "consumer",
        "dlq",
        "doctor",
        "errors",
        "ledger",
        "messages",
        "spark",
        "sqs",
        "telemetry",
        "testing",
        "verify",
    }
)
# `from semel import *` is the same on every machine: a name that needs an extra is imported by name.
__all__ = ["__version__", *(name for name in _WHERE if name not in _EXTRAS)]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"semel.{name}")
    if name in _EXTRAS:
        from semel.extras import importing

        with importing(name, extra=_EXTRAS[name]):
            return getattr(import_module(f"semel.{_WHERE[name]}"), name)
    if name in _WHERE:
        return getattr(import_module(f"semel.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, *_PACKAGES})
