"""Section 1.6: every limit, at its edge and just beyond it."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest

from .service import (
    BAD_ENTRY_ID,
    INVALID_VALUE,
    MIB,
    TOO_LONG,
    Broker,
    Sqs,
    SqsError,
    entries,
    json_call,
    query_call,
    refusal,
    refused,
)
from .test_message_attributes import binary, text

# ---- size -----------------------------------------------------------------------------------------------------------


def test_a_message_of_exactly_one_mebibyte_goes_through(sqs: Sqs) -> None:
    """1.6: message ≤ 1 MiB; min 1 char."""
    url = sqs.create()
    for body in ("x" * MIB, "y"):
        sqs.send(url, body)
        message = sqs.receive_one(url)
        assert message["Body"] == body
        sqs.delete(url, message)
    with refused(INVALID_VALUE):
        sqs.send(url, "x" * (MIB + 1))


def test_size_is_counted_in_bytes_not_characters(sqs: Sqs) -> None:
    """1.6: message ≤ the limit in bytes."""
    url = sqs.create(MaximumMessageSize=1024)
    sqs.send(url, "é" * 512)
    sqs.send(url, "😀" * 256)
    with refused(INVALID_VALUE):
        sqs.send(url, "é" * 513)
    with refused(INVALID_VALUE):
        sqs.send(url, "😀" * 256 + "x")


@pytest.mark.parametrize(
    ("name", "value", "size"),
    [
        ("colour", text("red"), 6 + 6 + 3),
        ("n", text("42", "Number.int"), 1 + 10 + 2),
        ("icon", binary(b"\0" * 9), 4 + 6 + 9),
        ("e", text("é"), 1 + 6 + 2),
        ("é", text("e"), 2 + 6 + 1),
    ],
)
def test_size_counts_attribute_names_types_and_values(sqs: Sqs, name: str, value: dict[str, Any], size: int) -> None:
    """1.6: message = body + attribute names + types + values; rule 65: a name is counted in bytes as well."""
    url = sqs.create(MaximumMessageSize=1024)
    sqs.send(url, "x" * (1024 - size), MessageAttributes={name: value})
    with refused(INVALID_VALUE):
        sqs.send(url, "x" * (1024 - size + 1), MessageAttributes={name: value})


def test_a_trace_header_is_free(sqs: Sqs) -> None:
    """1.6: AWSTraceHeader is free."""
    url = sqs.create(MaximumMessageSize=1024)
    sqs.send(url, "x" * 1024, MessageSystemAttributes={"AWSTraceHeader": text("Root=1-a-b")})


def test_a_batch_of_exactly_one_mebibyte_goes_through(sqs: Sqs) -> None:
    """1.6: batch sum ≤ 1 MiB, attributes included."""
    url = sqs.create()
    half = MIB // 2
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries("x" * half, "y" * half))["Successful"]) == 2
    batch = entries("x" * half, "y" * half)
    batch[0]["MessageAttributes"] = {"a": text("b")}
    with refused(TOO_LONG, f"Batch requests cannot be longer than {MIB} bytes. You have sent {MIB + 8} bytes."):
        sqs.send_message_batch(QueueUrl=url, Entries=batch)


def test_the_sum_of_a_batch_does_not_depend_on_the_queues_maximum(sqs: Sqs) -> None:
    """1.6: batch sum, independent of the queue's MaximumMessageSize."""
    url = sqs.create(MaximumMessageSize=1024)
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries(*["x" * 1024] * 10))
    assert len(answer["Successful"]) == 10


# ---- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry_id", ["a", "x" * 80, "A-z_0", "-", "_"])
def test_good_entry_ids_are_accepted(sqs: Sqs, entry_id: str) -> None:
    """1.6: entry id ≤ 80 of [A-Za-z0-9_-]."""
    answer = sqs.send_message_batch(QueueUrl=sqs.create(), Entries=[{"Id": entry_id, "MessageBody": "x"}])
    assert [entry["Id"] for entry in answer["Successful"]] == [entry_id]


