"""Rules 1 to 13: who can see a message, for how long, and what an old receipt handle can still do."""

from __future__ import annotations

import time

import pytest

from .conftest import Alongside
from .service import BAD_HANDLE, INVALID_VALUE, Counts, Message, Sqs, bodies, dial, json_request, refusal, refused


def received(sqs: Sqs, url: str, **parameters: int) -> Message:
    """A message that was sent and is now in flight."""
    sqs.send(url, **({"MessageGroupId": "g"} if url.endswith(".fifo") else {}))
    return sqs.receive_one(url, **parameters)


def test_a_receive_hides_the_message_for_the_queues_timeout(sqs: Sqs) -> None:
    """Rule 1."""
    url = sqs.create(VisibilityTimeout=40)
    received(sqs, url)
    sqs.advance(39.5)
    assert sqs.receive(url) == []
    sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


def test_the_default_timeout_is_thirty_seconds(sqs: Sqs) -> None:
    """Rule 1; 1.4: VisibilityTimeout 30."""
    url = sqs.create()
    received(sqs, url)
    sqs.advance(29.5)
    assert sqs.receive(url) == []
    sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


@pytest.mark.parametrize("seconds", [5, 60])
def test_the_timeout_of_the_request_comes_before_the_queues(sqs: Sqs, seconds: int) -> None:
    """Rule 1: request.VisibilityTimeout, else the queue's."""
    url = sqs.create(VisibilityTimeout=30)
    received(sqs, url, VisibilityTimeout=seconds)
    sqs.advance(seconds - 0.5)
    assert sqs.receive(url) == []
    sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


@pytest.mark.parametrize("fifo", [False, True])
def test_an_explicit_zero_leaves_the_message_visible(sqs: Sqs, fifo: bool) -> None:
    """Rule 1: explicit 0 is honoured (stays visible; count and handle still change)."""
    url = sqs.create_fifo() if fifo else sqs.create()
    first = received(sqs, url, VisibilityTimeout=0)
    assert sqs.counts(url) == Counts(visible=1)
    second = sqs.receive_one(url, VisibilityTimeout=0)
    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    assert [m["Attributes"]["ApproximateReceiveCount"] for m in (first, second)] == ["1", "2"]


def test_a_queue_timeout_of_zero_is_honoured(sqs: Sqs) -> None:
    """Rule 1; 1.4: VisibilityTimeout from 0."""
    url = sqs.create(VisibilityTimeout=0)
    received(sqs, url)
    assert len(sqs.receive(url)) == 1


def test_a_change_of_the_queues_timeout_counts_for_later_receives(sqs: Sqs) -> None:
    """Rule 1: the timeout is taken at the receive."""
    url = sqs.create(VisibilityTimeout=30)
    received(sqs, url)
    sqs.set(url, VisibilityTimeout=100)
    sqs.advance(30)
    assert len(sqs.receive(url)) == 1
    sqs.advance(99)
    assert sqs.receive(url) == []
    sqs.advance(1)
    assert len(sqs.receive(url)) == 1


@pytest.mark.parametrize("fifo", [False, True])
def test_a_change_of_visibility_counts_from_now(sqs: Sqs, fifo: bool) -> None:
    """Rule 2."""
    url = sqs.create_fifo() if fifo else sqs.create()
    message = received(sqs, url)
    sqs.advance(20)
    sqs.change(url, message, 60)
    sqs.advance(59.5)
    assert sqs.receive(url) == []
    sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


def test_a_change_may_also_shorten(sqs: Sqs) -> None:
    """Rule 2: counts from now."""
    url = sqs.create()
    message = received(sqs, url)
    sqs.change(url, message, 5)
    sqs.advance(4.5)
    assert sqs.receive(url) == []
    sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


