"""The actions of the service: export, delete, restore, resend. Each is in the audit log, and none loses a message."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlq.dead_letters import DLQ, audited, dead_letter, ended, message
from driven import Place
from semel.dlq import snapshots
from semel.dlq.access import PeekRisk, open_access
from semel.dlq.access.sqs import SqsAccess
from semel.dlq.audit import Audit, AuditError
from semel.dlq.delete import Deleter
from semel.dlq.filter.parser import parse
from semel.dlq.jobs import Job, State
from semel.dlq.messages import DeadLetterMessage, ShownMessages
from semel.dlq.queues import NotDeadLetterQueue, address
from semel.dlq.redrive.plan import RedrivePlan
from semel.dlq.restore import Restorer
from semel.dlq.selection import SelectionError
from semel.dlq.service import DeadLetterService
from semel.dlq.snapshots import SnapshotError
from semel.errors import SemelError
from semel.sqs.client.admin import Admin
from semel.sqs.client.messages import Attribute


def ids(place: Place, queue: str = DLQ) -> set[str]:
    return {message["MessageId"] for message in place.broker.peek(queue, limit=5_000)}


def shown(place: Place, queue: str = DLQ) -> list[tuple[Any, ...]]:
    """What matters of each message, whatever its id."""
    messages = [DeadLetterMessage.peeked(message, queue) for message in place.broker.peek(queue, limit=5_000)]
    return sorted(
        (
            message.key,
            message.body,
            message.reason,
            message.error,
            message.attempts,
            message.source,
            message.original_id,
            str(message.attributes),
        )
        for message in messages
    )


# Export.


def test_an_export_has_each_message_whole_and_touches_none(
    place: Place, service: DeadLetterService, tmp_path: Path
) -> None:
    dead_letter(place, 12)
    place.send("plain é", DLQ, attributes={"raw": b"\x00\xff", "n": 5})
    file = tmp_path / "messages.jsonl"
    done = service.export(DLQ, to=file, all=True)
    assert (done.count, done.path, done.complete) == (13, str(file), True)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["key"] for line in lines] == [f"o-{n}" for n in range(12)] + [""]
    assert lines[-1]["attributes"] == {
        "raw": {"type": "Binary", "base64": "AP8="},
        "n": {"type": "Number", "value": "5"},
    }
    assert file.stat().st_mode & 0o077 == 0
    assert audited(service) == [("export", "begun", None), ("export", "done", 13)]
    stream = io.BytesIO()
    assert service.export(DLQ, "$.n < 3", stream).count == 3
    assert b"".join(service.lines(DLQ, "$.n < 3")).count(b"\n") == stream.getvalue().count(b"\n") == 3


def test_a_line_reads_back_as_the_message() -> None:
    whole = message(
        attributes={"raw": Attribute("Binary.png", b"\x00"), "tenant": Attribute("String", "é")},
        group="g",
        redrives=2,
        trace="Root=1",
        first_received=None,
    )
    again = snapshots.read(snapshots.line(whole, at=5.0))
    for name in ("id", "queue", "body", "sent", "receives", "attributes", "source", "key", "reason", "error", "group"):
        assert getattr(again, name) == getattr(whole, name)
    assert (again.redrives, again.trace, again.by_semel, again.original_id) == (2, "Root=1", True, "aa11")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "(Input is a zero-length"),
        (b"{", "(unexpected end of data"),
        (b"[]", "(it is not a JSON object)"),
        (b'{"semel": 1}', "('id' is missing)"),
        (b'{"semel": 2, "id": "x"}', "written by a newer Semel (format 2)"),
        (b'{"semel":1,"id":5}', "(id is not a string)"),
    ],
)
def test_a_line_that_is_no_message_is_named_with_the_reason(text: bytes, why: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        snapshots.read(text, 7, "x.jsonl")
    assert str(caught.value).startswith("x.jsonl, line 7")
    assert why in str(caught.value)


def test_half_a_line_at_the_end_of_a_file_was_never_relied_on(tmp_path: Path) -> None:
    whole = snapshots.line(message(), at=5.0)
    file = tmp_path / "torn.jsonl"
    file.write_bytes(whole + whole[:50])
    assert [message.id for message in snapshots.messages_in(file)] == ["6d2f"]
    file.write_bytes(whole[:50] + b"\n" + whole)
    with pytest.raises(SnapshotError, match="line 1"):
        list(snapshots.messages_in(file))


# Drop and restore.


def test_what_is_deleted_is_in_the_snapshot_and_comes_back_as_it_was(
    place: Place, service: DeadLetterService, either: str
) -> None:
    dead_letter(place, 25)
    place.clock.advance(1)
    before = shown(place)
    job = ended(service.delete(DLQ, "attr.tenant = acme", shown=service.impact(DLQ, "attr.tenant = acme").shown))
    assert (job.state, job.counts.deleted, job.reason) == (State.DONE, 12, "")
    assert len(ids(place)) == 13
    assert place.messages(DLQ, "in_flight") == []
    path = Path(job.result["snapshot"])
    assert path.parent == service.state / "snapshots"
    assert len(path.read_text().splitlines()) == 12
    back = ended(service.restore(path))
    assert (back.state, back.counts.sent) == (State.DONE, 12)
    assert shown(place) == before
    assert job.messages[-1].text == f"deleted 12 messages; to restore: semel dlq restore {path}"
    assert back.messages[-1].text == f"restored 12 messages to {DLQ}"
    again = ended(service.restore(path))
    assert (again.state, again.counts.sent, again.counts.skipped) == (State.DONE, 0, 12)
    assert again.messages[0].text == "skipped 12 messages that an earlier run sent"
    assert len(ids(place)) == 25
    assert audited(service) == [
        ("delete", "begun", None),
        ("delete", "done", 12),
        ("restore", "begun", None),
        ("restore", "done", 12),
        ("restore", "begun", None),
        ("restore", "done", 0),
    ]


def test_a_delete_says_how_many_ids_belong_to_no_message(place: Place, service: DeadLetterService, either: str) -> None:
    dead_letter(place, 2)
    place.clock.advance(1)
    job = ended(service.delete(DLQ, ids=[min(ids(place)), "unknown"]))
    assert (job.state, job.counts.deleted) == (State.DONE, 1)
    assert f"not in {DLQ}, or in flight: 1 of 2 ids" in [line.text for line in job.messages]


def test_what_was_not_shown_is_not_deleted(place: Place, service: DeadLetterService, either: str) -> None:
    dead_letter(place, 5)
    place.clock.advance(1)
    shown_messages = service.impact(DLQ, all=True).shown
    shown_to_somebody = ids(place)
    assert ended(service.redrive(RedrivePlan(queue=DLQ, canary=0, where="$.n < 3"))).counts.sent == 3
    dead_letter(place, 4)
    place.clock.advance(1)
    job = ended(service.delete(DLQ, all=True, shown=shown_messages))
    assert (job.state, job.counts.deleted) == (State.DONE, 2)
    assert len(ids(place)) == 4
    assert ids(place).isdisjoint(shown_to_somebody)
    assert any("5 were shown" in line.text for line in job.messages)


def test_what_arrives_after_too_many_to_name_were_shown_is_not_deleted(
    place: Place, service: DeadLetterService
) -> None:
    dead_letter(place, 1_001)
    shown_messages = service.impact(DLQ, all=True).shown
    assert (shown_messages.count, shown_messages.ids) == (1_001, None)
    old = ids(place)
    assert ended(service.redrive(RedrivePlan(queue=DLQ, canary=0, where="$.n < 3"))).counts.sent == 3
    dead_letter(place, 3)
    assert ended(service.delete(DLQ, all=True, shown=shown_messages)).counts.deleted == 998
    assert (len(ids(place)), ids(place) & old) == (3, set())


def test_what_came_to_match_after_it_was_shown_is_not_deleted(place: Place, service: DeadLetterService) -> None:
    dead_letter(place, 1_500)
    place.clock.advance(30)
    dead_letter(place, 2)
    old = ids(place)
    place.clock.advance(40)
    dead_letter(place, 1)  # in the queue, but too young to be shown
    shown_messages = service.impact(DLQ, "age > 35s").shown
    assert (shown_messages.count, shown_messages.ids) == (1_502, None)  # too many to name
    gone = ended(service.redrive(RedrivePlan(queue=DLQ, canary=0, where="$.n < 10", limit=10)))
    assert gone.counts.sent == 10
    place.clock.advance(60)
    dead_letter(place, 3)
    place.clock.advance(60)
    job = ended(service.delete(DLQ, "age > 35s", shown=shown_messages))
    assert (job.state, job.counts.deleted) == (State.DONE, 1_492)
    assert len(ids(place)) == 4
    assert ids(place).isdisjoint(old)


def test_nothing_shown_is_nothing_deleted(place: Place, service: DeadLetterService) -> None:
    dead_letter(place, 3)
    shown_messages = service.impact(DLQ, "nowhere").shown
    with pytest.raises(SemelError, match="no message was shown"):
        service.delete(DLQ, "nowhere", shown=shown_messages)
    with pytest.raises(SemelError, match="it is not known which messages were shown"):
        service.delete(DLQ, all=True, shown=ShownMessages(3))
    assert len(ids(place)) == 3


# Which messages.


def acting(service: DeadLetterService) -> dict[str, Any]:
    """Each action, for a test to pass it a selection."""
    return {
        "drop": service.delete,
        "export": service.export,
        "lines": lambda queue, **chosen: list(service.lines(queue, **chosen)),
        "impact": service.impact,
        "redrive": lambda queue, **chosen: service.redrive(
            RedrivePlan(
                queue=queue, canary=0, **{name: argument for name, argument in chosen.items() if argument is not None}
            )
        ),
    }


@pytest.mark.parametrize("action", ["drop", "export", "lines", "impact", "redrive"])
@pytest.mark.parametrize(
    "nothing",
    [{}, {"where": ""}, {"where": "  "}, {"ids": []}, {"ids": [""]}, {"ids": ["a", " "]}],
)
def test_selecting_nothing_is_an_error_and_never_everything(
    place: Place, service: DeadLetterService, action: str, nothing: dict[str, Any]
) -> None:
    dead_letter(place, 3)
    with pytest.raises(SelectionError):
        acting(service)[action](DLQ, **nothing)
    assert (len(place.messages(DLQ, "visible")), place.messages("orders")) == (3, [])
    assert service.jobs() == []


@pytest.mark.parametrize("action", ["drop", "export", "lines", "impact", "redrive"])
@pytest.mark.parametrize(
    "twice", [{"where": "$.n = 1", "all": True}, {"ids": ["a"], "all": True}, {"ids": ["a"], "where": "$.n = 1"}]
)
def test_there_is_one_way_of_selecting_at_a_time(
    place: Place, service: DeadLetterService, action: str, twice: dict[str, Any]
) -> None:
    dead_letter(place, 3)
    with pytest.raises(SelectionError, match="one way only"):
        acting(service)[action](DLQ, **twice)
    assert len(ids(place)) == 3


def test_a_queue_that_is_no_dead_letter_queue_is_not_acted_on_unless_it_is_meant(
    place: Place, service: DeadLetterService, either: str
) -> None:
    live = [place.send({"id": n}) for n in range(3)]
    place.clock.advance(1)
    for act in (
        lambda: service.delete("orders", all=True),
        lambda: service.delete("orders", ids=live),
        lambda: service.redrive(RedrivePlan(queue="orders", canary=0, all=True, to="orders")),
        lambda: service.export("orders", all=True),
        lambda: list(service.lines("orders", all=True)),
        lambda: service.resend("orders", live[0], body="{}"),
    ):
        with pytest.raises(NotDeadLetterQueue, match="orders is not the dead-letter queue of any queue"):
            act()
    assert ids(place, "orders") == set(live)
    job = ended(service.delete("orders", ids=live[:2], any_queue=True, receive=True))
    assert job.counts.deleted == 2
    assert ids(place, "orders") == {live[2]}


@pytest.mark.parametrize(
    ("url", "endpoint", "said"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/q", "", "AWS eu-west-1, account 123456789012"),
        (
            "https://sqs.eu-west-1.amazonaws.com/123456789012/q",
            "https://sqs.eu-west-1.amazonaws.com",
            "AWS eu-west-1, account 123456789012",
        ),
        ("http://127.0.0.1:9324/000000000000/q", "", "http://127.0.0.1:9324, account 000000000000"),
        ("http://other:4566/000000000000/q", "http://127.0.0.1:4566", "http://127.0.0.1:4566, account 000000000000"),
    ],
)
def test_where_a_queue_is_is_said_by_endpoint_or_region_and_account(url: str, endpoint: str, said: str) -> None:
    assert address(url, "eu-west-1", endpoint) == said


def test_a_queue_that_moves_its_messages_on_is_not_received_from_unless_that_is_accepted(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.queue("late-dlq", dlq="last-dlq", receives=2)
    place.queue("late", dlq="late-dlq")
    dead_letter(place, 1, "late-dlq")
    (id,) = ids(place, "late-dlq")
    monkeypatch.setattr(Admin, "of", lambda _client: None)
    monkeypatch.setitem(SqsAccess.__init__.__kwdefaults__, "wait", 0)  # type: ignore[arg-type]
    careful = DeadLetterService(place.client, state=tmp_path, clock=place.clock.now)
    for act in (
        lambda: careful.delete("late-dlq", all=True),
        lambda: careful.redrive(RedrivePlan(queue="late-dlq", canary=0, all=True)),
        lambda: careful.resend("late-dlq", id, body="{}"),
    ):
        with pytest.raises(PeekRisk) as refused:
            act()
        assert "--" not in str(refused.value)  # which flag accepts it is for the command line to say
    (message,) = place.broker.peek("late-dlq")
    assert message["Attributes"]["ApproximateReceiveCount"] == "0"
    assert careful.messages("late-dlq", receive=True).messages[0].id == id
    assert ended(careful.delete("late-dlq", ids=[id], receive=True)).counts.deleted == 1


def test_deleting_nothing_leaves_no_file(place: Place, service: DeadLetterService) -> None:
    dead_letter(place, 3)
    job = ended(service.delete(DLQ, "nowhere"))
    assert (job.state, job.result) == (State.DONE, {})
    assert list((service.state / "snapshots").iterdir()) == []
    chosen = sorted(ids(place))[:2]
    assert ended(service.delete(DLQ, ids=chosen)).counts.deleted == 2
    assert ids(place).isdisjoint(chosen)


def test_nothing_is_deleted_that_could_not_be_written_down(
    place: Place, service: DeadLetterService, tmp_path: Path
) -> None:
    dead_letter(place, 3)
    (tmp_path / "there.jsonl").write_text("mine\n")
    job = ended(service.delete(DLQ, all=True, snapshot=tmp_path / "there.jsonl"))
    assert (job.state, "exists already" in job.reason) == (State.FAILED, True)
    assert (tmp_path / "there.jsonl").read_text() == "mine\n"
    assert len(place.messages(DLQ, "visible")) == 3
    assert audited(service)[-1][1].startswith("failed: ")


def test_a_disk_that_fails_half_way_costs_no_message(
    place: Place, service: DeadLetterService, monkeypatch: pytest.MonkeyPatch, either: str
) -> None:
    dead_letter(place, 3)
    place.clock.advance(1)

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Audit, "write", lambda *_args, **_kwargs: None)  # it would notice first
    monkeypatch.setattr(os, "fsync", full)
    job = ended(service.delete(DLQ, all=True))
    assert (job.state, "No space left" in job.reason) == (State.FAILED, True)
    assert len(place.messages(DLQ, "visible")) == 3


class Killed(BaseException):
    pass


def at(point: str) -> Any:
    def crash(reached: str) -> None:
        if reached == point:
            raise Killed

    return crash


def test_a_delete_that_dies_before_it_deletes_and_its_restore_double_nothing(place: Place, tmp_path: Path) -> None:
    dead_letter(place, 8)
    before = shown(place)
    file = tmp_path / "deleted.jsonl"
    deleter = Deleter(open_access(place.client, DLQ), parse("$.n < 5"), file, crash=at("after_snapshot"))
    with pytest.raises(Killed):
        deleter.run(Job("delete", DLQ))
    assert len(file.read_text().splitlines()) == 5
    job = Job("restore", DLQ)
    Restorer(place.client, file, folder=tmp_path, clock=place.clock.now).run(job)
    assert (job.counts.sent, job.counts.skipped) == (0, 5)
    assert job.messages[0].text == f"skipped 5 messages still in {DLQ}"
    assert shown(place) == before


class PausedOnce(Job):
    """Paused before its second round, and resumed once it has noted what is in flight then."""

    def __init__(self, place: Place) -> None:
        super().__init__("delete", DLQ)
        self.in_flight: list[int] = []
        self._place, self._rounds = place, 0

    def checkpoint(self, before_pause: Callable[[], None] | None = None) -> None:
        self._rounds += 1
        if self._rounds == 2:
            assert before_pause is not None
            before_pause()
            self.in_flight.append(len(self._place.messages(DLQ, "in_flight")))
        super().checkpoint(before_pause)


def test_a_delete_that_is_paused_has_nothing_claimed(
    place: Place, either: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.dlq.delete.ROUND", 3)
    dead_letter(place, 12)
    place.clock.advance(1)
    job = PausedOnce(place)
    access = open_access(place.client, DLQ, clock=place.clock.now)
    job.run(Deleter(access, parse("$.n > 4"), tmp_path / "some.jsonl").run)
    assert (job.state, job.in_flight, job.counts.deleted) == (State.DONE, [0], 7)
    assert (job.counts.scanned, job.counts.matched) == (12, 7)
    assert len(place.messages(DLQ, "visible")) == 5


def test_old_snapshots_are_removed_and_those_of_the_last_months_are_kept(
    place: Place, service: DeadLetterService, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = service.state / "snapshots"
    folder.mkdir(parents=True)
    now = place.clock.now()
    for name, days in (("old", 91), ("older", 92), ("recent", 80), ("new", 1)):
        (folder / f"{name}.jsonl").write_text("{}\n")
        (folder / f"{name}.jsonl.restored").write_text("{}\n")
        os.utime(folder / f"{name}.jsonl", (now - days * 86_400,) * 2)
    dead_letter(place, 1)
    job = ended(service.delete(DLQ, all=True))
    mine = Path(job.result["snapshot"]).name
    assert {path.name for path in folder.glob("*.jsonl")} == {"recent.jsonl", "new.jsonl", mine}
    assert {path.name for path in folder.glob("*.restored")} == {"recent.jsonl.restored", "new.jsonl.restored"}
    monkeypatch.setattr(snapshots, "_KEPT_FILES", 2)
    dead_letter(place, 1)
    ended(service.delete(DLQ, all=True))
    assert len(list(folder.glob("*.jsonl"))) == 3  # the two newest, and the one that was then written


@pytest.mark.parametrize("point", ["before_restore_send", "after_restore_send"])
def test_a_restore_that_dies_is_finished_by_the_next_and_says_what_cannot_be_known(
    place: Place, service: DeadLetterService, tmp_path: Path, point: str
) -> None:
    dead_letter(place, 25)
    file = tmp_path / "all.jsonl"
    service.delete(DLQ, all=True, snapshot=file).wait(60)
    with pytest.raises(Killed):
        Restorer(place.client, file, folder=tmp_path, crash=at(point)).run(Job("restore", DLQ))
    job = ended(service.restore(file))
    assert job.state is State.DONE
    assert any("ended while it sent 10" in line.text for line in job.messages)
    keys = [row[0] for row in shown(place)]
    assert set(keys) == {f"o-{n}" for n in range(25)}
    # A Standard queue has nothing to tell a second sending by: those ten may be there twice, under their keys.
    assert len(keys) == (25 if point == "before_restore_send" else 35)


def test_a_fifo_queue_takes_each_restored_message_once(
    place: Place, service: DeadLetterService, tmp_path: Path
) -> None:
    place.queue("pay.fifo", dlq="pay-dlq.fifo")
    dead_letter(place, 6, "pay-dlq.fifo")
    file = tmp_path / "all.jsonl"
    assert ended(service.delete("pay-dlq.fifo", all=True, snapshot=file)).counts.deleted == 6
    with pytest.raises(Killed):
        Restorer(place.client, file, folder=tmp_path, crash=at("after_restore_send")).run(Job("restore", DLQ))
    ended(service.restore(file))
    assert [body["n"] for body in place.bodies("pay-dlq.fifo")] == list(range(6))
    groups = [message["Attributes"]["MessageGroupId"] for message in place.messages("pay-dlq.fifo")]
    assert groups == ["g0", "g1"] * 3


def test_messages_come_back_to_another_queue_or_from_a_stream(place: Place, service: DeadLetterService) -> None:
    dead_letter(place, 3)
    lines = list(service.lines(DLQ, all=True))
    place.client.create_queue("spare-dlq")
    assert ended(service.restore(lines, "spare-dlq")).counts.sent == 3
    assert ended(service.restore(iter(lines), "spare-dlq")).counts.sent == 0
    assert len(ids(place, "spare-dlq")) == 3
    with pytest.raises(SnapshotError, match="line 2"):
        service.restore([lines[0], b"junk\n"])
    assert ended(service.restore(lines, "nowhere")).state is State.FAILED


def test_a_file_is_restored_to_a_queue_of_work_only_if_somebody_names_that_queue(
    place: Place, service: DeadLetterService, tmp_path: Path
) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_bytes(snapshots.line(message(queue="orders"), at=0.0))
    job = ended(service.restore(file))
    assert (job.state, place.messages("orders")) == (State.FAILED, [])
    assert "messages.jsonl has messages for orders, which is not the dead-letter queue of any queue" in job.reason
    assert "--to orders" in job.reason
    assert ended(service.restore(file, "orders")).counts.sent == 1


def test_what_sqs_moved_keeps_its_source_and_id_through_delete_and_restore(
    place: Place, service: DeadLetterService
) -> None:
    first = place.send({"id": 1})
    queue = place.client.queue("orders")
    for _ in range(3):
        queue.receive(1, 0, visibility=0)
    (moved,) = service.messages(DLQ).messages
    assert (moved.source, moved.by_semel, moved.original_id) == ("orders", False, first)
    job = ended(service.delete(DLQ, all=True))
    ended(service.restore(Path(job.result["snapshot"])))
    (back,) = service.messages(DLQ).messages
    assert (back.source, back.by_semel, back.original_id, back.key) == ("orders", False, first, "")


# The log.


def test_the_audit_log_is_read_newest_first_and_filtered(tmp_path: Path) -> None:
    now = [1_000.0]
    log = Audit.at(tmp_path, clock=lambda: now[0])
    for n in range(900):
        now[0] += 1
        log.write("ann" if n % 2 else "bob", "drop", queue=f"q{n}", where="error ~ x" * 20, count=n, outcome="done")
    assert [entry.count for entry in log.entries(limit=3)] == [899, 898, 897]
    assert [entry.count for entry in log.entries("who = ann and count < 6")] == [5, 3, 1]
    assert [entry.queue for entry in log.entries("age <= 1s")] == ["q899", "q898"]
    assert len(list(log.entries("q899 or q179"))) == 2
    with pytest.raises(SemelError, match="there is no field 'eror'; the fields are who, action"):
        list(log.entries("eror = 5"))
    with log.path.open("ab") as file:
        file.write(b'{"at": 5, "who": "a half li')
    assert next(log.entries()).count == 899
    assert list(Audit.at(tmp_path / "empty").entries()) == []


def test_what_cannot_be_written_down_is_not_done(place: Place, service: DeadLetterService) -> None:
    dead_letter(place, 2)
    service.audit.path.mkdir()
    with pytest.raises(AuditError, match=f"^delete {DLQ}: not done, as it cannot be written to the audit log"):
        service.delete(DLQ, all=True)
    with pytest.raises(AuditError, match=r"^annotate: not done, as"):
        service.audit.write("ann", "annotate")
    assert len(ids(place)) == 2


def test_what_is_done_already_is_reported_though_its_end_cannot_be_written_down(
    place: Place, service: DeadLetterService, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letter(place, 2)
    write = Audit.write

    def full(log: Audit, who: str, action: str, **known: Any) -> Any:
        if known.get("outcome") != "begun":
            error = AuditError("no room")
            error.reason = "No space left on device"
            raise error
        return write(log, who, action, **known)

    monkeypatch.setattr(Audit, "write", full)
    sent = service.resend(DLQ, "m-0")
    assert (sent.deleted, "audit log: No space left" in sent.notes[-1]) == (True, True)
    job = ended(service.delete(DLQ, all=True))
    assert (job.state, job.counts.deleted) == (State.DONE, 1)
    assert any("No space left" in line.text for line in job.messages)
    assert service.export(DLQ, all=True).notes[-1].endswith("No space left on device")


def test_marks_are_kept_in_order_and_audited(service: DeadLetterService, place: Place) -> None:
    service.annotate("deployed  1.4.2\n")
    place.clock.advance(10)
    service.by("ann").annotate("rolled back")
    assert [(mark.text, mark.who) for mark in service.annotations()] == [
        ("deployed 1.4.2", "tester"),
        ("rolled back", "ann"),
    ]
    assert [mark.text for mark in service.annotations(since=place.clock.now() - 5)] == ["rolled back"]
    with pytest.raises(SemelError, match="an annotation needs a text"):
        service.annotate("  ")
    assert audited(service)[:4] == [("annotate", "begun", None), ("annotate", "done", None)] * 2
    assert [outcome.partition(":")[0] for _, outcome, _ in audited(service)[4:]] == ["begun", "failed"]
