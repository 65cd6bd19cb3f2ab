"""The four boards of the terminal: what each reads, on a thread, and how it shows what was read.

The rules: `reader` is made where the widgets are and carries all that it needs, so that reading touches no widget; a
table that is filled anew keeps its place, and one that has not changed is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import DataTable, Label

from semel.dashboard.services import Services
from semel.dashboard.terminal import format as cells
from semel.dashboard.terminal.dialogs import Choice
from semel.dashboard.views.model import DeadLetterPage, WorkerQueue, WorkerRow
from semel.dlq.jobs import Job
from semel.dlq.queues import address

MOST_ROWS: Final = 1_000
GROUPS_OF: Final = 1  # letters that are asked for with the groups: only the groups are shown


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
        wanted = {key: list(row) for key, row in rows[:MOST_ROWS]}
        if list(wanted) == list(self._rows):
            for key, row in wanted.items():
                for column, before, now in zip(self._columns, self._rows[key], row, strict=True):
                    if before != now:
                        self.update_cell(key, column, now, update_width=True)
        else:
            chosen, at = self.chosen, self.cursor_row
            self.clear()
            for key, row in wanted.items():
                self.add_row(*row, key=key)
            known = list(wanted)
            if known:
                self.move_cursor(row=known.index(chosen) if chosen in wanted else min(at, len(known) - 1))
        self._rows = wanted

    @property
    def chosen(self) -> str:
        """The key of the row that the cursor is on; "" if there is none."""
        known = list(self._rows)
        return known[self.cursor_row] if 0 <= self.cursor_row < len(known) else ""

    @property
    def keys(self) -> list[str]:
        return list(self._rows)


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

    def say(self, note: str, *, bad: bool = False) -> None:
        self.note = note
        self._line.update(Text(cells.plain(note), "bold red" if bad else "dim"))

    def matches(self, *texts: str) -> bool:
        return not self.filter or any(self.filter.casefold() in text.casefold() for text in texts)

    def reader(self) -> Callable[[], Any]:
        raise NotImplementedError

    def show(self, found: Any) -> None:
        raise NotImplementedError


class QueuesBoard(Board):
    TABLES = (("queues", cells.QUEUES),)

    def reader(self) -> Callable[[], Any]:
        return self.services.inspector.queues

    def show(self, found: Any) -> None:
        rows = [row for row in found.rows if self.matches(row.name)]
        self.table("queues").put([cells.queue(row) for row in rows])
        whose = "Semel's broker" if found.is_ours else "SQS"
        shown = f"{len(rows):,} of {len(found.rows):,} queues" if self.filter else cells.many(len(rows), "queue")
        notes = "".join(f"; {note}" for note in found.notes)
        self.say(f"{shown} at {found.endpoint} ({whose}){notes}")


class DeadLettersBoard(Board):
    """Above, the dead-letter queues; below, what the letters of the chosen one died of."""

    TABLES = (("dead", cells.DEAD), ("groups", cells.GROUPS))
    filter_help = 'error ~ "timeout" and age > 2h, see docs/dead-letters.md'
    page: DeadLetterPage | None = None
    receive = False  # on SQS: once, because the operator said so

    def reader(self) -> Callable[[], Any]:
        inspector, chosen, where = self.services.inspector, self.table("dead").chosen, self.filter
        receive, self.receive = self.receive, False

        def read() -> Any:
            queues = inspector.dead_letter_queues()
            names = [row.name for row in queues]
            queue = chosen if chosen in names else names[0] if names else ""
            page = inspector.dead_letters(queue, where, limit=GROUPS_OF, receive=receive) if queue else None
            return inspector.now(), queues, page

        return read

    def show(self, found: Any) -> None:
        now, queues, page = found
        self.table("dead").put([cells.dead_letter_queue(row, now) for row in queues])
        self.page = page
        if page is None:
            self.table("groups").put([])
            self.say("No queue is anybody's dead-letter queue.")
            return
        self.table("groups").put([cells.group(one, now) for one in page.groups])
        if page.error:
            self.say(page.error, bad=True)
        elif page.needs_receive:
            self.say(f"{page.queue.name}: looking means receiving here, which counts against each message; press l")
        else:
            which = f" match {page.where}" if page.where else ""
            looked = "" if page.complete else f"; {page.looked_at:,} of {page.total:,} looked at"
            cost = f"; {page.cost}" if page.cost else ""
            self.say(f"{page.queue.name}: {cells.many(page.matched, 'letter')}{which}{looked}{cost}")

    @property
    def choice(self) -> Choice | None:
        """What a redrive would send: the chosen group if the groups have the focus, else all that match."""
        page = self.page
        if page is None or page.error or not page.matched:
            return None
        groups = self.table("groups")
        if groups.has_focus:
            one = next((group for group in page.groups if (group.where or cells.OTHERS) == groups.chosen), None)
            if one is not None:
                if one.where is None:
                    return None  # no filter selects these
                where = f"({page.where}) and {one.where}" if page.where else one.where
                return Choice(page.queue.name, where, one.count, page.complete, self._address)
        return Choice(page.queue.name, page.where, page.matched, page.complete, self._address)

    @property
    def _address(self) -> str:
        client = self.services.inspector.client
        return address(self.page.queue.url, client.region, client.endpoint) if self.page is not None else ""


class WorkersBoard(Board):
    """Above, a line for each worker and queue; below, what the chosen one holds, the longest first."""

    TABLES = (("workers", cells.WORKERS), ("held", cells.HELD))
    filter_help = "a part of the host, app or queue"

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.rows: dict[str, tuple[WorkerRow, WorkerQueue | None]] = {}

    def reader(self) -> Callable[[], Any]:
        inspector = self.services.inspector
        return lambda: (inspector.workers(), inspector.now())

    def show(self, found: Any) -> None:
        page, now = found
        self.rows = {
            cells.worker_key(row, taken): (row, taken)
            for row in page.workers
            for taken in (row.queues or (None,))
            if self.matches(row.host, row.app, row.id, taken.name if taken else "")
        }
        self.table("workers").put([cells.worker(row, taken, now) for row, taken in self.rows.values()])
        _, taken = self.chosen
        self.table("held").put([cells.held(one) for one in taken.in_progress] if taken else [])
        if page.workers:
            busy = sum(taken.in_flight for _, taken in self.rows.values() if taken)
            self.say(f"{cells.many(len(page.workers), 'worker')}, {cells.many(busy, 'message')} in hand")
        else:
            self.say(" ".join(page.notes))

    @property
    def chosen(self) -> tuple[WorkerRow | None, WorkerQueue | None]:
        return self.rows.get(self.table("workers").chosen, (None, None))


class JobsBoard(Board):
    TABLES = (("jobs", cells.JOBS),)
    filter_help = "a part of the queue, kind or state"

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.jobs: dict[str, Job] = {}

    def reader(self) -> Callable[[], Any]:
        return self.services.service.jobs

    def show(self, found: Any) -> None:
        self.jobs = {job.id: job for job in found if self.matches(job.queue, job.kind, job.state.value, job.id)}
        self.table("jobs").put([cells.job(job) for job in self.jobs.values()])
        running = sum(not job.state.ended for job in self.jobs.values())
        some = f"{cells.many(len(self.jobs), 'job')}, {running:,} at work"
        self.say(some if self.jobs else "No job has run yet; r on the board of dead letters begins one.")

    @property
    def chosen(self) -> Job | None:
        return self.jobs.get(self.table("jobs").chosen)
