"""Functions that are called for their effect: the call must do the work, and not only promise it.

A coroutine that nobody awaits and a generator that nobody iterates have done nothing, so neither may count as a result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, TypeGuard

_LAZY: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)


def is_async(function: Callable[..., Any]) -> TypeGuard[Callable[..., Awaitable[Any]]]:
    """Whether a call gives a coroutine; also of a partial, and of an object that can be called."""
    return inspect.iscoroutinefunction(_called(function))


def not_run_by_a_call(function: Callable[..., Any]) -> str:
    """What a function is whose call would not do its work, as far as can be seen; "" for all others."""
    called = _called(function)
    if kind := _generator(called):
        return f"it is {kind}, and nobody would iterate over what it yields"
    if inspect.iscoroutinefunction(called):
        return ""
    for inner in _wrapped(function):
        if kind := _generator(inner) or ("async" if inspect.iscoroutinefunction(inner) else ""):
            name = getattr(inner, "__qualname__", repr(inner))
            return f"it is a plain function around {name}, which is {kind}, so a call would not run it"
    return ""


def unfinished(result: Any) -> str:
    """What a result is that stands for work that was not done; "" for all others. It is closed: nobody will run it."""
    kind = type(result)  # not the object itself: it may be odd in every way
    if not issubclass(kind, _LAZY) and not hasattr(kind, "__await__"):
        return ""
    if issubclass(kind, CoroutineType | GeneratorType):
        result.close()
    return f"a {kind.__name__.replace('_', ' ')}"


def _generator(function: Any) -> str:
    if inspect.isasyncgenfunction(function):
        return "an async generator"
    return "a generator" if inspect.isgeneratorfunction(function) else ""


def _called(function: Any) -> Any:
    """What a call runs: of a partial its function, of another object its `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004 - to look at it, not to know whether it is there


def _wrapped(function: Any) -> Iterator[Any]:
    """All that a function says it wraps, from the outside in."""
    visited: list[Any] = []
    while not any(function is earlier for earlier in visited):
        visited.append(function)
        outer = function.func if isinstance(function, functools.partial) else function
        function = getattr(outer, "__wrapped__", outer)
        yield _called(function)
