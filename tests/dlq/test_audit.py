"""The audit log has an action before it begins and after it has ended. An action that cannot be logged is not done."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.dlq.audit import Audit, AuditError
from semel.errors import SemelError


def outcomes(audit: Audit) -> list[str]:
    """The oldest first."""
    return [entry.outcome for entry in audit.entries()][::-1]


def test_an_action_is_logged_before_it_begins_and_when_it_has_ended(tmp_path: Path) -> None:
    audit = Audit.at(tmp_path, clock=lambda: 5.0)
    with audit.around("ann", "send", queue="orders", where="x", job="j", to="there") as ending:
        assert outcomes(audit) == ["begun"]
        ending.count, ending.details["id"] = 1, "m-1"
    done, begun = audit.entries()
    assert (begun.outcome, begun.count, begun.details) == ("begun", None, {"to": "there"})
    assert (done.outcome, done.count, done.details) == ("done", 1, {"to": "there", "id": "m-1"})
    assert (done.at, done.who, done.action, done.queue, done.where, done.job) == (
        5.0,
        "ann",
        "send",
        "orders",
        "x",
        "j",
    )


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (SemelError("no such queue"), "failed: no such queue"),
        (ZeroDivisionError("by zero"), "failed: ZeroDivisionError: by zero"),
        (KeyboardInterrupt(), "interrupted: KeyboardInterrupt"),
        (SystemExit(1), "interrupted: SystemExit"),
        (GeneratorExit(), "interrupted: GeneratorExit"),
    ],
)
def test_every_kind_of_failure_is_logged_and_raised(tmp_path: Path, error: BaseException, outcome: str) -> None:
    audit = Audit.at(tmp_path)

    def fail() -> None:
        with audit.around("ann", "send") as ending:
            ending.count = 2
            raise error

    with pytest.raises(type(error)):
        fail()
    assert outcomes(audit) == ["begun", outcome]
    assert next(audit.entries()).count == 2


def test_what_cannot_be_logged_is_not_done(tmp_path: Path) -> None:
    audit, done = Audit.at(tmp_path), list[str]()
    audit.path.mkdir()
    with pytest.raises(AuditError, match=r"send orders: not done.*SEMEL_STATE"):
        with audit.around("ann", "send", queue="orders"):
            done.append("sent")
    assert done == []


def test_an_end_that_cannot_be_logged_is_reported_and_the_action_stays_done(tmp_path: Path) -> None:
    audit = Audit.at(tmp_path)
    with audit.around("ann", "send") as ending:
        audit.path.unlink()
        audit.path.mkdir()
    assert "could not be written to the audit log" in ending.problem


def test_entries_are_read_across_the_rotation_and_the_oldest_go_first(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl", max_bytes=2_000, keep=3)
    for number in range(300):
        audit.write("ann" if number % 2 else "bob", "delete", count=number)
    assert [entry.count for entry in audit.entries(limit=30)] == list(range(299, 269, -1))
    assert [entry.count for entry in audit.entries("who = ann", 15)] == list(range(299, 269, -2))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4 * 2_200


def test_a_line_that_was_cut_costs_neither_the_one_before_nor_the_next(tmp_path: Path) -> None:
    audit = Audit.at(tmp_path)
    audit.write("ann", "delete", count=1)
    with audit.path.open("ab") as file:
        file.write(b'{"at": 5, "who": "cut')
    audit.write("ann", "delete", count=2)
    assert [entry.count for entry in audit.entries()] == [2, 1]


@pytest.mark.parametrize("damage", [b'{"at": 1, "who": "\xff", "action": "x"}', b"[" * 5_000, b'{"at": 1, "wh'])
def test_a_damaged_line_costs_no_other_entry(tmp_path: Path, damage: bytes) -> None:
    audit = Audit.at(tmp_path)
    audit.write("ann", "send")
    with audit.path.open("ab") as file:
        file.write(damage + b"\n")
    audit.write("ann", "delete")
    assert [entry.action for entry in audit.entries()] == ["delete", "send"]
