"""Fuzzing of everything that reads bytes from outside: coverage-guided with atheris, property-based with hypothesis.

A target is a function `fuzz_<name>(data: bytes) -> None`. Its docstring states what must hold for every input, and it
raises if that does not hold. `table.py` lists all targets. They run in three ways: for minutes under atheris
(`make proof-fuzz`), with mutated examples in the tests, and with every input that once broke something
(`regressions/`).
"""
