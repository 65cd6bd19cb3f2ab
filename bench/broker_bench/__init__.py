"""The parts of `bench/broker.py`: targets, load generator, rows of the table, report."""
