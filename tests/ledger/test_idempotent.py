"""`@idempotent`: the function runs once for each key, and other calls get the stored result; sync and async."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import os
import signal
import threading
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import pytest

from ledger.asking import LEASE, at_once, entry, finish, win
from ledger.stores import Shift
from semel.ledger.contract import MAX_RESULT, Claim, Fenced, Ledger, LedgerError, LedgerUnavailable, Status
from semel.ledger.idempotent.decorator import InProgress, PayloadConflict, ResultNotKept, idempotent
from semel.ledger.idempotent.lease_extender import extender_of
from semel.ledger.sqlite.ledger import SqliteLedger


@pytest.fixture
def clock() -> Shift:
    return Shift()


@pytest.fixture
def ledger(clock: Shift) -> Iterator[SqliteLedger]:
    with SqliteLedger(":memory:", clock=clock) as ledger:
        yield ledger


class Order(NamedTuple):
    id: int
    item: str = ""


class Failing(SqliteLedger):
    """Raises `errors`, one a call, and for the `refused` keys; calls `on_success` after that."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.errors: list[BaseException] = []
        self.refused: set[str] = set()
        self.on_success: Callable[[], None] = lambda: None

    def extend(self, claims: Sequence[Claim], lease: float, *, timeout: float | None = None) -> list[bool]:
        if self.errors:
            raise self.errors.pop()
        if any(claim.key in self.refused for claim in claims):
            raise LedgerError("it does not take this key")
        extensions = super().extend(claims, lease, timeout=timeout)
        self.on_success()
        return extensions


class TestOnce:
    def test_a_second_call_gets_the_stored_result_and_does_not_run(self, ledger: Ledger) -> None:
        ran: list[str] = []

        @idempotent(ledger, key="order_id")
        def charge(order_id: str, cents: int) -> dict[str, Any]:
            """Charge it."""
            ran.append(order_id)
            return {"order": order_id, "cents": cents, "number": len(ran)}

        first = charge("o-1", 500)
        assert charge("o-1", cents=500) == first == {"order": "o-1", "cents": 500, "number": 1}
        assert charge(order_id="o-2", cents=1)["number"] == 2
        assert ran == ["o-1", "o-2"]
        assert (charge.__name__, charge.__doc__) == ("charge", "Charge it.")  # type: ignore[attr-defined]

    @pytest.mark.parametrize("value", [None, 0, False, "", [], {}, "text", [1, {"a": None}], 1.5])
    def test_any_result_of_json_comes_back(self, ledger: Ledger, value: Any) -> None:
        ran = []

        @idempotent(ledger, key="number")
        def give(number: int) -> Any:
            ran.append(number)
            return value

        assert [give(1), give(1)] == [value, value]
        assert ran == [1]

    def test_other_codings_may_be_used(self, ledger: Ledger) -> None:
        def encode(order: Order) -> bytes:
            return f"{order.id}/{order.item}".encode()

        def decode(text: bytes) -> Order:
            number, item = text.decode().split("/")
            return Order(int(number), item)

        @idempotent(ledger, key="number", encode=encode, decode=decode)
        def make(number: int) -> Order:
            return Order(number, "cup")

        assert [make(1), make(1)] == [Order(1, "cup"), Order(1, "cup")]

    def test_an_exception_goes_to_the_caller_and_the_next_call_runs(self, ledger: Ledger) -> None:
        ran = []

        @idempotent(ledger, key="number")
        def shaky(number: int) -> int:
            ran.append(number)
            if len(ran) == 1:
                raise ConnectionError("the shop is closed")
            return number

        with pytest.raises(ConnectionError, match="closed"):
            shaky(7)
        assert shaky(7) == shaky(7) == 7
        assert ran == [7, 7]

    def test_a_cleared_key_runs_again(self, ledger: Ledger) -> None:
        ran = []

        @idempotent(ledger, key="number")
        def work(number: int) -> int:
            ran.append(number)
            return len(ran)

        assert [work(1), work(2)] == [1, 2]
        assert work.clear("1")
        assert work.clear(work.key_of(2))
        assert not work.clear("3")
        assert [work(1), work(2)] == [3, 4]

    def test_a_result_is_remembered_for_as_long_as_asked(self, ledger: Ledger, clock: Shift) -> None:
        ran = []

        @idempotent(ledger, key="number", retention=60)
        def work(number: int) -> int:
            ran.append(number)
            return len(ran)

        assert work(1) == 1
        clock.advance(59)
        assert work(1) == 1
        clock.advance(2)
        assert work(1) == 2

    def test_a_method_is_bound_as_ever(self, ledger: Ledger) -> None:
        class Till:
            def __init__(self) -> None:
                self.takings = 0

            @idempotent(ledger, key="{sale}")
            def take(self, sale: str, cents: int) -> int:
                self.takings += cents
                return self.takings

        till = Till()
        assert till.take("s-1", 5) == till.take("s-1", cents=5) == 5
        assert till.takings == 5

    def test_a_ledger_may_come_later(self, ledger: Ledger) -> None:
        opened: list[Ledger] = []

        @idempotent(lambda: opened[0], key="number")
        def work(number: int) -> int:
            return number

        opened.append(ledger)
        assert work(1) == work(1) == 1

    def test_a_crash_in_the_middle_is_taken_over_when_the_lease_ends(self, ledger: Ledger, clock: Shift) -> None:
        @idempotent(ledger, key="number", name="work")
        def work(number: int) -> str:
            return "done by the second"

        win(ledger, "work:1")  # by a process that is no more
        with pytest.raises(InProgress):
            work(1)
        clock.advance(LEASE + 1)
        assert work(1) == "done by the second"


