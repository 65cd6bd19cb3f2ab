"""Semel: process every SQS message exactly once, in effect."""

__version__ = "0.1.0.dev0"
