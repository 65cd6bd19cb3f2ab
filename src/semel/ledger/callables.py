"""Checks that a call of a function does the work, and does not only return a promise of it.

A coroutine that nobody awaits, or a generator that nobody iterates over, has done nothing: it does not count as a
result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, TypeGuard

_LAZY: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)


def is_async(function: Callable[..., Any]) -> TypeGuard[Callable[..., Awaitable[Any]]]:
    """Whether a call returns a coroutine. The function can also be a partial, or an object that can be called."""
    return inspect.iscoroutinefunction(_called(function))


def not_run_by_a_call(function: Callable[..., Any]) -> str:
    """Why a call of this function would not do its work, as far as can be detected; "" for all other functions."""
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
    """The kind of a result that stands for work that was not done; "" for all other results. Coroutines and generators
    are closed, because nobody will run them."""
    kind = type(result)  # the object itself is not used, as any access to it may fail
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
    """What a call runs: the function of a partial, or the `__call__` of another object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004 - to look at it, not to know whether it is there


def _wrapped(function: Any) -> Iterator[Any]:
    """The functions that this one wraps, as `__wrapped__` says, from the outside in."""
    visited: list[Any] = []
    while not any(function is earlier for earlier in visited):
        visited.append(function)
        outer = function.func if isinstance(function, functools.partial) else function
        function = getattr(outer, "__wrapped__", outer)
        yield _called(function)
