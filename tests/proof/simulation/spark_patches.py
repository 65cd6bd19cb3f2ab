"""The patches of the source's modules while a simulation runs: threads, pools, unique ids, Spark's own job, and the
opening of stores and ledgers. Everything else in these modules stays real."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import semel.sqs.client.queue as sqs_queue
from semel.spark.pipeline import agreement, checkpoint, micro_batch
from semel.spark.segments import codec, segment_log
from semel.spark.source import acknowledger, claims, committer, heartbeat, idle_poll, planner, reader
from simulation.spark_threads import Pool, Threading

if TYPE_CHECKING:
    from simulation.spark_world import SparkWorld

WORTH_A_TASK = 2  # messages: so that small batches have several tasks


@contextmanager
def installed(world: SparkWorld) -> Iterator[None]:
    threading, pool = Threading(world.simulator), partial(Pool, world.simulator)
    unique = unique_ids()
    replaced: list[tuple[Any, str, Any]] = [
        *[(module, "threading", threading) for module in (idle_poll, heartbeat, committer)],
        *[(module, "ThreadPoolExecutor", pool) for module in (acknowledger, heartbeat)],
        *[
            (module, "uuid4", unique)
            for module in (agreement, checkpoint, segment_log, claims, planner, reader, sqs_queue)
        ],
        (micro_batch, "outcomes_of", lambda job, task: job.run(task)),
        (planner, "WORTH_A_TASK", WORTH_A_TASK),
        (checkpoint, "open_store", lambda _: world.opening),
        (reader, "claims_for", world.claims_for),
        (codec, "decode", decoded_once(codec.decode)),
    ]
    former = [getattr(module, name) for module, name, _ in replaced]
    logger = logging.getLogger("semel.spark")
    was_disabled, logger.disabled = logger.disabled, True  # the timeline shows it all
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        logger.disabled = was_disabled
        for (module, name, _), value in zip(replaced, former, strict=True):
            setattr(module, name, value)


def unique_ids() -> Callable[[], UUID]:
    """Ids that are the same in every run."""
    count = 0

    def next_id() -> UUID:
        nonlocal count
        count += 1
        return UUID(int=count << 96)

    return next_id


def decoded_once(decode: Callable[[bytes, str], Any]) -> Callable[[bytes, str], Any]:
    """`decode` with a cache, for speed."""
    known: dict[bytes, Any] = {}

    def decoded(data: bytes, where: str) -> Any:
        table = known.get(data)
        if table is None:
            table = known[data] = decode(data, where)
        return table

    return decoded
