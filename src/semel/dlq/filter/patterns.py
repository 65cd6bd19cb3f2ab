"""Regular expressions that cannot hang: each character of a text is looked at once, whatever the pattern.

Python's own `re` tries alternatives one after the other, and some patterns have more of them than time allows. Here a
pattern becomes the set of its positions (Glushkov's automaton), all alternatives are followed at once as the bits of
one number, and what was worked out for a set and a character is remembered. What would need memory of what was matched
(back references, looking around) does not exist, and says so.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

MAX_LENGTH: Final = 200  # characters of a pattern
MAX_POSITIONS: Final = 250  # of its automaton: {n,m} repeats what stands before it
MAX_DEPTH: Final = 20
MAX_LOOKED_AT: Final = 64 * 1024  # characters of a text
_KEPT: Final = 4_096  # steps that are remembered
_START: Final = "start"  # stand for a text's two ends: longer than a character, so that no text has them
_END: Final = "end"

_DIGITS: Final = frozenset(string.digits)
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_SPACE: Final = frozenset(" \t\n\r\f\v")
_SETS: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}

Matcher = Callable[[str], bool]


class PatternError(ValueError):
    """What is wrong with a pattern, and at which of its characters."""

    def __init__(self, problem: str, place: int) -> None:
        super().__init__(problem)
        self.place = place


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of the pattern: the positions that it can begin and end with, as bits, and whether it can be nothing."""

    first: int = 0
    last: int = 0
    empty: bool = True


class Pattern:
    """`Pattern("time(d )?out").found_in(text)`: whether it matches anywhere in the text's first 64 Ki characters."""

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        built = _Builder(text, ignore_case)
        whole = built.whole()
        self._first, self._last, self._empty = whole.first, whole.last, whole.empty
        self._matchers, self._follow = built.matchers, built.follow
        self._steps: dict[tuple[int, str], int] = {}
        self._fits: dict[str, int] = {}

    def found_in(self, text: str) -> bool:
        if self._empty:
            return True
        steps, last = self._steps, self._last
        state = self._step(0, _START)
        if state & last:
            return True
        for char in text[:MAX_LOOKED_AT]:
            known = steps.get((state, char))
            state = self._step(state, char) if known is None else known
            if state & last:
                return True
        # The end of a text that was cut is not its end.
        return len(text) <= MAX_LOOKED_AT and bool(self._step(state, _END) & last)

    def _step(self, state: int, char: str) -> int:
        """The positions that can have been reached by `char` from those of `state`, or from a new beginning."""
        reached = self._first
        rest = state
        while rest:
            lowest = rest & -rest
            reached |= self._follow[lowest.bit_length() - 1]
            rest ^= lowest
        found = reached & self._fitting(char)
        if len(self._steps) >= _KEPT:
            self._steps.clear()
        self._steps[state, char] = found
        return found

    def _fitting(self, char: str) -> int:
        known = self._fits.get(char)
        if known is None:
            known = sum(1 << place for place, fits in enumerate(self._matchers) if fits(char))
            if len(self._fits) >= _KEPT:
                self._fits.clear()
            self._fits[char] = known
        return known


