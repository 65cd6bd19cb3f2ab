"""What the analysis needs from an engine. The SQL is the same for all engines;
see docs/explanation/decisions/0019-two-engines.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from semel.doctor.logs.discovery import LogFile
from semel.doctor.logs.mapping import LogMapping

Row = Mapping[str, Any]


class Engine(Protocol):
    def read(
        self, files: Sequence[LogFile], mapping: LogMapping, since: float | None, until: float | None
    ) -> list[str]:
        """Fill the table `log_lines`; returns the files that could not be read, each with the reason."""

    def view(self, name: str, query: str) -> None:
        """Name a query."""

    def table(self, name: str, query: str) -> None:
        """Run a query and keep its rows."""

    def values(self, name: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
        """Make a small table of these rows; `columns` has their types."""

    def rows(self, query: str) -> list[Row]:
        """Run a query whose result is small."""

    def close(self) -> None: ...
