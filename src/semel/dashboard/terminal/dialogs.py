"""What opens over the tables: one thing in full, a question, the form of a redrive, the list of keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from semel.dashboard.terminal.format import many, plain
from semel.dlq.redrive.plan import CANARY_DEFAULT, CANARY_MOST, PlanError, RedrivePlan
from semel.errors import SemelError

KEYS: Final = (
    ("1 2 3 4", "queues, dead letters, workers, jobs"),
    ("↑ ↓ PgUp PgDn", "move; Tab goes to the next table"),
    ("Enter", "open what is chosen: a queue, a group, a letter, a message in hand, a job"),
    ("/", "filter; Esc leaves it, an empty filter shows all"),
    ("r", "dead letters: redrive what the filter or the chosen group selects"),
    ("l", "dead letters, on AWS: look at them, which costs receives"),
    ("p", "workers, jobs: pause or resume what is chosen"),
    ("P", "workers: pause or resume all queues of the chosen worker"),
    ("+ -", "workers: one more or one fewer at a time"),
    ("c", "workers: set how many at a time"),
    ("x", "jobs: cancel"),
    ("space", "hold or continue the updates"),
    ("?", "these keys"),
    ("q", "quit"),
)


class Sheet(ModalScreen[None]):
    """Some text to read."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "dismiss", "Close")]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title, self.text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Label(Text(plain(self._title), "bold"))
            with VerticalScroll() as scroll:
                scroll.can_focus = True
                yield Static(self.text)
            yield Label(Text("Esc closes", "dim"))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def keys() -> Sheet:
    text = Text()
    for key, meaning in KEYS:
        text.append(f"{key:>16}  ", "bold cyan").append(f"{meaning}\n")
    return Sheet("Keys", text)


class Question(ModalScreen[bool]):
    """Yes or no; no is what Escape means."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,n", "answer(False)", "No"),
        ("y", "answer(True)", "Yes"),
    ]

    def __init__(self, text: str, yes: str) -> None:
        super().__init__()
        self._text, self._yes = text, yes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(plain(self._text)))
            with Horizontal(classes="buttons"):
                yield Button(f"{self._yes} (y)", variant="warning", id="yes")
                yield Button("Leave it (n)", id="no")

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Figure(ModalScreen[int | None]):
    """A whole number."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Leave it")]

    def __init__(self, text: str, value: int | None, most: int) -> None:
        super().__init__()
        self._text, self._value, self._most = text, value, most

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(Text(plain(self._text)))
            yield Input("" if self._value is None else str(self._value), type="integer", id="figure")
            yield Label("", id="problem")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        if text.isdecimal() and 1 <= int(text) <= self._most:
            self.dismiss(int(text))
        else:
            self.query_one("#problem", Label).update(Text(f"a number from 1 to {self._most:,}", "red"))


@dataclass(frozen=True, slots=True)
class Choice:
    """What a redrive would be about, as the tables show it now."""

    queue: str
    where: str
    matched: int
    complete: bool
    address: str  # endpoint or AWS region, and account

    @property
    def words(self) -> str:
        about = "" if self.complete else "at least "
        which = f" that match {self.where}" if self.where else ", all there are"
        return f"{self.queue}: {about}{many(self.matched, 'letter')}{which}\nat {self.address}"


class RedriveForm(ModalScreen[RedrivePlan | None]):
    """A redrive: where to, how fast, and how many go first to see whether it works now."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Leave it")]

    def __init__(self, choice: Choice) -> None:
        super().__init__()
        self.choice = choice

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(Text("Send dead letters back", "bold"))
            yield Static(Text("\n".join(map(plain, self.choice.words.split("\n")))), id="about")
            yield Label(f"Canary: so many go first, the rest only if they succeed (0 to {CANARY_MOST})")
            yield Input(str(CANARY_DEFAULT), type="integer", id="canary")
            yield Label("To (empty: the queue that each came from)")
            yield Input(id="to")
            yield Label("At most so many a second (empty: as fast as it goes)")
            yield Input(type="number", id="rate")
            yield Label("", id="problem")
            with Horizontal(classes="buttons"):
                yield Button("Send back", variant="warning", id="yes")
                yield Button("Only count", id="dry")
                yield Button("Leave it", id="no")

    def on_input_submitted(self) -> None:
        self.query_one("#yes", Button).focus()  # a redrive is begun by its button only

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "no":
            self.dismiss(None)
            return
        try:
            self.dismiss(self._plan(dry_run=event.button.id == "dry"))
        except SemelError as error:
            self.query_one("#problem", Label).update(Text(plain(str(error)), "red"))

    def _plan(self, *, dry_run: bool) -> RedrivePlan:
        canary, rate = self._text("canary") or "0", self._text("rate")
        try:
            wanted, speed = int(canary), float(rate) if rate else None
        except ValueError:
            raise PlanError("canary and rate are numbers") from None
        return RedrivePlan(
            queue=self.choice.queue,
            where=self.choice.where,
            all=not self.choice.where,
            to=self._text("to"),
            rate=speed,
            canary=0 if dry_run else wanted,
            dry_run=dry_run,
        )

    def _text(self, id: str) -> str:
        return self.query_one(f"#{id}", Input).value.strip()
