"""Opens the ledger at an address. A store's driver is imported only if its address is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

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
PERCENT: Final = "in a password, write / @ : ? and # as %2F %40 %3A %3F and %23"
_EXAMPLES: Final = (
    "sqlite:///ledger.db, postgresql://user@host/database, redis://host:6379/0, dynamodb://table?region=eu-west-1"
)


def check(url: str) -> str:
    """The scheme of a ledger's address. Raises LedgerError if there is no such store."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _STORES:
        raise LedgerError(f"{without_password(url)!r} is no address of a ledger; examples: {_EXAMPLES}")
    return scheme


def connect(url: str, **options: Any) -> Ledger:
    scheme = check(url)
    module, name, extra = _STORES[scheme]
    with importing(f"a ledger at {scheme}://", extra=extra):
        store = getattr(import_module(module), name)
    ledger: Ledger = store.from_url(url, **options)
    return ledger


def options_from_url(url: str, readers: Mapping[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """The address without the options that are ours, and their values. All other options are left for the driver."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an unmatched bracket; the text of the error may quote the password
        raise LedgerError(f"the ledger's address cannot be read; {PERCENT}, and [ and ] as %5B and %5D") from None
    options: dict[str, Any] = {}
    rest: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in readers:
            rest.append((name, value))
            continue
        try:
            options[name] = readers[name](value)
        except ValueError as error:
            raise LedgerError(f"the ledger's address has {name}={value!r}, which cannot be read: {error}") from None
    return urlunsplit(parts._replace(query=urlencode(rest, quote_via=quote))), options


def yes_or_no(value: str) -> bool:
    """Reads an option that is on or off."""
    if value.lower() in ("1", "true", "yes", "on"):
        return True
    if value.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("write 1 or 0")


def is_ambiguous(url: str) -> bool:
    """Whether an unescaped character in the password would end it too early. The rest of the password would then be
    taken for a host or a database, and shown in messages."""
    authority = re.split(r"[/?]", rest := url.partition("://")[2], maxsplit=1)[0]
    return authority.count("@") > 1 or "@" in rest[len(authority) :].partition("?")[0]


def without_password(url: str) -> str:
    return re.sub(r":(?!//).*@", ":***@", url)
