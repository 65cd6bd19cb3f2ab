"""The ledger: which keys are claimed and which are done, in SQLite, PostgreSQL, Redis or DynamoDB."""
