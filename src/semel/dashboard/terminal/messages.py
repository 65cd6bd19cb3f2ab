"""The letters of one group, to choose one and read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Label

from semel.dashboard.terminal import format as cells
from semel.dashboard.terminal.tables import LiveTable


class MessagesSheet(ModalScreen[None]):
    """`open` shows the one that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss", "Close")]

    def __init__(self, queue: str, rows: Sequence[cells.Row], matched: int, open: Callable[[str], None]) -> None:
        super().__init__()
        self._queue, self._rows, self._matched, self._open = queue, rows, matched, open

    def compose(self) -> ComposeResult:
        shown = len(self._rows)
        which = f"{shown:,} of {self._matched:,}" if shown < self._matched else f"{shown:,}"
        with Vertical(classes="dialog wide"):
            yield Label(Text(f"{which} letters of {cells.plain(self._queue)}; Enter opens one, Esc closes", "bold"))
            yield LiveTable(cells.LETTERS, id="letters-of-group")

    def on_mount(self) -> None:
        table = self.query_one(LiveTable)
        table.put(self._rows)
        table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        if chosen := self.query_one(LiveTable).chosen:
            self._open(chosen)
