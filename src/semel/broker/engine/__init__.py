"""The rules of SQS. Knows no HTTP, no clock and no threads."""

from semel.broker.engine.engine import NEVER, Caller, Engine, Queue, Received, Wanted

__all__ = ["NEVER", "Caller", "Engine", "Queue", "Received", "Wanted"]
