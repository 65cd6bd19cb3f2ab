"""The user's code may raise anything. No exception of it ends one of our threads, and each has a printable text."""

from __future__ import annotations

import threading
from typing import Any


class Killed(BaseException):
    """What a crash point raises in tests: the worker dies there, and nothing at all is done any more."""


def is_failure(error: BaseException) -> bool:
    """Whether the code that raised it failed. Otherwise the process ends, and the exception is raised on: a crash in a
    test, or Ctrl-C, which Python raises in the main thread only."""
    if isinstance(error, Killed):
        return False
    return not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread()


def described(error: BaseException) -> str:
    """Its type and its text, in characters that every store can keep."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(value: Any) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except BaseException as odd:
        if not is_failure(odd):
            raise
        return f"a {type(value).__name__} whose text cannot be read: {type(odd).__name__}"
