"""Dialogs: all details of one item, a question, a number, the redrive form, the list of keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from semel.dlq.redrive.plan import CANARY_MOST, PlanError, RedrivePlan
from semel.errors import SemelError
from semel.text import count, printable

KEYS: Final = (
    ("1 2 3 4", "queues, dead-letter queues, workers, jobs"),
    ("↑ ↓ PgUp PgDn", "move; Tab moves to the next table"),
    ("Enter", "open the selected queue, group, message or job"),
    ("/", "filter; Esc closes it, an empty filter shows all"),
    ("r", "dead-letter queues: redrive the messages of the filter or the selected group"),
    ("s", "dead-letter queues on SQS: receive and show messages"),
    ("p", "workers, jobs: pause or resume the selected one"),
    ("P", "workers: pause or resume all queues of the selected worker"),
    ("+ -", "workers: raise or lower the concurrency by 1"),
    ("c", "workers: set the concurrency"),
    ("x", "jobs: cancel"),
    ("space", "pause or resume updates"),
    ("?", "show these keys"),
    ("q", "quit"),
)


class Sheet(ModalScreen[None]):
    """A text to read."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "dismiss", "Close")]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title, self.text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Label(Text(printable(self._title), "bold"))
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
    """Yes or no; Escape means no."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,n", "answer(False)", "No"), ("y", "answer(True)", "Yes")]

    def __init__(self, text: str, yes: str) -> None:
        super().__init__()
        self._text, self._yes = text, yes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(printable(self._text)))
            with Horizontal(classes="buttons"):
                yield Button(f"{self._yes} (y)", variant="warning", id="yes")
                yield Button("Cancel (n)", id="no")

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class NumberInput(ModalScreen[int | None]):
    """A whole number from 1 to `limit`."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, text: str, value: int | None, limit: int) -> None:
        super().__init__()
        self._text, self._value, self._limit = text, value, limit

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(Text(printable(self._text)))
            yield Input("" if self._value is None else str(self._value), type="integer", id="number")
            yield Label("", id="problem")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        if text.isdecimal() and 1 <= int(text) <= self._limit:
            self.dismiss(int(text))
        else:
            self.query_one("#problem", Label).update(Text(f"enter a number from 1 to {self._limit:,}", "red"))


@dataclass(frozen=True, slots=True)
class RedriveSelection:
    """Which messages a redrive would send, as the tables show them now."""

    queue: str
    where: str
    matched: int
    complete: bool
    address: str  # endpoint or AWS region, and account

    @property
    def description(self) -> str:
        about = "" if self.complete else "at least "
        messages = count(self.matched, "message")
        which = f"{messages} matching {self.where}" if self.where else f"all {messages}"
        return f"{self.queue}: {about}{which}\nat {self.address}"


class RedriveForm(ModalScreen[RedrivePlan | None]):
    """The plan of a redrive, with the defaults of `RedrivePlan`."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, selection: RedriveSelection) -> None:
        super().__init__()
        self.selection = selection
        self._defaults = RedrivePlan(queue=selection.queue, all=True)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(Text("Redrive", "bold"))
            yield Static(Text("\n".join(map(printable, self.selection.description.split("\n")))), id="about")
            yield Label(f"Canary messages: sent first, the others only if these succeed (0 to {CANARY_MOST})")
            yield Input(str(self._defaults.canary), type="integer", id="canary")
            yield Label("To (empty: the source queue of each message)")
            yield Input(id="to")
            yield Label("Rate in messages per second (empty: unlimited)")
            yield Input(type="number", id="rate")
            yield Label("", id="problem")
            with Horizontal(classes="buttons"):
                yield Button("Redrive", variant="warning", id="yes")
                yield Button("Dry run", id="dry")
                yield Button("Cancel", id="no")

    def on_input_submitted(self) -> None:
        self.query_one("#yes", Button).focus()  # only the button starts a redrive

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "no":
            self.dismiss(None)
            return
        try:
            self.dismiss(self._plan(dry_run=event.button.id == "dry"))
        except SemelError as error:
            self.query_one("#problem", Label).update(Text(printable(str(error)), "red"))

    def _plan(self, *, dry_run: bool) -> RedrivePlan:
        try:
            canary = int(self._text("canary") or self._defaults.canary)
            rate = float(self._text("rate")) if self._text("rate") else None
        except ValueError:
            raise PlanError("canary messages and rate must be numbers") from None
        return RedrivePlan(
            queue=self.selection.queue,
            where=self.selection.where,
            all=not self.selection.where,
            to=self._text("to"),
            rate=rate,
            canary=0 if dry_run else canary,
            dry_run=dry_run,
        )

    def _text(self, id: str) -> str:
        return self.query_one(f"#{id}", Input).value.strip()
