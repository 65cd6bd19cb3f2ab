"""The parts of `bench/dashboards.py`."""
