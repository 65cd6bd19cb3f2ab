"""The plan of a redrive as one value: which messages, where to, how fast, and how carefully. Command line, API and
pages take their defaults from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, Self, get_type_hints

import msgspec
from msgspec import Meta

from semel.dlq.selection import Selection
from semel.errors import InvalidRequest
from semel.sqs.limits import MAX_MOVE_RATE

CANARY_DEFAULT: Final = 3
CANARY_MOST: Final = 50
MOST_IDS: Final = 100_000


class PlanError(InvalidRequest):
    """A redrive plan cannot be carried out as it is written. Change the option that the text names."""


class Engine(StrEnum):
    STREAM = "stream"  # Semel receives, sends and deletes
    SQS_MOVE = "sqs-move"  # StartMessageMoveTask: only if it is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan:
    """Which messages of `queue` to redrive, and how. Select them in exactly one way: by the filter `where`, by `ids`
    (MessageIds in `queue`), or with `all`. `any_queue` allows a queue that is no queue's dead-letter queue.

    - `to`: the queue to send them to; by default, each goes back to its source queue.
    - `limit`: maximum number of messages. `rate`: maximum number of messages per second.
    - `canary`: number of messages to send first, 0 for none. The rest follows only if all of them succeed; the job
      waits up to `canary_wait` seconds for that.
    - `stop_after_failures`: stop when this many messages have come back or could not be sent; 0 to never stop. By
      default 10, or 5 % of the messages sent, whichever is more.
    - `dry_run`: count the messages that match and touch nothing.

    >>> from semel.dlq import RedrivePlan
    >>> plan = RedrivePlan(queue="orders-dlq", where='error ~ "timeout"', rate=10, canary=5)
    >>> plan.canary_size
    5
    """

    queue: Annotated[str, Meta(min_length=1)]
    where: str = ""
    ids: Annotated[tuple[str, ...], Meta(max_length=MOST_IDS)] = ()
    all: bool = False
    any_queue: bool = False
    limit: Annotated[int, Meta(ge=1)] | None = None
    to: str = ""
    rate: Annotated[float, Meta(ge=0.001)] | None = None
    dry_run: bool = False
    canary: Annotated[int, Meta(ge=0, le=CANARY_MOST)] = CANARY_DEFAULT
    canary_wait: Annotated[float, Meta(ge=1, le=12 * 3_600)] | None = None
    stop_after_failures: Annotated[int, Meta(ge=0)] | None = None
    engine: Engine = Engine.STREAM
    threads: Annotated[int, Meta(ge=1, le=32)] = 16

    def __post_init__(self) -> None:
        for name, kind in _kinds().items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, msgspec.convert(value, kind))
            except msgspec.ValidationError as error:
                choices = f"; choose {' or '.join(Engine)}" if name == "engine" else ""
                raise PlanError(f"{name}{_short(value)}: {_plain(str(error))}{choices}") from None
        Selection.of(self.where or None, self.ids or None, self.all)
        if self.engine is Engine.SQS_MOVE and (unfit := self._not_for_a_move()):
            raise PlanError(
                f"engine sqs-move: SQS's move task cannot have {', '.join(unfit)}: it moves all of a queue, at 1 to "
                f"{MAX_MOVE_RATE} messages a second, and does not notice what comes back. Leave those options out "
                "(the canary is turned off with 0), or the engine"
            )

    def _not_for_a_move(self) -> list[str]:
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

    @property
    def canary_size(self) -> int:
        """How many messages are sent first; 0 if no others can follow."""
        most = min([self.limit or MOST_IDS, len(self.ids) or MOST_IDS])
        return self.canary if most > self.canary else 0

    def to_json(self) -> dict[str, Any]:
        """The plan as a dictionary that can be written as JSON."""
        return asdict(self) | {"ids": list(self.ids), "engine": self.engine.value}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """A plan from a dictionary like that of `to_json`. Raises PlanError."""
        known = {field.name for field in fields(cls)}
        unknown = content.keys() - known
        if unknown:
            raise PlanError(f"a redrive has no option {min(unknown)!r}; there are {', '.join(sorted(known))}")
        return cls(**{"queue": "", **content})


@cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(RedrivePlan, include_extras=True)


def _short(value: object) -> str:
    return f" {value!r}" if len(repr(value)) < 50 else ""


def _plain(text: str) -> str:
    return (text[:1].lower() + text[1:]).replace("`", "")
