"""Optional packages. If one is missing, a one-sentence error has the command that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from semel.errors import SemelError


class MissingExtra(SemelError, ImportError):
    """A package that belongs to an extra of Semel is not installed. Run the `pip install` command in the text."""


def require(what: str, *packages: str, extra: str) -> None:
    """Raises MissingExtra unless all are installed: `require("the dashboard", "fastapi", extra="dashboard")`.

    Nothing is imported, so this is cheap enough to call before any work starts."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise _missing(what, missing, extra)


@contextmanager
def importing(what: str, *, extra: str) -> Iterator[None]:
    """For imports: a missing package raises MissingExtra; a missing module of Semel is a bug, and raises as usual."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "semel").partition(".")[0]
        if package == "semel":
            raise
        raise _missing(what, [package], extra) from None


def _missing(what: str, packages: list[str], extra: str) -> MissingExtra:
    verb = "is" if len(packages) == 1 else "are"
    *others, last = packages
    names = f"{', '.join(others)} and {last}" if others else last
    return MissingExtra(f"{what} needs {names}, which {verb} not installed: pip install 'semel[{extra}]'", name=names)
