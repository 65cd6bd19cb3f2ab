"""Real processes, sockets and disks under faults: broker, workers, producers and stores are killed, stopped, restarted,
cut off and left without disk space, and the history that they wrote is checked afterwards.

`plan.py` draws the faults from a seed, `fleet.py` starts the processes, `storm.py` carries the faults out,
`evidence.py` reads what the processes wrote, and `checks.py` finds what is wrong with it. `run.py` does all of this for
one store. See `python -m process_crashes --help`.
"""
