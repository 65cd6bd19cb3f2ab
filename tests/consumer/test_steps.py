"""Steps: parts of the work whose results the next attempt reuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from driven import LEASE, Place, new_place, take
from semel import App, Context, Fixed, Reject
from semel.testing.driver import Crash


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as place:
        place.queue("orders", dlq="dead")
        yield place


class Work:
    """Steps that were really done, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def do(self, name: str, result: Any = None) -> Any:
        self.done.append(name)
        return result


def test_a_finished_step_is_not_done_again_and_its_result_is_the_same(place: Place) -> None:
    app, work, results = App(), Work(), list[Any]()

    @app.handler("orders", key="$.id", retry=Fixed(1))
    def ship(order: dict[str, Any], ctx: Context) -> None:
        label = ctx.step("label", lambda: work.do("label", {"number": 12}))
        if ctx.attempt == 1:
            raise ValueError("the printer is on fire")
        results.append((label, ctx.step("print", lambda: work.do("print", label["number"]))))

    place.send({"id": 7})
    worker = place.worker(app)
    worker.drain()
    place.clock.advance(1)
    worker.drain()
    assert work.done == ["label", "print"]
    assert results == [({"number": 12}, 12)]


@pytest.mark.parametrize("result", [None, False, 0, "", [], {}])
def test_a_result_that_says_nothing_is_remembered_too(place: Place, result: Any) -> None:
    app, work, results = App(), Work(), list[Any]()

    @app.handler("orders", key="$.id", retry=Fixed(1))
    def ship(order: dict[str, Any], ctx: Context) -> None:
        results.append(ctx.step("check", lambda: work.do("check", result)))
        if ctx.attempt == 1:
            raise ValueError

    place.send({"id": 7})
    worker = place.worker(app)
    worker.drain()
    place.clock.advance(1)
    worker.drain()
    assert work.done == ["check"]
    assert results == [result, result]


def test_the_successor_of_a_dead_worker_goes_on_after_its_last_step(place: Place) -> None:
    app, work = App(), Work()

    @app.handler("orders", key="$.id")
    def ship(order: dict[str, Any], ctx: Context) -> None:
        ctx.step("one", lambda: work.do("one"))
        ctx.step("two", lambda: work.do("two"))
        if ctx.attempt == 1:
            raise Crash
        ctx.step("three", lambda: work.do("three"))

    place.send({"id": 7})
    worker = place.worker(app)
    worker.drain()
    place.clock.advance(LEASE + 1)
    worker.drain()
    assert work.done == ["one", "two", "three"]
    assert place.is_empty()


def test_a_step_that_fails_is_not_noted(place: Place) -> None:
    app, work = App(), Work()

    def broken() -> None:
        work.do("charge")
        if len(work.done) == 1:
            raise ConnectionError

    @app.handler("orders", key="$.id", retry=Fixed(1))
    def ship(order: dict[str, Any], ctx: Context) -> None:
        ctx.step("charge", broken)

    place.send({"id": 7})
    worker = place.worker(app)
    worker.drain()
    assert place.known("7").steps == {}
    place.clock.advance(1)
    worker.drain()
    assert work.done == ["charge", "charge"]


def test_steps_of_one_key_are_not_those_of_another(place: Place) -> None:
    app, work = App(), Work()

    @app.handler("orders", key="$.id")
    def ship(order: dict[str, Any], ctx: Context) -> None:
        ctx.step("charge", lambda: work.do(f"charge {ctx.key}"))

    place.send({"id": 7})
    place.send({"id": 8})
    place.worker(app).drain()
    assert sorted(work.done) == ["charge 7", "charge 8"]


def test_a_zombie_cannot_note_a_step_and_hears_that_it_has_lost(place: Place) -> None:
    app, other, work, errors = App(), App(), Work(), list[str]()

    @other.handler("orders", key="$.id")
    def take_over(order: dict[str, Any], ctx: Context) -> None:
        ctx.step("charge", lambda: work.do("successor"))

    def charge_slowly() -> None:
        work.do("zombie")
        place.clock.advance(LEASE + 1)
        place.worker(other).drain()

    @app.handler("orders", key="$.id")
    def ship(order: dict[str, Any], ctx: Context) -> None:
        try:
            ctx.step("charge", charge_slowly)
        except BaseException as error:
            errors.append(type(error).__name__)
            raise
        work.do("never")

    place.send({"id": 7})
    zombie = place.worker(app)
    consumer = take(zombie)
    zombie.worker.work(consumer)
    assert work.done == ["zombie", "successor"]
    assert errors == ["Lost"]
    assert consumer.in_flight.admission.in_use == 0
    assert place.known("7").fence == 2
    assert place.is_empty()


def test_no_step_is_begun_once_the_claim_is_gone(place: Place) -> None:
    app, work = App(), Work()

    @app.handler("orders", key="$.id")
    def ship(order: dict[str, Any], ctx: Context) -> None:
        worker.consumer("orders").in_flight.lose(ctx._delivery, "test")
        ctx.step("charge", lambda: work.do("charge"))

    place.send({"id": 7})
    worker = place.worker(app)
    worker.drain()
    assert work.done == []
    assert len(place.messages()) == 1


def test_a_result_that_is_not_json_fails_with_a_way_out(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    @app.handler("orders", key="$.id")
    def ship(order: dict[str, Any], ctx: Context) -> None:
        ctx.step("open", lambda: object())

    place.send({"id": 7})
    place.worker(app).drain()
    assert "the result of the step 'open' cannot be kept" in caplog.text


def test_an_async_step_in_a_plain_handler_is_refused(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    async def fetch() -> int:
        return 1

    @app.handler("orders", key="$.id")
    def ship(order: dict[str, Any], ctx: Context) -> None:
        waiting = fetch()
        try:
            ctx.step("fetch", lambda: waiting)
        finally:
            waiting.close()

    place.send({"id": 7})
    place.worker(app).drain()
    assert "make the handler async too" in caplog.text


def test_an_async_handler_awaits_its_steps_whether_they_are_async_or_not(place: Place) -> None:
    app, work, results = App(), Work(), list[Any]()

    async def fetch() -> Any:
        return work.do("fetch", "page")

    @app.handler("orders", key="$.id", retry=Fixed(1))
    async def ship(order: dict[str, Any], ctx: Context) -> None:
        page = await ctx.step("fetch", fetch)
        size: int = await ctx.step("measure", lambda: work.do("measure", len(page)))
        if ctx.attempt == 1:
            raise ValueError
        results.append((page, size))

    place.send({"id": 7})
    worker = place.worker(app)
    worker.drain()
    place.clock.advance(1)
    worker.drain()
    assert work.done == ["fetch", "measure"]
    assert results == [("page", 4)]
    assert place.is_empty()


def test_an_edited_message_that_comes_after_a_rejection_begins_its_steps_anew(place: Place) -> None:
    app, work = App(), Work()

    @app.handler("orders", key="$.id")
    def ship(order: dict[str, Any], ctx: Context) -> None:
        ctx.step("check", lambda: work.do(order["country"]))
        if order["country"] == "XX":
            raise Reject("no such country")

    place.send({"id": 7, "country": "XX"})
    worker = place.worker(app)
    worker.drain()
    place.send({"id": 7, "country": "FR"})
    worker.drain()
    assert work.done == ["XX", "FR"]
