"""A delete of dead-letter messages, and the restore of its snapshot, killed with SIGKILL at each phase and run again:
at any time every message is in the queue or in a snapshot, and restored messages are processed once."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import delete_process
import pytest

from driven import Place, place_of
from semel import App, Context
from semel.broker import running
from semel.dlq.jobs import Job
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.redrive.runner import Redriver
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Entry

_cases = itertools.count()
COUNT = 25
WHERE = "$.n < 18"
WAYS = [(fifo, admitted) for fifo in (False, True) for admitted in (True, False)]
NOWHERE = ("", 1)


@pytest.fixture(scope="module")
def processes() -> Any:
    """Forks new processes from one that has already imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["semel.dlq.service", "semel.sqs.client.config"])
    return context


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running(clock="manual", cooldowns=False) as broker, place_of(broker) as place:
        yield place


class Case:
    """A queue, its dead-letter messages, and a worker whose effects are counted."""

    def __init__(self, place: Place, processes: Any, folder: Path, *, fifo: bool, admitted: bool) -> None:
        self.place, self._processes, self._folder, self._admitted = place, processes, folder, admitted
        end = ".fifo" if fifo else ""
        self.queue, self.dead = f"shop{next(_cases)}{end}", f"shop{next(_cases)}-dlq{end}"
        place.queue(self.queue, dlq=self.dead)
        self.effects: Counter[int] = Counter()
        entries = []
        for n in range(COUNT):
            about = own_attributes.DeadLetterDetails(f"o-{n}", "TimeoutError", "no answer", 3, f"m-{n}", self.queue)
            body = json.dumps({"id": f"o-{n}", "n": n})
            group, dedup = (f"g{n % 3}", f"d{n}") if fifo else (None, None)
            own = own_attributes.attributes(about, {}, len(body))
            entries.append(Entry(body, attributes=own, group=group, dedup=dedup))
        place.client.queue(self.dead).send_many(entries)
        place.clock.advance(1)

    def dies(self, work: Callable[..., None], *arguments: Any) -> bool:
        """Run it in a process of its own. Returns whether it was killed there."""
        process = self._processes.Process(target=work, args=arguments)
        process.start()
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
        self.place.clock.advance(130)  # until the messages that it had claimed are visible again
        return bool(process.exitcode)

    def delete(self, name: str, point: str, nth: int) -> bool:
        ahead = self.place.clock.now() - time.time()
        file = str(self._folder / name)
        url = self.place.broker.url
        return self.dies(delete_process.delete, url, self.dead, WHERE, file, self._admitted, ahead, point, nth)

    def restore(self, name: str, point: str, nth: int) -> bool:
        file = self._folder / name
        if not file.exists():
            return False
        return self.dies(delete_process.restore, self.place.broker.url, str(file), self._admitted, point, nth)

    def kept(self) -> list[int]:
        """The numbers of the messages in snapshots."""
        lines = [line for file in self.snapshots() for line in file.read_text().splitlines()]
        return [json.loads(json.loads(line)["body"])["n"] for line in lines]

    def snapshots(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))

    def in_queue(self) -> list[int]:
        return [json.loads(message["Body"])["n"] for message in self.place.broker.peek(self.dead, limit=1_000)]

    def worked_off(self) -> Counter[int]:
        """Redrive everything, and let a worker with a ledger handle it."""
        app = App()

        @app.handler(self.queue)
        def ship(order: dict[str, Any], ctx: Context) -> None:
            self.effects[order["n"]] += 1

        job = Job("redrive", self.dead).run(
            Redriver(RedrivePlan(queue=self.dead, all=True, canary=0), self.place.client).run
        )
        assert job.state == "done", job.reason
        self.place.worker(app).drain()
        return self.effects


@pytest.mark.parametrize(("fifo", "admitted"), WAYS)
@pytest.mark.parametrize(("point", "nth"), [("after_snapshot", 1), ("after_snapshot", 3), ("after_delete", 1)])
def test_a_delete_that_is_killed_loses_nothing_and_is_finished_by_the_next(
    place: Place, processes: Any, tmp_path: Path, point: str, nth: int, fifo: bool, admitted: bool
) -> None:
    case = Case(place, processes, tmp_path, fifo=fifo, admitted=admitted)
    assert case.delete("first.jsonl", point, nth)
    assert set(case.in_queue()) | set(case.kept()) == set(range(COUNT))
    assert sorted(set(case.in_queue())) == sorted(case.in_queue())
    assert not case.delete("second.jsonl", *NOWHERE)
    assert sorted(case.in_queue()) == list(range(18, COUNT))
    assert set(case.kept()) == set(range(18))
    for file in case.snapshots():
        assert not case.restore(file.name, *NOWHERE)
    assert case.worked_off() == Counter(dict.fromkeys(range(COUNT), 1))


@pytest.mark.parametrize(("fifo", "admitted"), WAYS)
@pytest.mark.parametrize(("point", "nth"), [("before_restore_send", 2), ("after_restore_send", 1)])
def test_a_restore_that_is_killed_loses_nothing_and_what_comes_twice_is_done_once(
    place: Place, processes: Any, tmp_path: Path, point: str, nth: int, fifo: bool, admitted: bool
) -> None:
    case = Case(place, processes, tmp_path, fifo=fifo, admitted=admitted)
    assert not case.delete("all.jsonl", *NOWHERE)
    assert case.restore("all.jsonl", point, nth)
    assert not case.restore("all.jsonl", *NOWHERE)
    copies = Counter(case.in_queue())
    assert set(copies) == set(range(COUNT))
    # A FIFO queue accepts each message once. In a Standard queue, only the batch that was under way may be there twice.
    assert sum(copies.values()) <= COUNT + (0 if fifo or point == "before_restore_send" else 10)
    assert case.worked_off() == Counter(dict.fromkeys(range(COUNT), 1))
