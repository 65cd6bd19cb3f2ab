"""The four boards of the terminal: what each reads, on a thread, and how it shows it.

The rules: `reader` is made in the event loop and carries all that it needs, so that reading touches no widget; a table
keeps its cursor when its rows change, and is left alone when they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Label

from semel.dashboard.services import Services
from semel.dashboard.terminal import format as cells
from semel.dashboard.terminal.dialogs import RedriveSelection
from semel.dashboard.views.model import DeadLetterPage, WorkerQueue, WorkerRow
from semel.dlq.jobs import Job
from semel.dlq.queues import address
from semel.text import count, printable

MAX_ROWS: Final = 1_000


class LiveTable(DataTable[Text]):
    """Rows by key."""

    def __init__(self, columns: Sequence[str], *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self._columns = columns
        self._rows: dict[str, list[Text]] = {}

    def on_mount(self) -> None:
        for name in self._columns:
            self.add_column(name, key=name)

    def put(self, rows: Sequence[cells.Row]) -> None:
        wanted = {key: list(row) for key, row in rows[:MAX_ROWS]}
        if list(wanted) == list(self._rows):
            for key, row in wanted.items():
                for column, before, now in zip(self._columns, self._rows[key], row, strict=True):
                    if before != now:
                        self.update_cell(key, column, now, update_width=True)
        else:
            selected, at = self.selected, self.cursor_row
            self.clear()
            for key, row in wanted.items():
                self.add_row(*row, key=key)
            keys = list(wanted)
            if keys:
                self.move_cursor(row=keys.index(selected) if selected in wanted else min(at, len(keys) - 1))
        self._rows = wanted

    @property
    def selected(self) -> str:
        """The key of the row under the cursor; "" if there is none."""
        keys = list(self._rows)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else ""

    @property
    def keys(self) -> list[str]:
        return list(self._rows)


class MessagesSheet(ModalScreen[None]):
    """The messages of one group; `open` shows the selected one."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss", "Close")]

    def __init__(self, queue: str, rows: Sequence[cells.Row], matched: int, open: Callable[[str], None]) -> None:
        super().__init__()
        self._queue, self._rows, self._matched, self._open = queue, rows, matched, open

    def compose(self) -> ComposeResult:
        shown = len(self._rows)
        which = f"{shown:,} of {self._matched:,}" if shown < self._matched else f"{shown:,}"
        with Vertical(classes="dialog wide"):
            yield Label(Text(f"{which} messages of {printable(self._queue)}; Enter opens one, Esc closes", "bold"))
            yield LiveTable(cells.MESSAGES, id="messages")

    def on_mount(self) -> None:
        table = self.query_one(LiveTable)
        table.put(self._rows)
        table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        if selected := self.query_one(LiveTable).selected:
            self._open(selected)


class Board(Vertical):
    """`note` is the line above the table: what is shown, or why there is nothing."""

    TABLES: ClassVar[tuple[tuple[str, Sequence[str]], ...]] = ()
    filter_help = "a part of the name"

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self.filter = ""
        self.note = ""
        self._line = Label("", classes="note")
        self.tables = {name: LiveTable(columns, id=name) for name, columns in self.TABLES}

    def compose(self) -> ComposeResult:
        yield self._line
        yield from self.tables.values()

    def table(self, name: str) -> LiveTable:
        return self.tables[name]

    def set_note(self, note: str, *, bad: bool = False) -> None:
        self.note = note
        self._line.update(Text(printable(note), "bold red" if bad else "dim"))

    def matches(self, *texts: str) -> bool:
        return not self.filter or any(self.filter.casefold() in text.casefold() for text in texts)

    def reader(self) -> Callable[[], Any]:
        raise NotImplementedError

    def show(self, content: Any) -> None:
        raise NotImplementedError


class QueuesBoard(Board):
    TABLES = (("queues", cells.QUEUES),)

    def reader(self) -> Callable[[], Any]:
        return self.services.inspector.queues

    def show(self, content: Any) -> None:
        rows = [row for row in content.rows if self.matches(row.name)]
        self.table("queues").put([cells.queue(row) for row in rows])
        kind = "Semel's broker" if content.is_ours else "SQS"
        shown = f"{len(rows):,} of {count(len(content.rows), 'queue')}" if self.filter else count(len(rows), "queue")
        notes = "".join(f"; {note}" for note in content.notes)
        self.set_note(f"{shown} at {content.endpoint} ({kind}){notes}")


