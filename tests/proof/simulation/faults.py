"""What can go wrong in one schedule, and how often.

Each schedule has its own selection of faults: some have none of a kind, so that others can be seen alone, and some have
a kind in plenty.
"""

from __future__ import annotations

from typing import Final

from simulation.choices import Choices

# What can happen to one request. Its share of 1,000 requests, where a schedule has this fault.
CALL_FAULTS: Final = {
    "lost request": 30,
    "lost answer": 40,
    "slow request": 25,
    "slow answer": 25,
    "repeated request": 15,  # the network delivers it twice, the second time later
    "refused": 25,  # by the service: throttled, or out of order
}
# What can happen to a receive or a delete inside SQS.
SERVICE_FAULTS: Final = {"visible early": 60, "lost delete": 60, "short poll": 100}
DELAYS: Final = (0.001, 0.002, 0.003, 0.005, 0.008, 0.02, 0.07, 0.25)
SLOW: Final = (2.0, 9.0, 25.0, 45.0)


class CallFaults:
    """Faults of the calls to one service, which a schedule may switch off when its trouble ends."""

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
        """How long a request and its answer are under way."""
        both = self._choices.below(64)
        return DELAYS[both & 7], DELAYS[both >> 3]

    def slow(self) -> float:
        return SLOW[self._choices.below(len(SLOW))]
