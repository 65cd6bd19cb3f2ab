"""An edited copy of a dead-letter message: either it is sent in place of the message, or the message stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlq.dead_letters import DLQ, audited, dead_letter, ended, message
from driven import Calls, Place, shop
from semel import Reject, SqliteLedger
from semel.dlq.access import MessageClaims
from semel.dlq.edit import document, read_document
from semel.dlq.jobs import State
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.service import DeadLetterService, EditError, Key, NoSuchMessage
from semel.errors import SemelError
from semel.ledger.contract import ClaimRequest, Completion, LedgerUnavailable, Won
from semel.messages import dead_letter_attributes as own_attributes


def test_an_edited_copy_goes_to_work_under_the_same_key_and_the_message_is_gone(
    place: Place, service: DeadLetterService, either: str
) -> None:
    place.send({"id": "a", "amount": -1})
    calls = Calls(Reject("the amount is negative"))
    worker = place.worker(shop(calls))
    worker.drain()
    (dead,) = service.messages(DLQ).messages
    assert (dead.key, dead.source) == ("a", "orders")
    sent = service.resend(DLQ, dead.id, body='{"id": "a", "amount": 1}')
    assert (sent.queue, sent.key, sent.deleted, sent.notes) == ("orders", "a", True, ())
    assert place.is_empty(DLQ)
    worker.drain()
    assert calls.keys == ["a", "a"]
    assert place.known("a").status == "done"
    assert audited(service) == [("resend", "begun", None), ("resend", "done", 1)]
    assert service.audit_entries()[0].details["changed"] == "body"


def done(place: Place, key: str) -> None:
    """As a worker leaves it."""
    (won,) = place.ledger.claim([ClaimRequest(place.ledger_key(key), "digest", "orders/x")], claimant="w", lease=30)
    assert isinstance(won, Won)
    place.ledger.record([Completion(won.claim)])


def test_what_is_done_does_not_run_under_its_old_key_with_another_body(
    place: Place, service: DeadLetterService
) -> None:
    dead_letter(place, 2)
    done(place, "o-0")
    with pytest.raises(EditError, match=r"the ledger has o-0 as done.*--new-key"):
        service.resend(DLQ, "m-0", body="{}")
    assert len(place.messages(DLQ, "visible")) == 2
    assert audited(service)[-1][0] == "resend"
    unchanged = service.resend(DLQ, "m-0")
    assert "will be deleted as a duplicate and not run" in unchanged.notes[0]
    new = service.resend(DLQ, "m-1", body="{}", key=Key.NEW)
    named = place.messages("orders")
    assert [message["MessageAttributes"]["semel-key"]["StringValue"] for message in named] == ["o-0", new.key]
    assert len(new.key) == 32


def moved_by_sqs(place: Place, body: Any, **options: Any) -> str:
    """A message that nobody deleted in time; its MessageId."""
    first = place.send(body, **options)
    for _ in range(3):
        place.client.queue("orders").receive(1, 0, visibility=0)
    return first


@pytest.mark.parametrize("key", [None, "message-id"])
def test_an_edited_copy_of_a_message_without_a_key_is_refused_if_its_message_id_is_done(
    place: Place, service: DeadLetterService, key: str | None
) -> None:
    first = moved_by_sqs(place, {"id": 1})
    done(place, first)
    for change in ({"body": '{"id": 2}'}, {"attributes": {"tenant": "acme"}}):
        with pytest.raises(EditError, match=rf"the ledger has {first} as done.*--new-key"):
            service.resend(DLQ, first, **change)
    assert len(place.messages(DLQ, "visible")) == 1
    copy = service.resend(DLQ, first, body='{"id": 2}', key=Key.NEW)
    calls = Calls()
    place.worker(shop(calls, key=key)).drain()
    assert calls.keys == [copy.key]


def test_an_edited_copy_is_refused_if_the_key_that_its_producer_gave_it_is_done(
    place: Place, service: DeadLetterService
) -> None:
    first = moved_by_sqs(place, {"id": 1}, attributes={"idempotency-key": "order-1"})
    done(place, "order-1")
    with pytest.raises(EditError, match="the ledger has order-1 as done"):
        service.resend(DLQ, first, body='{"id": 2}')
    assert len(place.messages(DLQ, "visible")) == 1


def test_an_edited_copy_is_not_sent_while_the_ledger_cannot_be_asked(place: Place, tmp_path: Path) -> None:
    dead_letter(place, 2)
    ledger = SqliteLedger(str(tmp_path / "ledger.db"))
    service = DeadLetterService(place.client, ledger=ledger, state=tmp_path, who="tester", clock=place.clock.now)
    ledger.close()
    with pytest.raises(LedgerUnavailable, match=r"message .*: nothing was sent: the ledger cannot say"):
        service.resend(DLQ, "m-0", body="{}")
    assert (len(place.messages(DLQ, "visible")), place.messages("orders")) == (2, [])
    assert audited(service)[-1][1].startswith("failed: ")
    job = ended(service.redrive(RedrivePlan(queue=DLQ, where="key exists", canary=1)))
    assert (job.state, place.messages("orders")) == (State.FAILED, [])
    assert "nothing was sent, as the ledger cannot say" in job.reason
    assert service.resend(DLQ, "m-0", body="{}", key=Key.NEW).deleted


def test_a_copy_takes_new_attributes_group_key_and_queue(place: Place, service: DeadLetterService) -> None:
    place.queue("pay.fifo", dlq="pay-dlq.fifo")
    place.queue("other.fifo")
    dead_letter(place, 2, "pay-dlq.fifo")
    sent = service.resend(
        "pay-dlq.fifo",
        "m-0",
        attributes={"size": 5, "raw": {"type": "Binary", "base64": "AP8="}},
        group="vip",
        key="mine",
        to="other.fifo",
    )
    (message,) = place.messages("other.fifo")
    assert (sent.key, message["Attributes"]["MessageGroupId"]) == ("mine", "vip")
    assert message["MessageAttributes"] == {
        "semel-key": {"DataType": "String", "StringValue": "mine"},
        "semel-redrives": {"DataType": "String", "StringValue": "1"},
        "size": {"DataType": "Number", "StringValue": "5"},
        "raw": {"DataType": "Binary", "BinaryValue": "AP8="},
    }


@pytest.mark.parametrize(
    "second", [{"attributes": {"size": 6}}, {"key": "other"}, {"group": "vip"}, {"body": '{"n": 2}'}]
)
def test_a_second_edit_of_a_fifo_message_is_not_mistaken_for_the_first(
    place: Place, service: DeadLetterService, monkeypatch: pytest.MonkeyPatch, second: dict[str, Any]
) -> None:
    """SQS swallows what has the same deduplication id within five minutes; then the original is deleted for nothing."""
    place.queue("pay.fifo", dlq="pay-dlq.fifo")
    dead_letter(place, 1, "pay-dlq.fifo")
    first: dict[str, Any] = {"attributes": {"size": 5}, "key": "mine", "body": '{"n": 1}', "to": "pay.fifo"}
    with monkeypatch.context() as patch:
        patch.setattr(MessageClaims, "delete", lambda _claims, messages: list(messages))
        for _ in range(2):
            assert not service.resend("pay-dlq.fifo", "m-0", **first).deleted
    assert len(place.messages("pay.fifo")) == 1  # the same edit is sent once
    assert service.resend("pay-dlq.fifo", "m-0", **(first | second)).deleted
    assert len(place.messages("pay.fifo")) == 2


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"attributes": {"semel-key": "x"}}, "names that begin with semel- are Semel's own"),
        ({"attributes": {"x": {"type": "String"}}}, 'attribute x: .* write it as {"type": "String"'),
        ({"attributes": {"x": {"base64": "?"}}}, "attribute x"),
        ({"key": " "}, "a new key needs at least one character"),
        ({"to": "nowhere"}, "nowhere"),
        ({"body": "x" * 1_048_576}, "leave no room for the key"),
        ({"body": "\x00"}, "InvalidMessageContents"),
    ],
)
def test_what_cannot_be_sent_stays_where_it_is(
    place: Place, service: DeadLetterService, wanted: Any, says: str
) -> None:
    dead_letter(place, 1)
    with pytest.raises(SemelError, match=says):
        service.resend(DLQ, "m-0", **wanted)
    assert len(place.messages(DLQ, "visible")) == 1
    assert audited(service)[-1][1].startswith("failed: ")


def test_a_message_without_a_source_needs_to_be_given_a_target(place: Place, service: DeadLetterService) -> None:
    place.client.create_queue("lost-dlq")
    place.send("{}", "lost-dlq")
    (dlq_message,) = service.messages("lost-dlq").messages
    with pytest.raises(SemelError, match="lost-dlq"):
        service.resend("lost-dlq", dlq_message.id, any_queue=True)
    assert service.resend("lost-dlq", dlq_message.id, to="orders", any_queue=True).queue == "orders"
    place.send("{}", DLQ)
    (dlq_message,) = service.messages(DLQ).messages
    assert service.resend(DLQ, dlq_message.id).queue == "orders"
    with pytest.raises(NoSuchMessage, match="message nobody is not available in orders-dlq"):
        service.resend(DLQ, "nobody")


def test_an_edited_copy_goes_to_no_queue_that_only_the_message_names(place: Place, service: DeadLetterService) -> None:
    place.queue("payments")
    about = own_attributes.DeadLetterDetails("k-1", "failed", "no", 3, "m-1", "payments")
    place.send("{}", DLQ, attributes=own_attributes.attributes(about, {}, 2))
    with pytest.raises(SemelError, match=r"is not the dead-letter queue of that queue.* --to"):
        service.resend(DLQ, "m-1", body="[]")
    assert (len(place.messages(DLQ, "visible")), place.messages("payments")) == (1, [])
    assert service.resend(DLQ, "m-1", body="[]", to="payments").queue == "payments"


# The document for an editor.


def test_a_document_shows_json_unfolded_and_says_what_was_changed() -> None:
    dlq_message = message()
    text = document(dlq_message)
    assert json.loads(text)["body"] == json.loads(dlq_message.body)
    assert read_document(text, dlq_message) is None
    assert read_document("", dlq_message) is None
    changed = read_document(text.replace("120.5", "99"), dlq_message)
    assert changed is not None
    assert (json.loads(changed.body or "")["order"]["total"], changed.changed) == (99, ("body",))
    content = json.loads(text)
    content["attributes"]["tenant"]["value"] = "umbrella"
    content["to"] = "elsewhere"
    changed = read_document(json.dumps(content), dlq_message)
    assert changed is not None
    assert (changed.body, changed.changed, changed.to) == (None, ("attributes",), "elsewhere")
    forced = read_document(text, dlq_message, Key.NEW)
    assert forced is not None
    assert (forced.changed, forced.key) == ((), Key.NEW)


@pytest.mark.parametrize("body", ["", "plain", '"text"', "5", '{"a": 1.10}', '{"a": 1, "a": 2}', "{", '{"a": NaN}'])
def test_a_body_that_json_would_change_stays_a_text(body: str) -> None:
    dlq_message = message(body=body)
    text = document(dlq_message)
    assert json.loads(text)["body"] == body
    assert read_document(text, dlq_message) is None


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda _: "{", "is not JSON"),
        (lambda _: "[]", 'no "body"'),
        (lambda text: text.replace("o-17", "o-18", 1), "--new-key KEY"),
        (lambda text: text.replace('"to"', '"too"'), "'too' cannot be changed"),
        (lambda text: text.replace('"attributes": {', '"attributes": 5, "x": {'), "cannot be changed"),
    ],
)
def test_a_document_that_cannot_be_read_says_so(edit: Any, says: str) -> None:
    dlq_message = message()
    with pytest.raises(EditError, match=says):
        read_document(edit(document(dlq_message)), dlq_message)
