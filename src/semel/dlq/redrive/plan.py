"""What a redrive is to do, as one value: which letters, where to, how fast, and how carefully."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final, Self

from semel.dlq.selection import Selection
from semel.errors import InvalidRequest
from semel.sqs.limits import MAX_MOVE_RATE

CANARY_DEFAULT: Final = 3
CANARY_MOST: Final = 50
MOST_IDS: Final = 100_000


class PlanError(InvalidRequest):
    """A plan that cannot be carried out as it is written; the text names the option and the way out."""


class Engine(StrEnum):
    STREAM = "stream"  # received, sent, deleted: one by one, by us
    SQS_MOVE = "sqs-move"  # StartMessageMoveTask: only if somebody asks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan:
    """Letters of `queue`: those that match the filter `where`, those with these `ids` (MessageIds there), or `all`.
    Exactly one of the three is given. `any_queue`: also if `queue` is not the dead-letter queue of any queue.

    - `to`: the queue they go to; each goes to the one that it came from if this is empty.
    - `limit`: at most so many. `rate`: at most so many a second.
    - `canary`: so many go first, and the rest only once those were worked off well, which may take `canary_wait`
      seconds; 0: no canary. `stop_after_failures`: ends when so many have come back, 0 never; None is 10 or 5 % of
      what was sent, whichever is more.
    - `dry_run`: counts what matches, and touches nothing.
    """

    queue: str
    where: str = ""
    ids: tuple[str, ...] = ()
    all: bool = False
    any_queue: bool = False
    limit: int | None = None
    to: str = ""
    rate: float | None = None
    dry_run: bool = False
    canary: int = 0
    canary_wait: float | None = None
    stop_after_failures: int | None = None
    engine: Engine = Engine.STREAM
    threads: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(self.ids))
        try:
            object.__setattr__(self, "engine", Engine(self.engine))
        except ValueError:
            raise PlanError(f"engine {self.engine!r}: choose stream or sqs-move") from None
        if not self.queue:
            raise PlanError("a redrive needs the name of a dead-letter queue")
        Selection.of(self.where or None, self.ids or None, self.all)
        if len(self.ids) > MOST_IDS:
            raise PlanError(f"ids: {len(self.ids)} are too many, {MOST_IDS} is the most; use a filter instead")
        for name, low, high in (
            ("limit", 1, None),
            ("rate", 0.001, None),
            ("canary", 0, CANARY_MOST),
            ("canary_wait", 1, 12 * 3_600),
            ("stop_after_failures", 0, None),
            ("threads", 1, 32),
        ):
            value = getattr(self, name)
            if value is not None and not (low <= value and (high is None or value <= high)):
                most = "" if high is None else f" to {high}"
                raise PlanError(f"{name} {value}: give a number from {low}{most}")
        if self.engine is Engine.SQS_MOVE and (unfit := self._not_for_a_move()):
            raise PlanError(
                f"engine sqs-move: SQS's own task cannot have {', '.join(unfit)}: it moves all of a queue, at 1 to "
                f"{MAX_MOVE_RATE} messages a second, and does not notice what comes back; leave the engine out"
            )

    def _not_for_a_move(self) -> list[str]:
        """What is asked for that SQS's move task cannot do."""
        asked = {
            "a filter": self.where,
            "ids": self.ids,
            "a limit": self.limit is not None,
            "a dry run": self.dry_run,
            "a canary": self.canary or self.canary_wait is not None,
            "a stop after failures": self.stop_after_failures,
            f"a rate of {self.rate:g}" if self.rate is not None else "": self.rate is not None
            and not (1 <= self.rate <= MAX_MOVE_RATE),
        }
        return [name for name, unfit in asked.items() if unfit]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ids": list(self.ids), "engine": self.engine.value}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Raises PlanError for what is no plan."""
        known = {field.name for field in fields(cls)}
        unknown = content.keys() - known
        if unknown:
            raise PlanError(f"a redrive has no option {min(unknown)!r}; there are {', '.join(sorted(known))}")
        given = dict(content)
        if not isinstance(given.get("ids", ()), Sequence) or isinstance(given.get("ids"), str):
            raise PlanError("ids: give a list of message ids")
        for name, kinds in _KINDS.items():
            value = given.get(name)
            if name in given and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
                raise PlanError(f"{name} {value!r} is not what it should be; see the documentation of redrive")
        if "queue" not in given:
            raise PlanError("a redrive needs the name of a dead-letter queue")
        return cls(**given)


_NONE: Final = type(None)
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "queue": (str,),
    "where": (str,),
    "all": (bool,),
    "any_queue": (bool,),
    "limit": (int, _NONE),
    "to": (str,),
    "rate": (int, float, _NONE),
    "dry_run": (bool,),
    "canary": (int,),
    "canary_wait": (int, float, _NONE),
    "stop_after_failures": (int, _NONE),
    "engine": (str,),
    "threads": (int,),
}
