"""A redrive is killed with SIGKILL in each of its phases, and run again: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redrive_process

from dlq.redrives import Site
from driven import Place, place_of
from semel import App, Context
from semel.broker import running
from semel.dlq.jobs import Job, State

_cases = itertools.count()
WHERE = 'not error ~ "another story"'
PATIENCE = 30.0

# The point at which it dies, which passing of that point kills it (1 is the first), and options of its plan.
DEATHS: list[tuple[str, int, dict[str, Any]]] = [
    ("after_claim", 1, {}),
    ("after_claim", 2, {"rate": 7}),
    ("before_send", 2, {}),
    ("after_send", 1, {}),
    ("after_send", 3, {"rate": 9}),
    ("after_delete", 1, {}),
    ("between_rounds", 2, {"rate": 8}),
    ("before_release", 1, {}),
    ("after_send", 1, {"canary": 3}),
    ("canary_sent", 1, {"canary": 3}),
    ("waiting", 1, {"canary": 3}),
    ("after_canary", 1, {"canary": 3}),
    ("after_send", 2, {"canary": 3}),
    ("after_send", 1, {"limit": 5}),
]


@pytest.fixture(scope="module")
def processes() -> Any:
    """Forks new processes from one that has already imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["redrive_process"])
    return context


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running(clock="manual", cooldowns=False) as broker, place_of(broker) as place:
        yield place


class Effects:
    """The effects of a worker, by name. The key is the message's id, unless the message carries another one."""

    def __init__(self, place: Place, queue: str) -> None:
        self.done: Counter[str] = Counter()
        self.order: list[str] = []
        app = App()

        @app.handler(queue)
        def ship(order: dict[str, str], ctx: Context) -> None:
            self.done[order["name"]] += 1
            self.order.append(order["name"])

        self.driver = place.worker(app)

    def work(self) -> None:
        self.driver.drain()


def filled(place: Place, *, fifo: bool) -> tuple[Site, list[str], list[str]]:
    """A dead-letter queue with messages that Semel dead-lettered, others that SQS moved, and some that do not match."""
    for queue in place.client.queues():
        queue.drop()
    site = Site(place, "", place.client, fifo=fifo)
    # The first character is the group. The names are new in each case, because the ledger knows the earlier ones.
    case = next(_cases)
    names = [f"{group}{n}/{case}" for n in range(4) for group in "abcde"]
    others = [f"{name}/{case}" for name in ("f0", "g0", "h0")]
    site.dead_letter(*names[:7])
    site.moved(*names[7:14])
    site.dead_letter(*others, error="another story")
    site.dead_letter(*names[14:])
    assert len(site.dead_names()) == len(names) + len(others)
    return site, names, others


@pytest.mark.parametrize(
    "admitted", [pytest.param(True, id="broker"), pytest.param(False, id="sqs", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize("death", range(len(DEATHS)), ids=[f"{p}-{n}-{'-'.join(o)}" for p, n, o in DEATHS])
def test_whenever_it_dies_a_second_run_completes_it_once(
    place: Place, processes: Any, death: int, fifo: bool, admitted: bool
) -> None:
    point, nth, options = DEATHS[death]
    # Whether the copies of the first run are processed before the second run. Each combination of `fifo` and `admitted`
    # has cases of both.
    worked = (death + fifo + admitted) % 2 == 0
    there, names, others = filled(place, fifo=fifo)
    place.clock.advance(1)
    effects = Effects(place, there.queue)
    # With SQS's calls only and no ledger, a canary that does not come back in time counts as a success.
    plan = {
        "queue": there.dead,
        "where": WHERE,
        "engine": "stream",
        "canary": 0,
        "canary_wait": 3_600 if admitted else 1,
    } | options
    ahead = place.clock.now() - time.time()

    died = processes.Process(
        target=redrive_process.main, args=(place.broker.url, json.dumps(plan), admitted, ahead, point, nth)
    )
    died.start()
    # Canaries need a worker. To die while waiting for them, the redrive must have none.
    _attend(died, effects if "canary" in options and point != "waiting" else None, place)
    assert died.exitcode == -signal.SIGKILL, f"{point} was not passed {nth} times"

    # In-flight messages come back when their visibility timeout ends. A FIFO queue deduplicates copies after 200 s, but
    # no longer after 400 s.
    place.clock.advance(400 if worked else 200)
    if worked:
        effects.work()
    again = Job("redrive", there.dead)
    with redrive_process.client_for(place.broker.url, admitted=admitted) as client:
        rest = {"queue": there.dead, "where": WHERE, "engine": "stream", "canary": 0}
        ahead = place.clock.now() + 1 - time.time()
        place.clock.advance(1)
        again.run(redrive_process.redriver(client, rest, admitted=admitted, ahead=ahead, crash=lambda _point: None).run)
    assert (again.state, again.reason) == (State.DONE, "")
    for _ in range(4):
        effects.work()
        place.clock.advance(31)

    assert effects.done == dict.fromkeys(names, 1)
    assert sorted(there.dead_names("visible")) == sorted(others)
    assert place.is_empty(there.queue)
    if fifo:
        for group in "abcde":
            mine = [name for name in effects.order if name[0] == group]
            assert mine == sorted(mine), "the order of a group was lost"


def _attend(process: Any, effects: Effects | None, place: Place) -> None:
    """Wait until the process ends. `effects`: a worker that runs meanwhile, if any."""
    until = time.monotonic() + PATIENCE
    while process.is_alive() and time.monotonic() < until:
        if effects is not None:
            effects.work()
        process.join(0.02)
    assert not process.is_alive()
