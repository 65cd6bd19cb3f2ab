"""`format("sqs")` as a sink: rows as messages."""
