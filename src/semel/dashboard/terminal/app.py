"""The terminal's app: tabs, keys, and the updates. What is read, is read on threads; what is done, is in the audit log.

The rules: only the board that is looked at is read, and not while the terminal has lost the focus or the updates are on
hold; an update that fails leaves the last one standing and says why; nothing is done without a key of its own and,
where it cannot be undone, a question.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Header, Input, Label, TabbedContent, TabPane

from semel.dashboard.services import Services
from semel.dashboard.terminal import format as cells
from semel.dashboard.terminal.background import on_thread
from semel.dashboard.terminal.dialogs import Figure, Question, RedriveForm, Sheet, keys
from semel.dashboard.terminal.messages import MessagesSheet
from semel.dashboard.terminal.tables import Board, DeadLettersBoard, JobsBoard, LiveTable, QueuesBoard, WorkersBoard
from semel.dashboard.views.model import Viewer
from semel.dlq.jobs import Job
from semel.dlq.queues import not_dead_letter_queue
from semel.dlq.redrive.plan import RedrivePlan
from semel.errors import SemelError
from semel.telemetry.control import MAX_CONCURRENCY

EVERY: Final = 2.0  # seconds
LETTERS_SHOWN: Final = 200
PATIENCE: Final = 2.0  # seconds for the letters of a group to be found
BOARDS: Final = ("queues", "letters", "workers", "jobs")
# What each action is for; those that are for all boards are not here.
ON: Final = {
    "redrive": ("letters",),
    "look": ("letters",),
    "pause": ("workers", "jobs"),
    "pause_all": ("workers",),
    "more": ("workers",),
    "fewer": ("workers",),
    "concurrency": ("workers",),
    "cancel": ("jobs",),
}
LOOKING: Final = ("look",)


class Pane(TabPane):
    """One that does not come to the front because a dialog gave the focus back to it: who said so by key counts."""

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
    #dead, #workers { height: 2fr; }
    #groups, #held { height: 3fr; border-top: solid $primary; }
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
        Binding("2", "board('letters')", "Dead letters", show=False),
        Binding("3", "board('workers')", "Workers", show=False),
        Binding("4", "board('jobs')", "Jobs", show=False),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("r", "redrive", "Redrive"),
        Binding("l", "look", "Look"),
        Binding("p", "pause", "Pause/resume"),
        Binding("P", "pause_all", "Whole worker"),
        Binding("plus,equals_sign", "more", "More", key_display="+"),
        Binding("minus", "fewer", "Fewer", key_display="-"),
        Binding("c", "concurrency", "At a time"),
        Binding("x", "cancel", "Cancel"),
        Binding("space", "hold", "Hold"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("q", "leave", "Quit"),
        Binding("ctrl+c", "leave(130)", "Quit", show=False),
    ]

    def __init__(self, services: Services, *, can_act: bool = True, every: float = EVERY) -> None:
        super().__init__()
        self.services = services
        self.viewer = Viewer(services.service.who, can_act)
        self._every = every
        self.boards: dict[str, Board] = {
            "queues": QueuesBoard(services),
            "letters": DeadLettersBoard(services),
            "workers": WorkersBoard(services),
            "jobs": JobsBoard(services),
        }
        self._reading = False
        self._again = False
        self._held = False
        self._away = False
        self._filtering = ""  # the board whose filter is being written
        self._begun: list[Job] = []

    def compose(self) -> ComposeResult:
        yield Header(show_clock=True, icon="")
        titles = ("1 Queues", "2 Dead letters", "3 Workers", "4 Jobs")
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
        """The name of the board that is looked at."""
        return self._tabs.active.removeprefix("tab-") or BOARDS[0]

    @property
    def _tabs(self) -> TabbedContent:
        return self.screen_stack[0].query_one(TabbedContent)

    def _tick(self) -> None:
        if not self._held and not self._away:
            self.update_now()

    def update_now(self) -> None:
        """Read what is looked at. One at a time: who asks meanwhile gets the next one."""
        if self._reading:
            self._again = True
            return
        self._reading = True
        self.in_background(self._update)

    async def _update(self) -> None:
        board = self.board
        try:
            found = await on_thread(board.reader())
        except SemelError as error:
            if board.is_attached:
                board.say(str(error), bad=True)
        else:
            if board.is_attached:  # not if it was left meanwhile
                board.show(found)
                self.refresh_bindings()
        finally:
            self._reading = False
        if self._again and board.is_attached:
            self._again = False
            self.update_now()

    def on_app_blur(self) -> None:
        self._away = True

    def on_app_focus(self) -> None:
        self._away = False
        self._tick()

    def action_hold(self) -> None:
        self._held = not self._held
        self.tell("updates are on hold: space continues" if self._held else "")
        self._tick()

    def tell(self, text: str, *, bad: bool = False) -> None:
        """The line at the bottom: what was done, or why not."""
        line = self.screen_stack[0].query_one("#status", Label)
        line.update(Text(cells.plain(text), "bold red" if bad else "green"))

    @property
    def told(self) -> str:
        return str(self.screen_stack[0].query_one("#status", Label).render())

    # Moving about.

    def action_board(self, name: str) -> None:
        self._tabs.active = f"tab-{name}"

    def on_tabbed_content_tab_activated(self) -> None:
        if self._filtering != self.shown:  # the word of the first board may come after its filter was opened
            self._close_filter()
        self._focus_table()
        self.call_after_refresh(self._focus_table)  # a dialog that closes just now gives the focus back to another
        self.refresh_bindings()
        self.update_now()

    def _focus_table(self) -> None:
        """Unless somebody is writing a filter."""
        tables = self.board.query(LiveTable)
        free = len(self.screen_stack) == 1 and not self._filtering
        if free and not any(table.has_focus for table in tables):
            tables.first().focus()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.data_table.id in ("dead", "workers") and event.data_table.has_focus:
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
        """Keys that are for another board are not offered, nor those that change anything to who may only look."""
        if action in ON:
            here = len(self.screen_stack) == 1 and self.shown in ON[action]
            return here and (self.viewer.can_act or action in LOOKING)
        return True

    # Opening.

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        table = event.data_table
        key = table.chosen if isinstance(table, LiveTable) else ""
        if key:
            self.in_background(partial(self._open, table.id or "", key))

    async def _open(self, table: str, key: str) -> None:
        inspector, board = self.services.inspector, self.board
        if table == "queues":
            row = await self._read(lambda: inspector.queue(key))
            if row is not None:
                self.push_screen(Sheet(f"Queue {key}", cells.queue_in_full(row)))
        elif table == "dead":
            self.board.table("groups").focus()
        elif table == "groups" and isinstance(board, DeadLettersBoard) and board.page is not None:
            await self._open_letters(board.page.queue.name, key, board.page.where)
        elif table == "held" and isinstance(board, WorkersBoard):
            _, taken = board.chosen
            if taken is not None:
                await self.open_message(taken.name, key)
        elif table == "jobs" and isinstance(board, JobsBoard) and board.chosen is not None:
            self.push_screen(Sheet(f"Job {key}", cells.job_in_full(board.chosen)))

    async def _open_letters(self, queue: str, group: str, where: str) -> None:
        inspector = self.services.inspector
        both = f"({where}) and {group}" if where else group

        def read() -> Any:
            ends = time.monotonic() + PATIENCE
            while True:
                page = inspector.dead_letters(queue, both, limit=LETTERS_SHOWN)
                if page.complete or len(page.messages) >= LETTERS_SHOWN or time.monotonic() > ends:
                    return page, inspector.now()
                time.sleep(0.05)

        found = await self._read(read)
        if found is not None:
            page, now = found
            rows = [cells.message(row, now) for row in page.messages]
            self.push_screen(MessagesSheet(queue, rows, page.matched, self._open_one(queue)))

    def _open_one(self, queue: str) -> Callable[[str], None]:
        return lambda id: self.in_background(partial(self.open_message, queue, id))

    async def open_message(self, queue: str, id: str) -> None:
        inspector = self.services.inspector
        found = await self._read(lambda: inspector.message(queue, id))
        if found is not None:
            self.push_screen(Sheet(f"Message of {queue}", cells.message_in_full(found)))

    def in_background(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A function, not its coroutine: what the end of the app comes before is then never begun."""
        self.run_worker(work)  # type: ignore[arg-type]  # its result has a type that cannot be inferred

    async def _read(self, read: Callable[[], Any]) -> Any:
        """What was read; None, and a word about it, if that failed."""
        try:
            return await on_thread(read)
        except SemelError as error:
            self.tell(str(error), bad=True)
            return None

    # Doing.

    def action_look(self) -> None:
        board = self.boards["letters"]
        if not isinstance(board, DeadLettersBoard) or board.page is None or not board.page.needs_look:
            self.tell("looking is free here: it is up to date")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                board.look = True
                self.update_now()

        queue = board.page.queue
        text = (
            f"Look at the letters of {queue.name}? Each is received and given back: its receive count goes up by one."
        )
        if queue.max_receives is not None:
            text += f" {queue.name} moves its messages on after {queue.max_receives} receives: some may be moved."
        self.push_screen(Question(text, "Look"), answered)

    def action_redrive(self) -> None:
        board = self.boards["letters"]
        choice = board.choice if isinstance(board, DeadLettersBoard) else None
        if choice is None:
            self.tell("there are no letters to send back: choose a queue that has some", bad=True)
            return
        if isinstance(board, DeadLettersBoard) and board.page is not None and not board.page.queue.sources:
            self.tell(f"{not_dead_letter_queue(choice.queue)}; use semel dlq redrive --any-queue", bad=True)
            return
        self.push_screen(RedriveForm(choice), lambda plan: self._begin(plan) if plan is not None else None)

    def _begin(self, plan: RedrivePlan) -> None:
        async def begin() -> None:
            job = await self._read(lambda: self.services.service.redrive(plan))
            if job is not None:
                self._begun.append(job)
                self.services.inspector.changed(plan.queue)
                self.tell(f"job {job.id} has begun")
                self.action_board("jobs")

        self.in_background(begin)

    def action_pause(self) -> None:
        board = self.board
        if isinstance(board, WorkersBoard):
            row, taken = board.chosen
            if row is not None and taken is not None:
                self._control(row.id, "resume" if taken.paused else "pause", taken.name)
        elif isinstance(board, JobsBoard) and (job := board.chosen) is not None:
            self._job(job.id, "resume" if job.pausing else "pause")

    def action_pause_all(self) -> None:
        board = self.board
        row = board.chosen[0] if isinstance(board, WorkersBoard) else None
        if row is not None:
            self._control(row.id, "resume" if row.paused else "pause", None)

    def action_more(self) -> None:
        self._step(1)

    def action_fewer(self) -> None:
        self._step(-1)

    def _step(self, by: int) -> None:
        board = self.board
        row, taken = board.chosen if isinstance(board, WorkersBoard) else (None, None)
        if row is not None and taken is not None and taken.concurrency is not None:
            self._control(row.id, "concurrency", taken.name, max(1, min(MAX_CONCURRENCY, taken.concurrency + by)))

    def action_concurrency(self) -> None:
        board = self.board
        row, taken = board.chosen if isinstance(board, WorkersBoard) else (None, None)
        if row is None or taken is None:
            return
        worker, queue = row.id, taken.name

        def answered(value: int | None) -> None:
            if value is not None:
                self._control(worker, "concurrency", queue, value)

        each = " in each process" if row.processes > 1 else ""
        self.push_screen(Figure(f"{queue}: so many at a time{each}", taken.concurrency, MAX_CONCURRENCY), answered)

    def action_cancel(self) -> None:
        board = self.board
        job = board.chosen if isinstance(board, JobsBoard) else None
        if job is None or job.state.ended:
            return
        text = f"Cancel the {job.kind} of {job.queue}? What was sent stays sent; what is left stays in the queue."
        self.push_screen(Question(text, "Cancel it"), lambda yes: self._job(job.id, "cancel") if yes else None)

    def _control(self, worker: str, action: str, queue: str | None, value: int | None = None) -> None:
        self._act(lambda: self.services.control(self.viewer, worker, action, queue, value))

    def _job(self, id: str, action: str) -> None:
        self._act(lambda: f"{action} job {id}: {self.services.service.control(id, action)}")

    def _act(self, do: Callable[[], str]) -> None:
        async def act() -> None:
            said = await self._read(do)
            if said is not None:
                self.tell(said)
            self.update_now()

        self.in_background(act)

    # The end.

    def action_leave(self, code: int = 0) -> None:
        running = [job for job in self._begun if not job.state.ended]
        if not running:
            self.exit(return_code=code)
            return
        text = f"{len(running)} jobs run in this terminal. Leaving cancels them; what is left stays in the queue."
        self.push_screen(Question(text, "Leave"), lambda yes: self.exit(return_code=code) if yes else None)
