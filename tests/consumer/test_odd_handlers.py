"""Handlers with odd return values, exceptions and parameters. None of them loses a message, ends a thread or stops the
app."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from driven import Place, dead_letter_details, new_place
from running_apps import client_of, running_app, send
from semel import App, Batch, Context, Fixed, Reject, Retry, SemelError, Transaction
from semel.broker import EmbeddedBroker, running
from semel.consumer.backoff import Exponential
from semel.ledger.contract import MAX_RESULT, Status
from semel.ledger.sqlite.ledger import SqliteLedger
from semel.messages.visibility import LONGEST
from semel.telemetry.logs import JsonFormatter, TextFormatter
from waiting import until


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq="dead")
        yield place


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running() as broker:
        yield broker


@pytest.fixture
def app(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[App]:
    with SqliteLedger(str(tmp_path / "ledger.db")) as ledger, client_of(broker) as client:
        client.create_queue("orders")
        yield App(ledger, client=client, wait=1)


# What is only promised.


def nobody() -> int:
    raise AssertionError("nobody is to run this")


async def ship(order: dict[str, Any]) -> None:
    nobody()


def ship_parts(order: dict[str, Any]) -> Iterator[int]:
    yield nobody()


async def ship_parts_slowly(order: dict[str, Any]) -> AsyncIterator[int]:
    yield nobody()


class Promise:
    """Can be awaited, and is no coroutine."""

    def __await__(self) -> Iterator[Any]:
        yield nobody()


def ship_by_promise(order: dict[str, Any]) -> Promise:
    return Promise()


LAZY = [ship, ship_parts, ship_parts_slowly, ship_by_promise]


class TestNotRun:
    @pytest.fixture(autouse=True)
    def no_warning_is_left(self) -> Iterator[None]:
        yield
        gc.collect()  # of a coroutine that was never awaited

    def failed(self, place: Place, app: App) -> None:
        """Not done, not deleted: the message is tried again, and says why in the end."""
        place.send({"id": 7})
        worker = place.worker(app, retry=Fixed(5), max_attempts=2)
        assert worker.drain() == 0
        assert len(place.messages("orders")) == 1
        place.clock.advance(5)
        assert worker.drain() == 0
        (dead,) = place.messages("dead")
        assert "its work is not done" in dead_letter_details(dead)["error"]
        assert place.known("7").status is Status.REJECTED

    @pytest.mark.parametrize("work", LAZY)
    def test_a_handler_that_returns_what_nobody_runs_has_failed(self, place: Place, work: Callable[..., Any]) -> None:
        app = App()

        @app.handler("orders", key="$.id")
        def handle(order: dict[str, Any]) -> Any:
            return work(order)

        self.failed(place, app)

    @pytest.mark.parametrize("work", LAZY)
    def test_its_transaction_is_undone(self, place: Place, work: Callable[..., Any]) -> None:
        app = App()
        with place.ledger.transaction() as tx:
            tx.execute("CREATE TABLE shipped (id)")

        @app.handler("orders", key="$.id")
        def handle(order: dict[str, Any], tx: Transaction) -> Any:
            tx.execute("INSERT INTO shipped VALUES (1)")
            return work(order)

        self.failed(place, app)
        with place.ledger.transaction() as tx:
            assert tx.execute("SELECT * FROM shipped").fetchall() == []

    @pytest.mark.parametrize("work", LAZY)
    def test_an_async_handler_that_returns_what_nobody_runs_has_failed(
        self, place: Place, work: Callable[..., Any]
    ) -> None:
        app = App()

        @app.handler("orders", key="$.id")
        async def handle(order: dict[str, Any]) -> Any:
            return work(order)

        self.failed(place, app)

    @pytest.mark.parametrize("work", LAZY)
    def test_a_batch_handler_that_returns_what_nobody_runs_has_failed(
        self, place: Place, work: Callable[..., Any]
    ) -> None:
        app = App()

        @app.batch_handler("orders", key="$.id")
        def handle(batch: Batch[dict[str, Any]]) -> Any:
            return work(batch[0].value)

        self.failed(place, app)

    def test_an_async_batch_handler_runs(self, place: Place) -> None:
        app, ran = App(), list[Any]()

        @app.batch_handler("orders", key="$.id")
        async def handle(batch: Batch[dict[str, Any]]) -> None:
            ran.extend(batch.values)

        place.send({"id": 7})
        assert place.worker(app).drain() == 1
        assert ran == [{"id": 7}]

    @pytest.mark.parametrize("batch", [False, True])
    @pytest.mark.parametrize("work", [ship_parts, ship_parts_slowly])
    def test_a_generator_is_refused_as_a_handler(self, work: Callable[..., Any], batch: bool) -> None:
        register = App().batch_handler if batch else App().handler
        with pytest.raises(SemelError, match=r"would never run: it is an? .*generator"):
            register("orders")(work)

    @pytest.mark.parametrize("work", [ship, ship_parts, ship_parts_slowly])
    def test_a_plain_decorator_around_what_it_does_not_run_is_refused(self, work: Callable[..., Any]) -> None:
        @functools.wraps(work)
        def timed(order: dict[str, Any]) -> Any:
            return work(order)

        class Logged:
            def __init__(self) -> None:
                functools.update_wrapper(self, work)

            def __call__(self, order: dict[str, Any]) -> Any:
                return work(order)

        @functools.wraps(timed)
        def twice(order: dict[str, Any]) -> Any:
            return timed(order)

        for handler in (timed, Logged(), twice, functools.update_wrapper(functools.partial(timed), timed)):
            with pytest.raises(SemelError, match=f"a plain function around {work.__qualname__}"):
                App().handler("orders")(handler)

    def test_an_object_and_a_partial_that_are_called_as_coroutines_are_async_handlers(self, place: Place) -> None:
        ran = []

        async def work(order: dict[str, Any]) -> None:
            ran.append(order["id"])

        class Shop:
            def __init__(self) -> None:
                functools.update_wrapper(self, work)

            async def __call__(self, order: dict[str, Any]) -> None:
                await work(order)

        handlers: list[Callable[..., Any]] = [Shop(), functools.update_wrapper(functools.partial(work), work)]
        for number, handler in enumerate(handlers):
            app = App()
            app.handler("orders", key="$.id")(handler)
            assert app.handlers["orders"].is_async
            place.send({"id": number})
            assert place.worker(app).drain() == 1
        assert ran == [0, 1]


# What is raised.


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Recursive(Exception):
    def __str__(self) -> str:
        raise RecursionError


class Wrong(BaseException):
    def __repr__(self) -> str:
        raise asyncio.CancelledError

    __str__ = __repr__


class Halved(Exception):
    def __str__(self) -> str:
        return "half a pair: \ud800"


class Hollow(Retry):
    def __init__(self) -> None:
        pass


class Empty(Reject):
    def __init__(self) -> None:
        pass


RAISED = [
    asyncio.CancelledError(),
    KeyboardInterrupt(),
    SystemExit(2),
    GeneratorExit(),
    BaseException("bare"),
    StopIteration(),
    Mute(),
    Recursive(),
    Wrong(),
    Halved(),
    Hollow(),
    ExceptionGroup("several", [Mute(), ValueError("a")]),
]


class TestRaised:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_whatever_handlers_raise_all_workers_go_on(self, app: App, broker: EmbeddedBroker, is_async: bool) -> None:
        failed, done = list[str](), list[str]()

        def handle(body: str, ctx: Context) -> None:
            if ctx.attempt == 1 and body != "good":
                failed.append(body)
                raise RAISED[int(body)]
            done.append(body)

        async def handle_async(body: str, ctx: Context) -> None:
            handle(body, ctx)

        app.handler("orders", concurrency=4, retry=Fixed(0))(handle_async if is_async else handle)
        send(app.client().queue("orders"), [str(number) for number in range(len(RAISED))])
        with running_app(app) as run:
            until(lambda: run.deleted == len(RAISED))
            send(app.client().queue("orders"), ["good"] * 8)
            until(lambda: run.deleted == len(RAISED) + 8)
            assert run.runtime.health().live
            report = run.stop()
        assert report.error is None
        assert sorted(failed, key=int) == [str(number) for number in range(len(RAISED))]
        assert len(done) == len(RAISED) + 8

    def test_an_async_handler_that_ends_cancelled_has_failed_and_is_logged(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = App()

        @app.handler("orders", key="$.id")
        async def handle(order: dict[str, Any]) -> None:
            raise asyncio.CancelledError

        place.send({"id": 7})
        assert place.worker(app, retry=Fixed(5)).drain() == 0
        assert len(place.messages("orders")) == 1
        assert "the handler failed: CancelledError" in caplog.text

    def test_whatever_batch_handlers_raise_all_workers_go_on(self, app: App) -> None:
        failed = set[str]()

        @app.batch_handler("orders", size=2, linger=0.01, retry=Fixed(0), concurrency=2)
        def handle(batch: Batch[str]) -> None:
            for body in batch.values:
                if body not in failed:
                    failed.add(body)
                    raise RAISED[int(body)]

        send(app.client().queue("orders"), [str(number) for number in range(len(RAISED))])
        with running_app(app) as run:
            until(lambda: run.deleted == len(RAISED))
            assert run.runtime.health().live
            assert run.stop().error is None
        assert len(failed) == len(RAISED)

    # In the main thread, KeyboardInterrupt is Ctrl-C.
    @pytest.mark.parametrize("error", [error for error in RAISED if not isinstance(error, KeyboardInterrupt)])
    def test_it_is_said_in_the_dead_letter_and_in_the_log(
        self, place: Place, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = App()

        @app.handler("orders", key="$.id", max_attempts=1)
        def handle(order: dict[str, Any]) -> None:
            raise error

        place.send({"id": 7})
        place.worker(app).drain()
        (dead,) = place.messages("dead")
        name = type(error).__name__
        assert name in dead_letter_details(dead)["error"]
        if not isinstance(error, Retry):
            (line,) = [record for record in caplog.records if "the handler failed" in record.message]
            assert f"the handler failed: {name}" in TextFormatter().format(line)
            assert json.loads(JsonFormatter().format(line))["error"].startswith(name)

    def test_a_rejection_without_a_reason_and_one_whose_reason_has_no_text_are_rejections(self, place: Place) -> None:
        app, errors = App(), [Empty(), Reject(Mute())]  # type: ignore[arg-type]

        @app.handler("orders", key="$.id")
        def handle(order: dict[str, Any]) -> None:
            raise errors[order["id"]]

        for number in range(2):
            place.send({"id": number})
        place.worker(app).drain()
        assert [dead_letter_details(dead)["reason"] for dead in place.messages("dead")] == ["rejected", "rejected"]

    def test_a_task_that_an_async_handler_left_behind_cannot_end_the_event_loop(self, app: App) -> None:
        async def leave() -> None:
            raise SystemExit(1)

        @app.handler("orders")
        async def handle(body: str) -> None:
            if body == "odd":
                task = asyncio.get_running_loop().create_task(leave())
                task.add_done_callback(lambda task: task.exception())

        queue = app.client().queue("orders")
        send(queue, ["odd"])
        with running_app(app) as run:
            until(lambda: run.deleted == 1)
            send(queue, ["good"])
            until(lambda: run.deleted == 2)
            assert run.runtime.health().live
            assert run.stop().error is None


def test_a_batch_handler_may_change_the_list_of_its_batch(place: Place) -> None:
    app, ids = App(), list[Any]()

    @app.batch_handler("orders", key="$.id")
    def handle(batch: Batch[dict[str, Any]]) -> None:
        while batch.items:
            ids.append(batch.items.pop().value["id"])

    for number in range(3):
        place.send({"id": number})
    assert place.worker(app).drain() == 3
    assert sorted(ids) == [0, 1, 2]
    assert place.is_empty()


# What is asked for.


class Broken:
    def __init__(self, delay: Any) -> None:
        self._delay = delay

    def delay(self, attempt: int, chance: float) -> Any:
        if isinstance(self._delay, BaseException):
            raise self._delay
        return self._delay


class TestRetry:
    @pytest.mark.parametrize(
        ("after", "hidden"),
        [(30, 30), ("30s", 30), ("1m30s", 90), (timedelta(minutes=2), 120), (0, 0), (1e12, LONGEST - 5)],
    )
    def test_it_can_be_asked_for_in_every_form_of_a_duration(self, place: Place, after: Any, hidden: int) -> None:
        app = App()

        @app.handler("orders", key="$.id")
        def handle(order: dict[str, Any], ctx: Context) -> None:
            if ctx.attempt == 1:
                raise Retry(after=after)

        place.send({"id": 7})
        worker = place.worker(app)
        done = worker.drain()
        if hidden:
            assert done == 0
            assert place.hidden_for() == hidden
        else:
            assert done == 1

    @pytest.mark.parametrize("after", [-1, math.nan, math.inf, "soon", [], True, object(), "-5s"])
    @pytest.mark.parametrize("later", [False, True])
    def test_a_time_that_is_none_leaves_it_to_the_back_off(self, place: Place, after: Any, later: bool) -> None:
        app = App()

        @app.handler("orders", key="$.id", retry=Fixed(20))
        def handle(order: dict[str, Any]) -> None:
            if not later:
                raise Retry(after=after)
            retry = Retry()
            retry.after = after
            raise retry

        place.send({"id": 7})
        place.worker(app).drain()
        assert place.hidden_for() == 20

    @pytest.mark.parametrize(
        "delay",
        [None, "soon", math.nan, -3, math.inf, object(), ValueError("no"), asyncio.CancelledError(), SystemExit()],
    )
    def test_a_back_off_that_does_not_work_is_replaced_by_the_default(
        self, place: Place, delay: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = App()

        @app.handler("orders", key="$.id", retry=Broken(delay))
        def handle(order: dict[str, Any]) -> None:
            raise ValueError("no stock")

        place.send({"id": 7})
        with caplog.at_level(logging.ERROR):
            place.worker(app).drain()
        assert place.hidden_for() == math.ceil(Exponential().delay(1, 0.5))
        assert "the back-off of orders does not work, the default is used" in caplog.text

    def test_a_back_off_may_answer_with_a_text(self, place: Place) -> None:
        app = App()

        @app.handler("orders", key="$.id", retry=Broken("2m"))
        def handle(order: dict[str, Any]) -> None:
            raise ValueError("no stock")

        place.send({"id": 7})
        place.worker(app).drain()
        assert place.hidden_for() == 120


# What is to be kept.


class Odd:
    """A result that is odd in every way."""

    def __str__(self) -> str:
        raise asyncio.CancelledError

    __repr__ = __str__
    __bool__ = __str__
    __eq__ = __str__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class TestResult:
    @pytest.mark.parametrize("result", ["x" * (MAX_RESULT + 1), Odd(), {1, 2}, "\ud800", [Odd()]], ids=lambda _: "")
    @pytest.mark.parametrize("transaction", [False, True])
    def test_a_message_whose_result_cannot_be_stored_is_done_without_it_and_so_are_all_others(
        self, place: Place, result: Any, transaction: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        app, ran = App(), list[int]()

        def handle(order: dict[str, Any]) -> Any:
            ran.append(order["id"])
            return result if order["id"] == 3 else "small"

        def handle_in(order: dict[str, Any], tx: Transaction) -> Any:
            return handle(order)

        app.handler("orders", key="$.id", keep_result=True)(handle_in if transaction else handle)
        for number in range(6):
            place.send({"id": number})
        worker = place.worker(app)
        assert worker.drain() == 6
        assert sorted(ran) == list(range(6))
        assert place.is_empty()
        assert place.known("3").status is Status.DONE
        assert place.known("3").result == b""
        assert place.known("4").result == b'"small"'
        assert worker.consumer("orders").metrics.results_dropped.count == 1
        assert "the message is done without it" in caplog.text

    def test_an_odd_result_that_nobody_keeps_is_a_result(self, place: Place) -> None:
        app = App()

        @app.handler("orders", key="$.id")
        def handle(order: dict[str, Any]) -> Odd:
            return Odd()

        place.send({"id": 7})
        assert place.worker(app).drain() == 1


# Health.


def test_a_stage_without_a_thread_is_not_live(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()

    def die(*_: Any) -> None:
        gone.wait(60)
        raise SystemExit

    @app.handler("orders")
    def handle(body: str) -> None: ...

    monkeypatch.setattr("semel.consumer.dead_letter_sender.DeadLetterSender.process", die)
    with running_app(app) as run:
        consumer = run.runtime.consumers[0]
        assert run.runtime.health().live
        monkeypatch.setattr(run.runtime, "fail", lambda _error: None)  # as if nobody had noticed
        run.consumer().dead_letter_sender.inbox.put([object()])  # type: ignore[list-item]
        gone.set()
        until(lambda: consumer.dead_stages())
        health = run.runtime.health()
        assert not health.live
        assert not health.ready
        assert health.details["dead"] == {"orders": ["dead-letter"]}


def test_whatever_ends_a_thread_of_the_app_stops_it_and_is_said(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> None:
        raise SystemExit("gone")

    @app.handler("orders")
    def handle(body: str) -> None: ...

    monkeypatch.setattr("semel.consumer.recorder.Recorder._process", die)
    app.drain_limit = 0.1  # nothing is recorded any more
    send(app.client().queue("orders"), ["a"])
    with running_app(app) as run:
        until(lambda: run.runtime.stopping.is_set())
        assert not run.runtime.health().live
        assert isinstance(run.stop().error, SystemExit)
