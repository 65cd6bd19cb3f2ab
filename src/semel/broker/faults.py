"""Faults on request: misbehaviour that SQS allows itself, at a chosen rate, repeatable by a seed, and counted.

Each kind draws from its own random sequence, so switching one on or off does not change what the others do.
`duplicate`, `lost-delete` and `short-poll` happen only on Standard queues, because SQS rules them out on FIFO queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, Final

from semel.broker.engine import Queue
from semel.errors import SemelError


class Fault(StrEnum):
    DUPLICATE = "duplicate"
    LOST_DELETE = "lost-delete"
    LOST_ANSWER = "lost-answer"
    SHORT_POLL = "short-poll"
    LATENCY = "latency"
    THROTTLE = "throttle"
    SERVER_ERROR = "server-error"
    EARLY_VISIBILITY = "early-visibility"


MEANING: Final[Mapping[Fault, str]] = {
    Fault.DUPLICATE: "a received message stays visible and is delivered again",
    Fault.LOST_DELETE: "a delete is answered with success and the message kept",
    Fault.LOST_ANSWER: "the call is carried out, but its answer never arrives",
    Fault.SHORT_POLL: "a short poll misses some or all messages",
    Fault.LATENCY: "the call is delayed, by 100 milliseconds unless another delay is set",
    Fault.THROTTLE: "the call is refused with RequestThrottled",
    Fault.SERVER_ERROR: "the call is refused with a 500 or 503",
    Fault.EARLY_VISIBILITY: "a visibility timeout ends early",
}
_DEFAULT_LATENCY_MS: Final = 100.0


@dataclass(frozen=True, slots=True)
class Setting:
    """How often a fault happens (0 to 1), and for latency how many milliseconds it adds."""

    rate: float
    milliseconds: float = _DEFAULT_LATENCY_MS


class FaultError(SemelError, ValueError):
    """A fault that does not exist, or a rate that is not possible. Choose a fault that the text lists, and a rate from
    0 to 1."""


def parse_setting(text: str) -> tuple[Fault, Setting]:
    """`kind=rate` or `latency=rate:milliseconds`, as it is written on the command line."""
    kind, _, value = text.partition("=")
    rate, _, amount = value.partition(":")
    try:
        if not rate:
            raise FaultError("the rate is missing")
        return _kind(kind), _setting(float(rate), float(amount) if amount else None)
    except ValueError as error:
        raise FaultError(f"--fault {text}: {error}; write KIND=RATE, for example duplicate=0.05") from None


def _kind(name: str) -> Fault:
    try:
        return Fault(name)
    except ValueError:
        raise FaultError(f"there is no fault {name!r}; choose from {', '.join(Fault)}") from None


def _setting(rate: float, milliseconds: float | None) -> Setting:
    amount = _DEFAULT_LATENCY_MS if milliseconds is None else milliseconds
    if not _is_number(rate) or not 0 <= rate <= 1:
        raise FaultError(f"a rate is between 0 and 1, not {rate}")
    if not _is_number(amount) or not 0 <= amount <= 60_000:
        raise FaultError(f"a latency is between 0 and 60000 milliseconds, not {amount}")
    return Setting(rate, amount)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Faults:
    """The faults that are on, for all queues or for one. Asked wherever a fault could happen, it decides and counts."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._settings: dict[tuple[Fault, str | None], Setting] = {}
        self._counts: Counter[tuple[Fault, str]] = Counter()
        self._random = {kind: Random(f"{seed}:{kind}") for kind in Fault}

    # Switching.

    def set(self, kind: str, rate: float, *, queue: str | None = None, milliseconds: float | None = None) -> None:
        """A setting for one queue takes precedence over one for all; a rate of 0 switches a fault off."""
        self._settings[_kind(kind), queue] = _setting(rate, milliseconds)

    def clear(self, kind: str | None = None) -> None:
        """Switches one kind off everywhere, or all of them; counts stay."""
        chosen = None if kind is None else _kind(kind)
        self._settings = {key: value for key, value in self._settings.items() if chosen not in (None, key[0])}

    def described(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "faults": [
                {"kind": kind, "queue": queue, "rate": setting.rate}
                | ({"milliseconds": setting.milliseconds} if kind is Fault.LATENCY else {})
                for (kind, queue), setting in self._settings.items()
            ],
            "injected": self.counts(),
        }

    def counts(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for (kind, _queue), count in self._counts.items():
            total[kind] += count
        return dict(total)

    def counts_by_queue(self) -> dict[tuple[str, str], int]:
        return {(kind, queue): count for (kind, queue), count in self._counts.items()}

    # Deciding.

    @property
    def active(self) -> bool:
        return bool(self._settings)

    def strikes(self, kind: Fault, queue: str, *, known: bool = True) -> Setting | None:
        """The setting if the fault happens now, otherwise None.

        A name that is not `known` as a queue's gets no counter, because clients can make up any number of names."""
        if not self._settings:
            return None
        setting = self._settings.get((kind, queue)) or self._settings.get((kind, None))
        if setting is None or self._random[kind].random() >= setting.rate:
            return None
        self._counts[kind, queue if known else ""] += 1
        return setting

    def chance(self, kind: Fault) -> float:
        """A further draw of a fault's own random sequence."""
        return self._random[kind].random()

    # The engine's questions.

    def short_poll(self, queue: str, want: int) -> int:
        return int(want * self.chance(Fault.SHORT_POLL)) if self.strikes(Fault.SHORT_POLL, queue) else want

    def visibility(self, queue: Queue, timeout: int) -> int:
        if not self._settings or timeout == 0:
            return timeout
        if not queue.fifo and self.strikes(Fault.DUPLICATE, queue.key):
            return 0
        if self.strikes(Fault.EARLY_VISIBILITY, queue.key):
            return int(timeout * self.chance(Fault.EARLY_VISIBILITY))
        return timeout

    def loses_delete(self, queue: Queue) -> bool:
        return not queue.fifo and self.strikes(Fault.LOST_DELETE, queue.key) is not None
