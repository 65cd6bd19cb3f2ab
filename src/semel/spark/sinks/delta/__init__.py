"""Rows into a Delta table: written by tasks, made visible by the driver in one commit a batch."""
