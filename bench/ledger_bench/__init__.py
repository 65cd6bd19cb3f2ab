"""The parts of `bench/ledgers.py`: the work, one worker for each library, the report."""
