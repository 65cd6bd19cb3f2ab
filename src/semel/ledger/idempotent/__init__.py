"""@idempotent: the ledger for any function."""
