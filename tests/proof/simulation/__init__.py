"""Deterministic simulation: one seed decides everything that happens to the real engine, ledger, consumer and source.

`choices.py` draws every decision from the seed; `simulator.py` runs processes and tasks in virtual time. A world puts
real parts into it: `consumer_world.py` a broker, a ledger and workers; `spark_world.py` Spark's source and sinks.
`search.py` runs many seeds, and shrinks a failing schedule to a short timeline. `consumer_mutants.py` and
`spark_mutants.py` have bugs that were put in on purpose.
"""
