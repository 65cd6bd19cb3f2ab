"""`semel top` as an operator uses it: keys in, screen out. Broker, worker and service are real."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input, Label, Static

from dashboard.serving import Shop, shop
from semel import App, SqliteLedger
from semel.consumer.context import Context
from semel.consumer.runtime import Runtime
from semel.dashboard.services import Services
from semel.dashboard.terminal import format as cells
from semel.dashboard.terminal.dialogs import NumberInput, Question, RedriveForm, Sheet
from semel.dashboard.terminal.tables import LiveTable, MessagesSheet
from semel.dashboard.terminal.terminal_app import Top
from waiting import PATIENCE

HOSTILE = "\x1b]0;owned\x07[bold red]markup[/] \u202eevil\r\n[@click=app.quit]x[/]"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("SEMEL_STATE", str(tmp_path))
    monkeypatch.delenv("SEMEL_CONTROL_TOKEN", raising=False)
    with shop(tmp_path) as place:
        yield place


class Screen:
    """The terminal and its keyboard."""

    def __init__(self, top: Top, pilot: Pilot[None]) -> None:
        self.top, self.pilot = top, pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, condition: Callable[[], object], what: str = "it") -> None:
        ends = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < ends, f"{what} did not happen; the status is {self.top.status!r}"
            await self.pilot.pause(0.02)

    async def go(self, key: str) -> None:
        """To a board, and until it has been read."""
        self.top.board.note = ""
        await self.press(key)
        await self.until(lambda: self.top.board.note, "the board")

    def rows(self, table: str) -> list[list[str]]:
        live_table = self.top.screen_stack[0].query_one(f"#{table}", LiveTable)
        return [[str(cell) for cell in live_table.get_row(key)] for key in live_table.keys]

    def sheet(self) -> str:
        top = self.top.screen
        return str(top.text) if isinstance(top, Sheet) else ""


def drive(there: Shop, story: Callable[[Screen], Awaitable[None]], *, can_act: bool = True, **settings: Any) -> None:
    async def run() -> None:
        top = Top(services, can_act=can_act, every=0.5)
        async with top.run_test(size=(180, 50)) as pilot:
            screen = Screen(top, pilot)
            await screen.until(lambda: top.board.note, "the first board")
            await story(screen)

    services = Services.of(there.settings(**settings), client=there.client)
    try:
        asyncio.run(run())
    finally:
        services.close()


@contextmanager
def worker(there: Shop, handle: Callable[[dict[str, Any]], None] = lambda _order: None) -> Iterator[Runtime]:
    """A worker of `orders` with a health endpoint, which the terminal finds by its note."""
    with SqliteLedger(str(there.state / "ledger.db")) as ledger, ExitStack() as stack:
        app = App(ledger, client=there.client, wait=1)

        @app.handler("orders", concurrency=4)
        def ship(order: dict[str, Any], ctx: Context) -> None:
            handle(order)

        runtime = app.start(stack, health="0", name="shop:app")
        try:
            yield runtime
        finally:
            runtime.stop()
            runtime.finish()


# Reading.


def test_queues_are_shown_filtered_and_opened(there: Shop) -> None:
    there.client.create_queue("emails")
    for number in range(7):
        there.orders.send(json.dumps({"n": number}))

    async def story(screen: Screen) -> None:
        await screen.until(lambda: len(screen.rows("queues")) == 3)
        shown = {row[0]: row for row in screen.rows("queues")}
        assert shown["orders"][1] == "7"
        assert there.broker.url in screen.top.board.note
        await screen.press("slash", *"ema", "enter")
        await screen.until(lambda: [row[0] for row in screen.rows("queues")] == ["emails"])
        await screen.press("slash", *["backspace"] * 3, *"ORD", "enter")
        await screen.until(lambda: [row[0] for row in screen.rows("queues")] == ["orders", "orders-dlq"])
        await screen.press("enter")
        await screen.until(lambda: "VisibilityTimeout" in screen.sheet())
        assert "orders-dlq" in screen.sheet()
        await screen.press("escape")
        await screen.until(lambda: not screen.sheet())

    drive(there, story)


@pytest.mark.slow
def test_a_filter_that_is_being_written_keeps_the_keys(there: Shop) -> None:
    there.client.create_queue("emails")

    async def story(screen: Screen) -> None:
        await screen.until(lambda: len(screen.rows("queues")) == 3)
        await screen.press("slash", "e")
        screen.top.on_tabbed_content_tab_activated()  # as on a slow machine: the first board's, after the key
        await screen.press("m", "a", "enter")
        await screen.until(lambda: [row[0] for row in screen.rows("queues")] == ["emails"])
        await screen.press("slash", "x")
        screen.top.action_board("jobs")  # a job that began just now brings its board: that ends the filter
        await screen.until(lambda: isinstance(screen.top.focused, LiveTable))
        await screen.press("1")
        await screen.until(lambda: screen.top.shown == "queues")
        assert screen.top.board.filter == "ema"

    drive(there, story)


def test_a_change_is_seen_without_a_key_and_the_cursor_stays_where_it_is(there: Shop) -> None:
    async def story(screen: Screen) -> None:
        await screen.until(lambda: len(screen.rows("queues")) == 2)
        await screen.press("down")
        table = screen.top.query_one("#queues", LiveTable)
        assert table.selected == "orders-dlq"
        there.client.create_queue("a-new-one")
        there.orders.send("x")
        await screen.until(lambda: len(screen.rows("queues")) == 3)
        await screen.until(lambda: {row[0]: row[1] for row in screen.rows("queues")}["orders"] == "1")
        assert table.selected == "orders-dlq"

    drive(there, story)


def test_updates_can_be_paused(there: Shop) -> None:
    async def story(screen: Screen) -> None:
        await screen.until(lambda: len(screen.rows("queues")) == 2)
        await screen.press("space")
        assert "paused" in screen.top.status
        await screen.until(lambda: not screen.top._reading)
        there.client.create_queue("later")
        screen.top._tick()
        assert not screen.top._reading
        assert len(screen.rows("queues")) == 2
        await screen.press("space")
        await screen.until(lambda: len(screen.rows("queues")) == 3)

    drive(there, story)


def test_all_keys_are_listed(there: Shop) -> None:
    async def story(screen: Screen) -> None:
        await screen.press("question_mark")
        await screen.until(screen.sheet)
        for word in ("redrive", "pause or resume", "filter", "quit"):
            assert word in screen.sheet()

    drive(there, story)


@pytest.mark.slow
def test_what_a_message_says_cannot_touch_the_terminal(there: Shop) -> None:
    there.dead_letter(1, HOSTILE, note=HOSTILE)

    async def story(screen: Screen) -> None:
        await screen.go("2")
        await screen.until(lambda: screen.rows("groups"))
        (group,) = screen.rows("groups")
        assert "\x1b" not in "".join(group)
        assert "[bold red]markup[/]" in group[1], "shown as it is, not as a colour"
        await screen.press("enter")
        await screen.press("enter")
        await screen.until(lambda: isinstance(screen.top.screen, MessagesSheet))
        await screen.press("enter")
        await screen.until(screen.sheet)
        text = screen.sheet()
        assert not {"\x1b", "\x07", "\u202e", "\r"} & set(text)
        assert "[@click=app.quit]x[/]" in text

    drive(there, story)


@pytest.mark.parametrize("length", [1, 1 << 20])
def test_bodies_of_any_kind_are_shown_in_bounded_room(length: int) -> None:
    for text in ("\x00\x01\xff" * length, "{" * length, json.dumps({"a": "b" * length}), "[" * length):
        shown = cells.body(text[: 3 * length])
        assert len(shown) <= cells.MAX_BODY + 100
        assert not any(ord(sign) < 32 and sign not in "\n\t" for sign in shown)


def test_an_endpoint_that_does_not_answer_is_said_and_the_terminal_stays_up(
    there: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.dashboard.views import DashboardError, QueueInspector

    async def story(screen: Screen) -> None:
        await screen.until(lambda: screen.rows("queues"))

        def fail(self: QueueInspector) -> Any:
            raise DashboardError("nobody answers", "start the broker")

        monkeypatch.setattr(QueueInspector, "queues", fail)
        await screen.until(lambda: "nobody answers; start the broker" in screen.top.board.note)
        assert screen.rows("queues"), "the last that is known stays"
        monkeypatch.undo()
        monkeypatch.setenv("SEMEL_STATE", str(there.state))
        await screen.until(lambda: "nobody answers" not in screen.top.board.note)

    # The method is looked up when the board is read, not when it is made.
    drive(there, story)


def test_a_read_that_hangs_does_not_keep_anybody_from_leaving(there: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.dashboard.views import QueueInspector

    begun, go = threading.Event(), threading.Event()

    def hang(self: QueueInspector) -> Any:
        begun.set()
        go.wait(PATIENCE)
        raise RuntimeError("too late for anybody to hear of it")

    async def story(screen: Screen) -> None:
        monkeypatch.setattr(QueueInspector, "workers", hang)
        await screen.press("3")
        await screen.until(begun.is_set)
        await screen.press("q")
        await screen.until(lambda: not screen.top.is_running)

    drive(there, story)
    assert not go.is_set(), "it still hangs, and we are out"
    go.set()


# Dead-letter queues.


def test_a_failing_group_is_found_opened_and_redriven_with_a_canary(there: Shop) -> None:
    there.dead_letter(5, "Timeout: the bank did not answer")
    there.dead_letter(2, "KeyError: 'total'", start=100)
    orders: list[int] = []

    async def story(screen: Screen) -> None:
        await screen.go("2")
        await screen.until(lambda: len(screen.rows("groups")) == 2)
        (queue,) = screen.rows("dead-letter-queues")
        assert queue[:2] == ["orders-dlq", "7"]
        assert queue[5] == "orders"
        assert [row[0] for row in screen.rows("groups")] == ["5", "2"]
        await screen.press("enter")  # from the queue to its groups
        await screen.press("enter")  # the messages of the first
        await screen.until(lambda: isinstance(screen.top.screen, MessagesSheet))
        messages = screen.top.screen.query_one(LiveTable)
        assert len(messages.keys) == 5
        await screen.press("enter")
        await screen.until(lambda: "the bank did not answer" in screen.sheet())
        assert '"order": ' in screen.sheet()
        await screen.press("escape")
        await screen.press("escape")
        await screen.press("r")
        await screen.until(lambda: isinstance(screen.top.screen, RedriveForm))
        assert isinstance(screen.top.screen, RedriveForm)
        assert screen.top.screen.selection.matched == 5
        form = screen.top.screen
        words = str(form.query_one("#about", Static).render())
        assert words.startswith("orders-dlq: 5 messages matching")
        assert f"at {there.broker.url}, account 000000000000" in words
        form.query_one("#canary", Input).value = "2"
        form.query_one("#yes", Button).press()
        await screen.until(lambda: screen.rows("jobs"), "the job")
        await screen.until(lambda: screen.rows("jobs")[0][3] == "done", "the end of the job")
        assert screen.rows("jobs")[0][4] == "5"
        await screen.press("enter")
        await screen.until(screen.sheet)
        assert "redrive of orders-dlq: done" in screen.sheet()

    with worker(there, lambda order: orders.append(order["order"])):
        drive(there, story)
    assert sorted(orders) == [0, 1, 2, 3, 4]
    assert sorted(json.loads(message["Body"])["order"] for message in there.broker.peek("orders-dlq")) == [100, 101]
    audit = (there.state / "audit.jsonl").read_text()
    assert '"redrive"' in audit


@pytest.mark.slow
def test_the_filter_is_the_filter_language_and_a_mistake_in_it_is_explained(there: Shop) -> None:
    there.dead_letter(3, "Timeout: no answer")
    there.dead_letter(2, "KeyError: 'total'", start=10)

    async def story(screen: Screen) -> None:
        await screen.go("2")
        await screen.until(lambda: len(screen.rows("groups")) == 2)
        await screen.press("slash")
        screen.top.query_one("#filter", Input).value = "error ~ total"
        await screen.press("enter")
        await screen.until(lambda: "2 messages match error ~ total" in screen.top.board.note)
        assert [row[0] for row in screen.rows("groups")] == ["2"]
        await screen.press("r")
        await screen.until(lambda: isinstance(screen.top.screen, RedriveForm))
        assert isinstance(screen.top.screen, RedriveForm)
        assert screen.top.screen.selection.where == "error ~ total"
        screen.top.screen.query_one("#canary", Input).value = "99"
        screen.top.screen.query_one("#yes", Button).press()
        problem = screen.top.screen.query_one("#problem", Label)
        await screen.until(lambda: "canary 99" in str(problem.render()))
        await screen.press("escape")
        await screen.press("slash")
        screen.top.query_one("#filter", Input).value = "error ~"
        await screen.press("enter")
        await screen.until(lambda: screen.rows("groups") == [] and "match" not in screen.top.board.note)
        await screen.press("r")
        assert "no messages to redrive" in screen.top.status

    drive(there, story)
    assert len(there.broker.peek("orders-dlq")) == 5


@pytest.mark.slow
def test_a_redrive_that_is_left_does_nothing_and_counting_touches_nothing(there: Shop) -> None:
    there.dead_letter(3)

    async def story(screen: Screen) -> None:
        await screen.go("2")
        await screen.until(lambda: screen.rows("groups"))
        await screen.press("r")
        await screen.until(lambda: isinstance(screen.top.screen, RedriveForm))
        await screen.press("enter")  # in a field it only goes on to the button
        await screen.press("escape")
        await screen.until(lambda: not isinstance(screen.top.screen, RedriveForm))
        await screen.press("r")
        await screen.until(lambda: isinstance(screen.top.screen, RedriveForm))
        screen.top.screen.query_one("#dry", Button).press()
        await screen.until(lambda: screen.rows("jobs") and screen.rows("jobs")[0][3] == "done")
        assert len(screen.rows("jobs")) == 1

    drive(there, story)
    assert len(there.broker.peek("orders-dlq")) == 3


def test_a_queue_that_only_has_the_name_of_a_dead_letter_queue_is_not_redriven(there: Shop) -> None:
    there.client.create_queue("live-failed").send("{}")

    async def story(screen: Screen) -> None:
        await screen.go("2")
        await screen.until(lambda: screen.rows("groups"))
        await screen.press("r")
        await screen.until(lambda: "is not the dead-letter queue of any queue" in screen.top.status)
        assert "--any-queue" in screen.top.status
        assert len(screen.top.screen_stack) == 1

    drive(there, story)
    assert len(there.broker.peek("live-failed")) == 1


@pytest.mark.slow
def test_a_job_is_paused_resumed_cancelled_and_not_forgotten_when_leaving(there: Shop) -> None:
    there.dead_letter(50)

    async def story(screen: Screen) -> None:
        await screen.go("2")
        await screen.until(lambda: screen.rows("groups"))
        await screen.press("r")
        await screen.until(lambda: isinstance(screen.top.screen, RedriveForm))
        screen.top.screen.query_one("#canary", Input).value = "0"
        screen.top.screen.query_one("#rate", Input).value = "1"
        screen.top.screen.query_one("#yes", Button).press()
        await screen.until(lambda: screen.rows("jobs") and screen.rows("jobs")[0][3] == "running")
        await screen.press("p")
        await screen.until(lambda: screen.rows("jobs")[0][3] == "paused")
        await screen.press("p")
        await screen.until(lambda: screen.rows("jobs")[0][3] == "running")
        await screen.press("q")
        await screen.until(lambda: isinstance(screen.top.screen, Question))
        await screen.press("n")
        await screen.until(lambda: not isinstance(screen.top.screen, Question))
        await screen.press("x")
        await screen.until(lambda: isinstance(screen.top.screen, Question))
        await screen.press("y")
        await screen.until(lambda: screen.rows("jobs")[0][3] == "cancelled")
        await screen.press("q")
        await screen.until(lambda: not screen.top.is_running)

    drive(there, story)
    left = len(there.broker.peek("orders-dlq")) + len(there.broker.peek("orders"))
    assert left == 50


# Workers.


def test_workers_are_shown_with_their_messages_in_progress_paused_resumed_and_resized(there: Shop) -> None:
    begun, go = threading.Event(), threading.Event()

    def handle(order: dict[str, Any]) -> None:
        begun.set()
        assert go.wait(PATIENCE)

    async def story(screen: Screen) -> None:
        await screen.go("3")
        await screen.until(lambda: screen.rows("in-progress"), "the message in progress")
        (row,) = screen.rows("workers")
        assert row[1:6] == ["shop:app", "orders", "running", "4", "1"]
        (message,) = screen.rows("in-progress")
        assert message[2] == "working"
        await screen.press("p")
        await screen.until(lambda: screen.rows("workers")[0][3] == "paused")
        assert "paused orders" in screen.top.status
        assert screen.rows("in-progress"), "a message in progress continues"
        await screen.press("plus")
        await screen.until(lambda: screen.rows("workers")[0][4] == "5")
        await screen.press("minus")
        await screen.until(lambda: screen.rows("workers")[0][4] == "4")
        await screen.press("c")
        await screen.until(lambda: isinstance(screen.top.screen, NumberInput))
        screen.top.screen.query_one("#number", Input).value = "0"
        await screen.press("enter")
        assert isinstance(screen.top.screen, NumberInput)
        screen.top.screen.query_one("#number", Input).value = "9"
        await screen.press("enter")
        await screen.until(lambda: screen.rows("workers")[0][4] == "9")
        await screen.press("P")
        await screen.until(lambda: screen.rows("workers")[0][3] == "running")
        await screen.press("tab", "enter")
        await screen.until(lambda: "Ledger" in screen.sheet())
        go.set()

    there.orders.send(json.dumps({"order": 1}))
    with worker(there, handle):
        assert begun.wait(PATIENCE)
        drive(there, story)
        go.set()
    audit = [json.loads(line) for line in (there.state / "audit.jsonl").read_text().splitlines()]
    assert [entry["action"] for entry in audit if entry["outcome"] != "begun"] == [
        *("pause worker", "concurrency worker", "concurrency worker", "concurrency worker", "resume worker")
    ]


@pytest.mark.slow
def test_without_workers_it_says_how_one_is_found(there: Shop) -> None:
    async def story(screen: Screen) -> None:
        await screen.go("3")
        await screen.until(lambda: "semel run APP --health" in screen.top.board.note)
        await screen.press("p", "plus", "c")
        assert len(screen.top.screen_stack) == 1

    drive(there, story)


def test_an_update_that_was_scheduled_when_the_app_ended_does_nothing(there: Shop) -> None:
    async def story(screen: Screen) -> None:
        ended.append(screen.top)

    ended: list[Top] = []
    drive(there, story)
    asyncio.run(ended[0]._update())


@pytest.mark.slow
def test_a_read_only_session_is_offered_no_action(there: Shop) -> None:
    there.dead_letter(2)

    async def story(screen: Screen) -> None:
        await screen.go("2")
        await screen.until(lambda: screen.rows("groups"))
        await screen.press("r")
        assert len(screen.top.screen_stack) == 1
        await screen.go("3")
        await screen.until(lambda: screen.rows("workers"))
        await screen.press("p", "P", "plus")
        await screen.pilot.pause()
        assert screen.rows("workers")[0][3:5] == ["running", "4"]

    with worker(there):
        drive(there, story, can_act=False)
    assert len(there.broker.peek("orders-dlq")) == 2
    assert not (there.state / "audit.jsonl").exists()


# Cells.


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (-3, "0 s"), (0.4, "0 s"), (119, "119 s"), (121, "2 min 1 s"), (7_500, "2 h 5 min")],
)
def test_durations_are_short(seconds: float | None, shown: str) -> None:
    assert cells.span(seconds) == shown


def test_the_past_is_a_row_of_bars_with_gaps() -> None:
    assert cells.bars([0, None, 5, 10]) == "▁ ▅█"
    assert cells.bars([0, 0]) == "▁▁"
    assert cells.bars([]) == ""
