"""`semel verify`: what a history of events shows: messages that were lost, doubled, reordered, or deleted too early."""

from semel.verify.check import check
from semel.verify.history import EventKind, HistoryEvent
from semel.verify.verdict import Counts, Finding, FindingKind, Unchecked, Verdict

__all__ = ["Counts", "EventKind", "Finding", "FindingKind", "HistoryEvent", "Unchecked", "Verdict", "check"]
