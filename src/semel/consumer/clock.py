"""The clock that leases and visibility timeouts are measured with.

The rule: it never goes back, and it goes on while the machine is suspended. `time.monotonic` stands still then, and
after a resume a lease that ended long ago would look valid.
"""

from __future__ import annotations

import sys
import time
from typing import Final

# macOS has no CLOCK_BOOTTIME: its CLOCK_MONOTONIC counts the time asleep, which time.monotonic() does not.
_CLOCK: Final[int | None] = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """Seconds since some fixed moment. If the platform has no clock that counts the time asleep: time.monotonic()."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
