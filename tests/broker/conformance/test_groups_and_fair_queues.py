"""Rules 40 and 41: group ids on both types of queue, and fairness between the tenants of a Standard queue."""

from __future__ import annotations

from .service import INVALID_VALUE, MISSING, Counts, Sqs, bodies, entries, refusal, refused

HOURS = 43_200


def test_a_group_is_required_on_fifo(sqs: Sqs) -> None:
    """Rule 40."""
    with refused(MISSING, "The request must contain the parameter MessageGroupId."):
        sqs.send(sqs.create_fifo())


def test_a_group_is_optional_on_standard(sqs: Sqs) -> None:
    """Rule 40."""
    url = sqs.create()
    sqs.send(url, "without")
    sqs.send(url, "with", MessageGroupId="g")
    assert sorted(bodies(sqs.receive(url))) == ["with", "without"]


def test_a_group_on_standard_blocks_nothing(sqs: Sqs) -> None:
    """Rules 36 and 40: blocking is for FIFO."""
    url = sqs.create()
    sqs.send_all(url, "a", "b", MessageGroupId="g")
    assert len(sqs.receive(url, 1)) == 1
    assert len(sqs.receive(url, 1)) == 1


def test_a_group_on_standard_gives_no_sequence_number(sqs: Sqs) -> None:
    """Rules 35 and 40."""
    assert "SequenceNumber" not in sqs.send(sqs.create(), MessageGroupId="g")


def test_a_deduplication_id_is_refused_on_standard(sqs: Sqs) -> None:
    """Rule 40: MessageDeduplicationId on standard ⇒ InvalidParameterValue."""
    url = sqs.create()
    with refused(INVALID_VALUE) as caught:
        sqs.send(url, MessageDeduplicationId="d")
    assert "MessageDeduplicationId" in caught.value.message
    assert sqs.counts(url) == Counts()


def test_a_deduplication_id_is_refused_in_a_batch_on_standard(sqs: Sqs) -> None:
    """Rule 40, SendMessageBatch: as a whole or in its entry."""
    url = sqs.create()
    batch = {"QueueUrl": url, "Entries": entries("a", MessageDeduplicationId="d")}
    error = refusal(lambda: sqs.send_message_batch(**batch))
    if error is None:
        (failed,) = sqs.send_message_batch(**batch)["Failed"]
        assert (failed["Id"], failed["Code"]) == ("e0", INVALID_VALUE)
    else:
        assert error.code == INVALID_VALUE
    assert sqs.counts(url) == Counts()


def test_an_attempt_id_repeats_nothing_on_standard(sqs: Sqs) -> None:
    """Rule 39: FIFO only; refused or without effect."""
    url = sqs.create()
    sqs.send(url)
    error = refusal(lambda: sqs.receive(url, ReceiveRequestAttemptId="try"))
    if error is None:
        assert sqs.counts(url) == Counts(in_flight=1)
        assert sqs.receive(url, ReceiveRequestAttemptId="try") == []
    else:
        assert error.code == INVALID_VALUE


# ---- fair queues ----------------------------------------------------------------------------------------------------


def pour(sqs: Sqs, url: str, tenant: str | None, number: int, start: int = 0) -> None:
    """Send `number` messages of one tenant, each with the tenant's name in its body."""
    group = {} if tenant is None else {"MessageGroupId": tenant}
    for first in range(start, start + number, 10):
        names = [f"{tenant}-{n:03}" for n in range(first, min(first + 10, start + number))]
        assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries(*names, **group))["Successful"]) == len(names)


def drain(sqs: Sqs, url: str, number: int) -> list[str]:
    """Take `number` messages out, to stay in flight."""
    received_bodies: list[str] = []
    while len(received_bodies) < number:
        batch = sqs.receive(url, min(10, number - len(received_bodies)), VisibilityTimeout=HOURS)
        assert batch
        received_bodies += bodies(batch)
    return received_bodies


def tenants(messages: list[str]) -> list[str]:
    return [body.partition("-")[0] for body in messages]


def test_quiet_tenants_are_served_before_a_noisy_one(json_sqs: Sqs) -> None:
    """Rule 41: noisy when > 10 % of in-flight and ≥ 30 own in flight; quiet tenants are served first."""
    url = json_sqs.create()
    pour(json_sqs, url, "loud", 60)
    drain(json_sqs, url, 40)
    pour(json_sqs, url, "quiet", 4)
    assert tenants(drain(json_sqs, url, 10)) == ["quiet"] * 4 + ["loud"] * 6


def test_a_tenant_below_thirty_in_flight_is_not_noisy(json_sqs: Sqs) -> None:
    """Rule 41: ≥ 30 own in flight: with 20, older messages come first."""
    url = json_sqs.create()
    pour(json_sqs, url, "busy", 40)
    drain(json_sqs, url, 20)
    pour(json_sqs, url, "quiet", 4)
    assert tenants(drain(json_sqs, url, 5)) == ["busy"] * 5


