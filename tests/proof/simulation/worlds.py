"""The worlds that there are, and the bugs on purpose of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from simulation import consumer_mutants
from simulation.consumer_world import consumer_world
from simulation.search import World

WORLDS: Final[dict[str, World]] = {"consumer": consumer_world}
MUTANTS: Final[dict[str, Mapping[str, Callable[[], AbstractContextManager[None]]]]] = {
    "consumer": consumer_mutants.MUTANTS
}
