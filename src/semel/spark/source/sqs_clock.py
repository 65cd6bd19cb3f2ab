"""SQS's clock: it decides until when a message is hidden, so the times in segments are times of this clock.

The rules:
1. No host relies on another host's clock. Each host measures the difference between SQS's clock and its own monotonic
   clock, by the Date header of an answer. A slow call, or a process that is paused, only widens the bounds.
2. Of the two bounds, the one by which a message becomes visible earlier is used.
3. If SQS does not answer, nothing is known, and no delete of messages that another host received counts as confirmed.
   If its answers have no Date, the host's own clock is used, plus or minus `SKEW`.
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
TIMEOUT: Final = 5.0  # seconds to wait for the answer: wider bounds are of little use
VALID: Final = 60.0  # seconds for which a reading is used: in this time, two clocks do not drift apart
MARGIN: Final = 1.0  # seconds by which the clocks of SQS's servers may differ
SKEW: Final = 5.0  # seconds by which a host's clock may differ from SQS's, if SQS does not send its time


def sqs_time(client: Client) -> float | None:
    """Whole seconds since 1970 by SQS's own clock, or None if it does not say."""
    return server_time(client.exchange("GET", "/", signed=False, timeout=TIMEOUT).head)


@dataclass(frozen=True, slots=True)
class Reading:
    """SQS's time minus our monotonic time is between `low` and `high`."""

    low: float = -inf
    high: float = inf

    def earliest(self, monotonic: float) -> float:
        """The earliest time that SQS's clock can show at this monotonic time; 0 if nothing is known."""
        return max(0.0, monotonic + self.low)

    def surely_before(self, sqs: float) -> float:
        """The monotonic time until which SQS's clock has certainly not reached `sqs`."""
        return sqs - self.high - MARGIN


UNKNOWN: Final = Reading()


class SqsClock:
    """`ask` returns SQS's time, or None if SQS does not send it; `clock` is the host's."""

    def __init__(
        self,
        ask: Callable[[], float | None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._clock, self.monotonic = ask, clock, monotonic
        self._reading, self._valid_until = UNKNOWN, -inf

    def read(self) -> Reading:
        """The current reading. SQS is asked again when the last one is older than `VALID`."""
        sent = self.monotonic()
        if sent >= self._valid_until:
            self._reading = self._asked(sent)
            self._valid_until = -inf if self._reading is UNKNOWN else sent + VALID
        return self._reading

    def _asked(self, sent: float) -> Reading:
        try:
            date = self._ask()
        except SemelError as error:
            _log.warning("SQS's time is not known, so deletes of other hosts' messages stay unconfirmed: %s", error)
            return UNKNOWN
        received = self.monotonic()
        if date is None:
            ahead = self._clock() - received
            return Reading(ahead - SKEW, ahead + SKEW)
        return Reading(date - received, date + 1 - sent)


@cache
def clock_of(client: Client) -> SqsClock:
    """One per process and client: Spark reuses its workers."""
    return SqsClock(partial(sqs_time, client))
