"""What the doctor reads beside logs: settings, metrics, the ledger."""
