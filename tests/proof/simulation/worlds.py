"""All worlds by name, and the mutants of each: the bugs that were put in on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from simulation import consumer_mutants, spark_mutants
from simulation.consumer_world import async_world, consumer_world
from simulation.search import World
from simulation.spark_handlers import handler_world
from simulation.spark_parquet import parquet_world
from simulation.spark_queries import queries_world
from simulation.spark_world import spark_world

WORLDS: Final[dict[str, World]] = {
    "consumer": consumer_world,
    "async consumer": async_world,
    "spark": spark_world,
    "spark parquet": parquet_world,
    "spark handlers": handler_world,
    "spark queries": queries_world,
}
MUTANTS: Final[dict[str, Mapping[str, Callable[[], AbstractContextManager[None]]]]] = {
    "consumer": consumer_mutants.MUTANTS,
    "async consumer": consumer_mutants.ASYNC_MUTANTS,
    "spark": spark_mutants.MUTANTS,
    "spark parquet": spark_mutants.PARQUET_MUTANTS,
    "spark handlers": spark_mutants.HANDLER_MUTANTS,
}
