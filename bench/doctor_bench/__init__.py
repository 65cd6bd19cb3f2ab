"""Logs of a known making, the hand-written DuckDB queries, and the doctor, measured side by side."""
