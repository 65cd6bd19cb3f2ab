"""What every ledger promises, tested on every store by the same tests."""
