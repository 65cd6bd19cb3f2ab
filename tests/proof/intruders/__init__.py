"""Attacks on real servers over loopback. `attacks.py` maps each kind of attack to its tests, here and elsewhere.

The servers are in `targets.py`: broker, dashboard and a worker's endpoint. `wire.py` sends raw bytes to them.
"""
