"""Colours of a terminal, or none. Only text that was made harmless before is painted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.doctor.model import Severity

# A queue's sign: by its worst finding, -1 is none. The sign says it too, so nobody needs to see the colour.
MARKS: Final = {-1: "✓", int(Severity.INFO): "i", int(Severity.WARNING): "!", int(Severity.CRITICAL): "✗"}
_CODES: Final = {Severity.INFO: "36", Severity.WARNING: "33", Severity.CRITICAL: "1;31"}


@dataclass(frozen=True, slots=True)
class Paint:
    colour: bool

    def severity(self, text: str, level: Severity) -> str:
        return self._painted(text, _CODES[level])

    def good(self, text: str) -> str:
        return self._painted(text, "32")

    def bold(self, text: str) -> str:
        return self._painted(text, "1")

    def dim(self, text: str) -> str:
        return self._painted(text, "2")

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text
