"""The parts of `bench/consumers.py`: conditions, contestants and their workers, the site, the report, the profiler."""
