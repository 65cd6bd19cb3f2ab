"""Pipelines whose drivers are killed with SIGKILL at named points of a batch: no message is lost or doubled, with any
sink.

Real processes: `semel pipeline run` is started, dies, and is started again. With every sink, the driver dies during a
commit. The points in the source are the same for all sinks, so only one sink tests them all. `make prove-spark` kills
20 times for every sink, at random moments. In the fast tier, the README's `semel demo pipeline` kills a driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from semel.broker import running
from spark import crashing
from spark.crashing import Audit, DeltaFolder, FifoQueue, HandlerEffects, Orders, ParquetFolder, PostgresTable, Trial

if TYPE_CHECKING:
    from servers import postgres

pytestmark = pytest.mark.timeout(1_200)
ORDERS: Final = 2_000  # two tasks receive at once while more than a thousand are waiting
TWICE: Final = 0.02  # the share of orders that are sent twice, in tests where the pipeline must notice
BY_KEY: Final = {"dedup": "key"}
MakeOrders = Callable[..., Orders]
MakeTrial = Callable[..., Trial]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> str:
    return crashing.with_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def orders() -> Iterator[MakeOrders]:
    """Fills a queue with orders, in a broker of its own. `faults`: rates by kind."""
    with ExitStack() as stack:

        def made(faults: dict[str, float] | None = None, **how: Any) -> Orders:
            orders = Orders(stack.enter_context(running()), **how)
            orders.send(ORDERS)
            for kind, rate in (faults or {}).items():
                orders.broker.faults.set(kind, rate, queue=crashing.QUEUE)
            return orders

        yield made


@pytest.fixture
def trial(java: str, tmp_path: Path) -> MakeTrial:
    return partial(Trial, folder=tmp_path, variables={"SPARK_SUBMIT_OPTS": java})


def killed(trial: Trial, *points: str, **how: int) -> Audit:
    """Each driver commits a batch or two and dies in the next one, at its own point. The last driver finishes."""
    for batch, point in enumerate(points):
        assert point in crashing.NAMED
        trial.dies(point, after_batch=batch, **how)
    return trial.finish()


def assert_once(audit: Audit, *, came_again: bool = True) -> None:
    """`came_again`: there must have been redeliveries, because drivers died with messages that were not sealed. The
    next driver deletes messages that were sealed, so they are redelivered only if it is late."""
    assert audit.passed, audit
    assert audit.rows == ORDERS
    assert audit.delivered > audit.sent or not came_again


@pytest.mark.slow
def test_parquet_has_every_order_once_though_the_queue_is_faulty_and_the_producer_sends_twice(
    orders: MakeOrders, trial: MakeTrial, tmp_path: Path
) -> None:
    sent = orders(crashing.FAULTS, again=TWICE)
    pipeline = trial(sent, ParquetFolder(tmp_path / "table"), source=BY_KEY)
    assert_once(killed(pipeline, *crashing.NAMED))
    injected = sent.broker.faults.counts()
    assert all(injected[kind] for kind in crashing.FAULTS), injected


@pytest.mark.slow
def test_delta_has_every_order_once_though_zombies_go_on_and_a_sealed_segment_is_damaged(
    orders: MakeOrders, trial: MakeTrial, tmp_path: Path
) -> None:
    """Workers that outlive their driver for a moment seal and delete what they have received. A flipped bit in a sealed
    segment stops the pipeline, and no row of the segment gets into the table."""
    pipeline = trial(orders(), DeltaFolder(tmp_path / "table"))
    pipeline.dies("after-seal", after_batch=0, linger=0)
    before = sorted(pipeline.sink.ids())
    segment = max((pipeline.checkpoint / "segments").glob("b*/*.seg"))
    sealed = segment.read_bytes()
    segment.write_bytes(flipped(sealed, len(sealed) // 2))
    with pipeline.driver() as driver:
        assert driver.ends() == 1
        said = driver.said()
    assert f"segment {segment} is damaged: its checksum does not fit" in said
    assert "Traceback" not in said
    assert sorted(pipeline.sink.ids()) == before
    segment.write_bytes(sealed)  # from a copy, as the error says
    pipeline.dies("during-commit", after_batch=1, linger=0)
    assert_once(pipeline.finish(), came_again=False)


@pytest.mark.slow
def test_postgres_append_has_every_order_once(
    orders: MakeOrders, trial: MakeTrial, postgres_server: postgres.Server
) -> None:
    table = PostgresTable(postgres_server.url, "crashed_append")
    assert_once(killed(trial(orders(again=TWICE), table, source=BY_KEY), "during-commit"), came_again=False)


@pytest.mark.slow
def test_postgres_upsert_has_every_order_once(
    orders: MakeOrders, trial: MakeTrial, postgres_server: postgres.Server
) -> None:
    table = PostgresTable(postgres_server.url, "crashed_upsert", "upsert")
    assert_once(killed(trial(orders(again=TWICE), table), "during-commit"), came_again=False)


@pytest.mark.slow
def test_a_fifo_queue_has_every_order_once(orders: MakeOrders, trial: MakeTrial) -> None:
    sent = orders()
    assert_once(killed(trial(sent, FifoQueue(sent)), "during-commit"), came_again=False)


@pytest.mark.slow
def test_a_handler_has_done_every_order_once(orders: MakeOrders, trial: MakeTrial, tmp_path: Path) -> None:
    sent = orders(again=TWICE)
    assert_once(killed(trial(sent, HandlerEffects(tmp_path, sent)), "before-seal", "during-commit"))


@pytest.mark.slow
def test_two_pipelines_on_one_queue_have_every_order_once_between_them(
    orders: MakeOrders, trial: MakeTrial, tmp_path: Path, postgres_server: postgres.Server
) -> None:
    sent = orders(again=TWICE)
    shared = {"dedup": "ledger", "ledger": postgres_server.url, "receivers": 1}
    first, second = (trial(sent, ParquetFolder(tmp_path / name), name=name, source=shared) for name in ("one", "two"))
    with second.driver() as lives:
        first.dies("after-seal", after_batch=1)
        # Their visibility ends, and the other driver takes over what the dead one had sealed but not recorded.
        crashing.wait_until(lambda: not sent.left(), lives)
        interrupted = first.committed()
        with first.driver() as again:
            crashing.wait_until(lambda: first.committed() > interrupted, lives, again)
            again.stop()
        lives.stop()
    assert_once(crashing.audited(sent, first.sink, second.sink))
    assert first.sink.ids()
    assert second.sink.ids()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
