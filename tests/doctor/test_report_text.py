"""The report for a terminal: one screen, the worst first, and nothing in a log can affect the terminal."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

from doctor import sample
from semel.doctor.model import Case, Diagnosis, Finding, Quality, Recommendation, Severity
from semel.doctor.report import changes, text_report
from semel.doctor.report.summary import period
from semel.doctor.text_format import ascii_only, clean, duration, number

ALL = [sample.rich(), sample.healthy(), sample.empty(), sample.hostile()]
IDS = ["rich", "healthy", "empty", "hostile"]


def shown(diagnosis: Diagnosis, *, width: int = 80, colour: bool = False, **more: bool | int | None) -> str:
    return text_report.render(diagnosis, width=width, colour=colour, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("diagnosis", ALL, ids=IDS)
@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(diagnosis: Diagnosis, width: int) -> None:
    lines = shown(diagnosis, width=width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert not any(line.endswith(" ") for line in lines)


@pytest.mark.parametrize("diagnosis", ALL, ids=IDS)
def test_the_summary_and_the_prompt_fit_one_screen(diagnosis: Diagnosis) -> None:
    assert len(shown(diagnosis).splitlines()) < 24
    assert len(shown(diagnosis, height=50).splitlines()) < 50


def test_twenty_sick_queues_fit_one_screen_too_and_the_rest_is_counted() -> None:
    cases = tuple(dataclasses.replace(sample.orders(), queue=f"orders-{index}") for index in range(20))
    findings = tuple(dataclasses.replace(sample.FINDINGS[0], queue=case.queue) for case in cases[1:])
    advice = tuple(dataclasses.replace(sample.ADVICE[0], queue=case.queue) for case in cases)
    report = shown(dataclasses.replace(sample.rich(), cases=cases, findings=findings, recommendations=advice))
    assert len(report.splitlines()) < 24
    assert "and 16 more, 1 of them without findings" in report
    assert re.search(r"and 1\d critical more: duplicates-visibility", report)
    assert "and for 18 more queues" in report


def test_each_queue_has_a_line_with_its_figures() -> None:
    (line,) = (line for line in shown(sample.rich()).splitlines() if line.startswith("✗ orders"))
    assert line.split() == ["✗", "orders", "48,210", "49,771", "1,562", "(3.2", "%)", "11", "h", "9", "min", "12"]


def test_a_narrow_terminal_keeps_the_doubled_effects() -> None:
    report = shown(sample.rich(), width=40)
    assert re.search(r"✗ orders +1,562 \(3\.2 %\) +12\n", report)
    assert "attempts" not in report


def test_findings_come_worst_first_with_their_cure_and_rule() -> None:
    report = shown(sample.rich(), height=None)
    places = [report.index(f"[{finding.rule}]") for finding in sample.FINDINGS]
    assert places == sorted(places)
    flat = " ".join(report.split())
    for finding in sample.FINDINGS:
        assert finding.observed in flat
        assert f"→ {finding.remedy.text}" in flat


def test_the_worst_finding_is_never_cut() -> None:
    flat = " ".join(shown(sample.rich()).split())
    assert sample.FINDINGS[0].observed in flat
    assert sample.FINDINGS[1].observed not in flat
    assert "critical payments [no-dead-letter-queue]: The queue has no dead-letter queue, … →" in flat


def test_advice_that_changes_nothing_is_not_shown() -> None:
    report = shown(sample.rich())
    assert "visibility timeout 30 s → 69 s" in report
    assert "retention 4 d" not in report


def test_what_was_wrong_with_the_logs_is_said() -> None:
    flat = " ".join(shown(sample.rich(), height=None).split())
    assert "skipped: 61 lines are not JSON, 16 lines have no id or time" in flat
    assert "1 file is unreadable (of 938,609 lines)" in flat


def test_words_that_a_mapping_does_not_know_are_told_with_the_option_that_would() -> None:
    quality = Quality(files=1, lines=9, events=2, unknown_events=7, unknown_words=("shipped", "evil\x1b[2J"))
    report = " ".join(shown(dataclasses.replace(sample.healthy(), quality=quality), height=None).split())
    assert (
        "7 lines have an unknown event (of 9 lines); add --events to say what these mean: shipped, evil [2J" in report
    )


def test_verbose_shows_evidence_commands_and_every_figure() -> None:
    report = shown(sample.rich(), verbose=True)
    assert sample.FINDINGS[0].remedy.cli[0] in report  # in one line: it is there to be copied
    assert "  visibility_timeout_seconds = 69" in report
    assert re.search(r"14:02:32 +\+30\.4 s +received +2 +web3-0815", report)
    assert re.search(r" 69 s +73 +0\.2 %", report)
    assert re.search(r"web3-0815 +2\.4 s behind", report)
    assert "the file ends in the middle" in " ".join(report.split())
    for finding in sample.FINDINGS:
        assert finding.why in " ".join(report.split())


def test_nothing_found_has_a_line_of_its_own_and_says_what_was_not_looked_at() -> None:
    report = shown(sample.healthy())
    assert "All is well: 103,556 messages, each delivered once." in report
    assert "not examined: ledger. Add --ledger URL to see whether it keeps keys for long enough." in " ".join(
        report.split()
    )
    assert "--log" not in report


def test_settings_alone_do_not_count_as_proof_that_each_message_came_once() -> None:
    report = shown(Diagnosis(sample.NOW, (Case("orders", state=sample.orders().state),), (), ()))
    assert "as far as settings and metrics show" in report
    assert "queue\n✓ orders\n" in report
    assert "Add --log PATH to see duplicates, their causes" in report


def test_an_empty_diagnosis_says_so_and_what_would_help() -> None:
    report = shown(sample.empty())
    assert "nothing to examine" in report
    assert "--log PATH" in report


@pytest.mark.parametrize("verbose", [False, True])
def test_nothing_in_a_log_reaches_the_terminal_as_a_control_character(verbose: bool) -> None:
    report = shown(sample.hostile(), verbose=verbose)
    assert {char for char in report if not char.isprintable()} == {"\n"}
    report.encode("utf-8")


def test_colours_are_there_only_on_request_and_change_no_text() -> None:
    plain, coloured = shown(sample.rich()), shown(sample.rich(), colour=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31mcritical" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_a_terminal_without_unicode_gets_lines_of_the_same_width() -> None:
    before = shown(sample.rich())
    after = ascii_only(before)
    assert after.isascii()
    assert list(map(len, after.splitlines())) == list(map(len, before.splitlines()))


def test_each_severity_is_a_word_not_only_a_colour() -> None:
    findings = tuple(
        Finding("r", level, "q", "Seen.", "Why.", sample.FINDINGS[2].remedy) for level in reversed(Severity)
    )
    report = shown(Diagnosis(sample.NOW, (Case("q"),), findings, ()))
    assert "1 critical, 1 warning, 1 note in 1 queue" in report
    assert [line.split()[0] for line in report.splitlines() if "q [r]: Seen." in line] == [
        "critical",
        "warning",
        "info",
    ]


def test_figures_read_as_people_write_them() -> None:
    assert [duration(value) for value in (5_400, None, float("nan"), float("inf"))] == ["1 h 30 min", "–", "–", "–"]
    assert [number(value) for value in (0, 3.4, 12_345, 48_210_000)] == ["0", "3.4", "12,345", "48.21 million"]
    assert period(sample.DAY, sample.DAY + 3_600) == "2026-11-15 00:00 to 01:00 UTC"


def test_a_figure_and_its_unit_stay_on_one_line() -> None:
    assert text_report.Printer(40, colour=False).lines(text_report.sentence(f"{'x' * 37} 41 s at most")) == [
        "x" * 37,
        "41 s at most",
    ]


def test_wide_characters_count_twice() -> None:
    lines = text_report.Printer(40, colour=False).lines(text_report.sentence("日本語のキュー" * 10))
    assert max(map(cell_len, lines)) == 40
    assert clean("a\x1b[31mb\r\nc\u202ed") == "a [31mb  c d"


def test_a_setting_is_said_to_be_fine_only_if_it_is_known() -> None:
    settings = (
        Recommendation("orders", "ledger retention", "18 d", None, ("a reason", "Another."), False),
        Recommendation("orders", "retention", "4 d", "4 d", ("a reason",), False),
    )
    report = shown(dataclasses.replace(sample.rich(), recommendations=settings), width=100, verbose=True)
    assert re.search(r"ledger retention +– +18 d +A reason\. Another\.\n", report)
    assert re.search(r"retention +4 d +4 d +fine +A reason\.\n", report)


def test_the_engine_and_every_reason_are_shown() -> None:
    flat = " ".join(shown(sample.rich(), width=120, verbose=True).split())
    assert sample.ENGINE in flat
    assert sample.ENGINE in " ".join(shown(sample.rich()).split())
    assert all(word in flat for advice in sample.ADVICE for reason in advice.reasons for word in reason.split())


def test_help_and_json_need_no_rich() -> None:
    code = """
