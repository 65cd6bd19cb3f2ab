"""`semel verify`: exit codes, output, and wrong usage. What it finds is in tests/verify."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from cli.shell import Ran, Terminal
from semel.cli import main
from semel.cli import verify as command
from semel.verify import history_rules

GOOD = [
    {"kind": "send", "key": "order-1", "message": "m1", "queue": "orders", "time": "2026-11-16T10:00:00Z"},
    {"kind": "effect", "key": "order-1", "worker": "w1", "time": "2026-11-16T10:00:01Z"},
    {"kind": "delete", "message": "m1", "time": "2026-11-16T10:00:02Z"},
]
DOUBLED = {"kind": "effect", "key": "order-1", "worker": "w2", "time": "2026-11-16T10:00:01.5Z"}

Verify = Callable[..., Ran]


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Verify:
    """`semel verify` in a folder with a file for each list of lines."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **files: list[Any]) -> Ran:
        for name, lines in files.items():
            texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
            Path(f"{name}.jsonl").write_text("\n".join(texts))
        try:
            code = main(["verify", *arguments])
        except SystemExit as error:
            code = int(str(error.code))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def test_a_history_that_holds_is_0_and_the_verdict_says_what_was_checked(verify: Verify) -> None:
    ran = verify("good.jsonl", good=GOOD)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == "OK: 3 events of 1 key, none lost, doubled, deleted early, unknown"
    assert "not checked: stale (no event has a fence); reordered (no event has a group)" in ran.out


def test_a_history_with_a_problem_is_3_and_the_evidence_is_shown(verify: Verify) -> None:
    ran = verify("bad.jsonl", bad=[*GOOD, DOUBLED])
    assert ran.code == 3
    assert ran.out.startswith("PROBLEMS in 4 events of 1 key: 1 doubled\n")
    assert "  order-1 has 2 effects (queue orders)\n" in ran.out
    assert "    effect       2026-11-16 10:00:01.000  bad.jsonl:2  w1\n" in ran.out
    assert "    effect       2026-11-16 10:00:01.500  bad.jsonl:4  w2\n" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_where_at_least_once_is_promised_repeats_are_shown_and_the_code_is_0(verify: Verify) -> None:
    ran = verify("bad.jsonl", "--effects", "at-least-once", bad=[*GOOD, DOUBLED])
    assert ran.code == 0
    assert ran.out.startswith("OK: 4 events of 1 key, none lost, deleted early, unknown\n")
    assert "REPEATED (ALLOWED)\n  order-1 has 2 effects" in ran.out


def test_lines_that_cannot_be_read_are_3_with_their_place(verify: Verify) -> None:
    ran = verify("half.jsonl", half=[*GOOD, "{half"])
    assert ran.code == 3
    assert ran.out.startswith("INCOMPLETE: nothing found in 3 events of 1 key, but 1 line could not be read\n")
    assert "  half.jsonl:4: JSON is malformed" in ran.out


def test_json_has_the_verdict_the_findings_and_what_could_not_be_read(verify: Verify) -> None:
    ran = verify("bad.jsonl", "--output", "json", bad=[*GOOD, DOUBLED, "{half"])
    content = ran.json
    assert (ran.code, content["ok"], content["found"], content["unreadable"]) == (3, False, {"doubled": 1}, 1)
    (finding,) = content["findings"]
    assert [(event["file"], event["line"]) for event in finding["evidence"]] == [("bad.jsonl", 2), ("bad.jsonl", 4)]
    assert content["broken"] == [{"file": "bad.jsonl", "line": 5, "reason": content["broken"][0]["reason"]}]
    assert content["counts"]["effects"] == 2
    finding_line, rest = verify("bad.jsonl", "--output", "jsonl").lines
    assert finding_line == finding
    assert (rest["ok"], "findings" in rest) == (False, False)


def test_json_of_a_verdict_is_ok_only_if_all_could_be_read(verify: Verify) -> None:
    assert verify("good.jsonl", "--output", "json", good=GOOD).json["ok"] is True
    assert verify("good.jsonl", "--output", "json", good=[*GOOD, "{half"]).json["ok"] is False


