"""Checks that a program logs no error while it reads an input."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


_LOGGERS: Final = ("semel", "asyncio")


@contextmanager
def no_error_logged() -> Iterator[None]:
    """Raises AssertionError if something logs an error within the block. Nothing is printed meanwhile."""
    errors = _Errors()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(errors)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(errors)
            logger.propagate = propagate
    assert not errors.texts, "\n".join(errors.texts)
