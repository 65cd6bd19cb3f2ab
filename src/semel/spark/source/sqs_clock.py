"""What time it is at SQS: until when a message is hidden is a time by SQS's clock, and so is what a segment says of it.

The rules:
1. Clocks of hosts decide nothing that another host relies on. Each host measures how far SQS's clock is from its own
   monotonic one, by the Date of an answer. A slow call, or a process that stands still, only widens the bounds.
2. Of the bounds, that one is taken by which a message is visible earlier.
3. If SQS does not answer, nothing is known, and no delete of another's messages is believed. If its answers have no
   Date, the host's own clock counts, give or take `SKEW`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from typing import Final

from semel.errors import SemelError
from semel.sqs.client import Client
from semel.sqs.client.error_parser import server_time

_log: Final = logging.getLogger("semel.spark")
TIMEOUT: Final = 5.0  # seconds to wait for the answer: bounds that are further apart are of little use
VALID: Final = 60.0  # seconds; two clocks run at the same speed for so long
MARGIN: Final = 1.0  # seconds that SQS's servers may differ by
SKEW: Final = 5.0  # seconds that a host's clock may differ from SQS's, where SQS does not say what time it is


def sqs_time(client: Client) -> float | None:
    """Whole seconds since 1970 by SQS's own clock, or None if it does not say."""
    return server_time(client.exchange("GET", "/", signed=False, timeout=TIMEOUT).head)


@dataclass(frozen=True, slots=True)
class Reading:
    """SQS's time minus our monotonic time is between `low` and `high`."""

    low: float = -inf
    high: float = inf

    def earliest(self, monotonic: float) -> float:
        """SQS's time at this moment of ours, at the earliest; 0 if nothing is known."""
        return max(0.0, monotonic + self.low)

    def surely_before(self, sqs: float) -> float:
        """The moment of ours until which it is surely not that time yet at SQS."""
        return sqs - self.high - MARGIN


UNKNOWN: Final = Reading()


class SqsClock:
    """`ask` is a call that says what time it is at SQS; `clock` is the host's."""

    def __init__(
        self,
        ask: Callable[[], float | None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._clock, self.monotonic = ask, clock, monotonic
        self._reading, self._valid_until = UNKNOWN, -inf

    def read(self) -> Reading:
        """Asks SQS, once in a while."""
        sent = self.monotonic()
        if sent >= self._valid_until:
            self._reading = self._asked(sent)
            self._valid_until = -inf if self._reading is UNKNOWN else sent + VALID
        return self._reading

    def _asked(self, sent: float) -> Reading:
        try:
            date = self._ask()
        except SemelError as error:
            _log.warning("what time it is at SQS is not known, so deletes on other hosts are not believed: %s", error)
            return UNKNOWN
        received = self.monotonic()
        if date is None:
            ahead = self._clock() - received
            return Reading(ahead - SKEW, ahead + SKEW)
        return Reading(date - received, date + 1 - sent)


@cache
def clock_of(client: Client) -> SqsClock:
    """One a process and client: workers are used again."""
    return SqsClock(partial(sqs_time, client))