class DeadLettersBoard(Board):
    """Above, the dead-letter queues; below, the errors of the messages in the selected one."""

    TABLES = (("dead-letter-queues", cells.DEAD_LETTER_QUEUES), ("groups", cells.GROUPS))
    filter_help = 'error ~ "timeout" and age > 2h, see docs/how-to/dead-letters.md'
    page: DeadLetterPage | None = None
    receive = False  # on SQS: whether the next update may receive messages, after the user agreed

    def reader(self) -> Callable[[], Any]:
        inspector, where, receive = self.services.inspector, self.filter, self.receive
        selected = self.table("dead-letter-queues").selected
        self.receive = False

        def read() -> Any:
            queues = inspector.dead_letter_queues()
            names = [row.name for row in queues]
            queue = selected if selected in names else names[0] if names else ""
            page = inspector.dead_letters(queue, where, limit=1, receive=receive) if queue else None  # only the groups
            return inspector.now(), queues, page

        return read

    def show(self, content: Any) -> None:
        now, queues, page = content
        self.table("dead-letter-queues").put([cells.dead_letter_queue(row, now) for row in queues])
        self.page = page
        if page is None:
            self.table("groups").put([])
            self.set_note("There are no dead-letter queues.")
            return
        self.table("groups").put([cells.group(row, now) for row in page.groups])
        if page.error:
            self.set_note(page.error, bad=True)
        elif page.needs_receive:
            self.set_note(
                f"{page.queue.name}: messages must be received to be shown, which raises their receive counts; press s"
            )
        else:
            verb = "matches" if page.matched == 1 else "match"
            which = f" {verb} {page.where}" if page.where else ""
            progress = "" if page.complete else f"; {page.scanned:,} of {page.total:,} read so far"
            cost = f"; {page.cost}" if page.cost else ""
            self.set_note(f"{page.queue.name}: {count(page.matched, 'message')}{which}{progress}{cost}")

    @property
    def selection(self) -> RedriveSelection | None:
        """What a redrive would send: the selected group if the groups have the focus, else all that match."""
        page = self.page
        if page is None or page.error or not page.matched:
            return None
        groups = self.table("groups")
        if groups.has_focus:
            group = next((group for group in page.groups if (group.where or cells.OTHERS) == groups.selected), None)
            if group is not None:
                if group.where is None:
                    return None  # no filter selects these
                where = f"({page.where}) and {group.where}" if page.where else group.where
                return RedriveSelection(page.queue.name, where, group.count, page.complete, self._address)
        return RedriveSelection(page.queue.name, page.where, page.matched, page.complete, self._address)

    @property
    def _address(self) -> str:
        client = self.services.inspector.client
        return address(self.page.queue.url, client.region, client.endpoint) if self.page is not None else ""


class WorkersBoard(Board):
    """Above, a row for each worker and queue; below, the messages in progress of the selected one, longest first."""

    TABLES = (("workers", cells.WORKERS), ("in-progress", cells.IN_PROGRESS))
    filter_help = "a part of the host, app or queue"

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.rows: dict[str, tuple[WorkerRow, WorkerQueue | None]] = {}

    def reader(self) -> Callable[[], Any]:
        inspector = self.services.inspector
        return lambda: (inspector.workers(), inspector.now())

    def show(self, content: Any) -> None:
        page, now = content
        self.rows = {
            cells.worker_key(row, queue): (row, queue)
            for row in page.workers
            for queue in (row.queues or (None,))
            if self.matches(row.host, row.app, row.id, queue.name if queue else "")
        }
        self.table("workers").put([cells.worker(row, queue, now) for row, queue in self.rows.values()])
        _, selected = self.selected
        self.table("in-progress").put(list(map(cells.in_progress, selected.in_progress)) if selected else [])
        if page.workers:
            busy = sum(queue.in_flight for _, queue in self.rows.values() if queue)
            self.set_note(f"{count(len(page.workers), 'worker')}, {count(busy, 'message')} in progress")
        else:
            self.set_note(" ".join(page.notes))

    @property
    def selected(self) -> tuple[WorkerRow | None, WorkerQueue | None]:
        return self.rows.get(self.table("workers").selected, (None, None))


class JobsBoard(Board):
    TABLES = (("jobs", cells.JOBS),)
    filter_help = "a part of the queue, kind or state"

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.jobs: dict[str, Job] = {}

    def reader(self) -> Callable[[], Any]:
        return self.services.service.jobs

    def show(self, content: Any) -> None:
        self.jobs = {job.id: job for job in content if self.matches(job.queue, job.kind, job.state.value, job.id)}
        self.table("jobs").put([cells.job(job) for job in self.jobs.values()])
        running = sum(not job.state.ended for job in self.jobs.values())
        jobs = f"{count(len(self.jobs), 'job')}, {running:,} running"
        self.set_note(
            jobs if self.jobs else "No jobs yet. Press r on the board of dead-letter queues to start a redrive."
        )

    @property
    def selected(self) -> Job | None:
        return self.jobs.get(self.table("jobs").selected)
