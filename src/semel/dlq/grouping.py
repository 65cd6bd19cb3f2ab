"""Letters by what they died of, counted in one pass: memory grows with the kinds of errors, not with the letters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from semel.dlq import fingerprints
from semel.dlq.messages import DeadLetterMessage, ErrorGroup

SAMPLE: Final = 500  # characters of an error


@dataclass(slots=True)
class _Count:
    shape: str
    sample: str
    sample_id: str
    count: int
    first: float
    last: float
    sources: set[str] = field(default_factory=set)


class Grouping:
    """`add` letters as they are seen; `groups` at any time, the largest first."""

    def __init__(self) -> None:
        self._found: dict[str, _Count] = {}
        self.matched = 0
        self.oldest: float | None = None
        self.newest: float | None = None

    def add(self, messages: Iterable[DeadLetterMessage]) -> None:
        for message in messages:
            self._add(message)

    def _add(self, message: DeadLetterMessage) -> None:
        self.matched += 1
        sent = message.sent
        self.oldest = sent if self.oldest is None else min(self.oldest, sent)
        self.newest = sent if self.newest is None else max(self.newest, sent)
        error = fingerprints.error_of(message)
        known = self._found.get(print_ := fingerprints.fingerprint(error))
        if known is None:
            known = _Count(fingerprints.shape(error), error[:SAMPLE], message.id, 0, sent, sent)
            self._found[print_] = known
        known.count += 1
        known.first = min(known.first, sent)
        if sent > known.last:
            known.last, known.sample, known.sample_id = sent, error[:SAMPLE], message.id
        if message.source:
            known.sources.add(message.source)

    @property
    def groups(self) -> tuple[ErrorGroup, ...]:
        return tuple(
            ErrorGroup(
                fingerprint=print_,
                shape=one.shape,
                sample=one.sample,
                sample_id=one.sample_id,
                count=one.count,
                first=one.first,
                last=one.last,
                where=f"fingerprint = {print_}",
                sources=tuple(sorted(one.sources)),
            )
            for print_, one in sorted(self._found.items(), key=lambda item: (-item[1].count, item[0]))
        )
