"""The parts of `bench/doctors.py`: generated logs, hand-written DuckDB queries, and the doctor's command."""