class TestKeys:
    def test_a_key_may_be_a_format_or_a_function_of_the_arguments(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="{order.id}/{how[0]}/{kind}", name="f")
        def formatted(order: Order, *how: str, kind: str = "usual") -> None: ...

        @idempotent(ledger, key=lambda order, **_: f"n{order.id}", name="")
        def computed(order: Order, **options: int) -> None: ...

        assert formatted.key_of(Order(7), "fast") == "f:7/fast/usual"
        assert computed.key_of(Order(7), a=1) == "n7"

    def test_functions_do_not_meet_in_one_ledger_unless_they_share_a_name(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="number")
        def first(number: int) -> str:
            return "one"

        @idempotent(ledger, key="number")
        def second(number: int) -> str:
            return "two"

        assert (first(1), second(1)) == ("one", "two")
        assert first.key_of(1).startswith(f"{__name__}.")

    @pytest.mark.parametrize("value", [uuid.UUID(int=5), 5, "5", Status.DONE])
    def test_an_argument_of_a_plain_kind_is_a_key(self, ledger: Ledger, value: Any) -> None:
        @idempotent(ledger, key="it", name="f")
        def work(it: Any) -> None: ...

        assert work.key_of(value) == f"f:{value}"

    @pytest.mark.parametrize("value", [None, "", object(), [1], {"a": 1}, 0.1])
    def test_what_could_differ_from_run_to_run_is_no_key(self, ledger: Ledger, value: Any) -> None:
        @idempotent(ledger, key="it")
        def work(it: Any) -> None: ...

        with pytest.raises(LedgerError, match="cannot be a key"):
            work(value)

    def test_a_format_that_shows_a_place_in_memory_is_refused(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="x-{it}")
        def work(it: object) -> None: ...

        with pytest.raises(LedgerError, match="memory"):
            work(object())

    def test_a_key_of_an_argument_that_is_not_there_is_refused_at_once(self, ledger: Ledger) -> None:
        decorate = idempotent(ledger, key="order_id")
        with pytest.raises(LedgerError, match=r"no argument 'order_id'.*it has number"):
            decorate(lambda number: number)

    def test_a_format_that_does_not_fit_says_so(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="{order.number}")
        def work(order: Order) -> None: ...

        with pytest.raises(LedgerError, match="does not fit"):
            work(Order(1))

    def test_wrong_arguments_are_a_type_error_as_without_the_decorator(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="number")
        def work(number: int) -> None: ...

        with pytest.raises(TypeError):
            work()  # type: ignore[call-arg]