def test_an_entry_id_is_checked_to_its_last_character(sqs: Sqs) -> None:
    """1.6: entry id; a line break at the end is no part of it."""
    with refused(BAD_ENTRY_ID):
        sqs.send_message_batch(QueueUrl=sqs.create(), Entries=[{"Id": "a\n", "MessageBody": "x"}])


def test_ten_entries_are_accepted_by_every_batch(sqs: Sqs) -> None:
    """1.6: batch entries 1–10."""
    url = sqs.create()
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries(*string.digits))["Successful"]) == 10
    handles = [{"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"]} for m in sqs.receive(url)]
    changes = [{**handle, "VisibilityTimeout": 60} for handle in handles]
    assert len(sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes)["Successful"]) == 10
    assert len(sqs.delete_message_batch(QueueUrl=url, Entries=handles)["Successful"]) == 10


# ---- message attributes ---------------------------------------------------------------------------------------------


def test_ten_attributes_are_accepted_and_eleven_are_not(sqs: Sqs) -> None:
    """1.6: 10 per message."""
    url = sqs.create()
    sqs.send(url, MessageAttributes={f"a{n}": text("x") for n in range(10)})
    with refused(INVALID_VALUE):
        sqs.send(url, MessageAttributes={f"a{n}": text("x") for n in range(11)})


@pytest.mark.parametrize(
    "name",
    [
        *("a", "x" * 256, "A-z_0.9", "AWSome", "Amazonas", "my.AWS.name", "-", "_"),
        *("attr.1øßä", "é" * 256, "цвет", "色", "٣"),
    ],
)
def test_good_attribute_names_are_accepted(sqs: Sqs, name: str) -> None:
    """1.6: name ≤ 256 of [A-Za-z0-9_.-]; rule 65: letters and digits of any script."""
    url = sqs.create()
    sqs.send(url, MessageAttributes={name: text("x")})
    assert list(sqs.receive_one(url)["MessageAttributes"]) == [name]


@pytest.mark.parametrize(
    "name",
    [
        "x" * 257,
        "a b",
        "a!",
        'a"',
        "a§",
        "a(",
        "a?",
        "a/b",
        "AWS.a",
        "aws.a",
        "Aws.a",
        "Amazon.a",
        "amazon.a",
        "AMAZON.a",
        ".a",
        "a.",
        "a..b",
        "a\n",
        "",
    ],
)
def test_bad_attribute_names_are_refused(sqs: Sqs, name: str) -> None:
    """1.6: not starting `AWS.`/`Amazon.` (any case), no leading/trailing/double dot; rule 65: no other punctuation."""
    with refused(INVALID_VALUE):
        sqs.send(sqs.create(), MessageAttributes={name: text("x")})


@pytest.mark.parametrize(
    "number",
    ["0", "7", "-7", "3.14", "-0.5", "1e5", "1E+5", "1e-5", "9" * 38, "1e126", "1e-128", "-1e126", "007", "1.500"],
)
def test_good_numbers_are_accepted(sqs: Sqs, number: str) -> None:
    """1.6: Number: 38 digits, 10^-128…10^126."""
    url = sqs.create()
    sqs.send(url, MessageAttributes={"n": text(number, "Number")})
    attribute = sqs.receive_one(url)["MessageAttributes"]["n"]
    assert attribute["DataType"] == "Number"
    assert float(attribute["StringValue"]) == float(number)


@pytest.mark.parametrize("number", ["abc", "1,5", "0x10", "1e127", "1e-129", "1" * 39, "NaN", "Infinity", "1 2", "--1"])
def test_bad_numbers_are_refused(sqs: Sqs, number: str) -> None:
    """1.6: Number: 38 digits, 10^-128…10^126."""
    with refused(INVALID_VALUE):
        sqs.send(sqs.create(), MessageAttributes={"n": text(number, "Number")})


# ---- characters -----------------------------------------------------------------------------------------------------

GOOD = "\t\n\r \x7f\x85\xa0\u2028\ud7ff\ue000\ufffd\U00010000\U0010ffff"


