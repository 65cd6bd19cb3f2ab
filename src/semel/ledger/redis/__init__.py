"""The ledger in Redis or Valkey."""
