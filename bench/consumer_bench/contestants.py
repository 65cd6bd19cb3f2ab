"""Who is measured: how each is started, what it needs, and about how fast it is.

The rule: Semel runs at its defaults, on a queue at SQS's defaults. The others have the settings that their own
documentation gives for SQS, with as many threads as suited them best.
"""

from __future__ import annotations

from dataclasses import dataclass

from peer_bench.libraries import CELERY, DRAMATIQ, POWERTOOLS, Library

SEMEL_WORKER = "consumer_bench.semel_worker"
DEFAULT_VISIBILITY = 30  # seconds: that of a queue whose creator did not say otherwise


@dataclass(frozen=True)
class Contestant:
    """`first` is about how many messages it takes in a second; later rounds go by what it took."""

    name: str
    label: str
    module: str = SEMEL_WORKER
    library: Library | None = None  # None: in Semel's own environment
    threads: int = 16
    first: int = 500
    own_messages: bool = False  # its messages have a form of their own: it fills the queue itself
    needs: str = ""  # "sqlite", "postgres" or "dynamodb"
    arguments: tuple[str, ...] = ()  # of `semel run`

    @property
    def is_semel(self) -> bool:
        return self.module == SEMEL_WORKER

    @property
    def visibility(self) -> int:
        """Of its queue, in seconds. Those that extend nothing would get messages twice if it were the default."""
        return DEFAULT_VISIBILITY if self.is_semel else 3600


CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant("tutorial", "tutorial loop", "consumer_bench.loops_worker", threads=1, first=200),
        Contestant("tuned", "tuned loop", "consumer_bench.loops_worker", first=5_000),
        Contestant(
            "powertools", "Powertools", "consumer_bench.powertools_worker", POWERTOOLS, first=150, needs="dynamodb"
        ),
        Contestant("celery", "Celery", "consumer_bench.celery_worker", CELERY, first=400, own_messages=True),
        Contestant("dramatiq", "dramatiq_sqs", "consumer_bench.dramatiq_worker", DRAMATIQ, 32, 500, own_messages=True),
        Contestant("sqlite", "Semel, SQLite", first=10_000, needs="sqlite"),
        Contestant("postgres", "Semel, PostgreSQL", first=9_000, needs="postgres"),
        Contestant(
            "processes", "Semel, SQLite, 2 processes", first=15_000, needs="sqlite", arguments=("--processes", "2")
        ),
    )
}
