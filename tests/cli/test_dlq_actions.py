"""`semel dlq redrive`, `delete` and `restore`, followed until they end, also on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.shell import DLQ, Shell, Terminal
from semel.cli import build_parser
from semel.cli.job_display import bar, summary
from semel.dlq.jobs import Job
from semel.dlq.redrive.plan import Engine, RedrivePlan


def test_redrive_sends_what_matches_back_and_prints_the_counts(shell: Shell) -> None:
    shell.dead_letter(20)
    dry = shell("dlq", "redrive", DLQ, "--where", "attr.tenant = acme", "--dry-run", "--output", "json")
    assert (dry.code, dry.json["counts"]["matched"], shell.count("orders")) == (0, 10, 0)
    ran = shell("dlq", "redrive", DLQ, "--where", "attr.tenant = acme", "--no-canary")
    assert (ran.code, ran.out) == (0, "redrive of orders-dlq: done: 10 matched, 10 sent, 10 deleted\n")
    assert ran.err.startswith(
        f"redrive messages that match, of 20 in orders-dlq\n  at {shell.broker.url}, account 000000000000\n"
    )
    assert (shell.count(), shell.count("orders")) == (10, 10)
    ids = [message["id"] for message in shell("dlq", "list", DLQ, "--output", "json").json["messages"]]
    quiet = shell("dlq", "redrive", DLQ, "--id", f"{ids[0]},{ids[1]}", "--no-canary", "--quiet", "--output", "json")
    assert (quiet.err, quiet.json["state"], quiet.json["counts"]["sent"]) == ("", "done", 2)
    assert shell("dlq", "redrive", DLQ, "--all", "--limit", "3", "--rate", "1000", "--no-canary").code == 0
    assert (shell.count(), shell.count("orders")) == (5, 15)


def test_a_canary_without_an_outcome_stops_the_redrive_with_4(shell: Shell) -> None:
    shell.dead_letter(10)
    ran = shell("dlq", "redrive", DLQ, "--all", "--canary", "2", "--canary-wait", "1s")
    assert ran.code == 4
    assert "so the rest was not sent" in ran.err
    assert (shell.count(), shell.count("orders")) == (8, 2)
    assert "stopped" in shell("jobs", "list").out


def test_delete_keeps_a_snapshot_that_restore_sends_back_and_audit_has_both(shell: Shell, tmp_path: Path) -> None:
    shell.dead_letter(6)
    file = tmp_path / "gone.jsonl"
    ran = shell("dlq", "delete", DLQ, "--where", "$.n < 4", "--yes", "--snapshot", str(file))
    assert (ran.code, ran.out.partition(" of ")[2]) == (0, "orders-dlq: done: 4 matched, 4 deleted\n")
    assert f"semel dlq restore {file}" in ran.err
    assert shell.count() == 2
    back = shell("dlq", "restore", str(file), "--output", "json")
    assert (back.code, back.json["counts"]["sent"], shell.count()) == (0, 4, 6)
    assert shell("dlq", "restore", str(file)).out == "restore of orders-dlq: done: 4 skipped\n"
    log = shell("audit", "--where", "outcome = done")
    assert [line.split()[3] for line in log.out.splitlines()[1:3]] == ["restore", "restore"]
    entries = shell("audit", "--output", "jsonl", "--limit", "1").lines
    assert (entries[0]["action"], entries[0]["details"]["file"]) == ("restore", str(file))
    assert shell("audit", "--where", "who = nobody").out == "the audit log has no such entries\n"
    assert shell("audit", "--where", "whoo = x").code == 2


def test_delete_shows_the_impact_and_the_name_must_be_typed(shell: Shell) -> None:
    shell.dead_letter(6)
    wrong = Terminal("dlq", "delete", DLQ, "--where", "$.n < 4")
    wrong.until("Type orders-dlq to delete them:")
    assert "delete 4 messages in orders-dlq, " in wrong.text
    assert f"{shell.broker.url}, account 000000000000" in wrong.text
    wrong.type("yes\n")
    assert wrong.end() == 1
    assert "nothing was changed" in wrong.text
    assert shell.count() == 6
    right = Terminal("dlq", "delete", DLQ, "--where", "$.n < 4")
    right.until("to delete them:")
    shown = {message["MessageId"] for message in shell.broker.peek(DLQ)}
    assert shell("dlq", "redrive", DLQ, "--where", "$.n < 3", "--no-canary").code == 0
    shell.dead_letter(3)  # after the question
    right.type(f"{DLQ}\n")
    assert right.end() == 0
    left = {message["MessageId"] for message in shell.broker.peek(DLQ)}
    assert (len(left), len(left - shown)) == (5, 3), "what was not shown is not deleted, though others are gone"


@pytest.mark.slow
def test_a_redrive_moves_a_bar_pauses_resumes_and_ends(shell: Shell) -> None:
    shell.dead_letter(60)
    terminal = Terminal("dlq", "redrive", DLQ, "--all", "--no-canary", "--rate", "20")
    terminal.until("p pauses, c cancels")
    terminal.until("█")
    terminal.type("p")
    terminal.until("pausing; p resumes")
    terminal.until("paused")
    held = shell.count()
    assert 0 < held < 60
    terminal.type("p")
    terminal.until("resuming")
    assert terminal.end() == 0
    assert "redrive of orders-dlq: done in" in terminal.text
    assert (shell.count(), shell.count("orders")) == (0, 60)


@pytest.mark.parametrize("how", ["key", "signal"])
def test_a_cancelled_redrive_releases_what_it_has_and_exits_with_130(shell: Shell, how: str) -> None:
    shell.dead_letter(60)
    terminal = Terminal("dlq", "redrive", DLQ, "--all", "--no-canary", "--rate", "10")
    terminal.until("█")
    terminal.type("c") if how == "key" else terminal.interrupt()
    assert terminal.end() == 130
    assert "cancelling" in terminal.text
    assert "redrive of orders-dlq: cancelled" in terminal.text
    assert shell.count(state="in_flight") == 0
    assert shell.count() + shell.count("orders") == 60
    assert shell("audit", "--where", "outcome = cancelled", "--output", "jsonl").out.count("\n") == 1


def test_a_bar_says_what_is_known_and_fits_the_terminal() -> None:
    job = Job("redrive", DLQ)
    job.begin()
    job.add(scanned=1_200)
    assert bar(job, 100) == "1,200 scanned"
    job.total = 800
    job.add(sent=200, deleted=200)
    assert bar(job, 100).startswith("[███████░░░░░░░░░░░░░░░░░░░░░░░] 200/800")
    assert bar(job, 100, unicode=False).startswith("[#######.......................] 200/800")
    job.add(failed=3, returned=2)
    assert bar(job, 200).endswith("3 failed  2 returned")
    assert all(len(bar(job, room)) <= room for room in range(1, 120))
    job.pause()
    assert summary(job) == (
        "redrive of orders-dlq: running: 200 sent, 200 deleted, 3 failed, 2 returned to the dead-letter queue"
    )


def test_the_defaults_of_redrive_are_those_of_its_plan() -> None:
    arguments = build_parser().parse_args(["dlq", "redrive", DLQ, "--all"])
    plan = RedrivePlan(queue=DLQ, all=True)
    assert (arguments.canary, arguments.threads, arguments.engine) == (plan.canary, plan.threads, plan.engine)
    with pytest.raises(SystemExit):
        build_parser().parse_args(["dlq", "redrive", DLQ, "--all", "--engine", "other"])
    for engine in Engine:
        assert build_parser().parse_args(["dlq", "redrive", DLQ, "--all", "--engine", engine]).engine == engine
