"""Section 2.6: five common claims about SQS, and what is true."""

from __future__ import annotations

import pytest

from .service import BAD_HANDLE, INVALID_VALUE, Counts, Sqs, refused


def test_deduplication_is_not_per_group_by_default(sqs: Sqs) -> None:
    """2.6 (a): wrong by default: whole queue."""
    url = sqs.create_fifo()
    for group in ("g1", "g2"):
        sqs.send(url, "same", MessageGroupId=group)
    assert sqs.counts(url) == Counts(visible=1)


def test_deduplication_is_per_group_if_created_so(sqs: Sqs) -> None:
    """2.6 (a): right only with DeduplicationScope=messageGroup at creation."""
    url = sqs.create_fifo(DeduplicationScope="messageGroup")
    for group in ("g1", "g2"):
        sqs.send(url, "same", MessageGroupId=group)
    assert sqs.counts(url) == Counts(visible=2)


def test_a_deduplicated_send_returns_a_message_id(sqs: Sqs) -> None:
    """2.6 (b): wrong in practice: returns the original's MessageId (rule 34)."""
    url = sqs.create_fifo()
    first = sqs.send(url, "same", MessageGroupId="g")
    assert sqs.send(url, "same", MessageGroupId="g")["MessageId"] == first["MessageId"]


def test_an_old_handle_does_not_fail_on_standard(sqs: Sqs) -> None:
    """2.6 (c): standard: succeeds."""
    url = sqs.create()
    sqs.send(url)
    old = sqs.receive_one(url)
    sqs.advance(31)
    sqs.receive_one(url)
    sqs.delete(url, old)


def test_an_old_handle_is_an_invalid_parameter_on_fifo_and_only_garbage_an_invalid_handle(sqs: Sqs) -> None:
    """2.6 (c): FIFO expired: InvalidParameterValue; only garbage / foreign handles: ReceiptHandleIsInvalid."""
    url = sqs.create_fifo()
    sqs.send(url, MessageGroupId="g")
    old = sqs.receive_one(url)
    sqs.advance(31)
    with refused(INVALID_VALUE):
        sqs.delete(url, old)
    with refused(BAD_HANDLE):
        sqs.delete_message(QueueUrl=url, ReceiptHandle="garbage")


def test_five_means_five_deliveries(sqs: Sqs) -> None:
    """2.6 (d): five deliveries, moved on the sixth attempt, which returns without it (rule 23)."""
    source, dead = sqs.create_pair(max_receives=5)
    sqs.send(source)
    for _ in range(5):
        sqs.receive_one(source)
        sqs.advance(30)
    assert sqs.counts(dead) == Counts()
    assert sqs.receive(source) == []
    assert sqs.counts(dead) == Counts(visible=1)


@pytest.mark.parametrize("content_based", [True, False])
def test_the_deduplication_id_comes_from_the_body_only_if_asked_for(sqs: Sqs, content_based: bool) -> None:
    """2.6 (e): only with ContentBasedDeduplication=true; else InvalidParameterValue."""
    url = sqs.create_fifo(ContentBasedDeduplication=content_based)
    if content_based:
        sqs.send(url, "a", MessageGroupId="g")
    else:
        with refused(INVALID_VALUE):
            sqs.send(url, "a", MessageGroupId="g")
