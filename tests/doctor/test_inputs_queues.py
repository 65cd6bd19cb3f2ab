"""Queues as SQS shows them, and the remedies of the rules, run by the real AWS CLI on a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doctor.gatekeeper import Authorisation, gatekeeper
from doctor.made_up import DAY, behaviour, case, finding_of, times
from doctor.made_up import look as look_by
from semel.broker import EmbeddedBroker, running
from semel.doctor.errors import DoctorError
from semel.doctor.inputs.queues import look
from semel.doctor.model import Case, QueueState
from semel.sqs import Client


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with running(clock="manual", region="eu-west-1", account="123456789012") as started:
        yield started


def client_of(url: str) -> Client:
    return Client(url, "eu-west-1", access_key="test", secret_key="test", max_attempts=1)


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with client_of(broker.url) as made:
        yield made


def only(client: Client, name: str = "orders", **options: Any) -> QueueState:
    ((state,), notes) = look(client, [name], **options)
    assert notes == ()
    return state


def with_dead_letters(client: Client, **attributes: Any) -> None:
    dead = client.create_queue("orders-dlq", {"MessageRetentionPeriod": 864_000})
    policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 5}
    client.create_queue("orders", {"RedrivePolicy": policy, **attributes})


# What is seen.


def test_a_queue_is_seen_with_all_its_settings_and_counts(client: Client, broker: EmbeddedBroker) -> None:
    client.create_queue("orders", {"VisibilityTimeout": 45, "MessageRetentionPeriod": 7_200, "DelaySeconds": 0})
    queue = client.queue("orders")
    queue.call("SendMessage", {"MessageBody": "1"})
    queue.call("SendMessage", {"MessageBody": "2"})
    queue.call("SendMessage", {"MessageBody": "3", "DelaySeconds": 60})
    queue.receive(1, 0)
    state = only(client)
    assert (state.visibility, state.retention, state.wait, state.fifo) == (45.0, 7_200.0, 0.0, False)
    assert (state.visible, state.in_flight, state.delayed) == (1, 1, 1)
    assert state.arn == "arn:aws:sqs:eu-west-1:123456789012:orders"
    assert state.url == f"{broker.url}/123456789012/orders"
    assert (state.dead_letters, state.max_receives, state.sources, dict(state.refused)) == (None, None, (), {})


def test_a_fifo_queue_is_seen_with_its_throughput_and_deduplication(client: Client) -> None:
    fast = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    client.create_queue("fast.fifo", {**fast, "ContentBasedDeduplication": True})
    state = only(client, "fast.fifo")
    assert (state.fifo, state.high_throughput, state.content_dedup) == (True, True, True)
    client.create_queue("slow.fifo")
    assert not only(client, "slow.fifo").high_throughput


def test_the_dead_letter_queue_is_seen_with_its_queue(client: Client) -> None:
    with_dead_letters(client)
    client.create_queue("refunds", {"RedrivePolicy": only_policy(client)})
    client.queue("orders-dlq").call("SendMessage", {"MessageBody": "dead"})
    state = only(client)
    dead_letters = state.dead_letters
    assert dead_letters is not None
    assert state.max_receives == 5
    assert (dead_letters.exists, dead_letters.retention, dead_letters.visible, dead_letters.allow) == (
        True,
        864_000.0,
        1,
        None,
    )
    assert sorted(dead_letters.sources or ()) == ["orders", "refunds"]
    assert sorted(only(client, "orders-dlq").sources) == ["orders", "refunds"]


def only_policy(client: Client) -> str:
    return client.queue("orders").attributes("RedrivePolicy")["RedrivePolicy"]


def test_a_dead_letter_queue_that_is_gone_is_seen_as_such(client: Client) -> None:
    with_dead_letters(client)
    client.queue("orders-dlq").call("DeleteQueue", {})
    dead_letters = only(client).dead_letters
    assert dead_letters is not None
    assert dead_letters.exists is False


def test_a_queue_may_be_named_by_its_url_or_arn_and_is_looked_at_once(client: Client, broker: EmbeddedBroker) -> None:
    client.create_queue("orders")
    url = f"{broker.url}/123456789012/orders"
    assert only(client, url).queue == "orders"
    assert only(client, "arn:aws:sqs:eu-west-1:123456789012:orders").queue == "orders"
    states, _ = look(client, ["orders", "orders"])
    assert len(states) == 1


def test_a_queue_that_does_not_exist_is_an_error_with_the_names_that_are_near(client: Client) -> None:
    client.create_queue("orders")
    with pytest.raises(DoctorError, match=r"queue ordres: there is no such queue at .*; did you mean orders\?"):
        look(client, ["ordres"])


# What may not be seen.


@pytest.fixture
def auth(broker: EmbeddedBroker) -> Iterator[Authorisation]:
    with gatekeeper(broker) as opened:
        yield opened


def test_attributes_that_may_not_be_read_are_a_note(client: Client, auth: Authorisation) -> None:
    client.create_queue("orders")
    auth.refused = {"GetQueueAttributes"}
    with client_of(auth.url) as guarded:
        states, notes = look(guarded, ["orders"])
    assert states == ()
    (note,) = notes
    assert "queue orders: its attributes are not known" in note
    assert "sqs:GetQueueAttributes" in note


def test_a_dead_letter_queue_that_may_not_be_read_is_a_note_and_the_rest_is_seen(
    client: Client, auth: Authorisation
) -> None:
    with_dead_letters(client)
    auth.refused = {"GetQueueAttributes orders-dlq", "ListDeadLetterSourceQueues"}
    with client_of(auth.url) as guarded:
        (state,), notes = look(guarded, ["orders"])
    assert state.dead_letters is not None
    assert state.dead_letters.exists is None
    assert state.max_receives == 5
    assert len(notes) == 2


def test_a_probe_tells_what_is_refused_and_touches_no_message(
    client: Client, auth: Authorisation, broker: EmbeddedBroker
) -> None:
    queue = client.create_queue("orders")
    queue.call("SendMessage", {"MessageBody": "1"})
    before = broker.peek("orders")
    auth.refused = {"DeleteMessage"}
    with client_of(auth.url) as guarded:
        state = only(guarded, probe=True)
        assert set(state.refused) == {"DeleteMessage"}
        assert "not authorized to perform: sqs:DeleteMessage" in state.refused["DeleteMessage"]
        assert finding_of("delete-refused", case(state=state)).remedy.cli
        auth.refused = set()
        assert dict(only(guarded, probe=True).refused) == {}
    assert broker.peek("orders") == before


def test_nothing_is_probed_unless_asked_for(client: Client, auth: Authorisation) -> None:
    client.create_queue("orders")
    with client_of(auth.url) as guarded:
        only(guarded)
    assert set(auth.asked) == {"GetQueueUrl", "GetQueueAttributes", "ListDeadLetterSourceQueues"}


def test_an_endpoint_that_does_not_answer_is_a_note() -> None:
    with client_of("http://127.0.0.1:9") as nobody:
        states, notes = look(nobody, ["orders"])
    assert (states, len(notes)) == ((), 1)


# The cures, run by the AWS CLI as they are written.


def run(commands: tuple[str, ...]) -> None:
    assert commands
    tools = str(Path(sys.executable).parent)
    settings = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": os.devnull,
    }
    done = subprocess.run(["sh", "-ec", "\n".join(commands)], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def slow(state: QueueState) -> Case:
    return case(state.queue, state=state, behaviour=behaviour(visibility=None, hold=times(1.0, 41.0, 50.0)))


def cured(client: Client, rule: str, name: str = "orders") -> QueueState:
    """The rule speaks; its cure is run; the rule is silent."""
    run(finding_of(rule, slow(only(client, name))).remedy.cli)
    state = only(client, name)
    assert look_by(rule, slow(state)) is None
    return state


@pytest.mark.slow
def test_the_cure_of_a_short_timeout_works(client: Client) -> None:
    client.create_queue("orders")
    assert cured(client, "visibility-short").visibility == 62.0


def test_the_cure_of_a_missing_dead_letter_queue_works(client: Client) -> None:
    client.create_queue("orders")
    state = cured(client, "no-dead-letter-queue")
    assert state.max_receives == 5
    assert state.dead_letters is not None
    assert state.dead_letters.retention == 14 * DAY


@pytest.mark.slow
def test_the_cure_of_a_missing_dead_letter_queue_works_for_fifo_queues(client: Client) -> None:
    client.create_queue("orders.fifo")
    state = cured(client, "no-dead-letter-queue", "orders.fifo")
    assert state.dead_letters is not None
    assert state.dead_letters.fifo


@pytest.mark.slow
def test_the_cures_of_a_queue_with_many_faults_work_one_after_the_other(client: Client) -> None:
    dead = client.create_queue("orders-dlq", {"MessageRetentionPeriod": 3_600})
    policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 1}
    client.create_queue("orders", {"RedrivePolicy": policy, "MessageRetentionPeriod": 1_209_600, "DelaySeconds": 60})
    for rule in (
        "max-receives-low",
        "dead-letter-retention",
        "short-polling",
        "dead-letter-queue-open",
        "delay-misused",
    ):
        cured(client, rule)
    state = only(client)
    assert (state.max_receives, state.wait, state.delay, state.retention) == (5, 20.0, 0.0, 7 * DAY)
    assert state.dead_letters is not None
    assert (state.dead_letters.retention, state.dead_letters.allow) == (14 * DAY, "byQueue")


def test_a_cure_that_looks_the_queue_up_works(client: Client, broker: EmbeddedBroker) -> None:
    client.create_queue("orders")
    risky = case(behaviour=behaviour(visibility=30.0, hold=times(1.0, 41.0, 50.0)))
    commands = finding_of("visibility-short", risky).remedy.cli
    where = f'aws() {{ command aws --endpoint-url {broker.url} --region eu-west-1 "$@"; }}'
    run((where, *commands))
    assert only(client).visibility == 62.0