def test_every_edge_of_the_allowed_characters_goes_through(sqs: Sqs) -> None:
    """1.6: #x9 #xA #xD #x20–#xD7FF #xE000–#xFFFD #x10000–#x10FFFF; rule 49: CR survives."""
    url = sqs.create()
    sqs.send(url, GOOD, MessageAttributes={"a": text(GOOD)})
    message = sqs.receive_one(url)
    assert message["Body"] == GOOD
    assert message["MessageAttributes"]["a"]["StringValue"] == GOOD


BAD = ["\x00", "\x01", "\x08", "\x0b", "\x0c", "\x0e", "\x1f", "\ufffe", "\uffff"]


@pytest.mark.parametrize("character", BAD)
def test_a_forbidden_character_in_a_body_is_refused(sqs: Sqs, character: str) -> None:
    """Rule 49: bad characters in a body ⇒ InvalidMessageContents."""
    with refused("InvalidMessageContents"):
        sqs.send(sqs.create(), f"a{character}b")


def test_a_forbidden_character_in_a_batch_fails_its_own_entry(sqs: Sqs) -> None:
    """Rule 49: in a batch only that entry."""
    url = sqs.create()
    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries("a", "\x0b", "c"))
    assert [entry["Id"] for entry in answer["Successful"]] == ["e0", "e2"]
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]] == [
        ("e1", "InvalidMessageContents", True)
    ]


@pytest.mark.parametrize("character", BAD)
def test_a_forbidden_character_in_a_string_attribute_is_refused(sqs: Sqs, character: str) -> None:
    """Rule 49: in a String attribute ⇒ InvalidParameterValue."""
    with refused(INVALID_VALUE):
        sqs.send(sqs.create(), MessageAttributes={"a": text(f"a{character}b")})


def test_half_a_surrogate_pair_is_refused(sqs_broker: Broker, json_sqs: Sqs) -> None:
    """Rule 49 and 1.6: #xD800–#xDFFF are no characters; JSON can spell them, forms in UTF-8 can only try."""
    url = json_sqs.create()
    escaped = json.dumps({"QueueUrl": url, "MessageBody": "a\ud800b"})
    assert json_call(sqs_broker, "SendMessage", escaped).status == 400
    raw = b'{"QueueUrl": "%s", "MessageBody": "a\xed\xa0\x80b"}' % url.encode()
    assert json_call(sqs_broker, "SendMessage", raw).status == 400
    assert json_sqs.counts(url).visible == 0


# ---- ids and names --------------------------------------------------------------------------------------------------

EVERY = string.digits + string.ascii_letters + string.punctuation


@pytest.mark.parametrize("value", ["x", "x" * 128, EVERY])
def test_good_group_deduplication_and_attempt_ids_are_accepted(sqs: Sqs, value: str) -> None:
    """1.6: 1–128 of alnum + punctuation."""
    url = sqs.create_fifo()
    sqs.send(url, MessageGroupId=value, MessageDeduplicationId=value)
    attributes = sqs.receive_one(url, ReceiveRequestAttemptId=value)["Attributes"]
    assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == (value, value)


@pytest.mark.parametrize("value", ["x" * 129, "a b", "é"])
def test_bad_attempt_ids_are_refused(sqs: Sqs, value: str) -> None:
    """1.6: attempt id 1–128 of alnum + punctuation (no space)."""
    with refused(INVALID_VALUE):
        sqs.receive(sqs.create_fifo(), ReceiveRequestAttemptId=value)


@pytest.mark.parametrize("value", ["x" * 129, "a b", "é"])
def test_bad_groups_are_refused_on_a_standard_queue_too(sqs: Sqs, value: str) -> None:
    """1.6: group id 1–128 of alnum + punctuation (no space)."""
    with refused(INVALID_VALUE):
        sqs.send(sqs.create(), MessageGroupId=value)


@pytest.mark.parametrize("name", ["a", "x" * 80, "A-z_0", "-", "_", "fifo"])
def test_good_queue_names_are_accepted(sqs: Sqs, name: str) -> None:
    """1.6: queue name 1–80 of [A-Za-z0-9_-]."""
    url = sqs.create(name)
    assert url.endswith(f"/{name}")
    assert sqs.get_queue_url(QueueName=name) == {"QueueUrl": url}


