"""What is known of the ledger that consumers use: how long it keeps keys, and whether Redis would evict them.

The rule: nothing is written, no password is repeated, and if something cannot be found out, the state says why; that is
not an error.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from semel.doctor.errors import DoctorError
from semel.doctor.model import LedgerState

_REDIS: Final = ("redis", "rediss", "valkey")
_OTHERS: Final = ("sqlite", "postgresql", "postgres", "dynamodb")
_PATIENCE: Final = 5.0
_POLICY: Final = "maxmemory-policy"


def look(url: str, retention: float | None = None) -> LedgerState:
    """The ledger at this address. `retention`: for how many seconds it keeps keys, as the user says."""
    scheme = url.partition("://")[0]
    if "://" not in url or scheme not in (*_REDIS, *_OTHERS):
        raise DoctorError(
            f"--ledger {url}: it is no address of a ledger; write for example redis://host:6379/0, "
            "postgresql://user@host/database, dynamodb://table or sqlite:///ledger.db"
        )
    where = without_password(url)
    if scheme not in _REDIS:
        return LedgerState(where=where, retention=retention)
    eviction, problem = _eviction(url)
    return LedgerState(where=where, retention=retention, eviction=eviction, problem=problem)


def without_password(url: str) -> str:
    """The address as it may be shown: neither password nor options."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an invalid address: it may contain a password, so it is not shown
        return f"{url.partition('://')[0]}://…"
    user = f"{parts.username}@" if parts.username else ""
    return f"{parts.scheme}://{user}{parts.netloc.rpartition('@')[2]}{parts.path}"


def _eviction(url: str) -> tuple[str | None, str | None]:
    """The policy, or why it is not known."""
    try:
        import redis
    except ImportError:
        return None, "to look at a Redis ledger, install redis: pip install 'semel[redis]'"
    address = "redis" + url.removeprefix("valkey") if url.startswith("valkey://") else url.partition("?")[0]
    client: Any = redis.Redis.from_url(
        address.partition("?")[0], socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE, decode_responses=True
    )
    reasons = []
    try:
        for ask in (_by_config, _by_info):
            try:
                policy = ask(client)
            except redis.ResponseError as error:
                reasons.append(str(error))
                continue
            if policy:
                return policy, None
    except (redis.RedisError, ValueError) as error:
        return None, f"Redis does not answer: {error}"
    finally:
        client.close()
    why = f" ({reasons[0]})" if reasons else ""
    return None, f"Redis tells its {_POLICY} neither by CONFIG nor by INFO{why}; make sure that it is noeviction"


def _by_config(client: Any) -> str | None:
    """Managed services often do not allow CONFIG."""
    policy: str | None = client.config_get(_POLICY).get(_POLICY)
    return policy


def _by_info(client: Any) -> str | None:
    policy: str | None = client.info("memory").get("maxmemory_policy")
    return policy
