"""From an address to a ledger. Each store's driver is loaded only when its address is used."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Final

from semel.extras import importing
from semel.ledger.contract import Ledger, LedgerError

# scheme: (module, class, the extra that brings the driver)
_STORES: Final = {
    "sqlite": ("semel.ledger.sqlite.ledger", "SqliteLedger", ""),
    "postgresql": ("semel.ledger.postgres.ledger", "PostgresLedger", "postgres"),
    "postgres": ("semel.ledger.postgres.ledger", "PostgresLedger", "postgres"),
    "redis": ("semel.ledger.redis.ledger", "RedisLedger", "redis"),
    "rediss": ("semel.ledger.redis.ledger", "RedisLedger", "redis"),
    "valkey": ("semel.ledger.redis.ledger", "RedisLedger", "redis"),
    "dynamodb": ("semel.ledger.dynamodb.ledger", "DynamoLedger", "dynamodb"),
}
_EXAMPLES: Final = (
    "sqlite:///ledger.db, postgresql://user@host/database, redis://host:6379/0, dynamodb://table?region=eu-west-1"
)


def check(url: str) -> str:
    """The scheme of a ledger's address. Raises LedgerError if there is no such store."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _STORES:
        shown = re.sub(r":(?!//).*@", ":***@", url)  # an address may hold a password
        raise LedgerError(f"{shown!r} is no address of a ledger; examples: {_EXAMPLES}")
    return scheme


def connect(url: str, **options: Any) -> Ledger:
    scheme = check(url)
    module, name, extra = _STORES[scheme]
    with importing(f"a ledger at {scheme}://", extra=extra):
        store = getattr(import_module(module), name)
    ledger: Ledger = store.from_url(url, **options)
    return ledger