def test_a_change_of_visibility_is_not_sticky(sqs: Sqs) -> None:
    """Rule 2: the next receive uses the queue value again."""
    url = sqs.create()
    sqs.change(url, received(sqs, url), 100)
    sqs.advance(100)
    sqs.receive_one(url)
    sqs.advance(30)
    assert len(sqs.receive(url)) == 1


@pytest.mark.parametrize("fifo", [False, True])
def test_a_change_to_zero_releases_at_once(sqs: Sqs, fifo: bool) -> None:
    """Rule 2: 0 = release at once."""
    url = sqs.create_fifo() if fifo else sqs.create()
    message = received(sqs, url)
    sqs.change(url, message, 0)
    assert sqs.counts(url) == Counts(visible=1)
    assert sqs.receive_one(url)["MessageId"] == message["MessageId"]


@pytest.mark.parametrize("fifo", [False, True])
def test_a_release_wakes_a_long_poll(sqs: Sqs, alongside: Alongside, fifo: bool) -> None:
    """Rule 2: must wake long-pollers."""
    url = sqs.create_fifo() if fifo else sqs.create()
    message = received(sqs, url)
    poll = alongside(sqs.receive, url, WaitTimeSeconds=20)
    time.sleep(0.05)
    sqs.change(url, message, 0)
    assert [m["MessageId"] for m in poll.result(timeout=10)] == [message["MessageId"]]


def test_a_batch_of_changes_does_each(sqs: Sqs) -> None:
    """Rule 2, ChangeMessageVisibilityBatch."""
    url = sqs.create()
    sqs.send_all(url, "a", "b")
    first, second = sqs.receive(url)
    entries = [
        {"Id": "a", "ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 0},
        {"Id": "b", "ReceiptHandle": second["ReceiptHandle"], "VisibilityTimeout": 100},
    ]
    assert len(sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)["Successful"]) == 2
    assert bodies(sqs.receive(url, VisibilityTimeout=1000)) == [first["Body"]]
    sqs.advance(99)
    assert sqs.receive(url) == []
    sqs.advance(1)
    assert bodies(sqs.receive(url)) == [second["Body"]]


def test_twelve_hours_are_counted_from_the_receive(sqs: Sqs) -> None:
    """Rule 3: hard cap 12 h; extending doesn't restart it; a value beyond what is left is an error."""
    url = sqs.create()
    message = received(sqs, url)
    for _ in range(11):
        sqs.change(url, message, 3700)
        sqs.advance(3600)
    sqs.change(url, message, 3590)
    with refused(INVALID_VALUE):
        sqs.change(url, message, 3601)


def test_a_value_past_the_cap_is_not_clipped(sqs: Sqs) -> None:
    """Rule 3: an error, not clipped: the timeout stays what it was."""
    url = sqs.create()
    message = received(sqs, url)
    sqs.advance(10)
    with refused(INVALID_VALUE):
        sqs.change(url, message, 43195)
    sqs.advance(19.5)
    assert sqs.receive(url) == []
    sqs.advance(0.5)
    assert len(sqs.receive(url)) == 1


def test_nearly_twelve_hours_right_after_the_receive_work(sqs: Sqs) -> None:
    """Rule 3: 43200 right after a receive likely fails, 43195 works."""
    url = sqs.create()
    message = received(sqs, url)
    sqs.advance(1)
    with refused(INVALID_VALUE):
        sqs.change(url, message, 43200)
    sqs.change(url, message, 43195)
    sqs.advance(43194)
    assert sqs.receive(url) == []
    sqs.advance(1)
    assert len(sqs.receive(url)) == 1


def test_the_next_receive_starts_twelve_new_hours(sqs: Sqs) -> None:
    """Rule 3: from the moment SQS got that ReceiveMessage."""
    url = sqs.create()
    received(sqs, url, VisibilityTimeout=43200)
    sqs.advance(43200)
    again = sqs.receive_one(url)
    sqs.change(url, again, 43000)
    sqs.advance(42999)
    assert sqs.receive(url) == []


