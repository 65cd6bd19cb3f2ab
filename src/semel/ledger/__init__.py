"""The ledger: who has done what. Atomic claim, lease, fence and record, in SQLite, PostgreSQL, Redis or DynamoDB."""
