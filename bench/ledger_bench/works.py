"""What is measured: the stores, how each is started, how its durability is checked, and which contestants use it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker_bench import machine
from broker_bench.results import Bar, Figure, at_least
from broker_bench.targets import DATA, Moto, Server, Unavailable
from peer_bench.libraries import IDEMKIT, POWERTOOLS, Library


@dataclass(frozen=True)
class Contestant:
    name: str
    label: str
    library: Library | None  # None: in Semel's own environment
    module: str


SEMEL = Contestant("semel", "Semel", None, "ledger_bench.semel_worker")
CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        SEMEL,
        Contestant("powertools", "Powertools", POWERTOOLS, "ledger_bench.powertools_worker"),
        Contestant("idemkit", "idemkit", IDEMKIT, "ledger_bench.idemkit_worker"),
    )
}


@dataclass(frozen=True)
class Addresses:
    """The store's address: as a ledger URL for Semel, and in the form that the drivers of the others accept."""

    ledger: str
    plain: str


@dataclass(frozen=True)
class Work:
    """One row: claim + record of new keys in batches on one store."""

    name: str
    store: str
    title: str
    batch: int
    contestants: tuple[str, ...]
    bar: float | None = None  # keys/s that Semel must reach
    peer: str | None = None  # the contestant that Semel must at least equal

    def bars(self, figures: Mapping[str, Figure | None]) -> list[Bar]:
        """`figures` is keyed by contestant."""
        bars: list[Bar] = []
        ours = _value(figures.get(SEMEL.name))
        if self.bar is not None:
            bars.append(at_least(f"≥ {self.bar:,.0f} keys/s", self.bar, ours, "keys/s"))
        if self.peer is not None:
            theirs = _value(figures.get(self.peer))
            ratio = ours / theirs if ours is not None and theirs else None
            bars.append(at_least(f"≥ 1 × {CONTESTANTS[self.peer].label}", 1.0, ratio, "×"))
        return bars


def _value(figure: Figure | None) -> float | None:
    return figure.value if figure else None


ALL = ("semel", "powertools", "idemkit")
WORKS = {
    work.name: work
    for work in (
        Work("sqlite", "sqlite", "SQLite, batches of 10", 10, ("semel",), 10_000),
        Work("redis", "redis", "Redis, batches of 10", 10, ALL, 10_000),
        Work("postgres", "postgres", "PostgreSQL, batches of 10", 10, ("semel", "idemkit"), 5_000),
        Work("postgres-1000", "postgres", "PostgreSQL, batches of 1,000", 1_000, ("semel",), 25_000),
        Work("dynamodb", "dynamodb", "DynamoDB (moto), batches of 10", 10, ALL, peer="powertools"),
    )
}

# Shown at the head of the report. The settings of PostgreSQL and Redis are checked before anything is measured.
DURABLE = {
    "sqlite": "SQLite: WAL, synchronous=FULL (a commit is on disk)",
    "redis": "Redis: appendonly, appendfsync=always (a write is on disk before its answer)",
    "postgres": "PostgreSQL: fsync, synchronous_commit and full_page_writes on",
    "dynamodb": "DynamoDB: moto's server, which keeps everything in memory and sets the pace itself",
}


@contextmanager
def on_disk() -> Iterator[Path]:
    """A folder on a disk. If temporary files are in memory, the servers' data goes next to the benchmark as well."""
    DATA.mkdir(exist_ok=True)
    if machine.in_memory(Path(tempfile.gettempdir())):
        tempfile.tempdir = str(DATA)
    with tempfile.TemporaryDirectory(prefix="ledger-", dir=DATA) as folder:
        yield Path(folder)


def _check_postgres(url: str) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
            if row != ("on",):
                raise Unavailable(
                    f"PostgreSQL runs with {name}={row}: its figures would not be those of a durable store"
                )


def _check_redis(url: str) -> None:
    import redis

    with redis.Redis.from_url(url, decode_responses=True) as connection:
        for name, wanted in (("appendonly", "yes"), ("appendfsync", "always")):
            config: dict[str, str] = connection.config_get(name)
            if config.get(name) != wanted:
                raise Unavailable(f"Redis runs with {config}: its figures would not be those of a durable store")


@contextmanager
def _sqlite() -> Iterator[Addresses]:
    with on_disk() as folder:
        yield Addresses(f"sqlite:///{folder}/ledger.db", str(folder / "ledger.db"))


@contextmanager
def _redis() -> Iterator[Addresses]:
    from servers import redis

    with on_disk(), redis.running("--appendfsync", "always") as server:
        _check_redis(server.url)
        yield Addresses(server.url, server.url)


@contextmanager
def _postgres() -> Iterator[Addresses]:
    from servers import postgres

    with on_disk(), postgres.running() as server:
        _check_postgres(server.url)
        yield Addresses(server.url, server.url)


@contextmanager
def _dynamodb() -> Iterator[Addresses]:
    """moto's server as its users start it, in its own environment."""
    moto = Moto()
    moto.prepare(lambda _text: None)
    with Server(moto) as server:
        url = f"http://{server.address[0]}:{server.address[1]}"
        yield Addresses(f"dynamodb://semel?region=us-east-1&endpoint={url}&create=1", url)


STORES: dict[str, Callable[[], AbstractContextManager[Addresses]]] = {
    "sqlite": _sqlite,
    "redis": _redis,
    "postgres": _postgres,
    "dynamodb": _dynamodb,
}
