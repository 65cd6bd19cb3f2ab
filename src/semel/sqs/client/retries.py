"""How long to wait before a call is retried. Pure: randomness is an argument."""

from __future__ import annotations

from typing import Final

from semel.sqs.errors import SqsError, Throttled

BASE: Final = 0.1
THROTTLED_BASE: Final = 0.5
CAP: Final = 20.0


def pause_before_retry(attempt: int, chance: float, *, throttled: bool) -> float:
    """Seconds between attempt number `attempt` and the next: full jitter below a limit that doubles, up to `CAP`.

    `chance` is a random number in [0, 1)."""
    base = THROTTLED_BASE if throttled else BASE
    return chance * min(CAP, base * 2.0 ** min(attempt - 1, 30))


def pause_after(error: SqsError, attempt: int, chance: float) -> float:
    return pause_before_retry(attempt, chance, throttled=isinstance(error, Throttled))
