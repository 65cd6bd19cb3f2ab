"""`semel verify`: finds messages that were lost, doubled, reordered or deleted too early in a history of events."""

from semel.verify.history import EventKind, HistoryEvent
from semel.verify.history_rules import check
from semel.verify.verdict import Counts, Finding, FindingKind, Unchecked, Verdict

__all__ = ["Counts", "EventKind", "Finding", "FindingKind", "HistoryEvent", "Unchecked", "Verdict", "check"]
