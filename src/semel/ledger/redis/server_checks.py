"""Checks whether a Redis server is fit to keep a ledger, and which schema the ledger in it has.

The rule: a setting that could make the server lose keys is refused, or logged as a warning, before the first claim.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from semel.ledger.contract import LedgerError, LedgerUnavailable
from semel.ledger.redis.client import Client

log: Final = logging.getLogger("semel.ledger")

SCHEMA: Final = 1
SHARDS: Final = 16
_OLDEST: Final = 5  # from this version on, a script may read the clock before it writes


def check_server(client: Client, *, allow_eviction: bool) -> None:
    about = _about(client)
    version = str(about.get("redis_version", ""))
    if version.split(".")[0].isdigit() and int(version.split(".")[0]) < _OLDEST:
        raise LedgerError(f"Redis at {client.where} has version {version}; the ledger needs {_OLDEST}.0 or newer")
    _check_eviction(client, _setting(client, about, "maxmemory-policy", "maxmemory_policy"), allow_eviction)
    if _setting(client, about, "appendonly", "aof_enabled") in ("no", "0"):
        log.warning(
            "Redis at %s writes no append-only file (appendonly no): when it restarts, it forgets what was claimed and "
            "recorded since its last snapshot, and those keys run again; set appendonly yes",
            client.where,
        )


def _check_eviction(client: Client, policy: str | None, allow_eviction: bool) -> None:
    if policy is None:
        log.warning(
            "Redis at %s lets us read neither CONFIG nor INFO, so its maxmemory-policy is not known; "
            "make sure that it is noeviction",
            client.where,
        )
    elif policy == "noeviction":
        return
    elif allow_eviction:
        log.warning(
            "Redis at %s evicts (maxmemory-policy %s): when its memory is full it forgets keys, and they run again",
            client.where,
            policy,
        )
    else:
        raise LedgerError(
            f"Redis at {client.where} evicts (maxmemory-policy {policy}): when its memory is full it would forget "
            "keys, and they would run again; set maxmemory-policy noeviction, or start with allow_eviction=True"
        )


def _about(client: Client) -> dict[str, Any]:
    """INFO, or nothing where it is not allowed."""
    try:
        answer = client.any_node("INFO")
    except LedgerUnavailable:
        raise
    except LedgerError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _setting(client: Client, about: dict[str, Any], config: str, info: str) -> str | None:
    """A setting from CONFIG, which managed services often do not allow, else from INFO; None: it cannot be read."""
    try:
        answer = client.any_node("CONFIG GET", config)
    except LedgerUnavailable:
        raise
    except LedgerError:
        answer = None
    if answer:
        return _text(answer.get(config, answer.get(config.encode(), "")))
    return _text(about[info]) if info in about else None


def open_schema(client: Client, prefix: str, shards: int | None) -> int:
    """Create the ledger if it is new, and check that we can read it. Returns how many shards it has."""
    if shards is not None and not 1 <= shards <= 1_024:
        raise LedgerError(f"a ledger cannot have {shards} shards: 1 to 1024 are possible")
    meta = f"{prefix}:meta"
    client.command("HSETNX", meta, "shards", shards or SHARDS)
    client.command("HSETNX", meta, "version", SCHEMA)
    version, known = (int(word) for word in client.command("HMGET", meta, "version", "shards"))
    if version > SCHEMA:
        raise LedgerError(
            f"the ledger {prefix!r} in Redis at {client.where} has schema {version}, this Semel knows up to {SCHEMA}: "
            "upgrade Semel, or use another prefix"
        )
    if shards is not None and shards != known:
        raise LedgerError(
            f"the ledger {prefix!r} in Redis at {client.where} was made with {known} shards and cannot be used with "
            f"{shards}: leave `shards` out, or use another prefix"
        )
    return known


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
