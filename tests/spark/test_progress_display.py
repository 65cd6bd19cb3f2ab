"""The display of a pipeline: never wider than the terminal, never a stack trace, and never the cause of an end."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from dataclasses import replace
from typing import Any

import orjson
import pytest
from rich.cells import cell_len

from semel.spark.pipeline.progress.display import (
    NOTE_LINES,
    JsonLines,
    Lines,
    Live,
    Nothing,
    as_lines,
    display_for,
    in_ascii,
    logging_above,
    repeatedly,
)
from semel.spark.pipeline.progress.figures import clean, number, sparkline, summary
from semel.spark.pipeline.progress.snapshot import LastBatch, Snapshot, State, Totals

RUNNING = Snapshot(
    pipeline="orders",
    id="a" * 32,
    sink="Parquet table /data/orders",
    state=State.RUNNING,
    pid=4711,
    host="web1",
    version="1",
    started=1_000.0,
    updated=1_134.0,
    totals=Totals(42, 1_301_222, 60_012, 1_222, 0, 7, 1_234_567, 9, {"not JSON": 8, "amount is positive": 4}),
    run=Totals(rows=234_567),
    counted=42,
    batch=LastBatch(42, 1_133.0, 3.21, 50_000),
    rate=12_345.6,
    rates=tuple(float(second % 17) for second in range(120)),
    backlog={"orders": 134_567},
)


def test_a_running_pipeline_at_80_columns() -> None:
    assert as_lines(RUNNING, 80) == [
        "orders · running · 2 min 14 s                       → Parquet table /data/orders",
        "  rate       12,346 rows/s   " + sparkline(RUNNING.rates, 51),
        "  waiting    134,567         about 10 s at this rate",
        "  rows       1,234,567       1,301,222 received; 234,567 rows in this run",
        "  duplicates 61,234          60,012 redelivered · 1,222 same key",
        "  rejected   12              8 not JSON · 4 amount is positive",
        "  batch      #42             50,000 rows in 3.2 s, 1 s ago",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("state", State)
def test_no_line_is_wider_than_the_terminal(width: int, state: State) -> None:
    long = "x" * 300
    long_texts = replace(
        RUNNING,
        state=state,
        pipeline=long,
        sink=long,
        error=f"{long} and {'more ' * 200}",
        totals=replace(RUNNING.totals, rejects={long: 1}),
        backlog={long: 1, "b": 2},
    )
    wide = replace(long_texts, pipeline="注文" * 30, sink="表" * 80, error="失敗 " * 90, waiting_for="注" * 90)
    for snapshot in (RUNNING, long_texts, wide):
        lines = as_lines(snapshot, width)
        assert all(cell_len(line) <= width for line in lines)
        assert len(lines) <= 7 + 2 * NOTE_LINES


def test_the_sparkline_fills_the_width_and_no_more() -> None:
    assert len(as_lines(RUNNING, 80)[1]) == 80
    assert len(as_lines(RUNNING, 120)[1]) == 120


def test_a_pipeline_that_has_not_done_anything_yet_has_something_to_show() -> None:
    new = Snapshot("orders", "", "table", State.STARTING, 1, "h", "1", started=5.0, updated=5.0)
    lines = as_lines(new, 80)
    assert "starting" in lines[0]
    assert any("not counted yet" in line for line in lines)
    assert any("none yet" in line for line in lines)


def test_an_error_is_wrapped_and_told_as_one() -> None:
    failed = replace(RUNNING, state=State.FAILED, error="table orders: the disk is full. " * 5)
    lines = as_lines(failed, 80)
    assert [line for line in lines if line.startswith("  error: table orders")]
    assert "at this rate" not in "\n".join(lines)


def test_what_a_stranger_wrote_cannot_move_the_cursor() -> None:
    evil = replace(RUNNING, totals=replace(RUNNING.totals, rejects={"\x1b[2J\nboo": 1}), error="a\x1b[31mb\rc")
    text = "".join(as_lines(evil, 120)) + summary(evil)
    assert not {"\x1b", "\n", "\r"} & set(text)
    assert clean("a\x1bb\nc") == "a b c"


def test_a_terminal_without_unicode_gets_ascii() -> None:
    raw = io.BytesIO()
    display = display_for("live", io.TextIOWrapper(raw, encoding="ascii"))
    display.draw(replace(RUNNING, sink="x" * 300))
    display.close(RUNNING)
    assert b"orders | running" in raw.getvalue()
    assert in_ascii("▁█ · → – …") == "_# | > - ~"


def test_numbers_read_as_people_say_them() -> None:
    assert [number(value) for value in (0, 3, 3.14, 12.7, 1_234_567)] == ["0", "3", "3.1", "13", "1,234,567"]


def test_a_pipeline_that_waits_says_for_what_and_when_it_tries_again() -> None:
    waiting = replace(
        RUNNING, state=State.WAITING, waiting_for="PostgreSQL does not answer", retry_at=RUNNING.updated + 7.3
    )
    assert "  waiting: PostgreSQL does not answer; next try in 8 s" in as_lines(waiting, 80)
    assert summary(waiting).endswith("; PostgreSQL does not answer; next try in 8 s")
    sentence = replace(waiting, waiting_for="Python worker failed to connect back.")
    assert sentence.outage == "Python worker failed to connect back; next try in 8 s"
    assert "at this rate" not in "\n".join(as_lines(waiting, 80))


def test_a_sparkline_shows_the_newest_values_against_the_highest_of_them() -> None:
    assert sparkline([0, 4, 8], 10) == "▁▅█"
    assert sparkline([99, 1, 1], 2) == "██"
    assert sparkline([0, 0], 10) == ""
    assert sparkline([1], 0) == ""


# Live.


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def live(width: int = 80, height: int = 24) -> tuple[Live, io.StringIO]:
    out = io.StringIO()
    return Live(out, width=width, height=height), out


def screen(written: str) -> list[str]:
    """What a terminal shows after that. Other sequences than those that the display uses are shown as they are."""
    rows, row = [""], 0
    for part in re.split(r"(\r|\n|\x1b\[\d*A|\x1b\[2K|\x1b\[[\d;]*m|\x1b\[\?25[lh])", written):
        if part == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif part.endswith("A") and part.startswith("\x1b["):
            row -= int(part[2:-1])
        elif part == "\x1b[2K":
            rows[row] = ""
        elif part and part[0] not in "\r\x1b":
            rows[row] += part
    return [line.rstrip() for line in rows if line]


def test_the_live_display_redraws_its_lines_in_place() -> None:
    display, out = live()
    display.draw(RUNNING)
    display.draw(replace(RUNNING, state=State.STOPPING))
    assert screen(out.getvalue()) == as_lines(replace(RUNNING, state=State.STOPPING), 80)


def test_a_shorter_picture_leaves_nothing_of_a_longer_one() -> None:
    display, out = live()
    display.draw(replace(RUNNING, state=State.FAILED, error="words " * 40))
    display.draw(RUNNING)
    assert screen(out.getvalue()) == as_lines(RUNNING, 80)


def test_log_lines_appear_above_the_live_display() -> None:
    display, out = live()
    display.draw(RUNNING)
    display.print_above("a warning")
    display.draw(RUNNING)
    assert screen(out.getvalue()) == ["a warning", *as_lines(RUNNING, 80)]


def test_colours_are_left_out_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = replace(RUNNING, state=State.FAILED, error="the disk is full")
    display, out = live()
    display.draw(failed)
    assert "\x1b[31m" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    display, out = live()
    display.draw(failed)
    assert "\x1b[31m" not in out.getvalue()


def test_a_log_handler_whose_stream_is_closed_is_left_alone() -> None:
    display, _ = live()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    stream.close()
    logging.getLogger().addHandler(handler)
    try:
        with logging_above(display):
            display.draw(RUNNING)
    finally:
        logging.getLogger().removeHandler(handler)


def test_the_cursor_is_shown_again_whatever_happened() -> None:
    display, out = live()

    def interrupted() -> None:
        with logging_above(display):
            display.draw(RUNNING)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")
    assert out.getvalue().endswith("\n\x1b[?25h")  # below the picture


@pytest.mark.parametrize("width", [40, 80])
def test_the_echo_of_ctrl_c_breaks_no_line_of_the_picture(width: int) -> None:
    display, out = live(width)
    display.draw(RUNNING)
    assert out.getvalue().endswith("\n")
    display.close(RUNNING)
    assert not out.getvalue().endswith("\n\n\x1b[?25h")  # and no empty line is left at the end


def test_logging_goes_above_the_display_while_it_lasts_and_back_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    display, out = live()
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    handler = logging.StreamHandler(terminal)
    logging.getLogger().addHandler(handler)
    try:
        with logging_above(display):
            display.draw(RUNNING)
            logging.getLogger("semel.spark").warning("look \x1b[2Jhere")
        logging.getLogger("semel.spark").warning("afterwards")
    finally:
        logging.getLogger().removeHandler(handler)
    assert screen(out.getvalue())[0] == "look here"
    assert terminal.getvalue() == "afterwards\n"


def test_what_is_written_to_standard_error_goes_above_the_display_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own last resort for log lines, for one."""
    display, out = live()
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with logging_above(display):
        display.draw(RUNNING)
        print("a queue", "was created", file=sys.stderr)
    assert screen(out.getvalue()) == ["a queue was created", *as_lines(RUNNING, 80)]
    assert terminal.getvalue() == ""
    assert sys.stderr is terminal


