"""Names that a package offers without importing them: each is imported on first use.

This module is below all others, including `semel.errors`, and imports none of them when it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, where: Mapping[str, str], extras: Mapping[str, str] | None = None, modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package. `where` has the module of each name, or "module:name" if its name
    there is another. `extras` has the extra that a name needs. `modules` are the package's own modules."""
    extra_of = extras or {}

    def __getattr__(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name not in extra_of:
            return load(name)
        with import_module("semel.extras").importing(name, extra=extra_of[name]):
            return load(name)

    def load(name: str) -> Any:
        module, _, attribute = where[name].partition(":")
        return getattr(import_module(module), attribute or name)

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where, *modules})

    return __getattr__, __dir__
