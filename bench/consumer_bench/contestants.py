"""Who is measured: how each is started, what it needs, and how many messages it gets at first."""

from __future__ import annotations

from dataclasses import dataclass

from peer_bench.libraries import CELERY, DRAMATIQ, POWERTOOLS, Library


@dataclass(frozen=True)
class Contestant:
    """`first` is about how many messages it takes in a second; later rounds go by what it took."""

    name: str
    label: str
    module: str
    library: Library | None = None  # None: in Semel's own environment
    threads: int = 16
    first: int = 500
    own_messages: bool = False  # its messages have a form of their own: it fills the queue itself
    needs: str = ""  # "sqlite", "postgres" or "dynamodb"


CONTESTANTS = {
    one.name: one
    for one in (
        Contestant("tutorial", "tutorial loop", "consumer_bench.loops_worker", threads=1, first=200),
        Contestant("tuned", "tuned loop", "consumer_bench.loops_worker", first=4_000),
        Contestant(
            "powertools", "Powertools", "consumer_bench.powertools_worker", POWERTOOLS, first=100, needs="dynamodb"
        ),
        Contestant("celery", "Celery", "consumer_bench.celery_worker", CELERY, first=200, own_messages=True),
        Contestant("dramatiq", "dramatiq_sqs", "consumer_bench.dramatiq_worker", DRAMATIQ, 32, 300, own_messages=True),
        Contestant("sqlite", "Semel, SQLite", "consumer_bench.semel_worker", first=8_000, needs="sqlite"),
        Contestant("postgres", "Semel, PostgreSQL", "consumer_bench.semel_worker", first=6_000, needs="postgres"),
    )
}
OURS = ("sqlite", "postgres")
