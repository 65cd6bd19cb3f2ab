"""The probes of bench/behaviour.py."""