def test_the_cap_fails_its_own_entry_of_a_batch(sqs: Sqs) -> None:
    """Rule 3, ChangeMessageVisibilityBatch."""
    url = sqs.create()
    message = received(sqs, url)
    sqs.advance(10)
    entry = {"Id": "a", "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 43200}
    answer = sqs.change_message_visibility_batch(QueueUrl=url, Entries=[entry])
    assert [(e["Id"], e["Code"], e["SenderFault"]) for e in answer["Failed"]] == [("a", INVALID_VALUE, True)]


def test_a_change_after_the_timeout_succeeds_without_effect(sqs: Sqs) -> None:
    """Rule 4: standard: 200, no effect."""
    url = sqs.create()
    message = received(sqs, url)
    sqs.advance(31)
    sqs.change(url, message, 100)
    assert sqs.counts(url) == Counts(visible=1)
    assert len(sqs.receive(url)) == 1


def test_an_older_handle_changes_the_visibility_of_a_message_in_flight(sqs: Sqs) -> None:
    """Rule 55: Standard; it takes effect, it is not merely accepted."""
    url = sqs.create()
    sqs.send(url, "a")
    older = sqs.receive_one(url, VisibilityTimeout=5)
    sqs.advance(6)
    sqs.receive_one(url, VisibilityTimeout=30)
    sqs.change(url, older, 0)
    newest = sqs.receive_one(url, VisibilityTimeout=30)
    sqs.change(url, older, 100)
    sqs.advance(50)
    assert sqs.receive(url) == []
    sqs.delete(url, newest)


def test_a_change_by_a_superseded_handle_is_no_error(sqs: Sqs) -> None:
    """Rules 4 and 8: on standard an old handle is never refused while the message is there."""
    url = sqs.create()
    first = received(sqs, url)
    sqs.advance(31)
    second = sqs.receive_one(url)
    sqs.change(url, first, 20)
    sqs.delete(url, second)
    assert sqs.counts(url) == Counts()


def test_a_change_of_a_deleted_message_is_refused(sqs: Sqs) -> None:
    """Rule 5: InvalidParameterValue, in a batch per entry."""
    url = sqs.create()
    message = received(sqs, url)
    sqs.delete(url, message)
    with refused(INVALID_VALUE) as caught:
        sqs.change(url, message, 10)
    assert "Message does not exist or is not available" in caught.value.message
    entry = {"Id": "a", "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 10}
    answer = sqs.change_message_visibility_batch(QueueUrl=url, Entries=[entry])
    assert [(e["Id"], e["Code"]) for e in answer["Failed"]] == [("a", INVALID_VALUE)]


@pytest.mark.parametrize("fifo", [False, True])
def test_every_receive_gives_a_new_handle(sqs: Sqs, fifo: bool) -> None:
    """Rule 6."""
    url = sqs.create_fifo() if fifo else sqs.create()
    handles = {received(sqs, url)["ReceiptHandle"]}
    for _ in range(4):
        sqs.advance(30)
        handles.add(sqs.receive_one(url)["ReceiptHandle"])
    assert len(handles) == 5


def test_old_handles_are_remembered(sqs: Sqs) -> None:
    """Rule 6: the very first handle is still known after many receives."""
    url = sqs.create()
    first = received(sqs, url)
    for _ in range(20):
        sqs.advance(30)
        sqs.receive_one(url)
    sqs.delete(url, first)


def test_an_expired_handle_still_deletes_a_standard_message(sqs: Sqs) -> None:
    """Rule 7: delete succeeds and removes it."""
    url = sqs.create()
    message = received(sqs, url)
    sqs.advance(1000)
    sqs.delete(url, message)
    assert sqs.counts(url) == Counts()
    assert sqs.receive(url) == []


def test_a_superseded_handle_still_deletes_a_standard_message(sqs: Sqs) -> None:
    """Rule 8: never an error; our broker does delete. Rule 9: also while in flight with someone else."""
    url = sqs.create()
    first = received(sqs, url)
    sqs.advance(31)
    second = sqs.receive_one(url)
    assert second["MessageId"] == first["MessageId"]
    sqs.delete(url, first)
    assert sqs.counts(url) == Counts()
    sqs.delete(url, second)


@pytest.mark.parametrize("fifo", [False, True])
def test_deleting_again_and_again_succeeds(sqs: Sqs, fifo: bool) -> None:
    """Rule 9: delete twice / thrice with the same handle: success."""
    url = sqs.create_fifo() if fifo else sqs.create()
    message = received(sqs, url)
    for _ in range(3):
        sqs.delete(url, message)
    entry = {"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}
    assert sqs.delete_message_batch(QueueUrl=url, Entries=[entry]) == {"Successful": [{"Id": "a"}]}


def test_the_same_handle_twice_in_one_batch_deletes_once_and_succeeds_twice(sqs: Sqs) -> None:
    """Rule 9."""
    url = sqs.create()
    handle = received(sqs, url)["ReceiptHandle"]
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": i, "ReceiptHandle": handle} for i in "ab"])
    assert answer == {"Successful": [{"Id": "a"}, {"Id": "b"}]}
    assert sqs.counts(url) == Counts()


def test_an_expired_handle_does_not_delete_a_fifo_message(sqs: Sqs) -> None:
    """Rule 10: FIFO, after the timeout: InvalidParameterValue, and the message stays."""
    url = sqs.create_fifo()
    message = received(sqs, url)
    sqs.advance(30)
    with refused(INVALID_VALUE) as caught:
        sqs.delete(url, message)
    assert caught.value.message.endswith("Reason: The receipt handle has expired.")
    assert sqs.counts(url) == Counts(visible=1)


def test_an_expired_fifo_handle_fails_its_own_entry_of_a_batch(sqs: Sqs) -> None:
    """Rule 10, DeleteMessageBatch."""
    url = sqs.create_fifo()
    message = received(sqs, url)
    sqs.advance(30)
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}])
    assert [(e["Id"], e["Code"], e["SenderFault"]) for e in answer["Failed"]] == [("a", INVALID_VALUE, True)]
    assert sqs.counts(url) == Counts(visible=1)


