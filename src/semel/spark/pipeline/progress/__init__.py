"""What a running pipeline shows: totals, display, status file, metrics, attempt log."""
