"""`semel dlq edit`: what is sent, and that no text that the user wrote is lost."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from cli.shell import DLQ, Shell, Terminal


def test_edit_opens_the_editor_and_sends_what_was_saved(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = shell.dead_letter(3)
    monkeypatch.setenv("EDITOR", "sed -i s/o-0/changed/g")
    refused = shell("dlq", "edit", DLQ, ids[0], "--yes")
    assert (refused.code, "--new-key KEY" in refused.err) == (1, True)
    monkeypatch.setenv("EDITOR", "true")
    assert shell("dlq", "edit", DLQ, ids[0], "--yes").out == "nothing was changed, and nothing was sent\n"
    monkeypatch.setenv("EDITOR", "false")
    assert "exited with 1; nothing was sent" in shell("dlq", "edit", DLQ, ids[0], "--yes").err
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
    (id,) = shell.dead_letter(1)
    drafts = tmp_path / "drafts"
    drafts.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(drafts))
    monkeypatch.setenv("EDITOR", 'sed -i \'s/"n": 0/"n": 42/\'')
    refused = shell("dlq", "edit", DLQ, id, "--yes", "--to", "nowhere")
    assert (refused.code, "nowhere" in refused.err) == (1, True)
    (kept,) = drafts.iterdir()
    assert f"what you wrote is kept in {kept}; to send it:\n" in refused.err
    assert json.loads(kept.read_text())["body"]["n"] == 42
    kept.unlink()
    monkeypatch.setenv("EDITOR", "sed -i s/body/boby/")
    assert "what you wrote is kept in" in shell("dlq", "edit", DLQ, id, "--yes").err
    next(drafts.iterdir()).unlink()
    monkeypatch.setenv("EDITOR", "true")
    assert shell("dlq", "edit", DLQ, id, "--yes").code == 0
    monkeypatch.setenv("EDITOR", 'sed -i \'s/"n": 0/"n": 42/\'')
    assert shell("dlq", "edit", DLQ, id, "--yes").code == 0
    assert list(drafts.iterdir()) == []


def test_the_document_in_the_editor_shows_the_queue_that_was_named(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = shell.dead_letter(1)
    for name in ("slow", "slower"):
        shell.client.create_queue(name)
    monkeypatch.setenv("EDITOR", 'sed -i \'s/"to": "slow"/"to": "slower"/\'')
    assert "sent to slower" in shell("dlq", "edit", DLQ, id, "--to", "slow", "--yes").out


def test_edit_takes_a_body_from_a_file_and_a_new_key(shell: Shell, tmp_path: Path) -> None:
    ids = shell.dead_letter(2)
    body = tmp_path / "body.json"
    body.write_text('{"fixed": true}')
    changed = ["--body", str(body), "--new-key", "auto"]
    done = shell("dlq", "edit", DLQ, ids[0], *changed, "--yes", "--output", "json").json
    assert (done["queue"], done["deleted"], len(done["key"])) == ("orders", True, 32)
    assert shell("dlq", "edit", DLQ, ids[1], "--yes", "--body", "/no/file").code == 2
    (tmp_path / "body.json").write_bytes(b"\xff")
    assert "it is not UTF-8" in shell("dlq", "edit", DLQ, ids[1], "--yes", "--body", str(tmp_path / "body.json")).err


def test_edit_asks_and_names_where_it_sends_to_and_deletes_from(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (id,) = shell.dead_letter(1)
    monkeypatch.setenv("EDITOR", 'sed -i \'s/"n": 0/"n": 42/\'')
    terminal = Terminal("dlq", "edit", DLQ, id)
    terminal.until("Send it to orders? [y/N]")
    assert "send 1 message to orders, and delete it from orders-dlq" in terminal.text
    assert f"at {shell.broker.url}, account 000000000000" in terminal.text
    terminal.type("n\n")
    assert terminal.end() == 1
    assert (shell.count(), shell.count("orders")) == (1, 0)


def test_what_was_kept_is_sent_with_the_command_that_was_printed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (id,) = shell.dead_letter(1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("EDITOR", 'sed -i \'s/"n": 0/"n": 42/\'')
    refused = shell("dlq", "edit", DLQ, id, "--yes", "--to", "nowhere", "--new-key", "a key")
    command = shlex.split(refused.err.splitlines()[-2])
    assert command[:6] == ["semel", "dlq", "edit", DLQ, id, "--file"]
    assert command[7:] == ["--to", "nowhere", "--new-key", "a key"]
    Path(command[6]).write_text(Path(command[6]).read_text().replace('"nowhere"', '"orders"'))
    monkeypatch.delenv("EDITOR")
    ran = shell(*command[1:7], "--new-key", "a key", "--yes")
    assert (ran.code, ran.out.endswith("key a key\n")) == (0, True)
    assert json.loads(shell.broker.peek("orders")[0]["Body"])["n"] == 42
    assert shell.count() == 0


@pytest.mark.parametrize("end", ["n", "Ctrl-C", "invalid"])
def test_what_was_written_is_kept_whatever_ends_the_command(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    (id,) = shell.dead_letter(1)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("EDITOR", "sed -i s/body/boby/" if end == "invalid" else 'sed -i \'s/"n": 0/"n": 42/\'')
    terminal = Terminal("dlq", "edit", DLQ, id)
    terminal.until("Open the editor again? [y/N]" if end == "invalid" else "Send it to orders? [y/N]")
    terminal.interrupt() if end == "Ctrl-C" else terminal.type("n\n")
    assert terminal.end() == (130 if end == "Ctrl-C" else 1)
    (kept,) = tmp_path.glob(f"semel-{id[:8]}-*.json")
    assert f"--file {kept}" in terminal.text.replace("\r\n", "")
    assert shell.count() == 1


def test_a_document_that_cannot_be_sent_is_named(shell: Shell, tmp_path: Path) -> None:
    (id,) = shell.dead_letter(1)
    file = tmp_path / "kept.json"
    file.write_text("{")
    ran = shell("dlq", "edit", DLQ, id, "--file", str(file), "--yes")
    assert (ran.code, f"--file {file}: " in ran.err) == (1, True)
    assert shell("dlq", "edit", DLQ, id, "--file", "/no/file", "--yes").code == 2
    assert shell("dlq", "edit", DLQ, id, "--file", str(file), "--body", str(file), "--yes").code == 2
