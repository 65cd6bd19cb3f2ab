"""From an address to a ledger. Each store's driver is loaded only when its address is used."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Final

from semel.ledger.contract import Ledger, LedgerError

# scheme: (module, class, the extra that brings the driver)
_STORES: Final = {
    "sqlite": ("semel.ledger.sqlite", "SqliteLedger", ""),
    "postgresql": ("semel.ledger.postgres", "PostgresLedger", "postgres"),
    "postgres": ("semel.ledger.postgres", "PostgresLedger", "postgres"),
    "redis": ("semel.ledger.redis", "RedisLedger", "redis"),
    "rediss": ("semel.ledger.redis", "RedisLedger", "redis"),
    "valkey": ("semel.ledger.redis", "RedisLedger", "redis"),
    "dynamodb": ("semel.ledger.dynamodb", "DynamoLedger", "dynamodb"),
}
_EXAMPLES: Final = (
    "sqlite:///ledger.db, postgresql://user@host/database, redis://host:6379/0, dynamodb://table?region=eu-west-1"
)


def connect(url: str, **options: Any) -> Ledger:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _STORES:
        shown = re.sub(r":(?!//).*@", ":***@", url)  # an address may hold a password
        raise LedgerError(f"{shown!r} is no address of a ledger; examples: {_EXAMPLES}")
    module, name, extra = _STORES[scheme]
    try:
        store = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("semel"):
            raise
        raise LedgerError(f"a {scheme} ledger needs the package {error.name}: pip install 'semel[{extra}]'") from None
    ledger: Ledger = store.from_url(url, **options)
    return ledger
