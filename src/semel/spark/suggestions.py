"""Suggests what was probably meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Collection


def did_you_mean(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """The end of an error text: the nearest known name, else `otherwise`, by default a list of all known names."""
    from difflib import get_close_matches  # Spark's workers start often, and seldom need it

    by_lower = {known_name.lower(): known_name for known_name in known}
    for nearest in get_close_matches(name.lower(), by_lower, 1, 0.6):
        return f"; did you mean {by_lower[nearest]!r}?"
    return f"; there are {', '.join(known)}" if otherwise is None else otherwise
