"""End to end: a faulty broker, and four workers, one of which is killed every second. Each effect happens exactly once.

5,000 messages; 5 % duplicate deliveries, 5 % lost deletes, 2 % lost answers, 2 % visibility timeouts that end early.
`process_crashes` has more faults, more processes and every store, and runs for longer.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, Final

import once_worker
import pytest

import suite
from semel import Client, Ledger
from semel.ledger.contract import Status
from semel.sqs import Entry, Queue

if TYPE_CHECKING:
    from servers import postgres, redis

MESSAGES: Final = suite.effort(fast=1_500, full=5_000)
WORKERS: Final = 4
LEAST_KILLS: Final = suite.effort(fast=2, full=5)
PATIENCE: Final = 240.0
# Workers are forked from a process that has already imported what they need: a worker that lives for a few seconds
# should not spend them on imports. Each opens its own ledger and its own connections.
FROM_WARM: Final = multiprocessing.get_context("forkserver")
FROM_WARM.set_forkserver_preload(["once_worker", "botocore.session", "psycopg_pool", "redis", "semel.sqs.client"])
FAULTS: Final = ("duplicate=0.05", "lost-delete=0.05", "lost-answer=0.02", "early-visibility=0.02")


@contextmanager
def faulty_broker(folder: Path) -> Iterator[str]:
    options = [option for fault in FAULTS for option in ("--fault", fault)]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "semel.cli",
            "serve",
            "--port",
            "0",
            "--data",
            str(folder),
            "--fault-seed",
            "7",
            *options,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


class Workers:
    """Four processes. `kill_one` ends one with SIGKILL and starts another one in its place."""

    def __init__(self, mode: str, ledger_url: str, endpoint: str, folder: Path) -> None:
        self._arguments = (mode, ledger_url, endpoint)
        self._folder = folder
        self._chance = random.Random(7)
        self.kills = 0
        self.witnesses: list[Path] = []
        self.killed: dict[Path, float] = {}
        self._processes: list[tuple[BaseProcess, Path]] = []
        self._can_stop: dict[BaseProcess, Event] = {}
        for _ in range(WORKERS):
            self._start()

    def _start(self) -> None:
        witness = self._folder / f"witness-{len(self.witnesses)}"
        self.witnesses.append(witness)
        can_stop = FROM_WARM.Event()
        arguments = (*self._arguments, str(witness), str(self._folder / "workers.log"), can_stop)
        process = FROM_WARM.Process(target=once_worker.main, args=arguments)
        process.start()
        self._can_stop[process] = can_stop
        self._processes.append((process, witness))

    def kill_one(self) -> None:
        process, witness = self._processes.pop(self._chance.randrange(len(self._processes)))
        process.kill()  # SIGKILL
        process.join()
        self.killed[witness] = time.time()
        self.kills += 1
        self._start()

    def stop(self) -> list[int | None]:
        for process, _ in self._processes:
            assert self._can_stop[process].wait(60)
            process.terminate()
        for process, _ in self._processes:
            process.join(60)
        return [process.exitcode for process, _ in self._processes]

    def end(self) -> None:
        for process, _ in self._processes:
            process.kill()
            process.join()


def run(mode: str, ledger_url: str, folder: Path, done: Callable[[], int]) -> Workers:
    """Process all messages while workers are killed. Returns when every key is done and the queue is empty."""
    with (
        faulty_broker(folder / "broker") as endpoint,
        Client(endpoint, "us-east-1", access_key="test", secret_key="test") as client,
    ):
        queue = client.create_queue(once_worker.QUEUE)
        queue.send_many([Entry(f'{{"n": {n}}}') for n in range(MESSAGES)])
        workers = Workers(mode, ledger_url, endpoint, folder)
        try:
            ends = time.monotonic() + PATIENCE
            while done() < MESSAGES or workers.kills < LEAST_KILLS or not is_empty(queue):
                assert time.monotonic() < ends, f"{done()} done; {(folder / 'workers.log').read_text()[-2_000:]}"
                time.sleep(1.0)
                if done() < MESSAGES or workers.kills < LEAST_KILLS:
                    workers.kill_one()
            assert workers.stop() == [0] * WORKERS
        finally:
            workers.end()
    return workers


def is_empty(queue: Queue) -> bool:
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    return not any(int(count) for count in queue.attributes(*names).values())


def all_recorded(ledger: Ledger) -> bool:
    entries = ledger.get([f"us-east-1:000000000000:{once_worker.QUEUE}/{n}" for n in range(MESSAGES)])
    return all(entry is not None and entry.status is Status.DONE for entry in entries)


def test_in_postgresql_transactions_every_effect_is_there_exactly_once(
    tmp_path: Path, postgres_server: postgres.Server
) -> None:
    import psycopg

    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS effects")
        connection.execute(
            "CREATE TABLE effects (n integer, fence bigint)"
        )  # without a unique key: only Semel prevents duplicates

        def count(what: str) -> int:
            row = connection.execute(f"SELECT {what} FROM effects").fetchone()
            assert row is not None
            return int(row[0])

        url = postgres_server.url + ("&" if "?" in postgres_server.url else "?") + "schema=proof_once"
        workers = run("transaction", url, tmp_path, lambda: count("count(DISTINCT n)"))
        assert count("count(*)") == count("count(DISTINCT n)") == MESSAGES
        assert workers.kills >= LEAST_KILLS
        with Ledger.connect(url) as ledger:
            assert all_recorded(ledger)


@pytest.mark.slow
def test_with_leases_no_key_has_two_holders_at_once_and_none_is_lost(
    tmp_path: Path, redis_server: redis.Server
) -> None:
    url = f"{redis_server.url}?prefix=proof-once"
    with Ledger.connect(url) as ledger:

        def done() -> int:
            entries = ledger.get([f"us-east-1:000000000000:{once_worker.QUEUE}/{n}" for n in range(MESSAGES)])
            return sum(entry is not None and entry.status is Status.DONE for entry in entries)

        workers = run("lease", url, tmp_path, done)
        assert all_recorded(ledger)
    assert_one_holder_at_a_time(workers)


def assert_one_holder_at_a_time(workers: Workers) -> None:
    """In the order of fences, a holder begins only after the earlier one has ended or was killed."""
    spans: defaultdict[int, list[tuple[int, float, float]]] = defaultdict(list)
    for witness in workers.witnesses:
        begun: dict[tuple[int, int], float] = {}
        for line in witness.read_text().splitlines() if witness.exists() else ():
            what, n, fence, at = line.split()
            if what == "begin":
                assert (int(n), int(fence)) not in begun, "one fence began twice"
                begun[int(n), int(fence)] = float(at)
            else:
                spans[int(n)].append((int(fence), begun.pop((int(n), int(fence))), float(at)))
        for (key, unended), since in begun.items():
            spans[key].append((unended, since, workers.killed[witness]))
    assert set(spans) == set(range(MESSAGES)), "a message was lost"
    for key, holders in spans.items():
        holders.sort()
        fences = [fence for fence, _, _ in holders]
        assert len(set(fences)) == len(fences), f"key {key} had two holders with one fence: {holders}"
        for (_, _, ended), (_, began, _) in itertools.pairwise(holders):
            assert began >= ended, f"key {key} had two holders at once: {holders}"
