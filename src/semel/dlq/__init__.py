"""The dead-letter tools: list messages, group them by error, redrive, edit, delete, restore and watch them.

`semel.dlq.service.DeadLetterService` is the one service behind the command line, the JSON API and the pages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from semel.dlq.redrive.plan import RedrivePlan as RedrivePlan
    from semel.dlq.service import DeadLetterService as DeadLetterService

# Each name is loaded when it is first asked for: other modules of this package are used without them.
_WHERE: Final = {
    "DeadLetterService": "semel.dlq.service",
    "RedrivePlan": "semel.dlq.redrive.plan",
}
__all__ = [
    "DeadLetterService",
    "RedrivePlan",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
