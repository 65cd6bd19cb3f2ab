"""Small models, explored completely: all interleavings of two workers or two drivers, and of the faults they may meet.

`claims.py` is the model of two workers, `batches.py` that of two Spark drivers; their docstrings list the rules that
must hold. A model does not restate Semel's logic, it calls it: the table of a message's lifecycle, a real ledger, the
real segment log. `explorer.py` walks through all states; `*_mutants.py` have mistakes that it must find.
`python -m models` explores everything and prints the number of states."""
