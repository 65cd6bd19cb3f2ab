"""The fixtures `ledger`, `make_ledger`, `clock_offset` and `store`: the same test runs on every store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from ledger.stores import STORES, Shift, StoreUnderTest
from semel.ledger.contract import Ledger


class Opener(Protocol):
    def __call__(self, *, impatient: bool = False, via: int | None = None, **options: Any) -> Ledger: ...


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stores(*names): the stores that a test of the ledger is for, if not all")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("stores")
        wanted = marker.args if marker else tuple(STORES)
        # moto answers only a few hundred requests per second; test_dynamodb*.py are in the fast tier anyway.
        slow = {"dynamodb": [pytest.mark.slow]}
        metafunc.parametrize("store", [pytest.param(name, marks=slow.get(name, [])) for name in wanted], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[StoreUnderTest]:
    """An empty location for ledger data, on each store in turn."""
    place = STORES[request.param](request)
    yield place
    place.drop()


@pytest.fixture
def clock_offset() -> Shift:
    """Advances the clock of every ledger in the test: clock_offset.advance(60)."""
    return Shift()


@pytest.fixture
def make_ledger(store: StoreUnderTest, clock_offset: Shift) -> Iterator[Opener]:
    """Opens ledgers on the same data, as other processes would. They are closed at the end of the test."""
    opened: list[Ledger] = []

    def make(*, impatient: bool = False, via: int | None = None, **options: Any) -> Ledger:
        opened.append(store.open(clock_offset, impatient=impatient, via=via, **options))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(make_ledger: Opener) -> Ledger:
    return make_ledger()
