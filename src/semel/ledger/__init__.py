"""The ledger: which keys are claimed and which are done, in SQLite, PostgreSQL, Redis or DynamoDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.lazy_imports import lazy_names

if TYPE_CHECKING:
    from semel.ledger.contract import Claim as Claim
    from semel.ledger.contract import ClaimRequest as ClaimRequest
    from semel.ledger.contract import ClaimResult as ClaimResult
    from semel.ledger.contract import Completion as Completion
    from semel.ledger.contract import Conflict as Conflict
    from semel.ledger.contract import Done as Done
    from semel.ledger.contract import Entry as Entry
    from semel.ledger.contract import Fenced as Fenced
    from semel.ledger.contract import Held as Held
    from semel.ledger.contract import Ledger as Ledger
    from semel.ledger.contract import LedgerError as LedgerError
    from semel.ledger.contract import LedgerUnavailable as LedgerUnavailable
    from semel.ledger.contract import OutboxStatus as OutboxStatus
    from semel.ledger.contract import OutcomeUnknown as OutcomeUnknown
    from semel.ledger.contract import Outgoing as Outgoing
    from semel.ledger.contract import Status as Status
    from semel.ledger.contract import Transaction as Transaction
    from semel.ledger.contract import Won as Won
    from semel.ledger.dynamodb.ledger import DynamoLedger as DynamoLedger
    from semel.ledger.postgres.ledger import PostgresLedger as PostgresLedger
    from semel.ledger.redis.ledger import RedisLedger as RedisLedger
    from semel.ledger.sqlite.ledger import SqliteLedger as SqliteLedger

# Each name is imported on first use: a store needs its driver, and the rest does not.
_WHERE: Final = {
    "Claim": "semel.ledger.contract",
    "ClaimRequest": "semel.ledger.contract",
    "ClaimResult": "semel.ledger.contract",
    "Completion": "semel.ledger.contract",
    "Conflict": "semel.ledger.contract",
    "Done": "semel.ledger.contract",
    "DynamoLedger": "semel.ledger.dynamodb.ledger",
    "Entry": "semel.ledger.contract",
    "Fenced": "semel.ledger.contract",
    "Held": "semel.ledger.contract",
    "Ledger": "semel.ledger.contract",
    "LedgerError": "semel.ledger.contract",
    "LedgerUnavailable": "semel.ledger.contract",
    "OutboxStatus": "semel.ledger.contract",
    "OutcomeUnknown": "semel.ledger.contract",
    "Outgoing": "semel.ledger.contract",
    "PostgresLedger": "semel.ledger.postgres.ledger",
    "RedisLedger": "semel.ledger.redis.ledger",
    "SqliteLedger": "semel.ledger.sqlite.ledger",
    "Status": "semel.ledger.contract",
    "Transaction": "semel.ledger.contract",
    "Won": "semel.ledger.contract",
}
_EXTRAS: Final = {"PostgresLedger": "postgres", "RedisLedger": "redis"}
# A star import gives the same names on every machine. A name that needs an extra must be imported explicitly.
__all__ = [
    "Claim",
    "ClaimRequest",
    "ClaimResult",
    "Completion",
    "Conflict",
    "Done",
    "DynamoLedger",
    "Entry",
    "Fenced",
    "Held",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "OutboxStatus",
    "OutcomeUnknown",
    "Outgoing",
    "SqliteLedger",
    "Status",
    "Transaction",
    "Won",
]
__getattr__, __dir__ = lazy_names(__name__, _WHERE, _EXTRAS)