class TestPayload:
    def test_the_same_key_with_other_arguments_is_a_conflict(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="order_id", payload=["cents", "to"])
        def pay(order_id: str, cents: int, to: str = "shop", *, trace: str = "") -> str:
            return "paid"

        assert pay("o-1", 500, trace="x") == pay("o-1", cents=500, to="shop", trace="y") == "paid"
        with pytest.raises(PayloadConflict, match="is done") as raised:
            pay("o-1", 501)
        assert raised.value.recorded

    def test_a_conflict_with_a_call_under_way_says_so(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="order_id", payload="cents")
        def pay(order_id: str, cents: int) -> None:
            if cents == 1:
                pay(order_id, 2)

        with pytest.raises(PayloadConflict) as raised:
            pay("o-1", 1)
        assert not raised.value.recorded

    def test_all_kinds_of_arguments_can_be_digested(self, ledger: Ledger) -> None:
        @dataclasses.dataclass
        class Box:
            sides: set[int]
            raw: bytes

        @idempotent(ledger, key="number", payload=lambda number, box: box)
        def pack(number: int, box: Box) -> str:
            return "packed"

        assert pack(1, Box({3, 1}, b"\xff")) == pack(1, Box({1, 3}, b"\xff"))
        with pytest.raises(PayloadConflict):
            pack(1, Box({1, 3}, b"\xfe"))

    def test_the_order_of_the_names_in_a_dictionary_does_not_matter(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="number", payload="options")
        def work(number: int, options: dict[str, int]) -> str:
            return "done"

        assert work(1, {"a": 1, "b": 2}) == work(1, {"b": 2, "a": 1})

    def test_what_cannot_be_digested_is_refused_before_anything_runs(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="number", payload=["it"])
        def work(number: int, it: object) -> None:
            raise AssertionError

        with pytest.raises(LedgerError, match="digested"):
            work(1, object())


class TestResultsThatCannotBeKept:
    @pytest.mark.parametrize("result", [object(), "x" * MAX_RESULT], ids=["no JSON", "too large"])
    def test_they_are_reported_and_the_function_does_not_run_again(self, ledger: Ledger, result: Any) -> None:
        ran = []

        @idempotent(ledger, key="number")
        def work(number: int) -> Any:
            ran.append(number)
            return result

        for _ in range(2):
            with pytest.raises(ResultNotKept, match="has run"):
                work(1)
        assert ran == [1]


def work_that_waits(
    ledger: Ledger, **options: Any
) -> tuple[Callable[[int], int], threading.Event, threading.Event, list[int]]:
    """A function that waits for `go`, sets `running` when it started, and notes that it ran."""
    running, go, ran = threading.Event(), threading.Event(), list[int]()

    @idempotent(ledger, key="number", **options)
    def work(number: int) -> int:
        ran.append(number)
        running.set()
        assert go.wait(60)
        return 10 * number

    return work, running, go, ran


class TestConcurrent:
    def test_raise_tells_a_second_call_at_once_that_one_is_running(self, ledger: Ledger) -> None:
        work, running, go, ran = work_that_waits(ledger)

        def second() -> int:
            assert running.wait(60)
            with pytest.raises(InProgress) as raised:
                work(1)
            assert 0 < raised.value.remaining <= 60
            go.set()
            return 0

        assert at_once([lambda: work(1), second]) == [10, 0]
        assert ran == [1]

    def test_wait_gives_all_calls_the_result_of_the_one_that_runs(self, ledger: Ledger) -> None:
        work, running, go, ran = work_that_waits(ledger, concurrent="wait")

        def let_it_go() -> int:
            assert running.wait(60)
            go.set()
            return 0

        assert at_once([*[lambda: work(1)] * 6, let_it_go]) == [*[10] * 6, 0]
        assert ran == [1]

    def test_one_that_waits_runs_itself_if_the_first_fails(self, ledger: Ledger) -> None:
        running, go, ran = threading.Event(), threading.Event(), list[str]()

        @idempotent(ledger, key="number", concurrent="wait")
        def work(number: int, who: str) -> str:
            ran.append(who)
            if who == "first":
                running.set()
                assert go.wait(60)
                raise ValueError("no")
            return who

        def first() -> str:
            with pytest.raises(ValueError):
                work(1, "first")
            return "failed"

        def second() -> str:
            assert running.wait(60)
            threading.Timer(0.01, go.set).start()
            return work(1, "second")

        assert at_once([first, second]) == ["failed", "second"]
        assert ran == ["first", "second"]

    def test_waiting_ends_with_the_timeout(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="number", name="work", concurrent="wait", timeout=0.05)
        def work(number: int) -> None: ...

        win(ledger, "work:1")
        with pytest.raises(InProgress, match="'work:1'"):
            work(1)


