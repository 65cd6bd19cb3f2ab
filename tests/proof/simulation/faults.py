"""What can go wrong in one schedule, and how often.

Each schedule has its own selection of kinds of faults. So some schedules lack a kind, and show the others alone.
"""

from __future__ import annotations

from typing import Final

from simulation.choices import Choices

# What can happen to a request, and to how many of 1,000 requests it happens in a schedule that has this fault.
CALL_FAULTS: Final = {
    "lost request": 30,
    "lost answer": 40,
    "slow request": 25,
    "slow answer": 25,
    "repeated request": 15,  # the network delivers it twice, the second time late
    "refused": 25,  # by the service: throttled, or an internal failure
    "failed entry": 60,  # one of a batch
}
# What can happen to a receive or a delete inside SQS.
SERVICE_FAULTS: Final = {"visible early": 60, "lost delete": 60, "short poll": 100}
DELAYS: Final = (0.001, 0.002, 0.003, 0.005, 0.008, 0.02, 0.07, 0.25)
SLOW: Final = (2.0, 9.0, 25.0, 45.0)


class CallFaults:
    """The faults of calls to one service. A schedule switches them off when its trouble ends."""

    def __init__(self, choices: Choices, names: dict[str, int], probability: float = 0.4) -> None:
        self._choices = choices
        self.on = True
        self._table: list[str] = []
        for name, share in names.items():
            if choices.chance(probability):
                self._table += [name] * share

    def next(self) -> str:
        """What happens to this call; usually nothing."""
        if not self._table or not self.on:
            return ""
        at = self._choices.below(1_000)
        return self._table[1_000 - at] if 0 < 1_000 - at < len(self._table) else ""

    def delays(self) -> tuple[float, float]:
        """How long the request and its answer take to arrive."""
        both = self._choices.below(64)
        return DELAYS[both & 7], DELAYS[both >> 3]

    def slow(self) -> float:
        return SLOW[self._choices.below(len(SLOW))]