def test_a_tenant_below_a_tenth_of_what_is_in_flight_is_not_noisy(json_sqs: Sqs) -> None:
    """Rule 41: > 10 % of in-flight: with 30 of 400, older messages come first."""
    url = json_sqs.create()
    pour(json_sqs, url, None, 370)
    pour(json_sqs, url, "busy", 40)
    drain(json_sqs, url, 400)
    pour(json_sqs, url, "quiet", 4)
    assert tenants(drain(json_sqs, url, 5)) == ["busy"] * 5


def test_among_noisy_tenants_the_one_with_least_in_flight_comes_first(json_sqs: Sqs) -> None:
    """Rule 41."""
    url = json_sqs.create()
    pour(json_sqs, url, "louder", 60)
    pour(json_sqs, url, "loud", 35)
    assert len(drain(json_sqs, url, 95)) == 95
    pour(json_sqs, url, "louder", 5, start=60)
    pour(json_sqs, url, "loud", 5, start=35)
    assert tenants(drain(json_sqs, url, 10)) == ["loud"] * 5 + ["louder"] * 5


def test_a_tenant_that_takes_most_of_the_processing_time_is_noisy_too(json_sqs: Sqs) -> None:
    """Rule 41: or > 10 % of recent processing time."""
    url = json_sqs.create(VisibilityTimeout=1000)
    pour(json_sqs, url, "slow", 10)
    messages = json_sqs.receive(url, 5)
    json_sqs.advance(60)
    for message in messages:
        json_sqs.delete(url, message)
    pour(json_sqs, url, "quiet", 2)
    assert tenants(drain(json_sqs, url, 7)) == ["quiet"] * 2 + ["slow"] * 5


def test_messages_without_a_group_are_each_a_tenant_of_their_own(json_sqs: Sqs) -> None:
    """Rule 41: so they are never noisy, however many are in flight."""
    url = json_sqs.create()
    pour(json_sqs, url, None, 60)
    drain(json_sqs, url, 40)
    pour(json_sqs, url, "quiet", 4)
    assert tenants(drain(json_sqs, url, 5)) == ["None"] * 5


def test_messages_without_a_group_are_served_before_a_noisy_tenant(json_sqs: Sqs) -> None:
    """Rule 41: quiet tenants are served first."""
    url = json_sqs.create()
    pour(json_sqs, url, "loud", 60)
    drain(json_sqs, url, 40)
    pour(json_sqs, url, None, 4)
    assert tenants(drain(json_sqs, url, 6)) == ["None"] * 4 + ["loud"] * 2


def test_nothing_is_dropped(json_sqs: Sqs) -> None:
    """Rule 41: nothing is dropped; a noisy tenant has the queue for itself when nobody else is there."""
    url = json_sqs.create()
    pour(json_sqs, url, "loud", 80)
    pour(json_sqs, url, "quiet", 10)
    received_bodies = drain(json_sqs, url, 90)
    assert len(set(received_bodies)) == 90
    assert json_sqs.receive(url) == []


def test_a_tenant_is_no_longer_noisy_when_its_work_is_done(json_sqs: Sqs) -> None:
    """Rule 41: ends when its backlog drains (here: what it had in flight was deleted, and it starts anew)."""
    url = json_sqs.create()
    pour(json_sqs, url, "loud", 40)
    handles = []
    for _ in range(4):
        handles.append([m["ReceiptHandle"] for m in json_sqs.receive(url)])
    for batch in handles:
        rows = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(batch)]
        json_sqs.delete_message_batch(QueueUrl=url, Entries=rows)
    json_sqs.advance(301)
    pour(json_sqs, url, "loud", 5, start=40)
    pour(json_sqs, url, "quiet", 5)
    assert tenants(drain(json_sqs, url, 5)) == ["loud"] * 5


def test_a_tenant_is_no_longer_noisy_five_minutes_after_its_last_send(json_sqs: Sqs) -> None:
    """Rule 41: ends after 5 min without sends."""
    url = json_sqs.create()
    pour(json_sqs, url, "loud", 60)
    drain(json_sqs, url, 40)
    json_sqs.advance(301)
    pour(json_sqs, url, "quiet", 4)
    assert tenants(drain(json_sqs, url, 5)) == ["loud"] * 5


def test_a_short_poll_serves_the_quiet_on_either_protocol(sqs: Sqs) -> None:
    """Rule 41 through both protocols."""
    url = sqs.create()
    pour(sqs, url, "loud", 50)
    drain(sqs, url, 40)
    pour(sqs, url, "quiet", 1)
    assert tenants(drain(sqs, url, 1)) == ["quiet"]