class TestLease:
    def test_a_zombie_raises_rather_than_return_what_is_not_recorded(self, ledger: Ledger, clock: Shift) -> None:
        ran = []

        @idempotent(ledger, key="number", name="work", lease=30)
        def work(number: int) -> str:
            ran.append(number)
            clock.advance(31)
            assert finish(ledger, win(ledger, "work:1").claim, result=b'"successor"')
            return "zombie"

        with pytest.raises(Fenced, match="'work:1'"):
            work(1)
        assert work(1) == "successor"
        assert ran == [1]

    def test_a_failing_zombie_does_not_take_the_key_from_its_successor(self, ledger: Ledger, clock: Shift) -> None:
        @idempotent(ledger, key="number", name="work", lease=30)
        def work(number: int) -> str:
            clock.advance(31)
            win(ledger, "work:1", claimant="successor")
            raise ValueError("zombie")

        with pytest.raises(ValueError, match="zombie"):
            work(1)
        assert (entry(ledger, "work:1").status, entry(ledger, "work:1").claimant) == (Status.CLAIMED, "successor")

    def test_the_lease_is_extended_while_the_function_runs(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="number", name="work", lease=0.3)
        def work(number: int) -> bool:
            first = entry(ledger, "work:1").lease_ends
            deadline = time.monotonic() + 60
            while entry(ledger, "work:1").lease_ends == first and time.monotonic() < deadline:
                time.sleep(0.01)
            return entry(ledger, "work:1").lease_ends > first

        assert work(1)

    def test_the_thread_that_extends_is_one_for_all_and_ends_with_the_last_call(self, ledger: Ledger) -> None:
        works = [work_that_waits(ledger, name=f"work-{n}") for n in range(5)]
        before = threading.enumerate()
        threads = [threading.Thread(target=work, args=(1,)) for work, *_ in works]
        for thread in threads:
            thread.start()
        for _, running, _, _ in works:
            assert running.wait(60)
        extending = [it for it in threading.enumerate() if it.name == "semel-leases" and it not in before]
        assert len(extending) == 1
        for _, _, go, _ in works:
            go.set()
        for thread in [*threads, *extending]:
            thread.join(60)
            assert not thread.is_alive()

    def test_a_lease_that_another_has_taken_over_is_not_extended_any_more(self, ledger: Ledger) -> None:
        before = threading.enumerate()
        extender_of(ledger).start(ledger, Claim("never claimed", 1), 0.01, time.monotonic())
        for thread in [it for it in threading.enumerate() if it.name == "semel-leases" and it not in before]:
            thread.join(60)
            assert not thread.is_alive()

    @pytest.mark.parametrize("error", [LedgerUnavailable("away"), LedgerError("full"), RuntimeError("a driver's own")])
    def test_whatever_the_ledger_raises_leases_go_on_being_extended(self, error: Exception) -> None:
        with Failing(":memory:") as ledger:
            extended = threading.Event()

            @idempotent(ledger, key="number", lease=0.06)
            def work(number: int) -> bool:
                ledger.errors = [error] * 20  # longer than the lease
                ledger.on_success = extended.set
                return extended.wait(60)

            assert work(1)
            assert not ledger.errors

    def test_a_lease_that_the_ledger_refuses_to_extend_holds_up_no_other(self) -> None:
        with Failing(":memory:") as ledger:
            win(ledger, "good")
            extender = extender_of(ledger)
            extended = threading.Event()
            ledger.refused = {"bad"}
            ledger.on_success = extended.set
            now = time.monotonic()
            running = [extender.start(ledger, Claim(key, 1), 0.05, now) for key in ("bad", "good")]
            assert extended.wait(60)
            for lease in running:
                extender.stop(lease)

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_a_thread_that_was_ended_is_started_again_by_the_next_call(self) -> None:
        with Failing(":memory:") as ledger:
            extender = extender_of(ledger)
            win(ledger, "a")
            win(ledger, "b")
            ledger.errors = [GeneratorExit()]
            before = threading.enumerate()
            first = extender.start(ledger, Claim("a", 1), 0.01, time.monotonic())
            for thread in [it for it in threading.enumerate() if it.name == "semel-leases" and it not in before]:
                thread.join(60)
            extended = threading.Event()
            ledger.on_success = extended.set
            second = extender.start(ledger, Claim("b", 1), 0.01, time.monotonic())
            assert extended.wait(10)
            extender.stop(first)
            extender.stop(second)

    def test_a_thread_that_cannot_be_started_is_the_error_of_its_call_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with Failing(":memory:") as ledger:
            extender = extender_of(ledger)
            win(ledger, "a")
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                with pytest.raises(RuntimeError, match="new thread"):
                    extender.start(ledger, Claim("a", 1), 0.01, time.monotonic())
            extended = threading.Event()
            ledger.on_success = extended.set
            lease = extender.start(ledger, Claim("a", 1), 0.01, time.monotonic())
            assert extended.wait(10)
            extender.stop(lease)

    def test_a_forked_child_extends_leases_with_a_thread_of_its_own(self, ledger: Ledger) -> None:
        lease = extender_of(ledger).start(ledger, Claim("a", 1), 60, time.monotonic())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork with threads
            child = os.fork()
        if child == 0:
            signal.alarm(60)  # it must not outlive the test
            started = False
            try:
                extender_of(ledger).start(ledger, Claim("b", 1), 60, time.monotonic())
                started = any(it.name == "semel-leases" for it in threading.enumerate())
            finally:
                os._exit(0 if started else 1)
        extender_of(ledger).stop(lease)
        assert os.waitpid(child, 0)[1] == 0

    def test_a_release_that_fails_does_not_hide_what_went_wrong(self) -> None:
        ledger = SqliteLedger(":memory:")

        @idempotent(ledger, key="number")
        def work(number: int) -> None:
            ledger.close()
            raise ValueError("the real reason")

        with pytest.raises(ValueError, match="the real reason") as raised:
            work(1)
        assert "until its lease ends" in raised.value.__notes__[0]


