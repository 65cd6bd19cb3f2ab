"""Passes rows to the handlers of an app, in the executors, with the same ledger as in the consumer."""