@dataclass(slots=True)
class _Builder:
    """Reads a pattern from left to right; `matchers` and `follow` have one entry for each position."""

    text: str
    ignore_case: bool
    at: int = 0
    depth: int = 0
    matchers: list[Matcher] = field(default_factory=list)
    follow: list[int] = field(default_factory=list)

    def whole(self) -> _Part:
        if len(self.text) > MAX_LENGTH:
            raise PatternError(f"a pattern has at most {MAX_LENGTH} characters, not {len(self.text)}", MAX_LENGTH)
        part = self._alternatives()
        if self.at < len(self.text):
            raise PatternError("this ) has no ( before it", self.at)
        return part

    def _alternatives(self) -> _Part:
        part = self._sequence()
        while self._take("|"):
            other = self._sequence()
            part = _Part(part.first | other.first, part.last | other.last, part.empty or other.empty)
        return part

    def _sequence(self) -> _Part:
        part = _Part()
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            part = self._joined(part, self._repeated())
        return part

    def _joined(self, left: _Part, right: _Part) -> _Part:
        self._lead(left.last, right.first)
        return _Part(
            left.first | (right.first if left.empty else 0),
            right.last | (left.last if right.empty else 0),
            left.empty and right.empty,
        )

    def _lead(self, sources: int, targets: int) -> None:
        for place in range(len(self.follow)):
            if sources >> place & 1:
                self.follow[place] |= targets

    def _repeated(self) -> _Part:
        begins = self.at
        part = self._atom()
        ends = self.at
        if self._is_count():
            least, most = self._count()
            self._take("?")  # as few or as many as possible: the same for whether it is found at all
            part = self._times(part, begins, ends, least, most)
            if self._is_count():
                raise PatternError("this repeats what is repeated already; put ( ) around it", self.at)
        return part

    def _is_count(self) -> bool:
        return self.at < len(self.text) and self.text[self.at] in "*+?{"

    def _times(self, part: _Part, begins: int, ends: int, least: int, most: int | None) -> _Part:
        if (least, most) == (0, 0):
            return _Part()
        copies = max(1, least) if most is None else most
        found = last = _Part(part.first, part.last, part.empty or least == 0)
        for number in range(1, copies if part.first else 1):
            # The same piece once more, read again, as positions of its own.
            piece = _Builder(self.text[:ends], self.ignore_case, begins, self.depth, self.matchers, self.follow)._atom()
            last = _Part(piece.first, piece.last, piece.empty or number >= least)
            found = self._joined(found, last)
        if most is None:
            self._lead(last.last, last.first)
        return found

    def _count(self) -> tuple[int, int | None]:
        sign, place = self.text[self.at], self.at
        self.at += 1
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        inside, closed, _ = self.text[self.at :].partition("}")
        low, comma, high = inside.partition(",")
        if not closed or not (low or "0").isdecimal() or not (high or "0").isdecimal() or not (low or high):
            raise PatternError(r"a { begins a count such as {3} or {1,5}; the character itself is \{", place)
        self.at += len(inside) + 1
        least = int(low or "0")
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > MAX_POSITIONS or (most is not None and most < least):
            raise PatternError(f"{{{inside}}} is not a count that can be kept", place)
        return least, most

    def _atom(self) -> _Part:
        char, place = self.text[self.at], self.at
        self.at += 1
        match char:
            case "(":
                return self._group(place)
            case "[":
                return self._position(self._characters(place))
            case ".":
                return self._position(lambda found: found not in (_START, _END, "\n"))
            case "^":
                return self._position(lambda found: found == _START)
            case "$":
                return self._position(lambda found: found == _END)
            case "\\":
                fits, literal = self._escaped(place)
                return self._position(fits if fits else self._equal_to(literal))
            case "*" | "+" | "?" | "{":
                raise PatternError(f"there is nothing before {char} to repeat; the character itself is \\{char}", place)
        return self._position(self._equal_to(char))

    def _equal_to(self, char: str) -> Matcher:
        forms = self._forms(char)
        return lambda found: found in forms

    def _forms(self, char: str) -> frozenset[str]:
        return frozenset({char, char.lower(), char.upper()} if self.ignore_case else {char})

    def _group(self, place: int) -> _Part:
        if self._take("?") and not self._take(":"):
            raise PatternError("only plain groups ( ) and (?: ) can be used, no looking around", place)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise PatternError(f"groups may be at most {MAX_DEPTH} deep", place)
        part = self._alternatives()
        if not self._take(")"):
            raise PatternError("this ( is not closed", place)
        self.depth -= 1
        return part

    def _characters(self, place: int) -> Matcher:
        negated = self._take("^")
        singles: set[str] = set()
        ranges: list[tuple[str, str]] = []
        others: list[Matcher] = []
        begun = self.at
        while self.at < len(self.text) and (self.text[self.at] != "]" or self.at == begun):
            low = self._member(others)
            if low is None:
                continue
            if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._member(others)
                if high is None or high < low:
                    raise PatternError("this range of characters ends before it begins", place)
                ranges.append((low, high))
            else:
                singles.add(low)
        if not self._take("]"):
            raise PatternError("this [ is not closed", place)

        def fits(char: str) -> bool:
            if char in (_START, _END):
                return False
            within = any(
                form in singles or any(low <= form <= high for low, high in ranges) for form in self._forms(char)
            )
            return (within or any(other(char) for other in others)) != negated

        return fits

    def _member(self, others: list[Matcher]) -> str | None:
        char, place = self.text[self.at], self.at
        self.at += 1
        if char != "\\":
            return char
        fits, literal = self._escaped(place)
        if fits:
            others.append(fits)
            return None
        return literal

    def _escaped(self, place: int) -> tuple[Matcher | None, str]:
        if self.at == len(self.text):
            raise PatternError("a \\ stands before a character, and there is none", place)
        char = self.text[self.at]
        self.at += 1
        if char.lower() in _SETS:
            known, inside = _SETS[char.lower()], char.islower()
            return (lambda found: (found in known) == inside and found not in (_START, _END)), ""
        if char in _CONTROLS:
            return None, _CONTROLS[char]
        if char.isascii() and char.isalnum():
            raise PatternError(f"\\{char} cannot be used; there are \\d \\w \\s \\n \\t and \\ before signs", place)
        return None, char

    def _position(self, fits: Matcher) -> _Part:
        if len(self.matchers) >= MAX_POSITIONS:
            raise PatternError(f"the pattern is too large: it has more than {MAX_POSITIONS} places to match", self.at)
        bit = 1 << len(self.matchers)
        self.matchers.append(fits)
        self.follow.append(0)
        return _Part(bit, bit, False)

    def _take(self, char: str) -> bool:
        taken = self.text.startswith(char, self.at)
        self.at += taken
        return taken
