"""`semel dlq`, `audit` and `mark` as a user types them: what they print, what they ask, and their exit codes."""

from __future__ import annotations

import http.server
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from semel.broker import EmbeddedBroker, running
from semel.cli import main
from semel.cli.following import bar, summary
from semel.dlq import watch as watching
from semel.dlq.access.sqs import SqsAccess
from semel.dlq.jobs import Job
from semel.dlq.messages import DeadLetterQueue
from semel.dlq.watch import Watch
from semel.messages import dead_letter_attributes as own_attributes
from semel.sqs import Client, Entry
from semel.sqs.client.admin import Admin
from semel.sqs.client.messages import Attribute

DLQ = "orders-dlq"


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    """The command line with its surroundings, in this process, or in one of its own on a terminal."""

    def __init__(self, broker: EmbeddedBroker, client: Client, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker, self.client, self._capsys = broker, client, capsys

    def __call__(self, *arguments: str) -> Ran:
        try:
            code = main(arguments)
        except SystemExit as error:
            code = int(str(error.code))
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    def bury(self, count: int, error: str = "read timed out after {n} s", queue: str = DLQ) -> list[str]:
        """The ids of letters as a worker writes them."""
        entries = []
        for n in range(count):
            about = own_attributes.Letter(f"o-{n}", "TimeoutError", error.format(n=n), 3, f"m-{n}", "orders")
            body = json.dumps({"id": f"o-{n}", "n": n})
            own = {"tenant": Attribute("String", "acme" if n % 2 else "umbrella")}
            entries.append(Entry(body, attributes=own_attributes.attributes(about, own, len(body))))
        return [one.message_id for one in self.client.queue(queue).send_many(entries) if hasattr(one, "message_id")]

    def count(self, queue: str = DLQ, state: str | None = None) -> int:
        return len(self.broker.peek(queue, state, limit=10_000))


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with running(cooldowns=False) as found:
        yield found


@pytest.fixture
def shell(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    for name, value in {
        "AWS_ENDPOINT_URL_SQS": broker.url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "SEMEL_STATE": str(tmp_path / "state"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("SEMEL_DASHBOARD", "SEMEL_TOKEN", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    with Client() as client:
        target = client.create_queue(DLQ)
        policy = json.dumps({"deadLetterTargetArn": target.arn, "maxReceiveCount": 3})
        client.create_queue("orders", {"RedrivePolicy": policy})
        yield Shell(broker, client, capsys)
        for queue in client.queues():
            queue.drop()


# Looking.


def test_ls_shows_depth_age_expiry_and_sources(shell: Shell) -> None:
    shell.bury(3)
    ran = shell("dlq", "ls")
    assert ran.code == 0
    head, row = ran.out.splitlines()
    assert head.split() == ["QUEUE", "LETTERS", "IN", "FLIGHT", "OLDEST", "FIRST", "EXPIRES", "IN", "SOURCES"]
    assert re.fullmatch(r"orders-dlq +3 +0 +\d+s +3d 23h +orders", row)
    (info,) = shell("dlq", "ls", "--json").json
    assert (info["name"], info["depth"], info["sources"], info["estimated"]) == (DLQ, 3, ["orders"], False)


def test_ls_of_nothing_says_how_to_get_one(shell: Shell) -> None:
    for queue in shell.client.queues():
        queue.drop()
    assert "--create-dlq" in shell("dlq", "ls").out


def test_list_filters_and_goes_on(shell: Shell) -> None:
    shell.bury(10)
    ran = shell("dlq", "list", DLQ, "--where", "$.n >= 4 and attr.tenant = acme", "--limit", "2")
    assert (ran.code, ran.err) == (0, "")
    assert re.findall(r"\bo-\d\b", ran.out) == ["o-5", "o-7"]
    after = re.search(r"--after (\d+)", ran.out)
    assert after is not None
    more = shell("dlq", "list", DLQ, "--where", "attr.tenant = acme", "--after", after[1], "--json").json
    assert [one["key"] for one in more["messages"]] == ["o-9"]
    assert (more["next"], more["complete"], more["cost"]["receives"]) == (None, True, 0)
    assert "none of the 10 messages in" in shell("dlq", "list", DLQ, "--where", "nowhere").out


def test_list_groups_by_error_and_names_the_filter_of_a_group(shell: Shell) -> None:
    shell.bury(7)
    shell.bury(2, "no such tenant '{n}'")
    ran = shell("dlq", "list", DLQ, "--group-by", "error")
    lines = ran.out.splitlines()
    assert lines[1].split()[0] == "7"
    assert lines[1].endswith("TimeoutError: read timed out after <n> s")
    where = re.search(r"--where '(.+)'", ran.out)
    assert where is not None
    assert len(shell("dlq", "list", DLQ, "--where", where[1], "--json").json["messages"]) == 7
    assert [one["count"] for one in shell("dlq", "list", DLQ, "--group-by", "error", "--json").json["groups"]] == [7, 2]


def test_show_prints_one_letter_and_nothing_in_it_steers_the_terminal(shell: Shell) -> None:
    shell.client.queue(DLQ).send('{"a": "\u009b31mred\u202e"}', attributes={"x": "\u009b1m"})
    (one,) = shell("dlq", "list", DLQ, "--json").json["messages"]
    ran = shell("dlq", "show", DLQ, one["id"])
    assert ran.code == 0
    assert not set(ran.out) & {"\x1b", "\u202e", "\u009b"}
    assert "\\x9b31mred\\u202e" in ran.out
    assert "moved by SQS" in ran.out
    assert shell("dlq", "show", DLQ, one["id"], "--body").out == '{"a": "\u009b31mred\u202e"}'
    assert shell("dlq", "show", DLQ, one["id"], "--json").json["body_bytes"] == 20
    missing = shell("dlq", "show", DLQ, "nobody")
    assert (missing.code, "message nobody is not available in orders-dlq" in missing.err) == (1, True)


def test_export_writes_a_file_or_standard_output(shell: Shell, tmp_path: Path) -> None:
    ids = shell.bury(5)
    file = tmp_path / "letters.jsonl"
    ran = shell("dlq", "export", DLQ, str(file), "--where", "$.n < 3")
    assert (ran.code, ran.out, ran.err) == (0, "", f"3 letters in {file}\n")
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
        (["redrive", DLQ, "--all", "--canary", "51"], 2, "canary 51: expected int <= 50"),
        (["redrive", DLQ, "--all", "--engine", "sqs-move", "--limit", "5"], 2, "SQS's move task cannot have a limit"),
        (
            ["redrive", DLQ, "--all", "--engine", "sqs-move", "--stop-after", "1"],
            2,
            "cannot have a stop after failures",
        ),
        (["redrive", "nowhere", "--all"], 1, "there is no queue nowhere"),
        (["redrive", DLQ, "--all", "--canary-wait", "soon"], 2, "soon"),
        (["restore", "nofile.jsonl"], 2, "there is no file nofile.jsonl"),
        (["drop", DLQ, "--all"], 2, "add --yes"),
        (["jobs", "--pause"], 2, "--pause needs the id of a job"),
        (["jobs", "x", "--pause"], 1, "there is no job 'x'"),
        (["jobs", "nobody"], 1, "there is no job 'nobody'"),
        (["watch", "--webhook", "ftp://x"], 2, "is no address"),
        (["ls", "--via", "nonsense"], 2, "is not an address"),
        (
            ["redrive", DLQ, "--all", "--via", "http://127.0.0.1:1", "--ledger", "sqlite:///x"],
            2,
            "--ledger is not for --via",
        ),
        (["ls", "--via", "http://127.0.0.1:1"], 1, "no answer from the dashboard at http://127.0.0.1:1"),
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


@pytest.mark.parametrize(
    "name", ["", "ls", "list", "show", "export", "redrive", "edit", "drop", "restore", "watch", "jobs"]
)
def test_every_help_has_examples(shell: Shell, name: str) -> None:
    ran = shell("dlq", *([name] if name else []), "--help")
    assert ran.code == 0
    assert "examples:" in ran.out
    assert not name or "exit codes:" in ran.out


# Acting.


def test_redrive_sends_what_matches_back_and_tells_it(shell: Shell) -> None:
    shell.bury(20)
    dry = shell("dlq", "redrive", DLQ, "--where", "attr.tenant = acme", "--dry-run", "--json")
    assert (dry.code, dry.json["counts"]["matched"], shell.count("orders")) == (0, 10, 0)
    ran = shell("dlq", "redrive", DLQ, "--where", "attr.tenant = acme")
    assert (ran.code, ran.out) == (0, "redrive of orders-dlq: done: 10 matched, 10 sent, 10 deleted\n")
    assert ran.err.startswith(
        f"redrive of what matches, of 20 messages in orders-dlq\n  at {shell.broker.url}, account 000000000000\n"
    )
    assert (shell.count(), shell.count("orders")) == (10, 10)
    ids = [one["id"] for one in shell("dlq", "list", DLQ, "--json").json["messages"]]
    quiet = shell("dlq", "redrive", DLQ, "--id", f"{ids[0]},{ids[1]}", "--quiet", "--json")
    assert (quiet.err, quiet.json["state"], quiet.json["counts"]["sent"]) == ("", "done", 2)
    assert shell("dlq", "redrive", DLQ, "--all", "--limit", "3", "--rate", "1000").code == 0
    assert (shell.count(), shell.count("orders")) == (5, 15)


def test_a_canary_whose_fate_nobody_knows_stops_the_redrive_with_4(shell: Shell) -> None:
    shell.bury(10)
    ran = shell("dlq", "redrive", DLQ, "--all", "--canary", "2", "--canary-wait", "1s")
    assert ran.code == 4
    assert "so the rest was not sent" in ran.err
    assert (shell.count(), shell.count("orders")) == (8, 2)
    assert "stopped" in shell("dlq", "jobs").out


def test_drop_keeps_a_snapshot_that_restore_brings_back_and_audit_has_both(shell: Shell, tmp_path: Path) -> None:
    shell.bury(6)
    file = tmp_path / "gone.jsonl"
    ran = shell("dlq", "drop", DLQ, "--where", "$.n < 4", "--yes", "--snapshot", str(file))
    assert (ran.code, ran.out) == (0, "delete of orders-dlq: done: 4 matched, 4 deleted\n")
    assert f"semel dlq restore {file}" in ran.err
    assert shell.count() == 2
    back = shell("dlq", "restore", str(file), "--json")
    assert (back.code, back.json["counts"]["sent"], shell.count()) == (0, 4, 6)
    assert shell("dlq", "restore", str(file)).out == "restore of orders-dlq: done: 4 skipped\n"
    log = shell("audit", "--where", "outcome = done")
    assert [line.split()[3] for line in log.out.splitlines()[1:]] == ["restore", "restore", "delete"]
    entries = [json.loads(line) for line in shell("audit", "--json", "--limit", "1").out.splitlines()]
    assert (entries[0]["action"], entries[0]["details"]["file"]) == ("restore", str(file))
    assert shell("audit", "--where", "who = nobody").out == "the audit log has nothing like that\n"
    assert shell("audit", "--where", "whoo = x").code == 2


def test_edit_opens_the_editor_and_sends_what_was_saved(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = shell.bury(3)
    monkeypatch.setenv("EDITOR", "sed -i s/o-0/changed/g")
    refused = shell("dlq", "edit", DLQ, ids[0], "--yes")
    assert (refused.code, "--new-key KEY" in refused.err) == (1, True)
    monkeypatch.setenv("EDITOR", "true")
    assert shell("dlq", "edit", DLQ, ids[0], "--yes").out == "nothing was changed, and nothing was sent\n"
    monkeypatch.setenv("EDITOR", "false")
    assert "ended with 1; nothing was sent" in shell("dlq", "edit", DLQ, ids[0], "--yes").err
    monkeypatch.setenv("EDITOR", "/no/such/editor")
    assert "cannot be started" in shell("dlq", "edit", DLQ, ids[0], "--yes").err
    assert (shell.count(), shell.count("orders")) == (3, 0)
    monkeypatch.setenv("VISUAL", 'sed -i \'s/"n": 0/"n": 42/\'')
    sent = shell("dlq", "edit", DLQ, ids[0], "--yes")
    assert re.fullmatch(r"sent to orders as [0-9a-f-]{36}, key o-0\n", sent.out)
    (message,) = shell.broker.peek("orders")
    assert json.loads(message["Body"]) == {"id": "o-0", "n": 42}
    assert message["MessageAttributes"]["semel-key"]["StringValue"] == "o-0"
    assert shell.count() == 2


def test_what_was_written_in_the_editor_is_kept_until_it_was_sent(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (id,) = shell.bury(1)
    drafts = tmp_path / "drafts"
    drafts.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(drafts))
    monkeypatch.setenv("EDITOR", 'sed -i \'s/"n": 0/"n": 42/\'')
    refused = shell("dlq", "edit", DLQ, id, "--yes", "--to", "nowhere")
    assert (refused.code, "nowhere" in refused.err) == (1, True)
    (kept,) = drafts.iterdir()
    assert f"note: what you wrote is in {kept}\n" in refused.err
    assert json.loads(kept.read_text())["body"]["n"] == 42
    kept.unlink()
    monkeypatch.setenv("EDITOR", "sed -i s/body/boby/")
    assert "what you wrote is in" in shell("dlq", "edit", DLQ, id, "--yes").err
    next(drafts.iterdir()).unlink()
    monkeypatch.setenv("EDITOR", "true")
    assert shell("dlq", "edit", DLQ, id, "--yes").code == 0
    monkeypatch.setenv("EDITOR", 'sed -i \'s/"n": 0/"n": 42/\'')
    assert shell("dlq", "edit", DLQ, id, "--yes").code == 0
    assert list(drafts.iterdir()) == []


def test_the_document_in_the_editor_shows_the_queue_that_was_named(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = shell.bury(1)
    for name in ("slow", "slower"):
        shell.client.create_queue(name)
    monkeypatch.setenv("EDITOR", 'sed -i \'s/"to": "slow"/"to": "slower"/\'')
    assert "sent to slower" in shell("dlq", "edit", DLQ, id, "--to", "slow", "--yes").out


def test_edit_takes_a_body_from_a_file_and_a_new_key(shell: Shell, tmp_path: Path) -> None:
    ids = shell.bury(2)
    (tmp_path / "body.json").write_text('{"fixed": true}')
    done = shell(
        "dlq", "edit", DLQ, ids[0], "--body", str(tmp_path / "body.json"), "--new-key", "auto", "--json", "--yes"
    ).json
    assert (done["queue"], done["deleted"], len(done["key"])) == ("orders", True, 32)
    assert shell("dlq", "edit", DLQ, ids[1], "--yes", "--body", "/no/file").code == 2
    (tmp_path / "body.json").write_bytes(b"\xff")
    assert "it is no UTF-8" in shell("dlq", "edit", DLQ, ids[1], "--yes", "--body", str(tmp_path / "body.json")).err


def test_mark_writes_a_mark(shell: Shell) -> None:
    assert shell("mark", "deployed 1.4.2").out.endswith("UTC  deployed 1.4.2\n")
    ran = shell("mark", " ")
    assert (ran.code, ran.err) == (1, 'semel mark: a mark needs a text, as in: semel mark "deployed 1.4.2"\n')
    assert "deployed 1.4.2" in shell("audit").out


# Which messages, and where.


@pytest.mark.parametrize("action", [["drop", "--yes"], ["redrive"], ["export", "-"]], ids=lambda action: action[0])
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
def test_selecting_nothing_or_twice_is_wrong_usage_and_touches_nothing(
    shell: Shell, action: list[str], selected: list[str], says: str
) -> None:
    shell.bury(3)
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
        ["drop", DLQ, "--all", "--yes", "--snapshot", ""],
        ["drop", DLQ, "--all", "--yes", "--region", ""],
        ["drop", DLQ, "--all", "--yes", "--profile", ""],
    ],
)
def test_an_option_with_an_unset_variable_is_not_an_option_left_out(shell: Shell, arguments: list[str]) -> None:
    shell.bury(1)
    ran = shell("dlq", *arguments)
    assert (ran.code, "it is empty; is a variable unset?" in ran.err) == (2, True)
    assert shell.count(state="visible") == 1


def test_a_queue_that_is_nobodys_dead_letter_queue_needs_a_flag_of_its_own(shell: Shell, tmp_path: Path) -> None:
    id = shell.client.queue("orders").send("{}").message_id
    file = str(tmp_path / "out.jsonl")
    for arguments in (
        ["drop", "orders", "--all", "--yes"],
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
    assert shell("dlq", "drop", "orders", "--all", "--yes", "--any-queue").code == 0
    assert shell.count("orders") == 0


@pytest.mark.parametrize("part", ["--y", "--ye", "--al"])
def test_a_part_of_an_options_name_is_not_the_option(shell: Shell, part: str) -> None:
    shell.bury(1)
    ran = shell("dlq", "drop", DLQ, *(["--yes"] if part == "--al" else ["--all"]), part)
    assert ran.code == 2
    assert shell.count() == 1


def test_what_is_said_on_the_command_line_counts_and_not_the_variable(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.bury(2)
    monkeypatch.setenv("SEMEL_DASHBOARD", "http://127.0.0.1:1")
    assert "no answer from the dashboard at http://127.0.0.1:1" in shell("dlq", "ls").err
    here = ["--endpoint-url", shell.broker.url]
    for said in (here, ["--region", "us-east-1"]):
        (info,) = shell("dlq", "ls", "--json", *said).json
        assert (info["name"], info["depth"]) == (DLQ, 2)
    ran = shell("dlq", "drop", DLQ, "--all", "--yes", *here)
    assert (ran.code, shell.count()) == (0, 0)
    assert f"drop of all 2 messages in orders-dlq\n  at {shell.broker.url}, account 000000000000\n" in ran.err
    for said in (here, ["--region", "eu-west-1"], ["--profile", "prod"]):
        both = shell("dlq", "ls", "--via", "http://127.0.0.1:1", *said)
        assert (both.code, f"{said[0]} and --via exclude each other" in both.err) == (2, True)
    monkeypatch.setenv("SEMEL_DASHBOARD", "nonsense")
    wrong = shell("dlq", "ls")
    assert (wrong.code, "SEMEL_DASHBOARD: 'nonsense' is not an address" in wrong.err) == (2, True)


@pytest.mark.parametrize("command", [["audit"], ["mark", "deployed"]])
def test_what_looks_at_no_queue_takes_no_endpoint(shell: Shell, command: list[str]) -> None:
    for option in ("--endpoint-url", "--region", "--profile"):
        ran = shell(*command, option, "http://127.0.0.1:1")
        assert (ran.code, f"unrecognized arguments: {option}" in ran.err) == (2, True)


def test_without_a_terminal_nothing_that_asks_is_done_without_yes(shell: Shell, tmp_path: Path) -> None:
    (id,) = shell.bury(1)
    (tmp_path / "body.json").write_text("{}")
    for arguments in (["drop", DLQ, "--all"], ["edit", DLQ, id, "--body", str(tmp_path / "body.json")]):
        ran = shell("dlq", *arguments)
        assert (ran.code, "there is no terminal to confirm at: add --yes" in ran.err) == (2, True)
    assert (shell.count(), shell.count("orders")) == (1, 0)


def test_saying_yes_is_not_saying_that_messages_may_be_moved_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    last = shell.client.create_queue("last-dlq")
    policy = json.dumps({"deadLetterTargetArn": last.arn, "maxReceiveCount": 2})
    shell.client.queue(DLQ).call("SetQueueAttributes", {"Attributes": {"RedrivePolicy": policy}})
    (id,) = shell.bury(1)
    monkeypatch.setattr(Admin, "of", lambda _client: None)  # as on SQS, where looking is receiving
    monkeypatch.setitem(SqsAccess.__init__.__kwdefaults__, "wait", 0)  # type: ignore[arg-type]
    for arguments in (
        ["drop", DLQ, "--all", "--yes"],
        ["redrive", DLQ, "--all"],
        ["edit", DLQ, id, "--body", os.devnull, "--yes"],
        ["list", DLQ],
        ["show", DLQ, id],
        ["export", DLQ, "-", "--all"],
    ):
        ran = shell("dlq", *arguments)
        assert (ran.code, ran.out) == (1, "")
        assert "to its own dead-letter queue after 2 receives" in ran.err
        assert ran.err.endswith("; --receive accepts that\n")
    (message,) = shell.broker.peek(DLQ)
    assert message["Attributes"]["ApproximateReceiveCount"] == "0"
    assert shell("dlq", "list", DLQ, "--yes").code == 2
    assert shell("dlq", "list", DLQ, "--receive").code == 0


# On a terminal.


class Terminal:
    """The command line in a process of its own, on a terminal that a test types at."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "semel.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30", "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def until(self, wanted: str | Callable[[], bool]) -> None:
        ends = time.monotonic() + 60
        while not (wanted in self.text if isinstance(wanted, str) else wanted()):
            assert time.monotonic() < ends, self.text
            self._read(0.05)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        ends = time.monotonic() + 60
        while self._process.poll() is None:
            assert time.monotonic() < ends, self.text
            self._read(0.05)
        self._read(0.05)
        os.close(self._master)
        return self._process.returncode

    def _read(self, patience: float) -> None:
        while select.select([self._master], [], [], patience)[0]:
            try:
                self.text += os.read(self._master, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                return
            patience = 0


def test_drop_shows_the_impact_and_wants_the_name_typed(shell: Shell) -> None:
    shell.bury(6)
    wrong = Terminal("dlq", "drop", DLQ, "--where", "$.n < 4")
    wrong.until("Type orders-dlq to drop them:")
    assert "drop 4 messages in orders-dlq, " in wrong.text
    assert f"{shell.broker.url}, account 000000000000" in wrong.text
    wrong.type("yes\n")
    assert wrong.end() == 1
    assert "nothing was dropped" in wrong.text
    assert shell.count() == 6
    right = Terminal("dlq", "drop", DLQ, "--where", "$.n < 4")
    right.until("to drop them:")
    shown = {message["MessageId"] for message in shell.broker.peek(DLQ)}
    assert shell("dlq", "redrive", DLQ, "--where", "$.n < 3").code == 0
    shell.bury(3)  # came after somebody looked
    right.type(f"{DLQ}\n")
    assert right.end() == 0
    left = {message["MessageId"] for message in shell.broker.peek(DLQ)}
    assert (len(left), len(left - shown)) == (5, 3), "what was not shown is not dropped, though others are gone"


def test_edit_asks_and_names_where_it_sends_to_and_deletes_from(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = shell.bury(1)
    monkeypatch.setenv("EDITOR", 'sed -i \'s/"n": 0/"n": 42/\'')
    terminal = Terminal("dlq", "edit", DLQ, id)
    terminal.until("Send it to orders? [y/N]")
    assert "send 1 message to orders, and delete it from orders-dlq" in terminal.text
    assert f"at {shell.broker.url}, account 000000000000" in terminal.text
    terminal.type("n\n")
    assert terminal.end() == 1
    assert (shell.count(), shell.count("orders")) == (1, 0)


@pytest.mark.slow
def test_a_redrive_moves_a_bar_pauses_goes_on_and_ends(shell: Shell) -> None:
    shell.bury(60)
    terminal = Terminal("dlq", "redrive", DLQ, "--all", "--rate", "20")
    terminal.until("p pauses, c cancels")
    terminal.until("█")
    terminal.type("p")
    terminal.until("pausing; p goes on")
    terminal.until("paused")
    held = shell.count()
    assert 0 < held < 60
    terminal.type("p")
    terminal.until("going on")
    assert terminal.end() == 0
    assert "redrive of orders-dlq: done in" in terminal.text
    assert (shell.count(), shell.count("orders")) == (0, 60)


@pytest.mark.parametrize("how", ["key", "signal"])
def test_a_cancelled_redrive_gives_back_what_it_has_and_says_130(shell: Shell, how: str) -> None:
    shell.bury(60)
    terminal = Terminal("dlq", "redrive", DLQ, "--all", "--rate", "10")
    terminal.until("█")
    terminal.type("c") if how == "key" else terminal.interrupt()
    assert terminal.end() == 130
    assert "cancelling" in terminal.text
    assert "redrive of orders-dlq: cancelled" in terminal.text
    assert shell.count(state="in_flight") == 0
    assert shell.count() + shell.count("orders") == 60
    assert shell("audit", "--where", "outcome = cancelled", "--json").out.count("\n") == 1


def test_a_bar_says_what_is_known_and_fits_the_terminal() -> None:
    job = Job("redrive", DLQ)
    job.begin()
    job.add(looked_at=1_200)
    assert bar(job, 100) == "1,200 looked at"
    job.total = 800
    job.add(sent=200, deleted=200)
    assert bar(job, 100).startswith("[███████░░░░░░░░░░░░░░░░░░░░░░░] 200/800")
    assert bar(job, 100, unicode=False).startswith("[#######.......................] 200/800")
    job.add(failed=3, returned=2)
    assert bar(job, 200).endswith("3 failed  2 came back")
    assert all(len(bar(job, room)) <= room for room in range(1, 120))
    job.pause()
    assert summary(job).startswith("redrive of orders-dlq: running: 200 sent, 200 deleted, 3 failed, 2 came back")


# Watching.


def info(depth: int, first_expires: float | None = None, name: str = DLQ) -> DeadLetterQueue:
    return DeadLetterQueue(name, "", "", False, depth, 0, 0, 345_600.0, ("orders",), first_expires=first_expires)


def kinds(watch: Watch, depth: int, now: float = 0.0, first_expires: float | None = None) -> list[str]:
    return [f"{alarm.kind} {alarm.new}" for alarm in watch.look([info(depth, first_expires)], now)]


def test_arrivals_are_told_once_and_swings_of_a_count_are_none() -> None:
    watch = Watch(None)
    assert kinds(watch, 0) == []
    assert kinds(watch, 3) == ["arrival 3"]
    assert kinds(watch, 3) == []
    assert kinds(watch, 2) == []
    assert kinds(watch, 3) == []
    assert kinds(watch, 5) == ["arrival 2"]
    assert kinds(watch, 0) == []
    assert kinds(watch, 0) == []
    assert kinds(watch, 1) == ["arrival 1"]
    fresh = Watch(None)
    fresh.know([info(7)])
    assert kinds(fresh, 7) == []
    assert kinds(fresh, 8) == ["arrival 1"]


def test_an_expiry_is_told_when_it_is_near_and_again_each_hour() -> None:
    watch = Watch(6 * 3_600.0)
    watch.know([info(3)])
    assert kinds(watch, 3, 100_000.0, 100_000.0 + 7 * 3_600) == []
    assert kinds(watch, 3, 104_000.0, 100_000.0 + 7 * 3_600) == ["expiry 0"]
    assert kinds(watch, 3, 104_100.0, 100_000.0 + 7 * 3_600) == []
    assert kinds(watch, 3, 107_700.0, 100_000.0 + 7 * 3_600) == ["expiry 0"]
    (alarm,) = Watch(3_600).look([info(1, 1_800.0)], 1.0)[1:]
    assert alarm.text == "the first of 1 in orders-dlq is lost in 0 h 29 min, when its retention ends"


def test_watch_once_remembers_what_it_told(shell: Shell, tmp_path: Path) -> None:
    assert shell("dlq", "watch", "--once").code == 0
    shell.bury(3)
    told = tmp_path / "told"
    ran = shell("dlq", "watch", "--once", "--exec", f'echo "$SEMEL_KIND $SEMEL_QUEUE $SEMEL_NEW" >> {told}')
    assert (ran.code, told.read_text()) == (3, "arrival orders-dlq 3\n")
    assert "ARRIVAL  3 dead letters of orders in orders-dlq" in ran.out
    assert shell("dlq", "watch", "--once").code == 0
    shell.bury(1)
    alarm = shell("dlq", "watch", "--once", "--json", "--before", "30d", "--exec", "exit 7")
    assert [json.loads(line)["kind"] for line in alarm.out.splitlines()] == ["arrival", "expiry"]
    assert "ended with 7" in alarm.err


def test_watch_waits_and_ends_at_the_first_alarm_and_the_webhook_is_tried_again(shell: Shell) -> None:
    got: list[dict[str, Any]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(503 if len(got) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/hook"
        terminal = Terminal("dlq", "watch", DLQ, "--every", "100ms", "--exit", "--webhook", url)
        terminal.until("watching 1 queues")
        shell.bury(2)
        code = terminal.end()
        server.shutdown()
    assert (code, len(got), got[0]) == (3, 2, got[1])
    assert (got[1]["kind"], got[1]["queue"], got[1]["source"]) == ("arrival", DLQ, "semel dlq watch")


class Hooks:
    """A webhook that refuses the first alarms, and takes the rest."""

    def __init__(self, refused: int) -> None:
        self.got: list[dict[str, Any]] = []
        hooks = self

        class Hook(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hooks.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(404 if len(hooks.got) <= refused else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self) -> Hooks:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_an_alarm_that_was_not_delivered_is_raised_again_by_the_next_run(shell: Shell) -> None:
    shell.bury(3)
    with Hooks(refused=1) as hooks:
        ran = shell("dlq", "watch", "--once", "--webhook", hooks.url)
        assert (ran.code, "did not take the alarm: HTTP 404" in ran.err) == (3, True)
        shell.bury(1)
        assert shell("dlq", "watch", "--once", "--webhook", hooks.url).code == 3
        assert shell("dlq", "watch", "--once", "--webhook", hooks.url).code == 0
    assert [alarm["new"] for alarm in hooks.got] == [3, 4]


def test_an_alarm_waits_until_the_webhook_takes_it_and_a_command_gets_it_once(shell: Shell, tmp_path: Path) -> None:
    shell.bury(2)
    told = tmp_path / "told"
    with Hooks(refused=2) as hooks:
        command = f'echo "$SEMEL_NEW" >> {told}'
        terminal = Terminal("dlq", "watch", DLQ, "--every", "100ms", "--webhook", hooks.url, "--exec", command)
        terminal.until(lambda: len(hooks.got) == 3)
        terminal.until(lambda: DLQ in watching.load(tmp_path / "state", shell.client.endpoint))
        terminal.interrupt()
        assert terminal.end() == 0
    assert len(hooks.got) == 3
    assert told.read_text() == "2\n"
    assert terminal.text.count("ARRIVAL") == 1


def test_a_webhook_that_refuses_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (alarm,) = Watch(None).look([info(1)], 5.0)
    waited: list[float] = []
    problem = watching.post(alarm, "http://127.0.0.1:1/x", sleep=waited.append)
    assert "did not take the alarm" in problem
    assert waited == [1.0, 2.0, 4.0]
    assert "ended with 3" in watching.execute(alarm, "exit 3")
