"""User code may raise anything: none of its exceptions ends one of our threads, and each gets a printable text."""

from __future__ import annotations

import threading
from typing import Any


class Killed(BaseException):
    """Raised by a crash point in tests: the worker dies there and does nothing more."""


def is_failure(error: BaseException) -> bool:
    """Whether the code that raised it failed. Otherwise the process is ending, and callers have to re-raise it: a crash
    in a test, or Ctrl-C, which Python raises only in the main thread."""
    if isinstance(error, Killed):
        return False
    return not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread()


def described(error: BaseException) -> str:
    """The error's type and text, in characters that every store accepts."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(value: Any) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except BaseException as odd:
        if not is_failure(odd):
            raise
        return f"a {type(value).__name__} whose text cannot be read: {type(odd).__name__}"
