"""Fuzzing of all that reads bytes from outside: coverage-guided with atheris, property-based with hypothesis.

A target is a function `fuzz_<name>(data: bytes) -> None` that states in its docstring what must hold, and raises where
it does not. `table.py` lists them. They run in three ways: for minutes under atheris (`make proof-fuzz`), over mutated
examples in the tests, and over every input that once broke something (`regressions/`).
"""
