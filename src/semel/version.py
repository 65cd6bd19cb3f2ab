"""The version of this package, written only here: pyproject.toml reads it from this file. It has a module of its own so
that no module needs to import `semel`, which knows all the others."""

__version__ = "0.1.0.dev0"