def test_a_display_fits_a_terminal_that_is_lower_than_it() -> None:
    display, out = live(height=4)
    display.draw(RUNNING)
    display.draw(RUNNING)
    assert len(screen(out.getvalue())) == 4


def test_what_was_drawn_last_stays() -> None:
    display, out = live()
    display.draw(RUNNING)
    display.close(replace(RUNNING, state=State.DONE))
    display.draw(RUNNING)
    display.print_above("afterwards")
    assert screen(out.getvalue())[0].startswith("orders · done")
    assert screen(out.getvalue())[-1] == "afterwards"


# Lines and JSON lines.


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_after(display: Any, out: io.StringIO, clock: Clock, *steps: tuple[float, Snapshot]) -> list[str]:
    for now, snapshot in steps:
        clock.now = now
        display.draw(snapshot)
    return out.getvalue().splitlines()


def test_without_a_terminal_there_is_a_line_every_few_seconds_while_something_happens() -> None:
    out, clock = io.StringIO(), Clock()
    display = Lines(out, clock)
    later = replace(RUNNING, counted=43)
    lines = lines_after(display, out, clock, (0, RUNNING), (2, later), (5, later), (9, later), (64, later), (65, later))
    assert len(lines) == 3  # at once, after five seconds, and after a minute without news
    assert "orders running: 12,346 rows/s, 134,567 waiting, 1,234,567 rows, 61,234 duplicates dropped" in lines[0]


