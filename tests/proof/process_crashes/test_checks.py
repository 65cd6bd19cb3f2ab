"""The checks find every kind of violation, and excuse only what leases allow."""

from __future__ import annotations

import json
from pathlib import Path

from process_crashes import checks, evidence
from process_crashes.evidence import Evidence, Moment, Turn
from process_crashes.settings import ledger_key
from process_crashes.stores import EffectRow
from semel import Ledger, SqliteLedger
from semel.ledger.contract import Claim, ClaimRequest, Completion, Won


def turn(fence: int, began: float, ended: float | None, *, lease_ends: float, failed: bool = False) -> Turn:
    last = None if ended is None else Moment(ended, ended, lease_ends)
    return Turn("posted", "a", None, None, fence, 100 + fence, Moment(began, began, lease_ends), last, failed)


def claimed(ledger: Ledger, id_: str = "a", queue: str = "posted") -> Claim:
    (won,) = ledger.claim([ClaimRequest(ledger_key(queue, id_))], claimant=f"claimant-{id_}", lease=30)
    assert isinstance(won, Won)
    return won.claim


def test_a_holder_that_begins_within_the_lease_of_the_one_before_it_is_found() -> None:
    assert list(checks.two_holders([turn(1, 10, 12, lease_ends=14), turn(2, 11, 13, lease_ends=15)]))
    assert list(checks.two_holders([turn(1, 10, None, lease_ends=14), turn(2, 13, 14, lease_ends=17)]))


def test_one_fence_is_begun_once() -> None:
    assert list(checks.two_holders([turn(1, 10, 11, lease_ends=14), turn(1, 12, 13, lease_ends=14)]))


def test_a_zombie_that_goes_on_after_its_lease_is_no_second_holder() -> None:
    assert not list(checks.two_holders([turn(1, 10, 20, lease_ends=14), turn(2, 15, 16, lease_ends=19)]))
    assert not list(checks.two_holders([turn(1, 10, 11, lease_ends=14), turn(2, 12, 13, lease_ends=16)]))


def test_a_record_of_an_overtaken_worker_is_found(tmp_path: Path) -> None:
    with SqliteLedger(str(tmp_path / "ledger.db")) as ledger:
        assert ledger.record([Completion(claimed(ledger))]) == [True]
        (entry,) = ledger.get([ledger_key("posted", "a")])
        assert entry is not None
        now = entry.changed
        for wrong in (
            turn(1, now - 1, None, lease_ends=now + 3),  # it had not ended
            turn(1, now - 1, now + 1, lease_ends=now + 3),  # it ended after the record
            turn(1, now - 2, now - 1, lease_ends=now + 3, failed=True),
            turn(2, now - 2, now - 1, lease_ends=now + 3),  # it has a newer fence than the record
        ):
            wrong_evidence = Evidence(turns=[wrong], accepted={("posted", "a")})
            assert any(text.startswith("recorded") for text in checks.complaints(wrong_evidence, ledger)), wrong
        right = Evidence(turns=[turn(1, now - 2, now - 1, lease_ends=now + 3)], accepted={("posted", "a")})
        assert not checks.complaints(right, ledger)


def test_lost_doubled_and_unrecorded_orders_are_found_in_what_the_processes_wrote_down(tmp_path: Path) -> None:
    sends = [
        {"what": "accepted", "at": 1.0, "queue": "booked", "id": id_, "group": None, "place": None, "message_id": id_}
        for id_ in ("once", "twice", "never")
    ]
    (tmp_path / "producer-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in sends) + '{"what": "acc')
    rows = [
        EffectRow("booked", id_, None, None, 1, 7, at) for id_, at in (("once", 2.0), ("twice", 2.0), ("twice", 3.0))
    ]
    run_evidence = evidence.gather(tmp_path, rows)
    with SqliteLedger(str(tmp_path / "ledger.db")) as ledger:
        ledger.record([Completion(claimed(ledger, id_, "booked")) for id_ in ("once", "twice")])
        complaints = checks.complaints(run_evidence, ledger)
    assert [text.split(":")[0] for text in complaints] == ["lost", "doubled", "not recorded"]


def test_an_order_that_overtakes_one_of_its_group_is_found(tmp_path: Path) -> None:
    sends = [
        {"what": "accepted", "at": 1.0, "queue": "booked.fifo", "id": f"g-{n}", "group": "g", "place": n}
        | {"message_id": str(n)}
        for n in range(3)
    ]
    (tmp_path / "producer-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in sends))
    rows = [EffectRow("booked.fifo", f"g-{n}", "g", n, 1, 7, 2.0 + at) for at, n in enumerate((0, 2, 1))]
    (verdict, _) = checks.verdicts(evidence.gather(tmp_path, rows))
    assert [finding.key for finding in verdict.findings] == ["g-2"]
