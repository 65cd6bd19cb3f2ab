"""Rows into a PostgreSQL table: staged by tasks, merged by the driver in one transaction a batch."""
