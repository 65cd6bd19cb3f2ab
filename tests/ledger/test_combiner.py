"""Calls of many threads over a few connections: who is served, when, and with which result."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from semel.ledger.combiner import Call, Closed, Combiner, NoTurn
from semel.ledger.contract import LedgerUnavailable
from waiting import until


class Served:
    """What is served, and when: each group waits until it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []
        self.disposed: list[str] = []
        self.go = threading.Event()
        self.combiner = Combiner(["connection"], self.serve, dispose=self.disposed.append, most=10)

    def serve(self, _connection: str, calls: list[Call]) -> None:
        self.groups.append([call.work for call in calls])
        assert self.go.wait(60)
        for call in calls:
            if call.work == "bad":
                call.end(error=ValueError("bad"))
            else:
                call.end(f"{call.work}!")

    def call(self, work: str, *, kind: str = "read", seconds: float = 60.0, size: int = 1) -> Any:
        return self.combiner.run(Call(work, kind=kind, deadline=time.monotonic() + seconds, size=size))


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def waiting(served: Served, count: int) -> None:
    until(lambda: len(served.combiner._queue) == count)


def test_those_that_come_while_one_is_served_go_together_and_each_gets_its_own_answer(
    served: Served, threads: ThreadPoolExecutor
) -> None:
    answers = [threads.submit(served.call, "a")]
    until(lambda: served.groups == [["a"]])
    for number, work in enumerate(("b", "bad", "c"), start=1):
        answers.append(threads.submit(served.call, work))
        waiting(served, number)
    served.go.set()
    assert [answers[n].result(60) for n in (0, 1, 3)] == ["a!", "b!", "c!"]
    with pytest.raises(ValueError, match="bad"):
        answers[2].result(60)
    assert served.groups == [["a"], ["b", "bad", "c"]]


def test_only_calls_of_one_kind_go_together_and_no_more_than_fit(served: Served, threads: ThreadPoolExecutor) -> None:
    threads.submit(served.call, "first")
    until(lambda: bool(served.groups))
    for number, (work, kind, size) in enumerate(
        [("a", "read", 6), ("w", "write", 1), ("b", "read", 4), ("c", "read", 1), ("x", "write", 1)], start=1
    ):
        threads.submit(served.call, work, kind=kind, size=size)
        waiting(served, number)
    served.go.set()
    until(lambda: len(served.groups) == 4)
    assert served.groups[1:] == [["a", "b"], ["w", "x"], ["c"]]


def test_who_borrows_the_connection_has_it_alone_and_is_not_overtaken(
    served: Served, threads: ThreadPoolExecutor
) -> None:
    threads.submit(served.call, "first")
    until(lambda: bool(served.groups))
    threads.submit(served.call, "before")
    waiting(served, 1)
    borrowed = threads.submit(served.combiner.borrow, time.monotonic() + 60)
    waiting(served, 2)
    after = threads.submit(served.call, "after")
    waiting(served, 3)
    served.go.set()
    assert borrowed.result(60) == "connection"
    waiting(served, 1)
    assert served.groups == [["first"], ["before"]]
    served.combiner.give_back("connection")
    assert after.result(60) == "after!"


def test_nobody_waits_for_a_turn_past_its_deadline(served: Served, threads: ThreadPoolExecutor) -> None:
    first = threads.submit(served.call, "first")
    until(lambda: bool(served.groups))
    with pytest.raises(NoTurn):
        served.call("late", seconds=0.01)
    served.go.set()
    assert first.result(60) == "first!"
    assert served.groups == [["first"]]


def test_an_interrupted_leader_tells_those_that_it_was_leading(threads: ThreadPoolExecutor) -> None:
    began, others = threading.Event(), list[Any]()

    def serve(_connection: str, calls: list[Call]) -> None:
        if calls[0].work == "first":
            assert began.wait(60)
            calls[0].end()
        elif calls[0].work == "leads":
            raise KeyboardInterrupt
        else:
            calls[0].end("served")

    combiner = Combiner(["connection"], serve, dispose=lambda _: None, most=10)

    def call(work: str) -> Any:
        return combiner.run(Call(work, kind="any", deadline=time.monotonic() + 60))

    first = threads.submit(call, "first")
    until(lambda: not combiner._free)
    for number, work in enumerate(("leads", "goes along"), start=1):
        others.append(threads.submit(call, work))
        until(lambda number=number: len(combiner._queue) == number)  # type: ignore[misc]
    began.set()
    first.result(60)
    with pytest.raises(KeyboardInterrupt):
        others[0].result(60)
    with pytest.raises(LedgerUnavailable, match="interrupted"):
        others[1].result(60)
    assert call("next") == "served"


def test_a_thread_that_is_interrupted_while_it_waits_leaves_its_place_to_others(
    served: Served, threads: ThreadPoolExecutor
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        first = threads.submit(served.call, "first")
        until(lambda: bool(served.groups))

        def interrupt() -> None:
            waiting(served, 1)
            signal.pthread_kill(main, signal.SIGUSR1)

        threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            served.call("mine")
    finally:
        signal.signal(signal.SIGUSR1, before)
    served.go.set()
    assert first.result(60) == "first!"
    assert served.call("next") == "next!"


def test_a_close_refuses_new_calls_and_lets_those_that_were_made_end(
    served: Served, threads: ThreadPoolExecutor
) -> None:
    first = threads.submit(served.call, "first")
    until(lambda: bool(served.groups))
    second = threads.submit(served.call, "second")
    waiting(served, 1)
    assert not served.combiner.close(0.01)
    with pytest.raises(Closed):
        served.call("late")
    assert served.disposed == []
    served.go.set()
    assert (first.result(60), second.result(60)) == ("first!", "second!")
    assert served.combiner.close(60)
    assert served.disposed == ["connection"]
