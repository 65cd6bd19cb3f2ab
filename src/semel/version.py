"""The version of this package, and the only place where it is written: pyproject.toml reads it from here. In a file of
its own, so that no module imports `semel`, which knows all of them."""

__version__ = "0.1.0.dev0"