@pytest.mark.parametrize("name", ["x" * 81, "a b", "a.b", "a/b", "é", "a\n", "a$", "a.FIFO"])
def test_bad_queue_names_are_refused(sqs: Sqs, name: str) -> None:
    """1.6: queue name 1–80 of [A-Za-z0-9_-]; rule 43."""
    with refused(INVALID_VALUE):
        sqs.create(name)
    assert "QueueUrls" not in sqs.list_queues()


def test_the_suffix_of_a_fifo_queue_counts_in_the_eighty(sqs: Sqs) -> None:
    """1.6: `.fifo` counts in the 80."""
    sqs.create_fifo("x" * 75 + ".fifo")
    with refused(INVALID_VALUE):
        sqs.create_fifo("x" * 76 + ".fifo")
    with refused(INVALID_VALUE):
        sqs.create_fifo(".fifo")


def test_queue_names_are_told_apart_by_case(sqs: Sqs) -> None:
    """1.6: case-sensitive."""
    lower, upper = sqs.create("orders"), sqs.create("Orders", DelaySeconds=5)
    assert lower != upper
    assert sqs.get_queue_url(QueueName="orders")["QueueUrl"] == lower


def test_a_label_is_at_most_eighty_long(sqs: Sqs) -> None:
    """1.6: label ≤ 80."""
    url = sqs.create()
    grant = {"QueueUrl": url, "AWSAccountIds": ["111122223333"], "Actions": ["SendMessage"]}
    sqs.add_permission(Label="x" * 80, **grant)
    for label in ("x" * 81, "a b"):
        with refused(INVALID_VALUE):
            sqs.add_permission(Label=label, **grant)


def test_ids_and_handles_are_not_too_long_for_anyones_table(sqs: Sqs) -> None:
    """1.6: MessageId ≤ 100 chars, receipt handle ≤ 1024."""
    url = sqs.create_fifo("x" * 75 + ".fifo")
    sqs.send(url, MessageGroupId="g" * 128)
    message = sqs.receive_one(url)
    assert 1 <= len(message["MessageId"]) <= 100
    assert 1 <= len(message["ReceiptHandle"]) <= 1024


# ---- numbers of a call ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 43200])
def test_both_ends_of_a_receives_visibility_are_accepted(sqs: Sqs, value: int) -> None:
    """1.6: visibility 0–43200."""
    url = sqs.create()
    sqs.send(url)
    sqs.receive_one(url, VisibilityTimeout=value)


@pytest.mark.parametrize("value", [-1, 43201])
def test_a_visibility_outside_the_range_is_refused(sqs: Sqs, value: int) -> None:
    """1.6: visibility 0–43200, on receive, on change, and on an entry of a batch change."""
    url = sqs.create()
    sqs.send(url)
    with refused(INVALID_VALUE):
        sqs.receive(url, VisibilityTimeout=value)
    message = sqs.receive_one(url)
    with refused(INVALID_VALUE):
        sqs.change(url, message, value)
    entry = {"Id": "a", "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": value}
    answer = sqs.change_message_visibility_batch(QueueUrl=url, Entries=[entry])
    assert [(e["Id"], e["Code"], e["SenderFault"]) for e in answer["Failed"]] == [("a", INVALID_VALUE, True)]


@pytest.mark.parametrize("value", [-1, 901])
def test_a_delay_outside_the_range_is_refused(sqs: Sqs, value: int) -> None:
    """1.4: DelaySeconds 0–900, per message as well."""
    with refused(INVALID_VALUE):
        sqs.send(sqs.create(), DelaySeconds=value)


def test_one_message_comes_unless_more_are_asked_for(sqs: Sqs) -> None:
    """1.6: receive 1–10 messages; the default is one."""
    url = sqs.create()
    sqs.send_all(url, "a", "b")
    assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1


