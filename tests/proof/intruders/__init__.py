"""Attacks on real servers over loopback. `attacks.py` maps each kind of attack to its tests, here and elsewhere."""
