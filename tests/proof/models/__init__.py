"""Small models, explored to the end: all interleavings of two workers or two drivers, and of what may befall them.

What a model says about Semel's rules it asks Semel itself: the table of a message's life, a real ledger, the real
segment log. `python -m models` explores all of them and says how many states there are."""