@pytest.mark.parametrize("wait", [0, 20])
def test_both_ends_of_the_wait_are_accepted(sqs: Sqs, wait: int) -> None:
    """1.6: wait 0–20 s."""
    url = sqs.create()
    sqs.send(url)
    assert len(sqs.receive(url, WaitTimeSeconds=wait)) == 1


# ---- lists ----------------------------------------------------------------------------------------------------------


def test_a_token_comes_only_if_a_page_size_was_given(sqs: Sqs) -> None:
    """1.6: lists 1–1000, NextToken only if MaxResults given."""
    urls = [sqs.create(f"q{number}") for number in range(5)]
    everything = sqs.list_queues()
    assert sorted(everything["QueueUrls"]) == urls
    assert "NextToken" not in everything
    first = sqs.list_queues(MaxResults=3)
    assert len(first["QueueUrls"]) == 3
    second = sqs.list_queues(MaxResults=3, NextToken=first["NextToken"])
    assert "NextToken" not in second
    assert sorted(first["QueueUrls"] + second["QueueUrls"]) == urls


def test_pages_respect_the_prefix(sqs: Sqs) -> None:
    """1.2, ListQueues: QueueNamePrefix with MaxResults and NextToken."""
    wanted = [sqs.create(f"a{number}") for number in range(3)]
    for number in range(3):
        sqs.create(f"b{number}")
    first = sqs.list_queues(QueueNamePrefix="a", MaxResults=2)
    second = sqs.list_queues(QueueNamePrefix="a", MaxResults=2, NextToken=first["NextToken"])
    assert sorted(first["QueueUrls"] + second["QueueUrls"]) == wanted
    assert sqs.list_queues(QueueNamePrefix="zz") == {}


@pytest.mark.parametrize("value", [0, 1001, -1])
def test_a_page_size_outside_the_range_is_refused(sqs: Sqs, value: int) -> None:
    """1.6: lists 1–1000."""
    dead = sqs.create()
    with refused(INVALID_VALUE):
        sqs.list_queues(MaxResults=value)
    with refused(INVALID_VALUE):
        sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=value)


def test_a_garbage_token_is_the_clients_mistake(sqs: Sqs) -> None:
    """1.6: lists; never an internal failure."""
    error = refusal(lambda: sqs.list_queues(MaxResults=1, NextToken="garbage"))
    assert error is None or (error.status, error.type) == (400, "Sender")


@pytest.mark.parametrize("value", [0, 11, -1])
def test_a_list_of_move_tasks_is_one_to_ten_long(sqs: Sqs, value: int) -> None:
    """1.6: move tasks: list 1–10."""
    _, dead = sqs.create_pair()
    sqs.list_message_move_tasks(SourceArn=sqs.arn(dead), MaxResults=10)
    with refused(INVALID_VALUE):
        sqs.list_message_move_tasks(SourceArn=sqs.arn(dead), MaxResults=value)


@pytest.mark.parametrize("value", [0, 501, -1])
def test_a_move_task_is_at_most_five_hundred_a_second(sqs: Sqs, value: int) -> None:
    """1.6: move tasks ≤ 500 msg/s."""
    source, dead = sqs.create_pair()
    ends = {"SourceArn": sqs.arn(dead), "DestinationArn": sqs.arn(source)}
    with refused(INVALID_VALUE):
        sqs.start_message_move_task(MaxNumberOfMessagesPerSecond=value, **ends)
    sqs.start_message_move_task(MaxNumberOfMessagesPerSecond=500, **ends)


def test_an_account_has_at_most_a_hundred_move_tasks_under_way(json_sqs: Sqs) -> None:
    """1.6: move tasks: 100 per account."""
    sqs = json_sqs
    target = sqs.create("target")
    tasks = []
    for number in range(101):
        dead = sqs.create(f"dead{number}")
        sqs.create(f"source{number}", RedrivePolicy=sqs.redrive_policy(dead))
        sqs.send_all(dead, "a", "b")
        tasks.append({"SourceArn": sqs.arn(dead), "DestinationArn": sqs.arn(target), "MaxNumberOfMessagesPerSecond": 1})
    for task in tasks[:100]:
        sqs.start_message_move_task(**task)
    with pytest.raises(SqsError) as caught:
        sqs.start_message_move_task(**tasks[100])
    assert caught.value.type == "Sender"