def test_one_row_and_one_duplicate_are_in_the_singular() -> None:
    assert ", 1 row, 1 duplicate dropped, " in summary(replace(RUNNING, totals=Totals(rows=1, same_key=1)))


def test_a_change_of_state_is_told_at_once() -> None:
    out, clock = io.StringIO(), Clock()
    display = Lines(out, clock)
    lines = lines_after(display, out, clock, (0, RUNNING), (0.5, replace(RUNNING, state=State.STOPPING)))
    assert "orders stopping" in lines[1]


def test_the_last_line_is_always_said() -> None:
    out, clock = io.StringIO(), Clock()
    display = Lines(out, clock)
    display.draw(RUNNING)
    display.close(replace(RUNNING, state=State.FAILED, error="the disk is full"))
    assert out.getvalue().splitlines()[-1].endswith("; the disk is full")


def test_json_lines_are_for_machines() -> None:
    out = io.StringIO()
    JsonLines(out, Clock()).draw(RUNNING)
    snapshot = orjson.loads(out.getvalue())
    assert snapshot["pipeline"] == "orders"
    assert snapshot["state"] == "running"
    assert snapshot["lag"] == 134_567
    assert snapshot["totals"]["rejects"] == {"not JSON": 8, "amount is positive": 4}
    assert (snapshot["waiting_for"], snapshot["retry_at"]) == ("", 0)
    assert "trace" not in snapshot


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("show", ["live", "lines", "json"])
def test_a_closed_pipe_ends_the_display_and_not_the_pipeline(show: Any) -> None:
    display = display_for(show, Gone())
    display.draw(RUNNING)
    display.close(RUNNING)


def test_pictures_are_drawn_again_and_again_also_after_one_that_failed() -> None:
    drawn = threading.Semaphore(0)

    def draw() -> None:
        drawn.release()
        raise ValueError("no picture")

    with repeatedly(draw, every=0.001):
        for _ in range(3):
            assert drawn.acquire(timeout=10)
    while drawn.acquire(blocking=False):
        pass
    assert not drawn.acquire(timeout=0.01)


def test_a_dumb_terminal_gets_the_end_only_even_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    display, out = live()
    display.draw(RUNNING)
    assert out.getvalue() == ""
    display.close(RUNNING)
    assert "\x1b" not in out.getvalue()
    assert screen(out.getvalue()) == as_lines(RUNNING, 80)


def test_auto_is_live_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display_for("auto", Gone()), Live)
    assert type(display_for("auto", io.StringIO())) is Lines
    monkeypatch.setenv("TERM", "dumb")
    assert type(display_for("auto", Gone())) is Lines
    assert isinstance(display_for("none"), Nothing)
    assert isinstance(display_for("json", io.StringIO()), JsonLines)
