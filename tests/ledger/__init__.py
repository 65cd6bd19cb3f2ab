"""Tests of the ledger. conformance/ tests what every store promises; the other files test what only one store has."""
