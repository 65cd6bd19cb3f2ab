"""The dead-letter tools: list messages, group them by error, redrive, edit, delete, restore and watch them.

`semel.dlq.service.DeadLetterService` is the one service behind the command line, the JSON API and the pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.lazy_imports import lazy_names

if TYPE_CHECKING:
    from semel.dlq.redrive.plan import RedrivePlan as RedrivePlan
    from semel.dlq.service import DeadLetterService as DeadLetterService

# Each name is loaded on first use, because other modules of this package are used without them.
_WHERE: Final = {
    "DeadLetterService": "semel.dlq.service",
    "RedrivePlan": "semel.dlq.redrive.plan",
}
__all__ = [
    "DeadLetterService",
    "RedrivePlan",
]
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
