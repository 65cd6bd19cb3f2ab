"""Shortcuts to write histories."""

from __future__ import annotations

from typing import Any

from semel.verify import EventKind, Finding, HistoryEvent, Verdict, check


def event(kind: str, key: str = "", **fields: Any) -> HistoryEvent:
    return HistoryEvent(EventKind(kind), key=key, **fields)


def history(text: str, **fields: Any) -> list[HistoryEvent]:
    """One event per word: `send:k1 effect:k1@2` (its fence is 2) `delete:k1/m1` (its message is m1)."""
    return [_event(word, fields) for word in text.split()]


def _event(word: str, fields: dict[str, Any]) -> HistoryEvent:
    kind, _, rest = word.partition(":")
    rest, _, fence = rest.partition("@")
    key, _, message = rest.partition("/")
    more: dict[str, Any] = {"fence": int(fence)} if fence else {}
    return HistoryEvent(EventKind(kind), message, key, **more, **fields)


def findings_of(verdict: Verdict) -> list[tuple[str, str]]:
    return [(finding.kind.value, finding.key) for finding in verdict.findings]


def findings_in(text: str, **options: Any) -> list[tuple[str, str]]:
    return findings_of(check(history(text), **options))


def shown(finding: Finding) -> list[str]:
    """The evidence of a finding."""
    return [f"{event.kind}:{event.key}" for event in finding.evidence]
