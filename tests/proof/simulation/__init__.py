"""Deterministic simulation: one seed decides everything that happens to the real engine, ledger, consumer and source.

`choices.py` draws every decision from the seed; `simulator.py` runs processes and tasks in virtual time. A world puts
real parts into it: `consumer_world.py` a broker, a ledger and workers, `spark_world.py` the source and the sinks of
Spark. `search.py` runs many seeds, shrinks what fails, and prints it as a timeline. `mutants.py` are bugs on purpose.
"""