def test_the_limit_is_for_each_kind_and_says_how_many_there_are(verify: Verify) -> None:
    lost = [{"kind": "send", "key": f"k{number}"} for number in range(30)]
    ran = verify("bad.jsonl", "--limit", "2", bad=[*lost, *GOOD, DOUBLED])
    assert "PROBLEMS in 34 events of 31 keys: 30 lost, 1 doubled" in ran.out
    assert "LOST (the first 2 of 30)" in ran.out
    assert ran.out.count("was sent but has no effect") == 2
    assert "order-1 has 2 effects" in ran.out


def test_your_own_fields_words_and_files_are_understood(verify: Verify) -> None:
    ran = verify(
        "app.jsonl",
        *("--map", "key=.order,time=.ts,event=.what", "--events", "effect=charged,send=placed"),
        app=[{"order": 7, "what": "placed", "ts": 1}, {"order": 7, "what": "charged", "ts": 2}],
    )
    assert ran.code == 0, ran
    ran = verify(
        *("send=orders.jsonl", "effect=charges.jsonl", "--map", "key=.id"),
        orders=[{"id": 1}, {"id": 2}],
        charges=[{"id": 1}],
    )
    assert (ran.code, "2 was sent but has no effect" in ran.out) == (3, True)


def test_kinds_that_are_logged_and_a_time_of_grace_can_be_given(verify: Verify) -> None:
    sent = [{"kind": "send", "key": "a", "time": 100}, {"kind": "deliver", "key": "a", "time": 101}]
    assert verify("sent.jsonl", sent=sent).code == 0
    assert verify("sent.jsonl", "--logged", "send,effect").code == 3
    assert verify("sent.jsonl", "--logged", "all").code == 3
    ran = verify("sent.jsonl", "--logged", "all", "--grace", "1m")
    assert (ran.code, "1 sent too late to be judged" in ran.out) == (0, True)


def test_no_text_of_an_event_controls_the_terminal(verify: Verify) -> None:
    evil = {"kind": "effect", "key": "\x1b[31mred", "detail": "\x1b]0;title\x07"}
    ran = verify("evil.jsonl", evil=[evil, evil])
    assert (ran.code, "\x1b" in ran.out) == (3, False)
    assert "␛[31mred has 2 effects" in ran.out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.jsonl"], 1, "nowhere.jsonl: no such file or folder"),
        (["good.jsonl", "--map", "idd=.x"], 2, "did you mean id"),
        (["good.jsonl", "--events", "effect="], 2, "give words"),
        (["good.jsonl", "--logged", "send,boom"], 2, "'boom' is no event"),
        (["good.jsonl", "--effects", "twice"], 2, "invalid choice"),
        (["-", "-"], 2, "standard input (-) can be read once"),
        ([], 2, "HISTORY"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(verify: Verify, arguments: list[str], code: int, said: str) -> None:
    ran = verify(*arguments, good=GOOD)
    assert (ran.code, said in ran.err, "Traceback" in ran.err, ran.out) == (code, True, False, "")


def test_on_a_terminal_progress_is_shown_and_erased_and_no_line_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("history.jsonl")
    os.mkfifo(path)
    terminal = Terminal("verify", str(path))
    effect = json.dumps({"kind": "effect", "key": "a", "worker": "w" * 40, "message": "m" * 36, "fence": 1})
    with path.open("w") as file:
        file.write(f"{effect}\n" * 10_000)
        file.flush()
        terminal.until("10,000 lines read")
    assert terminal.end() == 3
    shown = terminal.text.rpartition("\x1b[K")[2]
    assert shown.lstrip().startswith("PROBLEMS in 10,000 events of 1 key: 1 doubled")
    assert max(map(len, shown.splitlines())) <= 80


def test_the_choices_of_the_options_are_those_of_the_rules() -> None:
    assert get_args(history_rules.Effects) == command._EFFECTS
    assert get_args(history_rules.DeleteAfter) == command._DELETE_AFTER
