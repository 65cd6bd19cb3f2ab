"""Rows to the handlers of an app, in the executors, under the same ledger as on threads."""
