"""`semel queues`: it works the same on Semel's broker and on plain SQS, and uses only SQS's calls."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from cli.shell import DLQ, Shell, Terminal
from semel.cli import output, queues
from semel.sqs.errors import CredentialsRefused


@pytest.fixture(params=["broker", "plain SQS"], autouse=True)
def anywhere(request: pytest.FixtureRequest) -> None:
    if request.param == "plain SQS":
        request.getfixturevalue("plain_sqs")


def attributes(shell: Shell, queue: str) -> dict[str, str]:
    return shell.client.queue(queue).attributes()


def policy(shell: Shell, queue: str) -> dict[str, Any]:
    redrive_policy: dict[str, Any] = json.loads(attributes(shell, queue)["RedrivePolicy"])
    return redrive_policy


def test_list_shows_counts_and_dead_letter_queues(shell: Shell) -> None:
    shell.dead_letter(3)
    shell.client.queue("orders").send_many([])
    shell.client.queue("orders").send("x", delay=60)
    rows = {row["name"]: row for row in shell("queues", "list", "--output", "json").json}
    assert rows.keys() == {"orders", DLQ}
    assert (rows["orders"]["delayed"], rows["orders"]["depth"]) == (1, 1)
    assert (rows["orders"]["dead_letter_queue"], rows["orders"]["max_receives"]) == (DLQ, 3)
    assert (rows[DLQ]["visible"], rows[DLQ]["sources"]) == (3, ["orders"])
    assert [row["name"] for row in shell("queues", "list", "--prefix", "orders-", "--output", "jsonl").lines] == [DLQ]
    lines = shell("queues", "list").out.splitlines()
    assert lines[1].split() == ["orders", "0", "0", "1", "standard", DLQ, "(3", "receives)"]
    assert "there are no queues whose names begin with x" in shell("queues", "list", "--prefix", "x").out


def test_a_queue_that_may_not_be_read_is_listed_with_its_error(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.sqs.client import Queue

    read = Queue.attributes

    def refused(queue: Queue, *names: str) -> dict[str, str]:
        if queue.name == DLQ:
            raise CredentialsRefused(f"GetQueueAttributes on queue {DLQ}: access denied")
        return read(queue, *names)

    monkeypatch.setattr(Queue, "attributes", refused)
    ran = shell("queues", "list")
    assert (ran.code, "1 queue could not be read" in ran.err) == (0, True)
    assert f"not readable: GetQueueAttributes on queue {DLQ}: access denied" in ran.out
    errors = {row["name"]: row["error"] for row in shell("queues", "list", "--output", "json").json}
    assert (errors["orders"], "access denied" in errors[DLQ]) == (None, True)


def test_create_makes_the_dead_letter_queue_too_and_a_second_run_changes_nothing(shell: Shell) -> None:
    ran = shell("queues", "create", "pay", "--dlq", "--visibility", "2m", "--retention", "1d", "--tag", "team=billing")
    assert (ran.code, ran.out.splitlines()[:2]) == (0, ["created pay-dlq", "created pay"])
    assert f"at {shell.broker.url}, account 000000000000" in ran.out
    assert attributes(shell, "pay-dlq")["MessageRetentionPeriod"] == "1209600"
    assert policy(shell, "pay")["maxReceiveCount"] == 5
    assert policy(shell, "pay")["deadLetterTargetArn"].endswith(":pay-dlq")
    assert attributes(shell, "pay")["VisibilityTimeout"] == "120"
    assert shell("queues", "describe", "pay", "--output", "json").json["tags"] == {"team": "billing"}
    again = shell("queues", "create", "pay", "--dlq", "--visibility", "2m", "--retention", "1d")
    assert (again.code, again.out.splitlines()[0]) == (0, "pay exists with these attributes")


def test_create_makes_fifo_queues(shell: Shell) -> None:
    ran = shell("queues", "create", "pay", "--fifo", "--dlq", "--max-receives", "2", "--content-deduplication")
    assert ran.out.splitlines()[:2] == ["created pay-dlq.fifo", "created pay.fifo"]
    assert attributes(shell, "pay.fifo")["ContentBasedDeduplication"] == "true"
    assert policy(shell, "pay.fifo")["maxReceiveCount"] == 2


def test_create_uses_a_dead_letter_queue_that_exists(shell: Shell) -> None:
    shell.client.create_queue("failed", {"MessageRetentionPeriod": "3600"})
    ran = shell("queues", "create", "pay", "--dlq", "failed")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "created pay")
    assert "failed exists and keeps messages for 60 min only" in ran.err or "1 h only" in ran.err
    assert attributes(shell, "failed")["MessageRetentionPeriod"] == "3600"
    shell.client.create_queue("plain")
    assert shell("queues", "create", "plain", "--dlq", "failed").code == 0
    assert policy(shell, "plain")["deadLetterTargetArn"].endswith(":failed")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["orders", "--visibility", "5m"], 1, "orders exists with other attributes: VisibilityTimeout is 30, not 300"),
        (["orders", "--dlq", "other"], 1, "messages go to orders-dlq after 3 receives, not to"),
        (["orders", "--dlq", "--max-receives", "7"], 1, "messages go to orders-dlq after 3 receives, not to"),
        (["no name"], 2, "'no name' is not the name of a queue"),
        (["pay", "--dlq", "pay"], 2, "a queue cannot be its own dead-letter queue"),
        (["pay", "--fifo", "--dlq", "failed"], 2, "the dead-letter queue of a FIFO queue is a FIFO queue"),
        (["pay", "--dlq", ""], 2, "it is empty; is a variable unset?"),
        (["pay", "--max-receives", "3"], 2, "--max-receives needs --dlq"),
        (["pay", "--visibility", "13h"], 2, "give whole seconds from 0 s to 12 h"),
        (["pay", "--retention", "1s"], 2, "give whole seconds from 60 s to 14 d"),
        (["pay", "--delay", "500ms"], 2, "give whole seconds from 0 s to 15 min"),
        (["pay", "--content-deduplication"], 2, "add --fifo"),
        (["pay", "--tag", "team"], 2, "'team' is not KEY=VALUE"),
    ],
)
def test_what_cannot_be_created_is_named(shell: Shell, arguments: list[str], code: int, says: str) -> None:
    ran = shell("queues", "create", *arguments)
    assert ran.code == code
    assert says in ran.err
    assert {queue.name for queue in shell.client.queues()} == {"orders", DLQ}, "nothing was created"
    assert policy(shell, "orders")["maxReceiveCount"] == 3


def test_describe_explains_the_attributes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "width", lambda: 80)
    shell.dead_letter(2)
    ran = shell("queues", "describe", DLQ)
    assert (ran.code, ran.err) == (0, "")
    assert "messages           2 visible, 0 in flight, 0 delayed\n" in ran.out
    assert "sources            orders\n" in ran.out
    assert "VisibilityTimeout: 30 s\n    How long a received message stays hidden" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    description = shell("queues", "describe", "orders", "--output", "json").json
    assert (description["dead_letter_queue"], description["attributes"]["VisibilityTimeout"]) == (DLQ, "30")
    missing = shell("queues", "describe", "nowhere")
    assert (missing.code, "`semel queues list` shows all queues" in missing.err) == (1, True)


@pytest.mark.parametrize("action", ["purge", "delete"])
def test_purge_and_delete_say_what_goes_and_are_audited(shell: Shell, action: str) -> None:
    shell.dead_letter(3)
    with open(os.devnull) as nobody, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", nobody)
        refused = shell("queues", action, DLQ)
    assert (refused.code, "add --yes" in refused.err, shell.count()) == (2, True, 3)
    ran = shell("queues", action, DLQ, "--yes")
    assert (ran.code, "3 messages" in ran.out) == (0, True)
    assert f"at {shell.broker.url}, account 000000000000" in ran.err
    assert "it is the dead-letter queue of orders" in ran.err
    names = {queue.name for queue in shell.client.queues()}
    assert names == ({"orders", DLQ} if action == "purge" else {"orders"})
    assert action == "delete" or shell.count() == 0
    (entry,) = shell("audit", "--where", f"action = '{action} queue' and outcome = done", "--output", "json").json
    assert (entry["queue"], entry["count"]) == (DLQ, 3)
    assert shell("queues", action, "nowhere", "--yes").code == 1


@pytest.mark.parametrize("action", ["purge", "delete"])
def test_the_name_must_be_typed(shell: Shell, action: str) -> None:
    shell.dead_letter(2)
    wrong = Terminal("queues", action, DLQ)
    wrong.until(f"Type {DLQ} to {action} it:")
    assert "2 visible, 0 in flight, 0 delayed" in wrong.text
    wrong.type("yes\n")
    assert (wrong.end(), shell.count()) == (1, 2)
    right = Terminal("queues", action, DLQ)
    right.until(f"Type {DLQ} to {action} it:")
    right.type(f"{DLQ}\n")
    assert right.end() == 0
    assert DLQ not in {queue.name for queue in shell.client.queues()} or shell.count() == 0


def test_a_wide_table_leaves_out_columns_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "width", lambda: 80)
    summaries = [queues.QueueSummary("q" * 40, "", False, 1, 2, 3, "d" * 40, 5)]
    lines = queues._table(summaries).splitlines()
    assert {len(line) <= 80 for line in lines} == {True}
    assert "TYPE" not in lines[0]
    assert lines[1].endswith("…")
