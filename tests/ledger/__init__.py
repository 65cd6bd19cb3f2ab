"""Tests of the ledger. What every store promises is in conformance/; a store's own traits are beside it."""