def test_a_superseded_handle_does_not_delete_a_fifo_message(sqs: Sqs) -> None:
    """Rule 10: whoever holds it now keeps it."""
    url = sqs.create_fifo()
    first = received(sqs, url)
    sqs.advance(30)
    second = sqs.receive_one(url)
    with refused(INVALID_VALUE):
        sqs.delete(url, first)
    assert sqs.counts(url) == Counts(in_flight=1)
    sqs.delete(url, second)
    assert sqs.counts(url) == Counts()


def test_an_extended_timeout_keeps_a_fifo_handle_good(sqs: Sqs) -> None:
    """Rule 10: after an extended timeout it must still work."""
    url = sqs.create_fifo()
    message = received(sqs, url)
    sqs.change(url, message, 100)
    sqs.advance(90)
    sqs.delete(url, message)
    assert sqs.counts(url) == Counts()


def test_a_change_of_an_expired_fifo_handle_has_no_effect(sqs: Sqs) -> None:
    """Rules 4 and 10: refused or not, the message stays visible and the handle stays expired."""
    url = sqs.create_fifo()
    message = received(sqs, url)
    sqs.advance(30)
    error = refusal(lambda: sqs.change(url, message, 100))
    assert error is None or error.code == INVALID_VALUE
    assert sqs.counts(url) == Counts(visible=1)
    with refused(INVALID_VALUE):
        sqs.delete(url, message)


def test_a_fifo_message_received_with_zero_cannot_be_deleted(sqs: Sqs) -> None:
    """Rule 10: FIFO with visibility 0 ⇒ delete practically always fails."""
    url = sqs.create_fifo()
    message = received(sqs, url, VisibilityTimeout=0)
    sqs.advance(0.1)
    with refused(INVALID_VALUE):
        sqs.delete(url, message)


