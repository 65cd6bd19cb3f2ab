"""The consumers that are measured: how each is started, what it needs, and roughly how fast it is.

The rule: Semel runs with its defaults, on a queue with SQS's defaults. The others have the settings that their own
documentation recommends for SQS, with the number of threads that was best for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from peer_bench.libraries import CELERY, DRAMATIQ, POWERTOOLS, Library

SEMEL_WORKER = "consumer_bench.semel_worker"
DEFAULT_VISIBILITY = 30  # seconds: SQS's default for a new queue


@dataclass(frozen=True)
class Contestant:
    """`first` estimates its messages per second for the first round; later rounds use the measured rate."""

    name: str
    label: str
    module: str = SEMEL_WORKER
    library: Library | None = None  # None: in Semel's own environment
    threads: int = 16
    first: int = 500
    own_messages: bool = False  # its messages have their own format, so it fills the queue itself
    needs: str = ""  # "sqlite", "postgres" or "dynamodb"
    arguments: tuple[str, ...] = ()  # of `semel run`

    @property
    def is_semel(self) -> bool:
        return self.module == SEMEL_WORKER

    @property
    def visibility(self) -> int:
        """Of its queue, in seconds. With the default, contestants without a heartbeat would receive messages twice."""
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
