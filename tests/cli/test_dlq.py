"""`semel dlq`: what its commands print, which messages they select, and their exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.shell import DLQ, Shell, Terminal


def test_queues_shows_depth_age_expiry_and_sources(shell: Shell) -> None:
    shell.dead_letter(3)
    ran = shell("dlq", "queues")
    assert ran.code == 0
    head, row = ran.out.splitlines()
    assert head.split() == ["QUEUE", "MESSAGES", "IN", "FLIGHT", "OLDEST", "EXPIRES", "IN", "SOURCES"]
    assert re.fullmatch(r"orders-dlq +3 +0 +\d+ s +(4 d|3 d 23 h) +orders", row)
    (info,) = shell("dlq", "queues", "--output", "json").json
    assert (info["name"], info["depth"], info["sources"], info["estimated"]) == (DLQ, 3, ["orders"], False)


def test_queues_of_nothing_says_how_to_get_one(shell: Shell) -> None:
    for queue in shell.client.queues():
        queue.drop()
    assert "semel queues create NAME --dlq" in shell("dlq", "queues").out


def test_list_filters_and_continues(shell: Shell) -> None:
    shell.dead_letter(10)
    ran = shell("dlq", "list", DLQ, "--where", "$.n >= 4 and attr.tenant = acme", "--limit", "2")
    assert (ran.code, ran.err) == (0, "")
    assert re.findall(r"\bo-\d\b", ran.out) == ["o-5", "o-7"]
    after = re.search(r"--after (\d+)", ran.out)
    assert after is not None
    more = shell("dlq", "list", DLQ, "--where", "attr.tenant = acme", "--after", after[1], "--output", "json").json
    assert [message["key"] for message in more["messages"]] == ["o-9"]
    assert (more["next"], more["complete"], more["cost"]["receives"]) == (None, True, 0)
    assert "none of the 10 messages in" in shell("dlq", "list", DLQ, "--where", "nowhere").out


def test_groups_counts_by_error_and_names_the_filter_of_a_group(shell: Shell) -> None:
    shell.dead_letter(7)
    shell.dead_letter(2, "no such tenant '{n}'")
    ran = shell("dlq", "groups", DLQ)
    lines = ran.out.splitlines()
    assert lines[1].split()[0] == "7"
    assert lines[1].endswith("TimeoutError: read timed out after <n> s")
    where = re.search(r"--where '(.+)'", ran.out)
    assert where is not None
    assert len(shell("dlq", "list", DLQ, "--where", where[1], "--output", "json").json["messages"]) == 7
    assert [group["count"] for group in shell("dlq", "groups", DLQ, "--output", "json").json["groups"]] == [7, 2]


def test_show_prints_one_message_and_nothing_in_it_controls_the_terminal(shell: Shell) -> None:
    shell.client.queue(DLQ).send('{"a": "\u009b31mred\u202e"}', attributes={"x": "\u009b1m"})
    (message,) = shell("dlq", "list", DLQ, "--output", "json").json["messages"]
    ran = shell("dlq", "show", DLQ, message["id"])
    assert ran.code == 0
    assert not set(ran.out) & {"\x1b", "\u202e", "\u009b"}
    assert "U+009B31mredU+202E" in ran.out
    assert "moved by SQS" in ran.out
    assert shell("dlq", "show", DLQ, message["id"], "--body").out == '{"a": "\u009b31mred\u202e"}'
    assert shell("dlq", "show", DLQ, message["id"], "--output", "json").json["body_bytes"] == 20
    missing = shell("dlq", "show", DLQ, "nobody")
    assert (missing.code, "nobody" in missing.err) == (1, True)


def test_export_writes_a_file_or_standard_output(shell: Shell, tmp_path: Path) -> None:
    ids = shell.dead_letter(5)
    file = tmp_path / "messages.jsonl"
    ran = shell("dlq", "export", DLQ, str(file), "--where", "$.n < 3")
    assert (ran.code, ran.out, ran.err) == (0, "", f"wrote 3 messages to {file}\n")
    assert len(file.read_text().splitlines()) == 3
    assert shell("dlq", "export", DLQ, str(file), "--all").code == 2
    assert shell("dlq", "export", DLQ, str(file), "--force", "--id", ids[0], "--id", ids[4]).code == 0
    assert [json.loads(line)["key"] for line in file.read_text().splitlines()] == ["o-0", "o-4"]
    piped = subprocess.run(
        [sys.executable, "-m", "semel.cli", "dlq", "export", DLQ, "-", "--all"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert len(piped.stdout.splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["list", DLQ, "--where", "eror ~ x"], 2, "did you mean error?"),
        (["list", "nowhere"], 1, "there is no queue nowhere at http"),
        (["list", DLQ, "--limit", "0"], 2, "is not a number from 1"),
        (["redrive", DLQ, "--all", "--canary", "51"], 2, "canary 51: "),
        (["redrive", DLQ, "--all", "--no-canary", "--engine", "sqs-move", "--limit", "5"], 2, "cannot have a limit"),
        (
            ["redrive", DLQ, "--all", "--no-canary", "--engine", "sqs-move", "--stop-after", "1"],
            2,
            "cannot have a stop after failures",
        ),
        (["redrive", "nowhere", "--all"], 1, "there is no queue nowhere"),
        (["redrive", DLQ, "--all", "--canary-wait", "soon"], 2, "soon"),
        (["restore", "nofile.jsonl"], 2, "there is no file nofile.jsonl"),
        (["delete", DLQ, "--all"], 2, "add --yes to delete"),
        (["list", DLQ, "--after", "x"], 1, "after"),
        (["watch", "--webhook", "ftp://x"], 2, "--webhook 'ftp://x' is "),
        (["queues", "--dashboard", "nonsense"], 2, "is not an address"),
        (
            ["redrive", DLQ, "--all", "--dashboard", "http://127.0.0.1:1", "--ledger", "sqlite:///x"],
            2,
            "--ledger and --dashboard exclude each other",
        ),
        (
            ["groups", DLQ, "--dashboard", "http://127.0.0.1:1", "--max-receive", "5"],
            2,
            "--max-receive and --dashboard exclude each other",
        ),
        (
            ["queues", "--dashboard", "http://127.0.0.1:1"],
            1,
            "no answer from the dashboard at http://127.0.0.1:1: Connection refused; is it running?",
        ),
    ],
)
def test_mistakes_have_their_exit_code_and_a_sentence(
    shell: Shell, arguments: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        ran = shell("dlq", *arguments)
    assert ran.code == code
    assert says in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("action", [["delete", "--yes"], ["redrive"], ["export", "-"]], ids=lambda action: action[0])
@pytest.mark.parametrize(
    ("selected", "says"),
    [
        ([], "one of the arguments --where --id --all is required"),
        (["--id", ""], "argument --id: '' names no message; is a variable unset?"),
        (["--id", "a,"], "argument --id: 'a,' names no message"),
        (["--id", "a", "--id", " "], "argument --id: ' ' names no message"),
        (["--where", ""], "argument --where: it is empty; is a variable unset?"),
        (["--all", "--where", "$.n = 1"], "argument --where: not allowed with argument --all"),
        (["--id", "a", "--all"], "argument --all: not allowed with argument --id"),
    ],
)
def test_selecting_nothing_or_twice_is_wrong_usage_and_changes_nothing(
    shell: Shell, action: list[str], selected: list[str], says: str
) -> None:
    shell.dead_letter(3)
    ran = shell("dlq", action[0], DLQ, *action[1:], *selected)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert (shell.count(state="visible"), shell.count("orders")) == (3, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["redrive", DLQ, "--all", "--to", ""],
        ["edit", DLQ, "x", "--yes", "--to", ""],
        ["edit", DLQ, "", "--yes"],
        ["show", DLQ, ""],
        ["restore", "file.jsonl", "--to", ""],
        ["delete", DLQ, "--all", "--yes", "--snapshot", ""],
        ["delete", DLQ, "--all", "--yes", "--region", ""],
        ["delete", DLQ, "--all", "--yes", "--profile", ""],
    ],
)
def test_an_option_with_an_unset_variable_is_not_an_option_left_out(shell: Shell, arguments: list[str]) -> None:
    shell.dead_letter(1)
    ran = shell("dlq", *arguments)
    assert (ran.code, "it is empty; is a variable unset?" in ran.err) == (2, True)
    assert shell.count(state="visible") == 1


def test_a_queue_that_is_no_dead_letter_queue_needs_any_queue(shell: Shell, tmp_path: Path) -> None:
    id = shell.client.queue("orders").send("{}").message_id
    file = str(tmp_path / "out.jsonl")
    for arguments in (
        ["delete", "orders", "--all", "--yes"],
        ["redrive", "orders", "--all", "--to", "orders"],
        ["export", "orders", file, "--all"],
        ["edit", "orders", id, "--body", os.devnull, "--yes"],
    ):
        ran = shell("dlq", *arguments)
        assert ran.code == 2
        assert "orders is not the dead-letter queue of any queue" in ran.err
        assert "--any-queue" in ran.err
    assert shell.count("orders") == 1
    assert shell("dlq", "export", "orders", file, "--all", "--any-queue").code == 0
    assert shell("dlq", "delete", "orders", "--all", "--yes", "--any-queue").code == 0
    assert shell.count("orders") == 0


@pytest.mark.parametrize("part", ["--y", "--ye", "--al"])
def test_a_part_of_an_options_name_is_not_the_option(shell: Shell, part: str) -> None:
    shell.dead_letter(1)
    ran = shell("dlq", "delete", DLQ, *(["--yes"] if part == "--al" else ["--all"]), part)
    assert ran.code == 2
    assert shell.count() == 1


def test_one_message_is_in_the_singular(shell: Shell) -> None:
    shell.dead_letter(1)
    assert f"redrive all 1 message in {DLQ}\n" in shell("dlq", "redrive", DLQ, "--all", "--dry-run").err


def test_a_flag_wins_over_the_variable(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.dead_letter(2)
    monkeypatch.setenv("SEMEL_DASHBOARD", "http://127.0.0.1:1")
    assert "no answer from the dashboard at http://127.0.0.1:1" in shell("dlq", "queues").err
    here = ["--endpoint-url", shell.broker.url]
    for said in (here, ["--region", "us-east-1"]):
        (info,) = shell("dlq", "queues", "--output", "json", *said).json
        assert (info["name"], info["depth"]) == (DLQ, 2)
    ran = shell("dlq", "delete", DLQ, "--all", "--yes", *here)
    assert (ran.code, shell.count()) == (0, 0)
    assert f"delete all 2 messages in orders-dlq\n  at {shell.broker.url}, account 000000000000\n" in ran.err
    for said in (here, ["--region", "eu-west-1"], ["--profile", "prod"]):
        both = shell("dlq", "queues", "--dashboard", "http://127.0.0.1:1", *said)
        assert (both.code, f"{said[0]} and --dashboard exclude each other" in both.err) == (2, True)
    monkeypatch.setenv("SEMEL_DASHBOARD", "nonsense")
    wrong = shell("dlq", "queues")
    assert (wrong.code, "$SEMEL_DASHBOARD: 'nonsense' is not an address" in wrong.err) == (2, True)


def test_without_a_terminal_nothing_is_changed_without_yes(shell: Shell, tmp_path: Path) -> None:
    (id,) = shell.dead_letter(1)
    (tmp_path / "body.json").write_text("{}")
    for arguments in (["delete", DLQ, "--all"], ["edit", DLQ, id, "--body", str(tmp_path / "body.json")]):
        ran = shell("dlq", *arguments)
        assert (ran.code, "there is no terminal to confirm at: add --yes" in ran.err) == (2, True)
    assert (shell.count(), shell.count("orders")) == (1, 0)


@pytest.mark.usefixtures("plain_sqs")
def test_yes_does_not_accept_receives_that_may_move_messages(shell: Shell) -> None:
    last = shell.client.create_queue("last-dlq")
    policy = json.dumps({"deadLetterTargetArn": last.arn, "maxReceiveCount": 2})
    shell.client.queue(DLQ).call("SetQueueAttributes", {"Attributes": {"RedrivePolicy": policy}})
    (id,) = shell.dead_letter(1)
    for arguments in (
        ["delete", DLQ, "--all", "--yes"],
        ["redrive", DLQ, "--all", "--no-canary"],
        ["edit", DLQ, id, "--body", os.devnull, "--yes"],
        ["list", DLQ],
        ["show", DLQ, id],
        ["export", DLQ, "-", "--all"],
    ):
        ran = shell("dlq", *arguments)
        assert (ran.code, ran.out) == (1, "")
        assert "after 2 receives" in ran.err
        assert ran.err.endswith("; --receive accepts that\n")
    (message,) = shell.broker.peek(DLQ)
    assert message["Attributes"]["ApproximateReceiveCount"] == "0"
    assert shell("dlq", "list", DLQ, "--yes").code == 2
    assert shell("dlq", "list", DLQ, "--receive").code == 0


def test_a_body_on_a_terminal_is_escaped_and_in_a_pipe_it_is_not(shell: Shell) -> None:
    text = "one \u009b31m\nt\u202ewo \t"
    id = shell.client.queue(DLQ).send(text).message_id
    terminal = Terminal("dlq", "show", DLQ, id, "--body")
    assert terminal.end() == 0
    assert "one U+009B31m\r\ntU+202Ewo" in terminal.text
    assert not set(terminal.text) & {"\x1b", "\u009b", "\u202e"}
    assert shell("dlq", "show", DLQ, id, "--body").out == text


@pytest.mark.parametrize("command", [["dlq", "list", DLQ, "--limit", "5000"], ["dlq", "export", DLQ, "-", "--all"]])
def test_a_reader_that_has_read_enough_is_no_error(shell: Shell, command: list[str]) -> None:
    shell.dead_letter(2_000)
    line = f"{sys.executable} -m semel.cli {' '.join(command)} | head -1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout.count("\n")) == (0, 1)
    assert "Traceback" not in ran.stderr
    assert "BrokenPipe" not in ran.stderr


def test_json_has_the_same_names_everywhere(shell: Shell) -> None:
    shell.dead_letter(3)
    page = shell("dlq", "list", DLQ, "--output", "json").json
    assert page.keys() >= {"messages", "next", "complete", "cost", "notes"}
    assert shell("dlq", "list", DLQ, "--output", "jsonl").lines == page["messages"]
    assert shell("dlq", "show", DLQ, page["messages"][0]["id"], "--output", "json").json == page["messages"][0]
    groups = shell("dlq", "groups", DLQ, "--output", "json").json
    assert shell("dlq", "groups", DLQ, "--output", "jsonl").lines == groups["groups"]
    assert [queue["name"] for queue in shell("dlq", "queues", "--output", "jsonl").lines] == [DLQ]


def test_every_table_fits_80_columns(shell: Shell) -> None:
    shell.dead_letter(3, "a very long error that goes on and on, far beyond the right edge of any terminal {n}")
    id = shell.client.queue("orders").send("x" * 500).message_id
    for command in (
        ["queues", "list"],
        ["dlq", "queues"],
        ["dlq", "list", DLQ],
        ["dlq", "groups", DLQ],
        ["messages", "peek", "orders"],
        ["jobs", "list"],
        ["audit"],
    ):
        terminal = Terminal(*command)
        assert terminal.end() == 0
        assert [line for line in terminal.text.split("\r\n") if len(line) > 80] == [], command
    assert id in shell("messages", "peek", "orders").out