def test_a_released_fifo_message_cannot_be_deleted_by_its_old_handle(sqs: Sqs) -> None:
    """Rules 2 and 10: a change to 0 ends the timeout."""
    url = sqs.create_fifo()
    message = received(sqs, url)
    sqs.change(url, message, 0)
    sqs.advance(0.1)
    with refused(INVALID_VALUE):
        sqs.delete(url, message)


def test_garbage_and_foreign_handles_are_told_apart(sqs: Sqs) -> None:
    """Rule 11: ReceiptHandleIsInvalid, each with its own text."""
    url, other = sqs.create("orders"), sqs.create("others")
    message = received(sqs, url)
    with refused(BAD_HANDLE) as garbage:
        sqs.delete_message(QueueUrl=url, ReceiptHandle="garbage")
    with refused(BAD_HANDLE) as foreign:
        sqs.delete(other, message)
    assert garbage.value.message == 'The input receipt handle "garbage" is not a valid receipt handle.'
    assert foreign.value.message.endswith("is not valid for this queue.")
    assert sqs.counts(url) == Counts(in_flight=1)


def test_a_handle_that_was_altered_is_garbage(sqs: Sqs) -> None:
    """Rule 11: a handle cannot be guessed or cut short."""
    url = sqs.create()
    handle = received(sqs, url)["ReceiptHandle"]
    for wrong in (handle[:-4], handle[4:], handle + "AAAA"):
        with refused(BAD_HANDLE):
            sqs.delete_message(QueueUrl=url, ReceiptHandle=wrong)
    assert sqs.counts(url) == Counts(in_flight=1)


def test_bad_handles_in_a_batch_fail_one_by_one(sqs: Sqs) -> None:
    """Rule 11: batch: per entry."""
    url, other = sqs.create("orders"), sqs.create("others")
    mine, foreign = received(sqs, url), received(sqs, other)
    handles = {"mine": mine["ReceiptHandle"], "garbage": "garbage", "foreign": foreign["ReceiptHandle"]}
    entries = [{"Id": name, "ReceiptHandle": handle} for name, handle in handles.items()]
    changes = [{**entry, "VisibilityTimeout": 60} for entry in entries]
    for answer in (
        sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes),
        sqs.delete_message_batch(QueueUrl=url, Entries=entries),
    ):
        assert answer["Successful"] == [{"Id": "mine"}]
        failed = {entry["Id"]: (entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]}
        assert failed == {"garbage": (BAD_HANDLE, True), "foreign": (BAD_HANDLE, True)}
    assert sqs.counts(url) == Counts()
    assert sqs.counts(other) == Counts(in_flight=1)


def test_deleting_a_message_that_became_a_dead_letter_succeeds(sqs: Sqs) -> None:
    """Rule 12: reported as success; rule 11: the handle has no power over the other queue."""
    source, dead = sqs.create_pair(max_receives=1)
    message = received(sqs, source)
    sqs.advance(30)
    assert sqs.receive(source) == []
    assert sqs.counts(dead) == Counts(visible=1)
    sqs.delete(source, message)
    assert sqs.counts(dead) == Counts(visible=1)


def hang_up_in_a_long_poll(sqs: Sqs, url: str) -> None:
    """Ask for a message with a long wait, then go away without an answer."""
    with dial(sqs.broker) as client:
        client.sendall(json_request("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 20}))
        time.sleep(0.05)
    time.sleep(0.05)


def test_a_message_is_not_handed_to_a_client_that_hung_up(sqs: Sqs) -> None:
    """Rule 13: a broker that checks the socket before handing out is strictly better."""
    url = sqs.create()
    hang_up_in_a_long_poll(sqs, url)
    sqs.send(url)
    message = sqs.receive_one(url)
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