import contextlib, sys
from semel.cli import main
with contextlib.suppress(SystemExit):
    main(["doctor", "--help"])
from semel.doctor.model import Diagnosis
from semel.doctor.report import changes, json_report
json_report.render(Diagnosis(0.0, (), (), ()))
sys.exit("rich" in sys.modules or "jinja2" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_environment_changes_neither_width_nor_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich reads more of it than we want; whether there are colours, and how wide it is, the caller decides."""
    expected = shown(sample.rich(), width=60), shown(sample.rich(), width=60, colour=True)
    for name, value in (("NO_COLOR", "1"), ("FORCE_COLOR", "1"), ("TERM", "dumb"), ("COLUMNS", "20"), ("LINES", "5")):
        monkeypatch.setenv(name, value)
        assert (shown(sample.rich(), width=60), shown(sample.rich(), width=60, colour=True)) == expected


# What changed since the last examination.


def since(before: Diagnosis, after: Diagnosis, *, width: int = 80, colour: bool = False) -> list[str]:
    return [
        changes.as_text(change, width=width, colour=colour) for change in changes.since(changes.opened(before), after)
    ]


def test_a_change_is_told_with_its_time_and_the_remedy_and_what_is_gone_in_a_line() -> None:
    quiet = dataclasses.replace(sample.rich(), findings=())
    new = since(quiet, sample.rich())
    assert len(new) == len(sample.FINDINGS)
    assert new[0].splitlines()[0] == "00:17:00  new     critical orders [duplicates-visibility]: The visibility"
    assert "→ Set the visibility timeout to 69 s" in new[0]
    assert since(sample.rich(), quiet)[0] == "00:17:00  gone    orders [duplicates-visibility]"
    assert since(sample.rich(), sample.rich()) == []


@pytest.mark.parametrize("width", [40, 80])
def test_nothing_in_a_log_gets_out_of_a_change(width: int) -> None:
    lines = "\n".join(since(sample.empty(), sample.hostile(), width=width)).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert all(line.isprintable() for line in lines)
