"""What the doctor reads besides logs: settings, metrics, the ledger."""
