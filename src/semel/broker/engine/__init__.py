"""The rules of SQS. Knows no HTTP, no clock and no threads."""

from semel.broker.engine.engine import NEVER, Access, Caller, Engine, Identity, Queue, Received, Wanted

__all__ = ["NEVER", "Access", "Caller", "Engine", "Identity", "Queue", "Received", "Wanted"]
