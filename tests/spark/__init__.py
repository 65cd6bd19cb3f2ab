"""Tests of Semel on Spark: all on the one session of conftest.py, but for those that kill or need a cluster."""