class TestAsync:
    def test_a_second_call_gets_the_stored_result(self, ledger: Ledger) -> None:
        ran = []

        @idempotent(ledger, key="number")
        async def work(number: int) -> list[int]:
            await asyncio.sleep(0)
            ran.append(number)
            return [number]

        async def twice() -> list[list[int]]:
            return [await work(1), await work(1)]

        assert asyncio.iscoroutinefunction(work)
        assert asyncio.run(twice()) == [[1], [1]]
        assert ran == [1]

    @pytest.mark.parametrize("how", ["raise", "wait"])
    def test_others_wait_or_raise_without_blocking_the_loop(
        self, ledger: Ledger, how: Literal["raise", "wait"]
    ) -> None:
        ran = []

        async def story() -> list[int | BaseException]:
            running, go = asyncio.Event(), asyncio.Event()

            @idempotent(ledger, key="number", concurrent=how)
            async def work(number: int) -> int:
                ran.append(number)
                running.set()
                await go.wait()
                return number

            first = asyncio.create_task(work(1))
            await running.wait()
            others = [asyncio.create_task(work(1)) for _ in range(4)]
            if how == "raise":
                await asyncio.wait(others)
            go.set()
            return await asyncio.gather(first, *others, return_exceptions=True)

        first, *others = asyncio.run(story())
        assert first == 1
        assert [type(it) for it in others] == [int if how == "wait" else InProgress] * 4
        assert ran == [1]

    def test_an_exception_and_a_cancellation_give_the_claim_back(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="number", name="work")
        async def work(number: int, how: str) -> str:
            if how == "fail":
                raise ValueError("no")
            if how == "hang":
                started.set()
                await asyncio.Event().wait()
            return how

        async def story() -> str:
            with pytest.raises(ValueError):
                await work(1, "fail")
            task = asyncio.create_task(work(1, "hang"))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert entry(ledger, "work:1").status is Status.FREE
            return await work(1, "work")

        started = asyncio.Event()
        assert asyncio.run(story()) == "work"

    def test_a_call_that_is_cancelled_while_it_claims_gives_back_what_it_won(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="number", name="work")
        async def work(number: int) -> None:
            raise AssertionError("cancelled before")

        async def story() -> None:
            task = asyncio.create_task(work(1))
            await asyncio.sleep(0)  # it has asked, and has no answer yet
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(story())
        (entry,) = ledger.get(["work:1"])
        assert entry is None or entry.status is Status.FREE


