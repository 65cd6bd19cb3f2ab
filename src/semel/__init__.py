"""Semel: process every SQS message exactly once, in effect.

The public names and packages, each loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.lazy_imports import lazy_names
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
    "App": "semel.consumer.app",
    "Batch": "semel.consumer.batch",
    "Client": "semel.sqs.client",
    "Context": "semel.consumer.context",
    "DynamoLedger": "semel.ledger.dynamodb.ledger",
    "Exponential": "semel.consumer.backoff",
    "Fixed": "semel.consumer.backoff",
    "Item": "semel.consumer.batch",
    "Ledger": "semel.ledger.contract",
    "Lost": "semel.consumer.outcomes",
    "Message": "semel.consumer.context",
    "PostgresLedger": "semel.ledger.postgres.ledger",
    "RedisLedger": "semel.ledger.redis.ledger",
    "Reject": "semel.consumer.outcomes",
    "Retry": "semel.consumer.outcomes",
    "Schedule": "semel.consumer.backoff",
    "SemelError": "semel.errors",
    "Skip": "semel.consumer.outcomes",
    "SqliteLedger": "semel.ledger.sqlite.ledger",
    "Transaction": "semel.ledger.contract",
    "idempotent": "semel.ledger.idempotent.decorator",
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
# `from semel import *` gives the same names on every machine: a name that needs an extra is imported by name.
__all__ = ["__version__", *(name for name in _WHERE if name not in _EXTRAS)]
__getattr__, __dir__ = lazy_names(__name__, _WHERE, _EXTRAS, _PACKAGES)
