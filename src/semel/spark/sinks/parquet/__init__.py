"""Rows into a folder of Parquet files: written by tasks, moved into place by the driver."""
