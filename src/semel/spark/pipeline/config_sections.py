"""Sections of a TOML file with typed options: whatever is wrong is noted, and reading goes on, so that all mistakes of
a file are told at once.

The rule: a mistake names the section, the option, what was found and the way out; never what a variable was filled
with, nor the value of an option that may hold a password.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from semel.durations import seconds
from semel.errors import SemelError

SECRET: Final = frozenset({"dsn", "ledger"})
_VARIABLE: Final = re.compile(r"(\$?)\$\{([^}]*)\}")
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
Choice = TypeVar("Choice", bound=StrEnum)


class PipelineFileError(SemelError):
    """What is wrong with a pipeline's file: all of it at once, each with the way out."""

    def __init__(self, path: Path, mistakes: Sequence[str]) -> None:
        text = mistakes[0] if len(mistakes) == 1 else "".join(f"\n  - {one}" for one in mistakes)
        super().__init__(f"{path}: {text}")
        self.mistakes = tuple(mistakes)


@dataclass(slots=True)
class Notes:
    """Of one file: its folder, the variables that it may use, and what is wrong with it."""

    folder: Path
    environment: Mapping[str, str]
    mistakes: list[str] = field(default_factory=list)

    def filled(self, text: str, where: str) -> str:
        """`${NAME}` replaced by the environment's value; `$${NAME}` stands for itself."""

        def value(match: re.Match[str]) -> str:
            escaped, name = match.groups()
            if escaped:
                return match[0][1:]
            if not _VARIABLE_NAME.match(name):
                self.mistakes.append(f"{where}: {match[0]} names no environment variable; write $${{ for a plain ${{")
            elif name not in self.environment:
                close = nearest(
                    name, self.environment, f"; set it, or write $${{{name}}} if that is meant as it stands"
                )
                self.mistakes.append(f"{where}: there is no environment variable {name}{close}")
            return self.environment.get(name, "")

        return _VARIABLE.sub(value, text)


@dataclass(frozen=True, slots=True)
class Section:
    """`name` as in the file, "" for the options before the first section. Getters give None for what is not there."""

    name: str
    table: Mapping[str, Any]
    notes: Notes

    def mistake(self, text: str) -> None:
        self.notes.mistakes.append(f"{self.name} {text}" if self.name else text)

    def wrong(self, option: str, problem: str) -> None:
        found = self.table.get(option)
        shown = "" if option in SECRET else f" = {_shown(found)}"
        self.mistake(f"{option}{shown}: {problem}")

    def _read(self, option: str, make: Callable[[Any], Any], *, required: str = "") -> Any:
        if option not in self.table:
            if required:
                self.mistake(f"{option} is missing: {required}")
            return None
        try:
            return make(self.table[option])
        except (ValueError, SemelError) as error:
            self.wrong(option, str(error))
            return None

    def _where(self, option: str) -> str:
        return f"{self.name} {option}".strip()

    # One for each type.

    def text(self, option: str, *, required: str = "") -> str | None:
        def make(value: Any) -> str:
            if not isinstance(value, str) or not value.strip():
                raise ValueError('a text is needed, in quotes: "…"')
            return self.notes.filled(value, self._where(option))

        found: str | None = self._read(option, make, required=required)
        return found

    def place(self, option: str, *, required: str = "") -> str | None:
        """A path or an address. Paths are taken from the file's own folder: a run from elsewhere must find the same."""
        found = self.text(option, required=required)
        if found is None or "://" in found:
            return found
        return str((self.notes.folder / Path(found).expanduser()).resolve())

    def number(self, option: str, low: int, high: int) -> int | None:
        def make(value: Any) -> int:
            if type(value) is not int:
                raise ValueError("a whole number is needed, without quotes, such as 50_000")
            if not low <= value <= high:
                raise ValueError(f"it must be from {low:_} to {high:_}")
            return value

        found: int | None = self._read(option, make)
        return found

    def seconds(self, option: str, low: float, high: float) -> float | None:
        def make(value: Any) -> float:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ValueError('a duration is needed, such as "30s", "5m" or "1h30m"')
            found = seconds(self.notes.filled(value, self._where(option)) if isinstance(value, str) else value)
            if not low <= found <= high:
                raise ValueError(f"it must be from {low:g} to {high:g} seconds")
            return found

        found: float | None = self._read(option, make)
        return found

    def flag(self, option: str) -> bool:
        def make(value: Any) -> bool:
            if not isinstance(value, bool):
                raise ValueError("true or false is needed, without quotes")
            return value

        return bool(self._read(option, make))

    def choice(self, option: str, kind: type[Choice], *, required: str = "") -> Choice | None:
        possible = [one.value for one in kind]

        def make(value: Any) -> Choice:
            if value in possible:
                return kind(value)
            raise ValueError(f"it is not one of {', '.join(possible)}{nearest(str(value), possible, '')}")

        found: Choice | None = self._read(option, make, required=required)
        return found

    def texts(self, option: str, *, required: str = "") -> tuple[str, ...]:
        def make(value: Any) -> tuple[str, ...]:
            if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
                raise ValueError('a list of texts is needed, such as ["one", "two"]')
            if required and not value:
                raise ValueError(f"it is empty: {required}")
            found = tuple(self.notes.filled(one, self._where(option)) for one in value)
            if len(set(found)) < len(found):
                raise ValueError("it names something twice")
            return found

        return self._read(option, make, required=required) or ()

    # Sections within.

    def section(self, name: str, *, required: str = "") -> Section:
        found = self.table.get(name, {})
        if name not in self.table and required:
            self.mistake(f"[{name}] is missing: {required}")
        if not isinstance(found, dict):
            self.mistake(f"{name} = {_shown(found)}: it is a section; write [{name}] with its options below")
            found = {}
        return Section(f"[{name}]", found, self.notes)

    def sections(self, name: str) -> list[Section]:
        inner = f"[[{self.name.strip('[]')}.{name}]]"
        found = self.table.get(name, [])
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            self.mistake(f"{name}: it is a list of sections; write {inner} with its options below")
            return []
        return [Section(inner, one, self.notes) for one in found]

    # Rules.

    def only(self, known: Collection[str], elsewhere: Mapping[str, Collection[str]]) -> None:
        """Notes every option that is none; `elsewhere` says in which other places an option is known."""
        for option in self.table:
            if option in known:
                continue
            others = [place for place, options in elsewhere.items() if option in options]
            way_out = f"; it belongs to {' or '.join(others)}" if others else nearest(option, known, None)
            self.mistake(f"{option}: there is no such option{way_out}")

    def one_of(self, *options: str, required: str = "") -> str | None:
        """Which of options that exclude each other is given."""
        given = [option for option in options if option in self.table]
        if len(given) > 1:
            self.mistake(f"{' and '.join(given)} are both given, and exclude each other: keep one of them")
        if not given and required:
            self.mistake(f"{' or '.join(options)} is missing: {required}")
        return given[0] if given else None


def nearest(name: str, known: Collection[str], otherwise: str | None) -> str:
    """What was probably meant; `otherwise` None: all that there is."""
    close = difflib.get_close_matches(name.lower(), [one.lower() for one in known], 1, 0.6)
    if close:
        return f"; did you mean {next(one for one in known if one.lower() == close[0])!r}?"
    return f"; there are {', '.join(known)}" if otherwise is None else otherwise


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:80]}…"
