"""`semel messages` and `semel send`: what is sent, what is shown, and which calls that costs."""

from __future__ import annotations

import io
import json
import sys
import time
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.shell import DLQ, Shell, Terminal
from semel.cli.messages import LineSender
from semel.sqs import Entry


class Input:
    """Standard input."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)

    def isatty(self) -> bool:
        return False


def sent(shell: Shell, queue: str = "orders") -> list[dict[str, Any]]:
    return shell.broker.peek(queue, limit=1_000)


def bodies(shell: Shell, queue: str = "orders") -> list[str]:
    return [message["Body"] for message in sent(shell, queue)]


# send


@pytest.mark.parametrize("command", [["send"], ["messages", "send"]])
def test_send_prints_the_id_and_sets_key_attributes_and_delay(shell: Shell, command: list[str]) -> None:
    raw = b64encode(b"\x00\xff").decode()
    attributes = ["--attribute", "tenant=acme", "--attribute", "n:Number=5", "--attribute", f"raw:Binary={raw}"]
    ran = shell(*command, "orders", '{"id": 1}', "--key", "order-1", "--delay", "1m", *attributes)
    (message,) = sent(shell)
    assert (ran.code, ran.out, ran.err) == (0, f"{message['MessageId']}\n", "")
    assert (message["Body"], message["State"]) == ('{"id": 1}', "delayed")
    message_attributes = message["MessageAttributes"]
    assert message_attributes["idempotency-key"]["StringValue"] == "order-1"
    assert (message_attributes["tenant"]["StringValue"], message_attributes["n"]) == (
        "acme",
        {"DataType": "Number", "StringValue": "5"},
    )
    assert message_attributes["raw"]["BinaryValue"] == raw
    assert shell(*command, "orders", "x", "--output", "json").json[0].keys() == {"message_id", "sequence", "line"}


def test_send_reads_standard_input_without_its_final_newline_and_a_file_as_it_is(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Input(b"a\nb\n"))
    assert shell("send", "orders", "-").code == 0
    (tmp_path / "body").write_bytes("é\n".encode())
    assert shell("send", "orders", "--file", str(tmp_path / "body")).code == 0
    assert bodies(shell) == ["a\nb", "é\n"]


def test_send_to_a_fifo_queue_takes_group_and_deduplication_id(shell: Shell) -> None:
    shell.client.create_queue("pay.fifo")
    assert "--group GROUP" in shell("send", "pay.fifo", "x").err
    first = shell("send", "pay.fifo", "x", "--group", "g", "--dedup-id", "one", "--output", "jsonl").lines
    again = shell("send", "pay.fifo", "y", "--group", "g", "--dedup-id", "one", "--output", "jsonl").lines
    assert first[0]["message_id"] == again[0]["message_id"]
    (message,) = sent(shell, "pay.fifo")
    assert message["Attributes"]["MessageGroupId"] == "g"


def test_send_lines_sends_each_line_in_batches_and_names_those_that_failed(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "my orders.jsonl"
    lines = [f'{{"n": {n}}}' for n in range(25)]
    lines[3], lines[4], lines[20], lines[7] = "bad \x01", "bad \x02", "bad \x03", ""
    file.write_text("\n".join(lines))
    ran = shell("send", "orders", "--lines", str(file))
    assert ran.code == 1
    assert ran.out.split() == [message["MessageId"] for message in sent(shell)]
    assert len(ran.out.split()) == 21
    assert "line 4: InvalidMessageContents" in ran.err
    assert "21 messages sent to orders, 3 failed; 1 empty line skipped" in ran.err
    assert f"sed -n '4,5p;21p' '{file}' | semel messages send orders --lines -" in ran.err
    assert bodies(shell)[3] == '{"n": 5}'


def test_send_lines_reads_standard_input_and_prints_json(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Input(b"a\r\nb\n\xff\n"))
    ran = shell("send", "orders", "--lines", "-", "--output", "json")
    assert (ran.code, [row["line"] for row in ran.json]) == (1, [1, 2])
    assert "line 3: it is not UTF-8" in ran.err
    assert bodies(shell) == ["a", "b"]


def test_send_lines_stops_when_the_queue_is_gone_and_says_from_which_line_on(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    ran = shell("send", "nowhere", "--lines", str(tmp_path / "lines"))
    assert (ran.code, ran.out) == (1, "")
    assert "stopped at line 1" in ran.err
    assert f"sed -n '1,$p' {tmp_path / 'lines'} | semel messages send nowhere --lines -" in ran.err


@pytest.mark.parametrize("bad", [b"bad \x01\n", b"\xff\xfe\n"], ids=["refused by SQS", "not UTF-8"])
def test_lines_of_a_fifo_queue_stay_in_order_and_stop_at_one_that_fails(shell: Shell, bad: bytes) -> None:
    shell.client.create_queue("pay.fifo", {"ContentBasedDeduplication": "true"})
    sender = LineSender(shell.client.queue("pay.fifo"), lambda body: Entry(body, group="g"))
    assert [message.line for message in sender.run([b"a\n", b"b\n", bad, b"c\n", b"d\n"])] == [1, 2]
    assert sender.stopped is not None
    assert sender.stopped[0] == 3
    assert bodies(shell, "pay.fifo") == ["a", "b"]


def test_a_rate_spaces_the_batches(shell: Shell) -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    sender = LineSender(shell.client.queue("orders"), Entry, 5.0, clock=lambda: now[0], sleep=sleep)
    assert len(list(sender.run(b"%d\n" % n for n in range(12)))) == 12
    assert slept == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["orders"], "give the message in one way"),
        (["orders", "x", "--lines", "y"], "give the message in one way"),
        (["orders", "--lines", "/no/file"], "--lines /no/file: No such file"),
        (["orders", "--file", "/no/file"], "--file /no/file: No such file"),
        (["orders", "--lines", "-", "--key", "k"], "--key is for one message"),
        (["orders", "x", "--attribute", "n:Number=five"], "'five' is not a number"),
        (["orders", "x", "--attribute", "n:Binary=$"], "it is not base64"),
        (["orders", "x", "--attribute", "n:Thing=1"], "the type is String, Number or Binary"),
        (["orders", "x", "--attribute", "n="], "an attribute needs a value"),
        (["orders", "x", "--delay", "16m"], "give whole seconds from 0 s to 15 min"),
        (["orders", "x", "--rate", "0"], "is not a number of messages a second above 0"),
        (["orders", "x" * 1_048_577], "the message cannot be sent: 1048577 bytes"),
        (["", "x"], "it is empty; is a variable unset?"),
    ],
)
def test_what_cannot_be_sent_is_wrong_usage(shell: Shell, arguments: list[str], says: str) -> None:
    ran = shell("send", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert sent(shell) == []


# peek


def test_peek_shows_messages_of_any_queue_without_receiving_them(shell: Shell) -> None:
    shell.client.queue("orders").send_many([Entry(json.dumps({"n": n})) for n in range(5)])
    ran = shell("messages", "peek", "orders", "--where", "$.n >= 3")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0].split() == ["ID", "AGE", "RECEIVES", "STATE", "SIZE", "BODY"]
    assert [line.split("  ")[-1] for line in ran.out.splitlines()[1:]] == ['{"n": 3}', '{"n": 4}']
    page = shell("messages", "peek", "orders", "--limit", "2", "--output", "json").json
    assert (len(page["messages"]), page["next"], page["complete"]) == (2, "2", False)
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in sent(shell)} == {"0"}
    assert shell("messages", "peek", "nowhere").code == 1


@pytest.mark.usefixtures("plain_sqs")
def test_peek_on_sqs_receives_releases_and_names_the_cost(shell: Shell) -> None:
    shell.client.queue("orders").send("x")
    refused = shell("messages", "peek", "orders")
    assert (refused.code, refused.err.endswith("; --receive accepts that\n")) == (1, True)
    ran = shell("messages", "peek", "orders", "--receive", "--output", "jsonl")
    assert [message["body"] for message in ran.lines] == ["x"]
    assert "the receive count of 1 message went up by 1" in ran.err
    (message,) = sent(shell)
    assert (message["State"], message["Attributes"]["ApproximateReceiveCount"]) == ("visible", "1")


# tail


def test_tail_shows_new_messages_until_its_limit_and_receives_none(shell: Shell) -> None:
    queue = shell.client.queue("orders")
    queue.send("old")
    terminal = Terminal("messages", "tail", "orders", "--interval", "50ms", "--limit", "3", "--output", "jsonl")
    terminal.until("new messages of orders")
    queue.send_many([Entry("one"), Entry("two")])
    terminal.until('"two"')
    queue.send("three")
    assert terminal.end() == 0
    shown = [json.loads(line)["body"] for line in terminal.text.splitlines() if line.startswith("{")]
    assert shown == ["one", "two", "three"]
    assert {message["Attributes"]["ApproximateReceiveCount"] for message in sent(shell)} == {"0"}


@pytest.mark.parametrize("command", ["peek", "tail"])
def test_a_queue_that_does_not_exist_is_named_with_the_command_that_lists_all(shell: Shell, command: str) -> None:
    ran = shell("messages", command, "nowhere")
    assert ran.code == 1
    assert f"there is no queue nowhere at {shell.client.endpoint}; `semel queues list` shows all queues" in ran.err


def test_tail_filters_and_ends_with_130_at_ctrl_c(shell: Shell) -> None:
    terminal = Terminal("messages", "tail", "orders", "--interval", "50ms", "--where", "$.n > 1")
    terminal.until("new messages of orders")
    shell.client.queue("orders").send_many([Entry(json.dumps({"n": n, "text": "\u009b31m"})) for n in range(3)])
    terminal.until('{"n": 2')
    terminal.interrupt()
    assert terminal.end() == 130
    assert '{"n": 1' not in terminal.text
    assert "Traceback" not in terminal.text


@pytest.mark.usefixtures("plain_sqs")
def test_tail_on_sqs_needs_receive_and_shows_each_message_once(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = shell.client.queue("orders")
    queue.send("old")
    refused = shell("messages", "tail", "orders")
    assert (refused.code, "--receive accepts that" in refused.err) == (2, True)
    polls = iter(["one", "two", "three"])
    # Only the command's own pauses: other threads of this process go on as they are.
    pauses = SimpleNamespace(sleep=lambda _seconds: queue.send(next(polls)), time=time.time)
    monkeypatch.setattr("semel.cli.messages.time", pauses)
    ran = shell("messages", "tail", "orders", "--receive", "--limit", "3", "--output", "jsonl")
    assert (ran.code, [message["body"] for message in ran.lines]) == (0, ["one", "two", "three"])
    assert "the receive count of" in ran.err
    assert {message["State"] for message in sent(shell)} == {"visible"}


def test_peek_of_a_dead_letter_queue_is_the_same_as_of_any_other(shell: Shell) -> None:
    shell.dead_letter(1)
    assert '{"id": "o-0", "n": 0}' in shell("messages", "peek", DLQ).out