async def ship(number: int) -> str:
    return f"shipped {number}"


def count_down(number: int) -> Iterator[int]:
    yield number


async def count_down_slowly(number: int) -> AsyncIterator[int]:
    yield number


class TestNotRun:
    @pytest.mark.parametrize("work", [ship, count_down, count_down_slowly])
    def test_a_result_that_was_not_awaited_or_iterated_over_is_a_failure_and_the_next_call_tries_again(
        self, ledger: Ledger, work: Callable[[int], Any]
    ) -> None:
        @idempotent(ledger, key="number", name="work")
        def plain(number: int) -> Any:
            return work(number)

        for _ in range(2):
            with pytest.raises(LedgerError, match="its work is not done"):
                plain(1)
        assert entry(ledger, "work:1").status is Status.FREE
        gc.collect()

    def test_a_partial_that_returns_a_coroutine_has_failed_too(self, ledger: Ledger) -> None:
        careless: Callable[..., Any] = functools.partial(lambda number: ship(number))
        plain = idempotent(ledger, key="number", name="work")(careless)
        with pytest.raises(LedgerError, match=r"functools.partial.* returned a coroutine"):
            plain(number=1)
        assert entry(ledger, "work:1").status is Status.FREE
        gc.collect()

    def test_an_async_function_that_only_returns_a_coroutine_has_failed_too(self, ledger: Ledger) -> None:
        @idempotent(ledger, key="number", name="work")
        async def careless(number: int) -> Any:
            return ship(number)

        with pytest.raises(LedgerError, match="a coroutine"):
            asyncio.run(careless(1))
        assert entry(ledger, "work:1").status is Status.FREE
        gc.collect()

    @pytest.mark.parametrize("work", [ship, count_down, count_down_slowly])
    def test_what_can_be_seen_to_run_nothing_is_refused_at_once(
        self, ledger: Ledger, work: Callable[[int], Any]
    ) -> None:
        @functools.wraps(work)
        def logged(number: int) -> Any:
            return work(number)

        with pytest.raises(LedgerError, match=r"async|generator"):
            idempotent(ledger, key="number")(logged)


class TestRefused:
    @pytest.mark.parametrize("work", [count_down, count_down_slowly])
    def test_generators_are_refused(self, ledger: Ledger, work: Callable[[int], Any]) -> None:
        with pytest.raises(LedgerError, match="generator"):
            idempotent(ledger, key="number")(work)

    @pytest.mark.parametrize("options", [{"concurrent": "hope"}, {"encode": str.encode}, {"decode": bytes.decode}])
    def test_options_that_make_no_sense_are_refused(self, ledger: Ledger, options: Any) -> None:
        with pytest.raises(LedgerError):
            idempotent(ledger, key="number", **options)

    def test_while_the_ledger_is_away_nothing_runs(self) -> None:
        ledger = SqliteLedger(":memory:")
        ledger.close()

        @idempotent(ledger, key="number")
        def work(number: int) -> None:
            raise AssertionError

        with pytest.raises(LedgerError):
            work(1)
