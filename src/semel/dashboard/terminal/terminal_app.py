"""The app of `semel top`: tabs, keys and updates. It reads on threads; every action is in the audit log.

The rules: only the visible board is read, and not while the terminal has lost the focus or updates are paused; an
update that fails leaves the last one in place and says why; every action has its own key and, where it cannot be
undone, asks first.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Header, Input, Label, TabbedContent, TabPane

from semel.dashboard.services import Services
from semel.dashboard.terminal import format as cells
from semel.dashboard.terminal.dialogs import NumberInput, Question, RedriveForm, Sheet, keys
from semel.dashboard.terminal.tables import (
    Board,
    DeadLettersBoard,
    JobsBoard,
    LiveTable,
    MessagesSheet,
    QueuesBoard,
    WorkersBoard,
)
from semel.dashboard.views.model import Viewer
from semel.dlq.jobs import Job
from semel.dlq.queues import not_dead_letter_queue
from semel.dlq.redrive.plan import RedrivePlan
from semel.errors import SemelError
from semel.telemetry.worker_control import MAX_CONCURRENCY
from semel.text import printable

EVERY: Final = 2.0  # seconds
MAX_MESSAGES: Final = 200
READ_TIME: Final = 2.0  # seconds to read the messages of a group
BOARDS: Final = ("queues", "dead-letters", "workers", "jobs")
# The boards of each action; actions of all boards are not here.
ON: Final = {
    "redrive": ("dead-letters",),
    "receive": ("dead-letters",),
    "pause": ("workers", "jobs"),
    "pause_all": ("workers",),
    "step": ("workers",),
    "concurrency": ("workers",),
    "cancel": ("jobs",),
}
READING: Final = ("receive",)
T = TypeVar("T")


class Pane(TabPane):
    """A tab that is not activated just because a dialog returned the focus to it."""

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        event.prevent_default()


class Top(App[None]):
    TITLE = "semel top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { overflow: hidden; }
    TabbedContent, ContentSwitcher, Pane, Board { height: 1fr; padding: 0; }
    .note { padding: 0 1; width: 100%; }
    LiveTable { height: 1fr; }
    #dead-letter-queues, #workers { height: 2fr; }
    #groups, #in-progress { height: 3fr; border-top: solid $primary; }
    #filter { display: none; height: 3; }
    #filter.open { display: block; }
    #status { height: 1; padding: 0 1; }
    ModalScreen { align: center middle; }
    .dialog { width: 84; max-width: 96%; height: auto; max-height: 96%; padding: 1 2; background: $surface;
              border: round $primary; }
    .wide { width: 96%; height: 96%; }
    .buttons { height: auto; margin-top: 1; }
    .buttons Button { margin-right: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "board('queues')", "Queues", show=False),
        Binding("2", "board('dead-letters')", "Dead-letter queues", show=False),
        Binding("3", "board('workers')", "Workers", show=False),
        Binding("4", "board('jobs')", "Jobs", show=False),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("r", "redrive", "Redrive"),
        Binding("s", "receive", "Receive and show"),
        Binding("p", "pause", "Pause/resume"),
        Binding("P", "pause_all", "Pause/resume worker"),
        Binding("plus,equals_sign", "step(1)", "More", key_display="+"),
        Binding("minus", "step(-1)", "Fewer", key_display="-"),
        Binding("c", "concurrency", "Concurrency"),
        Binding("x", "cancel", "Cancel"),
        Binding("space", "pause_updates", "Pause updates"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("q", "leave", "Quit"),
        Binding("ctrl+c", "leave(130)", "Quit", show=False),
    ]

    def __init__(self, services: Services, *, can_act: bool = True, every: float = EVERY) -> None:
        super().__init__()
        self.services = services
        self.viewer = Viewer(services.service.who, can_act)
        self._every = every
        self.dead_letters = DeadLettersBoard(services)
        self.workers_board = WorkersBoard(services)
        self.jobs_board = JobsBoard(services)
        boards = (QueuesBoard(services), self.dead_letters, self.workers_board, self.jobs_board)
        self.boards: dict[str, Board] = dict(zip(BOARDS, boards, strict=True))
        self._reading = False
        self._again = False
        self._paused = False
        self._blurred = False
        self._filtering = ""  # the board whose filter is being edited
        self._started: list[Job] = []

    def compose(self) -> ComposeResult:
        yield Header(show_clock=True, icon="")
        titles = ("1 Queues", "2 Dead-letter queues", "3 Workers", "4 Jobs")
        with TabbedContent(initial="tab-queues"):
            for name, title in zip(BOARDS, titles, strict=True):
                with Pane(title, id=f"tab-{name}"):
                    yield self.boards[name]
        yield Input(id="filter")
        yield Label("", id="status")
        yield Footer()

    def on_mount(self) -> None:
        self.sub_title = self.services.inspector.client.endpoint
        self.set_interval(self._every, self._tick)
        self._focus_table()
        self.update_now()

    # Updates.

    @property
    def board(self) -> Board:
        return self.boards[self.shown]

    @property
    def shown(self) -> str:
        """The name of the visible board."""
        return self._tabs.active.removeprefix("tab-") or BOARDS[0]

    @property
    def _tabs(self) -> TabbedContent:
        return self.screen_stack[0].query_one(TabbedContent)

    def _tick(self) -> None:
        if not self._paused and not self._blurred:
            self.update_now()

    def update_now(self) -> None:
        """Reads the visible board. One read runs at a time; a request during a read starts another one after it."""
        if self._reading:
            self._again = True
            return
        self._reading = True
        self.in_background(self._update)

    async def _update(self) -> None:
        if not self.screen_stack:  # the app has ended since this was scheduled
            self._reading = False
            return
        board = self.board
        try:
            content = await on_thread(board.reader())
        except SemelError as error:
            if board.is_attached:
                board.set_note(str(error), bad=True)
        else:
            if board.is_attached:  # it may be gone by now
                board.show(content)
                self.refresh_bindings()
        finally:
            self._reading = False
        if self._again and board.is_attached:
            self._again = False
            self.update_now()

    def on_app_blur(self) -> None:
        self._blurred = True

    def on_app_focus(self) -> None:
        self._blurred = False
        self._tick()

    def action_pause_updates(self) -> None:
        self._paused = not self._paused
        self.report("updates are paused; space resumes them" if self._paused else "")
        self._tick()

    def report(self, text: str, *, bad: bool = False) -> None:
        """Writes the line at the bottom: what was done, or why not."""
        line = self.screen_stack[0].query_one("#status", Label)
        line.update(Text(printable(text), "bold red" if bad else "green"))

    @property
    def status(self) -> str:
        return str(self.screen_stack[0].query_one("#status", Label).render())

    # Navigation.

    def action_board(self, name: str) -> None:
        self._tabs.active = f"tab-{name}"

    def on_tabbed_content_tab_activated(self) -> None:
        if self._filtering != self.shown:  # the event of the first board may come after its filter was opened
            self._close_filter()
        self._focus_table()
        self.call_after_refresh(self._focus_table)  # a dialog that is closing returns the focus to another widget
        self.refresh_bindings()
        self.update_now()

    def _focus_table(self) -> None:
        """Focuses a table, unless a filter is being edited."""
        tables = self.board.query(LiveTable)
        free = len(self.screen_stack) == 1 and not self._filtering
        if free and not any(table.has_focus for table in tables):
            tables.first().focus()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.data_table.id in ("dead-letter-queues", "workers") and event.data_table.has_focus:
            self.update_now()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.placeholder = f"filter: {self.board.filter_help}"
        field.value = self.board.filter
        field.add_class("open")
        field.focus()
        self._filtering = self.shown

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            self.board.filter = event.value.strip()
            self._close_filter()
            self._focus_table()
            self.update_now()

    def _close_filter(self) -> None:
        self._filtering = ""
        self.screen_stack[0].query_one("#filter", Input).remove_class("open")

    def key_escape(self) -> None:
        if self._filtering:
            self._close_filter()
            self._focus_table()

    def action_keys(self) -> None:
        self.push_screen(keys())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Hides the keys of other boards, and in a read-only session the keys that change something."""
        if action in ON:
            here = len(self.screen_stack) == 1 and self.shown in ON[action]
            return here and (self.viewer.can_act or action in READING)
        return True

    # Opening.

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        table = event.data_table
        key = table.selected if isinstance(table, LiveTable) else ""
        if key:
            self.in_background(partial(self._open, table.id or "", key))

    async def _open(self, table: str, key: str) -> None:
        inspector, page = self.services.inspector, self.dead_letters.page
        if table == "queues":
            row = await self._read(lambda: inspector.queue(key))
            if row is not None:
                self.push_screen(Sheet(f"Queue {key}", cells.queue_in_full(row)))
        elif table == "dead-letter-queues":
            self.dead_letters.table("groups").focus()
        elif table == "groups" and key != cells.OTHERS and page is not None:
            await self._open_messages(page.queue.name, key, page.where)
        elif table == "in-progress":
            _, queue = self.workers_board.selected
            if queue is not None:
                await self.open_message(queue.name, key)
        elif table == "jobs" and (job := self.jobs_board.selected) is not None:
            self.push_screen(Sheet(f"Job {key}", cells.job_in_full(job)))

    async def _open_messages(self, queue: str, group: str, where: str) -> None:
        inspector = self.services.inspector
        combined = f"({where}) and {group}" if where else group

        def read() -> Any:
            ends = time.monotonic() + READ_TIME
            while True:
                page = inspector.dead_letters(queue, combined, limit=MAX_MESSAGES)
                if page.complete or len(page.messages) >= MAX_MESSAGES or time.monotonic() > ends:
                    return page, inspector.now()
                time.sleep(0.05)

        content = await self._read(read)
        if content is not None:
            page, now = content
            rows = [cells.message(row, now) for row in page.messages]
            self.push_screen(MessagesSheet(queue, rows, page.matched, self._message_opener(queue)))

    def _message_opener(self, queue: str) -> Callable[[str], None]:
        return lambda id: self.in_background(partial(self.open_message, queue, id))

    async def open_message(self, queue: str, id: str) -> None:
        inspector = self.services.inspector
        page = await self._read(lambda: inspector.message(queue, id))
        if page is not None:
            self.push_screen(Sheet(f"Message of {queue}", cells.message_in_full(page)))

    def in_background(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Takes a function and not a coroutine, which would never be awaited if the app ends first."""
        self.run_worker(work)  # type: ignore[arg-type]  # the type of its result cannot be inferred

    async def _read(self, read: Callable[[], Any]) -> Any:
        """What `read` returns; None, and the error in the status line, if it failed."""
        try:
            return await on_thread(read)
        except SemelError as error:
            self.report(str(error), bad=True)
            return None

    # Actions.

    def action_receive(self) -> None:
        board = self.dead_letters
        if board.page is None or not board.page.needs_receive:
            self.report("the messages are already shown")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                board.receive = True
                self.update_now()

        queue = board.page.queue
        text = f"Receive and show the messages of {queue.name}? The receive count of each goes up by 1."
        if queue.max_receives is not None:
            text += (
                f" {queue.name} has a RedrivePolicy of its own: SQS moves a message to another queue after "
                f"{queue.max_receives} receives. Messages near that limit may be moved."
            )
        self.push_screen(Question(text, "Receive and show"), answered)

    def action_redrive(self) -> None:
        selection, page = self.dead_letters.selection, self.dead_letters.page
        if selection is None:
            self.report("there are no messages to redrive: select a queue that has some", bad=True)
            return
        if page is not None and not page.queue.sources:
            self.report(f"{not_dead_letter_queue(selection.queue)}; use semel dlq redrive --any-queue", bad=True)
            return
        self.push_screen(RedriveForm(selection), lambda plan: self._redrive(plan) if plan is not None else None)

    def _redrive(self, plan: RedrivePlan) -> None:
        async def start() -> None:
            job = await self._read(lambda: self.services.service.redrive(plan))
            if job is not None:
                self._started.append(job)
                self.services.inspector.changed(plan.queue)
                self.report(f"started job {job.id}")
                self.action_board("jobs")

        self.in_background(start)

    def action_pause(self) -> None:
        if self.shown == "workers":
            row, queue = self.workers_board.selected
            if row is not None and queue is not None:
                self._control(row.id, "resume" if queue.paused else "pause", queue.name)
        elif (job := self.jobs_board.selected) is not None:
            self._control_job(job.id, "resume" if job.pausing else "pause")

    def action_pause_all(self) -> None:
        row, _ = self.workers_board.selected
        if row is not None:
            self._control(row.id, "resume" if row.paused else "pause", None)

    def action_step(self, by: int) -> None:
        row, queue = self.workers_board.selected
        if row is not None and queue is not None and queue.concurrency is not None:
            self._control(row.id, "concurrency", queue.name, max(1, min(MAX_CONCURRENCY, queue.concurrency + by)))

    def action_concurrency(self) -> None:
        row, queue = self.workers_board.selected
        if row is None or queue is None:
            return
        worker, name = row.id, queue.name

        def answered(value: int | None) -> None:
            if value is not None:
                self._control(worker, "concurrency", name, value)

        each = " in each process" if row.processes > 1 else ""
        text = f"{name}: messages processed at the same time{each}"
        self.push_screen(NumberInput(text, queue.concurrency, MAX_CONCURRENCY), answered)

    def action_cancel(self) -> None:
        job = self.jobs_board.selected
        if job is None or job.state.ended:
            return
        text = f"Cancel the {job.kind} of {job.queue}? Messages already sent stay sent; the others stay in the queue."
        self.push_screen(Question(text, "Cancel job"), lambda yes: self._control_job(job.id, "cancel") if yes else None)

    def _control(self, worker: str, action: str, queue: str | None, value: int | None = None) -> None:
        self._act(lambda: self.services.control(self.viewer, worker, action, queue, value))

    def _control_job(self, id: str, action: str) -> None:
        self._act(lambda: f"{action} job {id}: {self.services.service.control(id, action)}")

    def _act(self, do: Callable[[], str]) -> None:
        async def act() -> None:
            outcome = await self._read(do)
            if outcome is not None:
                self.report(outcome)
            self.update_now()

        self.in_background(act)

    # Quitting.

    def action_leave(self, code: int = 0) -> None:
        running = [job for job in self._started if not job.state.ended]
        if not running:
            self.exit(return_code=code)
            return
        jobs, them = ("1 job runs", "it") if len(running) == 1 else (f"{len(running)} jobs run", "them")
        text = f"{jobs} in this terminal. Quitting cancels {them}; messages not sent yet stay in the queue."
        self.push_screen(Question(text, "Quit"), lambda yes: self.exit(return_code=code) if yes else None)


async def on_thread(read: Callable[[], T]) -> T:
    """Runs `read` on a thread of its own and not in a pool, so that quitting does not wait for a read that hangs."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def finish(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return  # nobody waits any more
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]  # it is what was read

    def run() -> None:
        value, error = None, None
        try:
            value = read()
        except Exception as raised:  # noqa: BLE001 - it is raised where it is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: the app has ended
            loop.call_soon_threadsafe(finish, value, error)

    threading.Thread(target=run, name="semel-top-read", daemon=True).start()
    return await result
