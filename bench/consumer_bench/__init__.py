"""The parts of `bench/consumers.py`: the site, one worker for each contestant, the report."""
