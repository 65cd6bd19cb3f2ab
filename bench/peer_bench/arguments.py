"""Arguments that the benchmarks against other libraries have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """An argument type: a comma-separated list of known names."""
    allowed = list(known)

    def read(text: str) -> list[str]:
        chosen = [name for name in text.split(",") if name]
        unknown = [name for name in chosen if name not in allowed]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown) or 'name'} here; there are: {', '.join(allowed)}")
        return [name for name in allowed if name in chosen]

    return read
