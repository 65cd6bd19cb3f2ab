"""Telemetry: the attempt log, metrics, structured logs, the health and control endpoint, the worker registry."""