# ---- tags and times -------------------------------------------------------------------------------------------------


def test_a_tag_needs_a_key_but_no_value(sqs: Sqs) -> None:
    """1.6: tags: key required, value optional."""
    url = sqs.create()
    sqs.tag_queue(QueueUrl=url, Tags={"team": ""})
    assert sqs.list_queue_tags(QueueUrl=url) == {"Tags": {"team": ""}}
    with pytest.raises(SqsError) as caught:
        sqs.tag_queue(QueueUrl=url, Tags={"": "blue"})
    assert caught.value.status == 400


def test_a_tag_may_come_without_a_value_on_query(sqs_broker: Broker, json_sqs: Sqs) -> None:
    """1.6: tags: value optional."""
    url = json_sqs.create()
    assert query_call(sqs_broker, "TagQueue", {"QueueUrl": url, "Tag.1.Key": "team"}).status == 200
    assert json_sqs.list_queue_tags(QueueUrl=url) == {"Tags": {"team": ""}}


def test_fifty_tags_are_fine(sqs: Sqs) -> None:
    """1.6: tags: > 50 not recommended."""
    url = sqs.create()
    tags = {f"k{number}": f"v{number}" for number in range(50)}
    sqs.tag_queue(QueueUrl=url, Tags=tags)
    assert sqs.list_queue_tags(QueueUrl=url) == {"Tags": tags}


def test_a_queue_has_at_most_fifty_tags(sqs: Sqs) -> None:
    """Rule 62: those that it has count as well; a refused call changes nothing."""
    url = sqs.create()
    tags = {f"k{number}": "v" for number in range(50)}
    with refused(INVALID_VALUE, "Too many tags added for queue orders."):
        sqs.tag_queue(QueueUrl=url, Tags={**tags, "one more": "v"})
    sqs.tag_queue(QueueUrl=url, Tags=tags)
    with refused(INVALID_VALUE, "Too many tags added for queue orders."):
        sqs.tag_queue(QueueUrl=url, Tags={"one more": "v"})
    sqs.tag_queue(QueueUrl=url, Tags={"k0": "changed"})
    assert sqs.list_queue_tags(QueueUrl=url) == {"Tags": {**tags, "k0": "changed"}}


def test_a_queue_cannot_be_created_with_more_than_fifty_tags(sqs: Sqs) -> None:
    """Rule 62."""
    with refused(INVALID_VALUE, "Too many tags added for queue orders."):
        sqs.create_queue(QueueName="orders", tags={f"k{number}": "v" for number in range(51)})
    assert sqs.list_queues() == {}


def test_a_tag_value_of_null_is_refused(sqs_broker: Broker, json_sqs: Sqs) -> None:
    """Rule 62: refused, not dropped, together with the good tags beside it. Only JSON can say null."""
    url = json_sqs.create()
    for operation, params in (
        ("TagQueue", {"QueueUrl": url, "Tags": {"team": "blue", "cost": None}}),
        ("CreateQueue", {"QueueName": "others", "tags": {"team": "blue", "cost": None}}),
    ):
        answer = json_call(sqs_broker, operation, params)
        assert answer.status == 400
        assert answer.headers["x-amzn-query-error"] == "InvalidParameterValue;Sender"
    assert json_sqs.list_queue_tags(QueueUrl=url) == {}
    assert json_sqs.list_queues()["QueueUrls"] == [url]


def test_a_queue_is_usable_right_after_it_was_created(sqs: Sqs) -> None:
    """1.6: timings: AWS asks for a second; the broker needs none, for a new queue or a changed attribute."""
    url = sqs.create()
    sqs.set(url, DelaySeconds=5)
    sqs.send(url)
    assert sqs.receive(url) == []
    sqs.advance(5)
    assert len(sqs.receive(url)) == 1
