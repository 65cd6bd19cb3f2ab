"""Real processes, sockets and disks under faults: broker, workers, producers and stores are killed, stopped, restarted,
cut off and left without disk space, and the history that they wrote down is checked afterwards.

`plan.py` draws the faults from a seed, `storm.py` carries them out, `evidence.py` reads what was written down, and
`checks.py` says what is wrong with it. `python -m process_crashes --help` runs it.
"""
