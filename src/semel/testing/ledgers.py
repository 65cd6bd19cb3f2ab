"""The ledger of a test. It uses the broker's clock, and is the app's own ledger only if the test passes that one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from semel.consumer.app import App
from semel.errors import SemelError
from semel.ledger.contract import Clock, Ledger, LedgerUnavailable

_POSTGRES: Final = "postgresql://localhost/test"
_DYNAMODB: Final = "dynamodb://test?endpoint=http://localhost:8000&region=us-east-1"


@contextmanager
def ledger_for(app: App, chosen: Ledger | str | None, clock: Clock) -> Iterator[Ledger]:
    """The ledger for `driving`; its docstring says which one is chosen."""
    if isinstance(chosen, Ledger):
        before, chosen.clock = chosen.clock, clock
        try:
            yield chosen
        finally:
            chosen.clock = before
        return
    if chosen is None:
        _check_default(app)
    with _new_ledger(chosen or "sqlite://", clock) as ledger:
        yield ledger


def _check_default(app: App) -> None:
    """SQLite can replace any store, unless a handler writes SQL for the app's own store."""
    handler = next((handler.name for handler in app.handlers.values() if handler.transaction), None)
    configured = app.configured_ledger
    store = f"{configured.partition(':')[0]}://…" if isinstance(configured, str) else type(configured).__name__
    if handler is None or store.startswith(("sqlite:", "SqliteLedger")):
        return
    raise SemelError(
        f"the handler {handler} takes `tx`, and the app's ledger ({store}) is not opened by a test: name a store for "
        f'tests, driving(app, broker, ledger="{_DYNAMODB if store.lower().startswith("dynamo") else _POSTGRES}")'
    )


@contextmanager
def _new_ledger(url: str, clock: Clock) -> Iterator[Ledger]:
    """An empty ledger in the store at `url`, under a unique name. It is removed afterwards, but a SQLite file stays."""
    name = f"semel_test_{uuid.uuid4().hex[:12]}"
    scheme = url.partition("://")[0]
    options: dict[str, Any] = {"clock": clock}
    if scheme in ("postgresql", "postgres"):
        url, options["schema"] = _with_search_path(url, name), name
    elif scheme in ("redis", "rediss", "valkey"):
        options["prefix"] = name
    elif scheme == "dynamodb":
        url, options["create"] = urlunsplit(urlsplit(url)._replace(netloc=name)), True
    with Ledger.connect(url, **options) as ledger:
        try:
            yield ledger
        finally:
            with suppress(LedgerUnavailable):  # the test may have stopped the store
                _remove(ledger, scheme, name)


def _with_search_path(url: str, schema: str) -> str:
    """Tables that a test creates are in its schema and are dropped with it. The database's tables are visible too."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    query["options"] = f'{query.get("options", "")} -csearch_path={schema},"$user",public'.strip()
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


def _remove(ledger: Any, scheme: str, name: str) -> None:
    if scheme in ("postgresql", "postgres"):
        with ledger.transaction() as tx:
            tx.execute("SET LOCAL lock_timeout = '5s'")
            tx.execute(f"DROP SCHEMA {name} CASCADE")
    elif scheme in ("redis", "rediss", "valkey"):
        server = ledger._client.server
        for key in server.scan_iter(match=f"*{name}*", count=1_000):
            server.delete(key)
    elif scheme == "dynamodb":
        with ledger.transaction() as tx:
            tx.connection.delete_table(TableName=name)
