"""How long a message can be hidden: SQS hides it for twelve hours at most, counted from its receive."""

from __future__ import annotations

import math
from typing import Final

from semel.sqs.limits import MAX_VISIBILITY

LONGEST: Final = MAX_VISIBILITY
MARGIN: Final = 5  # seconds for the request to reach SQS, and for the difference between two clocks


def visibility_for(delay: float, received_for: float) -> int:
    """The visibility timeout, in whole seconds, that hides a message for `delay` from now on.

    Never shorter than `delay`, unless the message, received `received_for` seconds ago, cannot be hidden that long:
    SQS refuses to hide a message beyond twelve hours after its receive. 0 makes it visible at once.
    """
    left = LONGEST - MARGIN - math.ceil(max(0.0, received_for))
    return max(0, min(math.ceil(min(delay, LONGEST)), left))
